// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/drainer"
)

// Obstacle is a problem, other than a blocked pod, that stops a maintenance or some of its nodes.
type Obstacle struct {
	// Maintenance is the name of the maintenance.
	Maintenance string
	// Reason is the reason of a condition of the maintenance. Message is the message of that
	// condition, or a text of the plugin.
	Reason, Message string
	// Since is the last transition of the condition; zero if no condition reports the obstacle.
	Since time.Time
	// Nodes are the affected nodes that are known.
	Nodes []string
	// podsListed is set if the blocked pods, with their owners, are listed separately.
	podsListed bool
}

// cordonedAfter is the time after which an uncordoned node counts as an obstacle: the server needs
// some time to cordon the nodes of a maintenance.
const cordonedAfter = 10 * time.Second

// action names the user or component that must act on an Obstacle, and a command that shows
// details.
type action struct{ who, look string }

// maintenances is the full name of the resource. Other projects have a resource with the same short
// name.
const maintenances = "nodemaintenances." + v1alpha1.GroupName

const (
	ownersOfBlocked  = "the owners of the blocked pods"
	evacuationsOfAll = "kubectl get evacuations." + v1alpha1.GroupName + " --all-namespaces"
)

// obstacleActions maps reasons of an Obstacle to actions. %s stands for the name of the
// maintenance.
var obstacleActions = map[string]action{
	v1alpha1.ReasonNotAuthorized: {
		wording.Administrator + ", who can grant the right to maintain the nodes or remove them from the selector", "kubectl maintenance preview %s",
	},
	v1alpha1.ReasonNodeNotCordoned: {
		wording.Administrator + ", who can correct what the message names, or remove the nodes from the selector",
		"kubectl describe " + maintenances + " %s",
	},
	v1alpha1.ReasonTooManyMaintenances: {
		wording.Administrator + ", who can complete maintenances of the nodes that are no longer needed",
		"kubectl get " + maintenances + " --sort-by=.metadata.creationTimestamp",
	},
	v1alpha1.ReasonPaused:             {"the user who paused it, who can resume it", "kubectl maintenance history %s"},
	v1alpha1.ReasonNoNodes:            {"the user who requested it, who can change the selector", "kubectl get " + maintenances + " %s -o wide"},
	v1alpha1.ReasonDrainBlocked:       {ownersOfBlocked, evacuationsOfAll},
	v1alpha1.ReasonProgressBlocked:    {ownersOfBlocked, evacuationsOfAll},
	v1alpha1.ReasonProgressStalled:    {wording.Administrator, "kubectl maintenance status %s -o wide"},
	v1alpha1.ReasonProgressSyncFailed: {wording.Administrator, "kubectl maintenance history %s"},
}

// Who returns the user or component that must act.
func (b *Obstacle) Who() string { return b.action().who }

// Look returns a command that shows details.
func (b *Obstacle) Look() string {
	look := b.action().look
	if !strings.Contains(look, "%s") {
		return look
	}
	return fmt.Sprintf(look, b.Maintenance)
}

func (b *Obstacle) action() action {
	if a, ok := obstacleActions[b.Reason]; ok {
		switch {
		case b.Reason == v1alpha1.ReasonProgressStalled && b.podsListed:
			a.who = ownersOfBlocked + ", and " + a.who
		case b.Reason == v1alpha1.ReasonNodeNotCordoned && strings.Contains(b.Message, wording.CordonFought):
			a.who = wording.Administrator + ", who can stop the client that uncordons the nodes, or remove them from the selector"
		}
		if b.Reason == v1alpha1.ReasonNodeNotCordoned && len(b.Nodes) > 0 {
			a.look = "kubectl describe node " + b.Nodes[0]
		}
		return a
	}
	return action{wording.Administrator, "kubectl describe " + maintenances + " %s"}
}

// drainedCondition returns the condition Drained of a maintenance in stage Drain. It returns nil in
// the other stages, in which the condition has no meaning.
func drainedCondition(nm *v1alpha1.NodeMaintenance) *metav1.Condition {
	if nm.Spec.Stage != v1alpha1.NodeMaintenanceStageDrain {
		return nil
	}
	return meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
}

// Obstacles returns the obstacles of a maintenance: the obstacles that its conditions report, and
// nodes that are not cordoned or not authorized. If blocked pods are listed separately, it omits
// conditions that only report blocked pods.
func Obstacles(nm *v1alpha1.NodeMaintenance, podsListed bool, now time.Time) []Obstacle {
	var out []Obstacle
	add := func(c *metav1.Condition) {
		blocked := c.Reason == v1alpha1.ReasonDrainBlocked || c.Reason == v1alpha1.ReasonProgressBlocked
		if blocked && (podsListed || len(out) > 0) {
			return
		}
		out = append(out, Obstacle{
			Maintenance: nm.Name, Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time, podsListed: podsListed,
		})
	}
	// SyncFailed may be an obstacle for some nodes while other nodes make progress.
	progressing := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing)
	if progressing != nil && (progressing.Status == metav1.ConditionFalse || progressing.Reason == v1alpha1.ReasonProgressSyncFailed) {
		add(progressing)
	}
	if drained := drainer.Stuck(nm); drained != nil && drained.Type == v1alpha1.ConditionDrained {
		add(drained)
	} else if drained = drainedCondition(nm); drained != nil && namesNodes(drained.Reason) {
		add(drained)
	}
	if !v1alpha1.IsHolding(nm) {
		return out
	}
	out = withNodes(out, nm, v1alpha1.ReasonNotAuthorized, v1alpha1.NodeStatusNotAuthorized, refusedText("these nodes"))
	out = withNodes(out, nm, v1alpha1.ReasonTooManyMaintenances, v1alpha1.NodeStatusTooManyMaintenances, "Too many other maintenances hold these nodes.")
	if at := v1alpha1.StageEntered(nm, v1alpha1.NodeMaintenanceStageCordon); !at.IsZero() && now.Sub(at) >= cordonedAfter {
		out = withNodes(out, nm, v1alpha1.ReasonNodeNotCordoned, v1alpha1.NodeStatusNotCordoned,
			"The scheduler may still bind pods to these nodes, so their pods are not evacuated yet.")
	}
	return withoutRepeated(out, nm)
}

// withoutRepeated removes SyncFailed if it only has the error about the node of another obstacle,
// which names the user who can act.
func withoutRepeated(obstacles []Obstacle, nm *v1alpha1.NodeMaintenance) []Obstacle {
	failed := slices.IndexFunc(obstacles, func(b Obstacle) bool { return b.Reason == v1alpha1.ReasonProgressSyncFailed })
	outside := slices.IndexFunc(obstacles, func(b Obstacle) bool {
		return b.Reason == v1alpha1.ReasonNodeNotCordoned || b.Reason == v1alpha1.ReasonTooManyMaintenances
	})
	if failed < 0 || outside < 0 || len(obstacles[outside].Nodes) != 1 || strings.Contains(obstacles[failed].Message, "; and ") {
		return obstacles
	}
	b := &obstacles[outside]
	at := slices.IndexFunc(nm.Status.NodeStatuses, func(n v1alpha1.NodeMaintenanceNodeStatus) bool { return n.NodeRef.Name == b.Nodes[0] })
	why, has := strings.CutPrefix(nm.Status.NodeStatuses[at].DrainMessage, plan.NotDrained)
	// The message of a node is cut if it is long.
	if why = strings.TrimRight(why, "…."); !has || why == "" || !strings.Contains(obstacles[failed].Message, why) {
		return obstacles
	}
	if b.Since.IsZero() {
		b.Since = obstacles[failed].Since
	}
	return slices.Delete(obstacles, failed, failed+1)
}

// messageOf returns what the server says about the first of the nodes with a reason; the given text
// if it says nothing.
func messageOf(nm *v1alpha1.NodeMaintenance, reason v1alpha1.NodeStatusReason, otherwise string) string {
	for i := range nm.Status.NodeStatuses {
		n := &nm.Status.NodeStatuses[i]
		if why, ok := whyOutside(n); n.Reason == reason && ok {
			return wording.Sentence(fmt.Sprintf("Node %s: %s", n.NodeRef.Name, why))
		}
	}
	return otherwise
}

// whyOutside returns what the server says about a node that a maintenance does not hold. The table
// and the causes name the node beside the text.
func whyOutside(n *v1alpha1.NodeMaintenanceNodeStatus) (why string, ok bool) {
	why, ok = strings.CutPrefix(n.DrainMessage, plan.NotDrained)
	if failure, cordons := strings.CutPrefix(why, "cordon node "+n.NodeRef.Name+": "); cordons {
		why = "cannot be cordoned: " + failure
	}
	return why, ok
}

// NodesFor returns the nodes of a maintenance that have a reason in their status.
func NodesFor(nm *v1alpha1.NodeMaintenance, reason v1alpha1.NodeStatusReason) []string {
	var nodes []string
	for i := range nm.Status.NodeStatuses {
		if n := &nm.Status.NodeStatuses[i]; n.Reason == reason {
			nodes = append(nodes, n.NodeRef.Name)
		}
	}
	return nodes
}

// namesNodes reports whether a reason of Drained is about individual nodes. Such a condition is
// shown in addition to Progressing.
func namesNodes(reason string) bool {
	return reason == v1alpha1.ReasonNotAuthorized || reason == v1alpha1.ReasonNodeNotCordoned || reason == v1alpha1.ReasonTooManyMaintenances
}

// withNodes adds the nodes with a reason to the obstacle of that reason. It creates the obstacle if
// no condition reports it.
func withNodes(
	obstacles []Obstacle, nm *v1alpha1.NodeMaintenance, reason string, ofNodes v1alpha1.NodeStatusReason, message string,
) []Obstacle {
	nodes := NodesFor(nm, ofNodes)
	if len(nodes) == 0 {
		return obstacles
	}
	at := slices.IndexFunc(obstacles, func(b Obstacle) bool { return b.Reason == reason })
	if at < 0 {
		obstacles = append(obstacles, Obstacle{Maintenance: nm.Name, Reason: reason, Message: messageOf(nm, ofNodes, message)})
		at = len(obstacles) - 1
	}
	obstacles[at].Nodes = slices.Sorted(slices.Values(nodes))
	return obstacles
}

// obstacleLines shows obstacles, and the user or component that must act.
func obstacleLines(obstacles []Obstacle, now time.Time, o Options) []screen.Line {
	var lines []screen.Line
	for i := range obstacles {
		b := &obstacles[i]
		title := b.Maintenance + ": " + b.Reason
		if !b.Since.IsZero() {
			title += " for " + ago(now, b.Since)
		}
		lines = append(lines, line(screen.Warning, "%s", title))
		lines = append(lines, wrap("  ", b.Message, o.columns(), screen.Plain)...)
		lines = append(lines, whoAndLook("  ", b.Who(), b.Look())...)
		if len(b.Nodes) > 0 {
			shown := o.cut(len(b.Nodes), podsShown)
			text := "nodes: " + strings.Join(b.Nodes[:shown], ", ")
			lines = append(lines, wrap("  ", text, o.columns(), screen.Plain)...)
			lines = append(lines, o.more(len(b.Nodes)-shown, "node", "  ")...)
		}
		lines = append(lines, screen.Line{})
	}
	return lines
}

// obstacleRows are obstacles as rows of BlockerTable: one row for each node, or one row without a
// node.
func obstacleRows(obstacles []Obstacle, now time.Time) [][]string {
	var rows [][]string
	for i := range obstacles {
		b := &obstacles[i]
		since := "-"
		if !b.Since.IsZero() {
			since = ago(now, b.Since)
		}
		nodes := b.Nodes
		if len(nodes) == 0 {
			nodes = []string{"-"}
		}
		for _, node := range nodes {
			rows = append(rows, []string{"-", "-", node, since, b.Reason, b.Who(), b.Maintenance + ": " + b.Message})
		}
	}
	return rows
}
