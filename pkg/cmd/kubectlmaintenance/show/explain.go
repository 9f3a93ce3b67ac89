// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/glance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// PodFacts are the known facts about a pod at one time.
type PodFacts struct {
	Namespace, Name string
	// Pod is nil if it no longer exists or the user may not read it; then Evacuation is set.
	Pod *corev1.Pod
	// Node is the node of the pod; "" if it has none or it is unknown.
	Node string
	// Evacuation is the latest Evacuation of the pod; nil if it has none.
	Evacuation *v1alpha1.Evacuation
	// Maintenances are those that have the node in their status and are not ending.
	Maintenances []PodMaintenance
	// MaintenancesUnknown and EvacuationsUnknown are set if the user may not list them.
	MaintenancesUnknown, EvacuationsUnknown bool
	// Notes describe reads that failed.
	Notes []string
	// Now is the time of the facts.
	Now time.Time
}

// PodMaintenance is a maintenance of the node of a pod.
type PodMaintenance struct {
	*v1alpha1.NodeMaintenance
	// Preview is nil if it could not be read.
	Preview *v1alpha1.NodeMaintenancePreview
}

// IsAsked reports whether the pod is asked to leave its node.
func (f *PodFacts) IsAsked() bool { return f.Evacuation != nil && !protocol.IsComplete(f.Evacuation) }

// HasLeft reports whether the pod has left its node: only its Evacuation is known.
func (f *PodFacts) HasLeft() bool { return f.Pod == nil && f.Evacuation != nil && !f.IsAsked() }

// Explain shows whether a pod is asked to leave, by whom, which evacuator is active and what blocks
// it; and otherwise why it is not asked.
func Explain(f PodFacts, o Options) []screen.Line {
	lines := []screen.Line{f.headline()}
	switch {
	case !f.IsAsked():
	case protocol.IsWithdrawn(f.Evacuation):
		lines = append(lines, plain("  The request to leave was withdrawn, and the evacuation ends."))
	default:
		text := fmt.Sprintf("Asked to leave %s ago by %s.", ago(f.Now, f.Evacuation.CreationTimestamp.Time), f.Requesters())
		lines = append(lines, wrap("  ", text, o.columns(), screen.Plain)...)
	}
	if f.Evacuation != nil {
		lines = append(lines, evacuationLines(f.Evacuation, f.Now, o)...)
	}
	lines = append(lines, f.maintenanceLines(o)...)
	if len(f.Notes) > 0 {
		lines = append(lines, screen.Line{})
	}
	for _, note := range f.Notes {
		lines = append(lines, wrap("", "note: "+note, o.columns(), screen.Warning)...)
	}
	if command := f.command(); command != "" {
		lines = append(lines, screen.Line{}, plain("%s", command))
	}
	return lines
}

func (f *PodFacts) headline() screen.Line {
	place := "no node"
	if f.Node != "" {
		place = f.Node
	}
	state, style := "not asked to leave", screen.Heading
	switch {
	case f.Evacuation != nil:
		state = string(glance.State(f.Evacuation))
		if Blocked(f.Evacuation) {
			style = screen.Warning
		}
	case f.EvacuationsUnknown:
		state = "you may not see whether it is asked to leave"
	case f.Pod != nil && f.Pod.DeletionTimestamp != nil:
		state += ", but it is being deleted"
	}
	return line(style, "%s/%s on %s: %s", f.Namespace, f.Name, place, state)
}

// draining returns the names of the maintenances that drain the node.
func (f *PodFacts) draining() []string {
	var names []string
	for _, m := range f.Maintenances {
		if v1alpha1.IsDraining(m.NodeMaintenance) {
			names = append(names, m.Name)
		}
	}
	return names
}

// maintenanceLines shows for each maintenance of the node why it does not ask the pod to leave, or
// will later.
func (f *PodFacts) maintenanceLines(o Options) []screen.Line {
	switch {
	case f.HasLeft():
		return nil
	case f.Node == "" && f.Evacuation == nil:
		return wrap("  ", "The pod is on no node, so no maintenance concerns it.", o.columns(), screen.Plain)
	case len(f.Maintenances) == 0 && !f.IsAsked() && !f.MaintenancesUnknown:
		return wrap("  ", fmt.Sprintf("No maintenance selects node %s.", f.Node), o.columns(), screen.Plain)
	}
	var lines []screen.Line
	ref := v1alpha1.PreviewPodReference{Namespace: f.Namespace, Name: f.Name, Node: f.Node}
	for _, m := range f.Maintenances {
		// What a maintenance does later is of no interest for a pod that is asked now.
		if f.IsAsked() && !v1alpha1.IsPaused(m.NodeMaintenance) {
			continue
		}
		lines = append(lines, wrap("  ", fmt.Sprintf("%s (stage %s): %s", m.Name, m.Spec.Stage, f.why(m, ref)), o.columns(), screen.Plain)...)
		if f.IsAsked() || m.Preview == nil || leftAlone(m.NodeMaintenance, f.Node) != "" {
			continue
		}
		if at, _, _ := findPod(m.Preview, ref); at.pod != nil {
			lines = append(lines, previewedBlockers(m.Preview, ref, at.pod.Blockers, o)...)
		}
	}
	return lines
}

// why returns the sentence that explains why a maintenance does not ask the pod to leave now.
func (f *PodFacts) why(m PodMaintenance, ref v1alpha1.PreviewPodReference) string {
	if text := leftAlone(m.NodeMaintenance, f.Node); text != "" {
		return text
	}
	later := ""
	switch {
	case v1alpha1.IsPaused(m.NodeMaintenance):
		later = fmt.Sprintf("It was paused %s, so it asks no further pod to leave. To continue: %s. ", PausedBy(m.NodeMaintenance, f.Now), protocol.ResumeCommand(m.NodeMaintenance))
	case m.Spec.Stage != v1alpha1.NodeMaintenanceStageDrain:
		later = fmt.Sprintf("No pod is asked to leave in this stage. To begin: kubectl maintenance stage %s Drain. ", m.Name)
	}
	switch {
	case f.IsAsked():
		return strings.TrimSpace(later)
	case m.Preview == nil:
		return later + "The wave of the pod is not known without a preview."
	}
	at, kept, cut := findPod(m.Preview, ref)
	switch {
	case kept != "":
		return later + fmt.Sprintf("The pod is kept on purpose: %s.", whyKept(kept))
	case at.pod == nil && cut:
		return later + "The preview is too long to list this pod."
	case at.pod == nil:
		return later + "No entry of the drain plan covers the pod, or it came to the node a moment ago."
	case completes(at.pod.Blockers):
		return later + fmt.Sprintf("The pod is in %s. The drain plan lets it complete.", at.text())
	case later != "" || at.before > 0:
		return later + fmt.Sprintf("The pod leaves in %s%s.", at.text(), at.waits())
	}
	return fmt.Sprintf("The pod is in %s, which is open: the server asks it to leave in a moment.", at.text())
}

// leftAlone returns the sentence about a node that a maintenance does not drain; "" if it does.
func leftAlone(nm *v1alpha1.NodeMaintenance, node string) string {
	at := slices.IndexFunc(nm.Status.NodeStatuses, func(n v1alpha1.NodeMaintenanceNodeStatus) bool { return n.NodeRef.Name == node })
	if at < 0 {
		return ""
	}
	switch entry := &nm.Status.NodeStatuses[at]; entry.Reason {
	case v1alpha1.NodeStatusNodeTaskInProgress:
		why, _ := whyOutside(entry)
		return wording.Sentence(fmt.Sprintf("It asks no pod of node %s to leave: %s", node, why))
	case v1alpha1.NodeStatusNotAuthorized:
		return refusedText("node " + node)
	case v1alpha1.NodeStatusNotCordoned:
		return fmt.Sprintf("Node %s is not cordoned yet, so no pod is asked to leave. To see who must act: kubectl maintenance blockers %s.", node, nm.Name)
	case v1alpha1.NodeStatusTooManyMaintenances:
		return fmt.Sprintf("Too many other maintenances hold node %s.", node)
	case v1alpha1.NodeStatusReleasing, v1alpha1.NodeStatusNotReleased:
		return fmt.Sprintf("It is releasing node %s.", node)
	}
	return ""
}

// refusedText says what a maintenance does with nodes that its requester may not maintain.
func refusedText(nodes string) string {
	return "The requester of the maintenance may not maintain " + nodes + ": Haulout changes no cordon there and asks no pod to leave."
}

// command returns the line with the command that asks a single pod to leave; "" if the pod is asked
// already, is on no node, or would come back to it, or if a drain of its node is paused.
func (f *PodFacts) command() string {
	if f.IsAsked() || f.Pod == nil || f.Node == "" || f.Pod.DeletionTimestamp != nil {
		return ""
	}
	// The command would go round the decision of the user who paused the drain.
	if slices.ContainsFunc(f.Maintenances, func(m PodMaintenance) bool { return v1alpha1.IsPaused(m.NodeMaintenance) }) {
		return ""
	}
	if ComesBack(f.Pod) != "" {
		return ""
	}
	return fmt.Sprintf("To ask this pod alone to leave: kubectl maintenance evacuate %s --namespace=%s", f.Name, f.Namespace)
}

// ComesBack returns why a pod that leaves its node would come back to it, unless a maintenance
// drains the node; "" if another pod may run elsewhere.
func ComesBack(pod *corev1.Pod) string {
	switch owner := metav1.GetControllerOf(pod); {
	case owner == nil:
		return ""
	case owner.Kind == "DaemonSet":
		return fmt.Sprintf("DaemonSet %s recreates the pod there", owner.Name)
	case owner.Kind == "Node":
		return "the kubelet runs a static pod there as long as it has the manifest"
	}
	return ""
}

// Requesters describes who requests the evacuation of the pod: "a user (kubectl maintenance
// evacuate) and NodeMaintenance kernel-update".
func (f *PodFacts) Requesters() string { return requesters(f.Evacuation, f.draining()) }

// NodeInPreview returns the node of a pod that a preview lists; "" if the preview does not list it.
func NodeInPreview(p *v1alpha1.NodeMaintenancePreview, namespace, name string) string {
	for _, wave := range p.Waves {
		for _, node := range wave.Nodes {
			for _, in := range node.Namespaces {
				isIt := func(pod v1alpha1.PreviewPod) bool { return in.Name == namespace && pod.Name == name }
				if slices.ContainsFunc(in.Pods, isIt) {
					return node.Name
				}
			}
		}
	}
	for _, kept := range p.PodsKept {
		for _, pod := range kept.Pods {
			if pod.Namespace == namespace && pod.Name == name {
				return pod.Node
			}
		}
	}
	return ""
}
