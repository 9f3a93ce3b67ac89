// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// endOfEvacuation returns the sentence about the end of an Evacuation; "" if it has not ended.
func endOfEvacuation(e *v1alpha1.Evacuation, now time.Time) string {
	complete := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionComplete)
	if complete == nil {
		return ""
	}
	at := ago(now, complete.LastTransitionTime.Time)
	switch glance.State(e) {
	case glance.StateGone:
		return fmt.Sprintf("The pod left node %s %s ago.", e.Spec.NodeName, at)
	case glance.StateEnded:
		return fmt.Sprintf("The pod ended by itself %s ago.", at)
	case glance.StateCancelled:
		return fmt.Sprintf("The evacuation was cancelled %s ago: the pod stays.", at)
	}
	return ""
}

// Evacuation shows the state of the evacuation of a pod: which evacuator is active, and what the
// pod waits for.
func Evacuation(e *v1alpha1.Evacuation, now time.Time, o Options) []screen.Line {
	lines := []screen.Line{line(screen.Heading, "%s/%s on %s: %s", e.Namespace, e.Spec.PodRef.Name, e.Spec.NodeName, glance.State(e))}
	return append(lines, evacuationLines(e, now, o)...)
}

// EvacuationSummary returns the state of an evacuation as one line.
func EvacuationSummary(e *v1alpha1.Evacuation) string {
	text := fmt.Sprintf("%s/%s: %s", e.Namespace, e.Spec.PodRef.Name, glance.State(e))
	switch c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked); {
	case protocol.IsComplete(e):
		return text
	case c != nil && Blocked(e):
		return text + ": " + cmp.Or(c.Message, c.Reason)
	case e.Status.Message != "":
		return text + ": " + e.Status.Message
	}
	return text
}

// evacuationLines shows which evacuator is active, its message, and what the pod waits for.
func evacuationLines(e *v1alpha1.Evacuation, now time.Time, o Options) []screen.Line {
	if end := endOfEvacuation(e, now); end != "" {
		return wrap("  ", end, o.columns(), screen.Plain)
	}
	var lines []screen.Line
	if t := protocol.TurnOf(&e.Status); t.Class != "" {
		text := "Active: " + handler(t.Class)
		switch {
		case t.Reported:
			text += fmt.Sprintf(" (last heartbeat %s ago)", ago(now, t.Since))
		case !t.Since.IsZero():
			text += fmt.Sprintf(" (for %s)", ago(now, t.Since))
		}
		if t.Class != v1alpha1.EvacuatorClassEviction {
			text += ". Next: " + handler(protocol.Next(e.Spec.Evacuators, t.Class))
		}
		lines = append(lines, wrap("  ", text+".", o.columns(), screen.Plain)...)
	}
	if e.Status.Message != "" {
		lines = append(lines, wrap("  ", e.Status.Message, o.columns(), screen.Plain)...)
	}
	c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked)
	if c == nil || c.Message == "" {
		return lines
	}
	b := Blocker{
		Namespace: e.Namespace, Pod: e.Spec.PodRef.Name, Node: e.Spec.NodeName, Reason: c.Reason, Message: c.Message,
		evacuator: e.Status.ActiveEvacuatorClass,
	}
	if !Blocked(e) {
		return append(lines, wrap("  ", c.Message, o.columns(), screen.Plain)...)
	}
	lines = append(lines, screen.Line{}, line(screen.Warning, "BLOCKED  %s for %s", c.Reason, ago(now, c.LastTransitionTime.Time)))
	lines = append(lines, wrap("  ", c.Message, o.columns(), screen.Plain)...)
	return append(lines, whoAndLook("  ", b.Who(), b.Look())...)
}

// instigators describes the instigators of an evacuation: "a NodeMaintenance and a user".
func instigators(names []string) string {
	var by []string
	for _, name := range names {
		switch name {
		case protocol.InstigatorManual:
			by = append(by, "a user (kubectl maintenance evacuate)")
		case v1alpha1.InstigatorNodeMaintenance:
			by = append(by, "a NodeMaintenance")
		case v1alpha1.InstigatorRawEviction:
			by = append(by, "an eviction by another client")
		default:
			by = append(by, "the instigator "+name)
		}
	}
	return strings.Join(by, " and ")
}

// requesters describes who requests an evacuation. draining are the names of the maintenances that
// drain the node.
func requesters(e *v1alpha1.Evacuation, draining []string) string {
	text := instigators(protocol.Instigators(e.Finalizers))
	if len(draining) > 0 {
		// Not all of them need have reached the wave of the pod.
		by := "NodeMaintenance " + draining[0]
		if len(draining) > 1 {
			by = "one of the NodeMaintenances " + strings.Join(draining, ", ")
		}
		text = strings.Replace(text, "a NodeMaintenance", by, 1)
	}
	return text
}

// previewedBlockers shows the problems that a preview predicts for a pod.
func previewedBlockers(p *v1alpha1.NodeMaintenancePreview, pod v1alpha1.PreviewPodReference, reasons []string, o Options) []screen.Line {
	var lines []screen.Line
	for i := range p.Blockers {
		b := &p.Blockers[i]
		if !affects(b, pod, reasons) {
			continue
		}
		effect := effects[b.Effect]
		lines = append(lines, screen.Line{}, line(effect.style, "%s  %s", headingOf(b.Effect, p.Name), b.Reason))
		lines = append(lines, wrap("  ", b.Message, o.columns(), screen.Plain)...)
		if b.Effect != v1alpha1.PreviewEffectDelayed {
			blocker := Blocker{Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Node, Reason: b.Reason, Message: b.Message}
			lines = append(lines, whoAndLook("  ", blocker.Who(), blocker.Look())...)
		}
	}
	return lines
}

// headingOf returns the heading above a problem that a preview predicts.
func headingOf(effect v1alpha1.PreviewEffect, maintenance string) string {
	switch effect {
	case v1alpha1.PreviewEffectLost:
		return "WILL NOT BE RECREATED AFTER " + maintenance
	case v1alpha1.PreviewEffectUnasked:
		return "NOT ASKED BY " + maintenance
	}
	return "IN THE WAY OF " + maintenance
}

// affects reports whether a blocker of a preview is about a pod. The list of its pods may be cut:
// then the reason is compared, in the namespace of the pod.
func affects(b *v1alpha1.PreviewBlocker, pod v1alpha1.PreviewPodReference, reasons []string) bool {
	sameNamespace, hasReason := false, false
	for _, listed := range b.Pods {
		if listed == pod {
			return true
		}
		sameNamespace = sameNamespace || listed.Namespace == pod.Namespace
	}
	for _, reason := range reasons {
		hasReason = hasReason || reason == b.Reason
	}
	return hasReason && sameNamespace && b.PodsOmitted > 0
}

// previewedWave is the place of a pod in a preview.
type previewedWave struct {
	wave *v1alpha1.PreviewWave
	pod  *v1alpha1.PreviewPod
	// before is the number of pods in earlier waves.
	before int32
}

// findPod returns the place of a pod in a preview, or the reason why it is kept. Both are empty if
// the preview does not list the pod. cut is set if the preview has omitted pods.
func findPod(p *v1alpha1.NodeMaintenancePreview, ref v1alpha1.PreviewPodReference) (at previewedWave, kept string, cut bool) {
	before := int32(0)
	for i := range p.Waves {
		w := &p.Waves[i]
		cut = cut || w.PodsOmitted > 0
		for _, node := range w.Nodes {
			for _, namespace := range node.Namespaces {
				for j := range namespace.Pods {
					if node.Name == ref.Node && namespace.Name == ref.Namespace && namespace.Pods[j].Name == ref.Name {
						return previewedWave{w, &namespace.Pods[j], before}, "", false
					}
				}
			}
		}
		before += w.PodCount
	}
	for _, left := range p.PodsKept {
		cut = cut || left.PodsOmitted > 0
		for _, pod := range left.Pods {
			if pod == ref {
				return previewedWave{}, left.Reason, false
			}
		}
	}
	return previewedWave{}, "", cut
}

// text describes the wave: "wave 2 (system-cluster-critical)".
func (w previewedWave) text() string {
	entry := v1alpha1.DrainPlanEntry{PodType: w.wave.PodType, PodPriority: w.wave.PodPriority, PodSelector: w.wave.PodSelector}
	return fmt.Sprintf("wave %d (%s)", w.wave.Index+1, Entry(entry))
}

// waits describes what the wave waits for; "" if it is the first one.
func (w previewedWave) waits() string {
	if w.before == 0 {
		return ""
	}
	return fmt.Sprintf("; %s of earlier waves must leave first", wording.Count(w.before, "pod"))
}
