// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/drain/plan"
)

var effects = map[v1alpha1.PreviewEffect]struct {
	text, short string
	style       screen.Style
}{
	v1alpha1.PreviewEffectNever:   {"cannot leave until a user acts", "never leaves", screen.Bad},
	v1alpha1.PreviewEffectNotNow:  {"cannot leave now, but may later without an action", "not now", screen.Warning},
	v1alpha1.PreviewEffectLost:    {"will leave and will not be recreated", "not recreated", screen.Warning},
	v1alpha1.PreviewEffectUnasked: {"will leave without a step that they ask for", "without a step", screen.Warning},
	v1alpha1.PreviewEffectDelayed: {"will leave in groups", "in turns", screen.Plain},
}

// completes reports whether the blockers of a pod in a preview include that the drain plan lets it
// complete.
func completes(blockers []string) bool {
	return slices.Contains(blockers, v1alpha1.ReasonProgressWaitingForCompletion)
}

// Preview shows the predicted course of a drain: the blockers first, then the waves with the
// evacuators of each pod, then the pods that are kept.
func Preview(p *v1alpha1.NodeMaintenancePreview, o Options) []screen.Line {
	completing := ""
	if p.PodsWaitingCount > 0 {
		completing = fmt.Sprintf(", %d of them may complete first", p.PodsWaitingCount)
	}
	lines := []screen.Line{line(screen.Heading, "%s will leave %s%s, %d will be kept. Nothing was changed.",
		wording.Count(p.PodCount, "pod"), wording.Count(p.NodeCount, "node"), completing, p.PodsKeptCount), {}}
	if p.Stage == v1alpha1.NodeMaintenanceStageComplete {
		lines[0] = line(screen.Heading, "%s is complete: no pod has to leave.", p.Name)
	}
	if len(p.Blockers) > 0 {
		lines = append(lines, line(screen.Heading, "IN THE WAY"))
		for i := range p.Blockers {
			lines = append(lines, previewBlocker(&p.Blockers[i], o)...)
		}
		lines = append(lines, o.more(int(p.BlockersOmitted), "blocker", "  ")...)
		lines = append(lines, screen.Line{})
	}
	lines = append(lines, previewWaves(p, o)...)
	lines = append(lines, previewRest(p, o)...)
	for len(lines) > 1 && lines[len(lines)-1].Text == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// Blocks reports whether a preview predicts that the drain will need an action of a user.
func Blocks(p *v1alpha1.NodeMaintenancePreview) bool {
	for i := range p.Blockers {
		if p.Blockers[i].Effect == v1alpha1.PreviewEffectNever {
			return true
		}
	}
	return p.NodesRefused > 0
}

// warningsShown is the maximum number of blockers that are printed before a drain begins.
const warningsShown = 8

// PreviewWarnings shows the blockers of a drain that is about to begin. It omits pods whose budget
// only splits the drain into groups, which is normal.
func PreviewWarnings(p *v1alpha1.NodeMaintenancePreview, name string, o Options) []screen.Line {
	var lines []screen.Line
	count := 0
	for i := range p.Blockers {
		b := &p.Blockers[i]
		if b.Effect == v1alpha1.PreviewEffectDelayed && len(b.Budgets) > 0 {
			continue
		}
		if count++; count <= warningsShown {
			lines = append(lines, previewBlocker(b, o)...)
		}
	}
	if rest := count - warningsShown + int(p.BlockersOmitted); count > warningsShown {
		lines = append(lines, line(screen.Faint, "  %s %s (kubectl maintenance preview %s)", o.ellipsis(), wording.Count(rest, "more cause"), name))
	}
	if p.NodesRefused > 0 {
		lines = append(lines, line(screen.Bad,
			"  NotAuthorized: the requester may not maintain %s; Haulout will neither cordon nor drain these", wording.Count(p.NodesRefused, "node")))
	}
	if len(lines) == 0 {
		return nil
	}
	return append([]screen.Line{line(screen.Heading, "THE PREVIEW FOUND")}, lines...)
}

func previewBlocker(b *v1alpha1.PreviewBlocker, o Options) []screen.Line {
	effect, known := effects[b.Effect]
	if !known {
		effect.text = string(b.Effect)
	}
	if b.Effect == v1alpha1.PreviewEffectDelayed && b.Reason == v1alpha1.ReasonProgressWaitingForCompletion {
		effect.text = "may complete first"
	}
	lines := []screen.Line{line(effect.style, "  %s: %s %s", b.Reason, wording.Count(b.PodCount, "pod"), effect.text)}
	lines = append(lines, wrap("    ", b.Message, o.columns(), screen.Plain)...)
	if len(b.Pods) == 0 {
		return lines
	}
	if b.Effect != v1alpha1.PreviewEffectDelayed {
		first := Blocker{Namespace: b.Pods[0].Namespace, Pod: b.Pods[0].Name, Node: b.Pods[0].Node, Reason: b.Reason, Message: b.Message}
		lines = append(lines, whoAndLook("    ", first.Who(), first.Look())...)
	}
	const podsShown = 5
	shown := o.cut(len(b.Pods), podsShown)
	names := make([]string, 0, shown)
	for _, pod := range b.Pods[:shown] {
		names = append(names, fmt.Sprintf("%s/%s (%s)", pod.Namespace, pod.Name, pod.Node))
	}
	if rest := int(b.PodCount) - shown; rest > 0 {
		names = append(names, fmt.Sprintf("and %d more", rest))
	}
	return append(lines, wrap("    ", "pods: "+strings.Join(names, ", "), o.columns(), screen.Faint)...)
}

func handler(class string) string {
	switch class {
	case v1alpha1.EvacuatorClassEviction:
		return "eviction"
	case "":
		return "no evacuator"
	}
	return class
}

func handlers(pod *v1alpha1.PreviewPod) string {
	switch {
	case completes(pod.Blockers):
		return "-"
	case len(pod.EvacuatorClasses) == 0:
		return handler("")
	}
	names := make([]string, 0, len(pod.EvacuatorClasses))
	for _, class := range pod.EvacuatorClasses {
		names = append(names, handler(class))
	}
	return strings.Join(names, ", then ")
}

// keptBecause explains the reasons of the API why pods are kept.
var keptBecause = map[string]string{
	string(plan.KeptDaemonSet):               "DaemonSet pods would be recreated on the node",
	string(plan.KeptSkipped):                 "the drain plan keeps these pods (behavior Skip)",
	string(plan.KeptStatic):                  "no evacuator can stop static pods on the node",
	keptStatic(protocol.KeptControlPlane):    "static pods of the control plane keep running",
	keptStatic(protocol.KeptServesAPI):       "the kubelet may reach the API server through these static pods",
	keptStatic(protocol.KeptByConfiguration): "the configuration of the node agent keeps these static pods",
	keptStatic(protocol.KeptUndecided):       "the node agent cannot determine the purpose of these static pods",
	keptStatic(protocol.KeptUnpublished):     "the node agent has not reported yet which static pods it keeps",
}

func keptStatic(reason protocol.KeptReason) string {
	return fmt.Sprintf("%s (%s)", plan.KeptStatic, reason)
}

// whyKept explains why a pod is kept on its node.
func whyKept(reason string) string { return cmp.Or(keptBecause[reason], reason) }

// previewRest lists the pods that are kept, other maintenances on the nodes, and nodes that are not
// authorized.
func previewRest(p *v1alpha1.NodeMaintenancePreview, o Options) []screen.Line {
	var lines []screen.Line
	static := 0
	for _, left := range p.PodsKept {
		// The reason is "static pod" or "static pod (…)" with the cause.
		if strings.HasPrefix(left.Reason, "static pod") {
			static += int(left.PodCount)
		}
		lines = append(lines, plain("KEPT  %s: %s", wording.Count(left.PodCount, "pod"), whyKept(left.Reason)))
		if o.Wide {
			for _, pod := range left.Pods {
				lines = append(lines, line(screen.Faint, "  %s/%s (%s)", pod.Namespace, pod.Name, pod.Node))
			}
			lines = append(lines, o.omitted(int(left.PodsOmitted), "of a reason")...)
		}
	}
	if static > 0 {
		lines = append(lines, plain("%s", wording.Sentence(wording.StaticPodsKept(static))))
	}
	for _, other := range p.Maintenances {
		text := fmt.Sprintf("OTHER MAINTENANCE  %s in stage %s holds %s of these", other.Name, other.Stage, wording.Count(other.NodeCount, "node"))
		if other.NodesFastForwarded > 0 {
			text += fmt.Sprintf(" and is at a later wave on %d", other.NodesFastForwarded)
		}
		lines = append(lines, line(screen.Warning, "%s", text))
	}
	for i := range p.Nodes {
		if n := &p.Nodes[i]; n.Refused {
			lines = append(lines, line(screen.Bad, "NOT AUTHORIZED  node %s: %s", n.Name, n.Message))
		}
	}
	if p.NodesUnchecked > 0 {
		lines = append(lines, line(screen.Faint, "The right to maintain %s was not checked; the drain checks it.", wording.Count(p.NodesUnchecked, "node")))
	}
	return lines
}
