// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/admission/taskwarning"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
)

const (
	// warningsAtMost and warningLength limit the warnings of a response; kubectl prints one warning
	// per line.
	warningsAtMost = 8
	warningLength  = 120

	// messageBytes is the maximum stored size of a message about a node.
	messageBytes = 128
)

// write is the input of warners: a maintenance as it will be stored, and the effect of the write on
// nodes.
type write struct {
	nm *maintenance.NodeMaintenance
	*change
}

// warner returns warnings about one kind of problem. An error in a warner never makes the request
// fail.
type warner func(context.Context, *write) []string

func (p *Plugin) warnings(ctx context.Context, w *write) []string {
	var texts []string
	for _, warn := range p.warners {
		for _, text := range warn(ctx, w) {
			texts = append(texts, cut(text))
		}
	}
	return texts[:min(len(texts), warningsAtMost)]
}

// warnOfServerNode warns that the drain includes the node of the server itself.
func (p *Plugin) warnOfServerNode(_ context.Context, w *write) []string {
	runsHere := func(node *corev1.Node) bool { return node.Name == p.nodeName }
	if p.nodeName == "" || !slices.ContainsFunc(w.selected, runsHere) {
		return nil
	}
	return []string{"spec.nodeSelector: the Haulout server itself runs on node " + p.nodeName}
}

// warnOfExtent warns of selectors that match all nodes or none.
func warnOfExtent(_ context.Context, w *write) []string {
	var texts []string
	selected := len(w.selected)
	controlPlane := len(controlPlaneOf(w.all, nil))
	switch {
	case selected == 0:
		text := "spec.nodeSelector: no node matches now; existing nodes that match later join the maintenance"
		if w.nm.Spec.NewNodes == maintenance.NewNodesPolicyJoin {
			text = "spec.nodeSelector: no node matches now; nodes that match later join the maintenance"
		}
		return []string{text}
	case selected == len(w.all):
		texts = append(texts, fmt.Sprintf("spec.nodeSelector: all nodes of the cluster match (%d)", selected))
	}
	if controlPlane > 0 && len(controlPlaneOf(w.selected, nil)) == controlPlane {
		texts = append(texts, fmt.Sprintf("spec.nodeSelector: all control-plane nodes match (%d)", controlPlane))
	}
	return texts
}

// warnOfControlPlane warns if a drain, alone or together with others, affects more than one
// control-plane node. The static pods of these nodes are kept until the machines stop.
func (p *Plugin) warnOfControlPlane(ctx context.Context, w *write) []string {
	if w.nm.Spec.Stage != maintenance.NodeMaintenanceStageDrain {
		return nil
	}
	own := controlPlaneOf(w.selected, nil)
	switch len(own) {
	case 0:
		return nil
	case 1:
	default:
		return []string{listNames("spec.nodeSelector: drains more than one control-plane node: ", slices.Sorted(maps.Keys(own)))}
	}
	elsewhere := controlPlaneOf(w.all, own)
	names := p.othersOn(ctx, w, elsewhere, v1alpha1.IsDraining)
	if len(names) == 0 {
		return nil
	}
	return []string{listNames("spec.nodeSelector: other control-plane nodes are drained by ", names)}
}

// controlPlaneOf returns the control-plane nodes by name, except those in except.
func controlPlaneOf(nodes []*corev1.Node, except map[string]*corev1.Node) map[string]*corev1.Node {
	found := map[string]*corev1.Node{}
	for _, node := range nodes {
		if protocol.IsControlPlane(node) && except[node.Name] == nil {
			found[node.Name] = node
		}
	}
	return found
}

// warnOfOthers warns of other maintenances that already hold some of the nodes.
func (p *Plugin) warnOfOthers(ctx context.Context, w *write) []string {
	names := p.othersOn(ctx, w, byNameOf(w.selected), v1alpha1.IsHolding)
	if len(names) == 0 {
		return nil
	}
	return []string{listNames("spec.nodeSelector: nodes are already under maintenance by ", names)}
}

// othersOn returns the sorted names of the other maintenances that satisfy a condition and select
// one of the nodes.
func (p *Plugin) othersOn(ctx context.Context, w *write, nodes map[string]*corev1.Node, matches func(*v1alpha1.NodeMaintenance) bool) []string {
	others, err := p.Maintenances.List(labels.Everything())
	if err != nil {
		return nil
	}
	var names []string
	for _, other := range others {
		if !matches(other) || other.Name == w.nm.Name {
			continue
		}
		if shared, err := selectedBy(ctx, other, nodes, v1alpha1.IsBeingReleased); err == nil && len(shared) > 0 {
			names = append(names, other.Name)
		}
	}
	slices.Sort(names)
	return names
}

// groupLabels are the labels that name the group of a node in the common autoscalers and cloud
// providers.
var groupLabels = []string{
	"karpenter.sh/nodepool",
	"eks.amazonaws.com/nodegroup",
	"cloud.google.com/gke-nodepool",
	"kubernetes.azure.com/agentpool",
	"cluster.x-k8s.io/owner-name",
	"worker.gardener.cloud/pool",
	"doks.digitalocean.com/node-pool",
	"oci.oraclecloud.com/node.pool.id",
}

// warnOfGroups warns of a maintenance that would also drain all new nodes that an autoscaler adds.
func warnOfGroups(_ context.Context, w *write) []string {
	if w.nm.Spec.NewNodes != maintenance.NewNodesPolicyJoin {
		return nil
	}
	for _, label := range groupLabels {
		for _, node := range w.selected {
			if _, ok := node.Labels[label]; ok {
				return []string{"spec.newNodes: Join also drains nodes that an autoscaler adds to groups of " + label}
			}
		}
	}
	return nil
}

// warnOfTask warns of tasks that no worker can finish, and of nodes that need no work: users who
// drain nodes by hand have chosen these nodes, so all of them are drained.
func warnOfTask(_ context.Context, w *write) []string {
	if w.nm.Spec.Task == nil {
		return nil
	}
	task := &v1alpha1.NodeMaintenanceTask{}
	if v1alpha1.Convert_maintenance_NodeMaintenanceTask_To_v1alpha1_NodeMaintenanceTask(w.nm.Spec.Task, task, nil) != nil {
		return nil
	}
	texts := taskwarning.Of("spec.task", task, w.selected)
	if name := taskwarning.NodeAtGoal(task, w.selected); name != "" {
		texts = append(texts, fmt.Sprintf("spec.task.doneWhen: it is true for node %s, which is drained all the same", name))
	}
	return texts
}

// warnOfStatusSize warns if the status may have no room for the messages of individual nodes.
func warnOfStatusSize(_ context.Context, w *write) []string {
	versioned := &v1alpha1.NodeMaintenance{}
	if v1alpha1.Convert_maintenance_NodeMaintenance_To_v1alpha1_NodeMaintenance(w.nm, versioned, nil) != nil {
		return nil
	}
	estimate := size.StatusBytes(versioned.Spec.DrainPlan, len(w.selected)) + size.TaskBytes(versioned.Spec.Task, len(w.selected)) +
		messageBytes*len(w.selected)
	if estimate <= size.MaxStatusBytes {
		return nil
	}
	return []string{fmt.Sprintf("spec.drainPlan: the status of %d nodes may take %.1f MiB; messages of individual nodes may be omitted",
		len(w.selected), float64(estimate)/(1<<20))}
}

// warnOfUncordon warns of a maintenance that never held its nodes and goes to stage Complete, which
// makes them schedulable (KEP-4212, section "NodeMaintenance"), if other clients have cordoned some
// of the nodes.
func warnOfUncordon(nm, old *maintenance.NodeMaintenance, c *change) []string {
	if nm == nil || nm.Spec.Stage != maintenance.NodeMaintenanceStageComplete || old != nil && old.Spec.Stage != maintenance.NodeMaintenanceStageIdle {
		return nil
	}
	var names []string
	for name, node := range c.leaving {
		if node != nil && marks.IsCordonedByOthers(node) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return []string{listNames("spec.stage: from Idle to Complete also uncordons nodes that others cordoned: ", names)}
}

// listNames appends as many names as fit into a warning, and the number of the omitted names.
func listNames(prefix string, names []string) string {
	for n := min(len(names), warningLength/3); n > 1; n-- {
		text := prefix + strings.Join(names[:n], ", ")
		if left := len(names) - n; left > 0 {
			text += fmt.Sprintf(" and %d more", left)
		}
		if utf8.RuneCountInString(text) <= warningLength {
			return text
		}
	}
	if len(names) > 1 {
		return cutTo(prefix+names[0], warningLength-16) + fmt.Sprintf(" and %d more", len(names)-1)
	}
	return cut(prefix + names[0])
}

func cut(text string) string { return cutTo(text, warningLength) }

func cutTo(text string, length int) string {
	if utf8.RuneCountInString(text) <= length {
		return text
	}
	return string([]rune(text)[:length-1]) + "…"
}
