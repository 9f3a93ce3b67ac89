// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// conditionTypes are the conditions that this controller may add to nodes, in the order in which it
// writes them.
var conditionTypes = []corev1.NodeConditionType{
	v1alpha1.NodeConditionMaintenancePlanned,
	v1alpha1.NodeConditionMaintenanceInProgress,
	v1alpha1.NodeConditionDrainInProgress,
	v1alpha1.NodeConditionDrained,
}

// holder is a maintenance that a node's conditions are about.
type holder struct {
	name, reason string
	uid          types.UID
	stage        v1alpha1.NodeMaintenanceStage
	// refused is set if the requester may no longer delete the node. The node then stays cordoned,
	// but the drain stops.
	refused bool
	// plan selects the pods to drain in stage Drain, and rules has those among them that the plan
	// keeps. left is set if the node has, or may have, other pods that plan selects.
	plan  drainplan.Targets
	rules *drainplan.Rules
	left  bool
	// inHands is set if a worker has the node, so that its pods do not decide whether it is
	// drained.
	inHands bool
}

// covers reports whether the maintenance drains a pod or lets it complete.
func (h *holder) covers(pod drainplan.Pod) bool { return h.plan.Cover(pod) && !h.rules.Skips(pod) }

// ours returns a condition of the node if this server wrote it: the annotation records it, and its
// reason still has our prefix.
func ours(record marks.Conditions, node *corev1.Node, conditionType corev1.NodeConditionType) *corev1.NodeCondition {
	condition := conditionOf(node, conditionType)
	if condition == nil || !slices.Contains(record.Conditions, conditionType) || !strings.HasPrefix(condition.Reason, v1alpha1.NodeReasonPrefix) {
		return nil
	}
	return condition
}

// kubectlReason is the prefix of the reasons of conditions that kubectl drain writes (KEP-5683).
const kubectlReason = "KubectlDrain"

// isForeign reports whether another client owns a condition of the node. A condition that kubectl
// drain has left has no owner: kubectl never updates it again, and a script that reads
// Drained=True would switch the machine off while a later maintenance still drains the node. So a
// maintenance that drains the node takes it over.
func isForeign(record marks.Conditions, node *corev1.Node, conditionType corev1.NodeConditionType, drain drainState) bool {
	condition := conditionOf(node, conditionType)
	if condition == nil || ours(record, node, conditionType) != nil {
		return false
	}
	aboutDrain := conditionType == v1alpha1.NodeConditionDrainInProgress || conditionType == v1alpha1.NodeConditionDrained
	return drain == drainNone || !aboutDrain || !strings.HasPrefix(condition.Reason, kubectlReason)
}

func conditionOf(node *corev1.Node, conditionType corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == conditionType {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// conditionsChange is a change of a node's status. The zero value changes nothing.
type conditionsChange struct {
	set    []corev1.NodeCondition
	remove []corev1.NodeConditionType
	// record is the desired annotation if setRecord is true. An empty record removes the
	// annotation.
	record    marks.Conditions
	setRecord bool
	// wait is the time after which to decide again without an event, 0 for never.
	wait time.Duration
	// news are the events to send after the write.
	news []conditionNews
}

func (c conditionsChange) empty() bool { return len(c.set) == 0 && len(c.remove) == 0 && !c.setRecord }

type conditionNews struct {
	reason, action, note string
	name                 string
	uid                  types.UID
}

// decideConditions returns the change of a node's conditions. holders are sorted by name.
// Conditions of other clients do not change, except those that isForeign describes.
func decideConditions(node *corev1.Node, before marks.Conditions, holders []holder, now metav1.Time) conditionsChange {
	var change conditionsChange
	drain := drainOf(holders)
	if drained := ours(before, node, v1alpha1.NodeConditionDrained); drain == drainDone && drained != nil && drained.Reason == v1alpha1.NodeReasonPodsReturned {
		// The clock of a previous leader may have been ahead.
		if wait := returnPatience - now.Sub(drained.LastTransitionTime.Time); wait > 0 && wait <= returnPatience {
			drain, change.wait = drainGoesOn, wait
		}
	}
	after := marks.Conditions{Conditions: []corev1.NodeConditionType{}, Maintenances: map[string]marks.Recorded{}}
	for _, h := range holders {
		after.Maintenances[h.name] = marks.Recorded{UID: h.uid, Stage: h.stage}
	}
	wanted := wantedConditions(node, before, holders, drain)
	for _, conditionType := range conditionTypes {
		current, want := ours(before, node, conditionType), wanted[conditionType]
		switch {
		case isForeign(before, node, conditionType, drain):
		case want.status == "":
			if current != nil {
				change.remove = append(change.remove, conditionType)
			}
		default:
			after.Conditions = append(after.Conditions, conditionType)
			if current == nil || current.Status != want.status || current.Reason != want.reason || current.Message != want.message {
				next := corev1.NodeCondition{
					Type: conditionType, Status: want.status, Reason: want.reason, Message: want.message, LastHeartbeatTime: now, LastTransitionTime: now,
				}
				if there := conditionOf(node, conditionType); there != nil && there.Status == want.status {
					next.LastTransitionTime = there.LastTransitionTime
				}
				change.set = append(change.set, next)
			}
		}
	}
	change.record = after
	change.setRecord = !change.record.Same(before) || after.IsEmpty() && isUnreadable(node)
	change.news = newsOf(node, before, holders, drain)
	return change
}

// isUnreadable reports whether a node has the annotation, but its value cannot be parsed.
func isUnreadable(node *corev1.Node) bool {
	_, there := node.Annotations[v1alpha1.AnnotationConditionsBy]
	return there && marks.ReadConditions(node).IsEmpty()
}

// returnPatience is the minimum time for which a node that was drained and has pods again keeps the
// condition Drained=False. Without it, each new pod on the node would cost two writes.
const returnPatience = 30 * time.Second

type drainState int

const (
	// drainNone means that no maintenance drains the node.
	drainNone drainState = iota
	// drainGoesOn means that the node has, or may have, pods to drain.
	drainGoesOn
	// drainDone means that the node has no pods to drain.
	drainDone
	// drainRefused means that the drain of all other maintenances is done, and the requester of at
	// least one maintenance may no longer delete the node.
	drainRefused
)

func drainOf(holders []holder) drainState {
	draining, refused := drainingOf(holders), 0
	for _, h := range draining {
		if h.refused {
			refused++
		} else if h.left {
			return drainGoesOn
		}
	}
	switch {
	case refused > 0:
		return drainRefused
	case len(draining) > 0:
		return drainDone
	}
	return drainNone
}

func drainingOf(holders []holder) []holder {
	return inStage(holders, v1alpha1.NodeMaintenanceStageDrain)
}

func inStage(holders []holder, stage v1alpha1.NodeMaintenanceStage) []holder {
	var out []holder
	for _, h := range holders {
		if h.stage == stage {
			out = append(out, h)
		}
	}
	return out
}

// nodeVerdict is the desired state of a condition of a node. The zero value means that the node
// should not have it.
type nodeVerdict struct {
	status          corev1.ConditionStatus
	reason, message string
}

// wantedConditions returns the conditions that a node should have, except those that another client
// owns. To save writes, the conditions do not contain anything that changes with every pod.
func wantedConditions(node *corev1.Node, before marks.Conditions, holders []holder, drain drainState) map[corev1.NodeConditionType]nodeVerdict {
	wanted := map[corev1.NodeConditionType]nodeVerdict{}
	planned := inStage(holders, v1alpha1.NodeMaintenanceStageIdle)
	if len(planned) > 0 {
		wanted[v1alpha1.NodeConditionMaintenancePlanned] = nodeVerdict{
			corev1.ConditionTrue, v1alpha1.NodeReasonPlanned, "Planned by " + listHolders(planned),
		}
	}
	holding := slices.DeleteFunc(slices.Clone(holders), func(h holder) bool { return h.stage == v1alpha1.NodeMaintenanceStageIdle })
	if len(holding) == 0 {
		return wanted
	}
	inProgress := nodeVerdict{corev1.ConditionTrue, v1alpha1.NodeReasonCordon, "Held by " + listHolders(holding)}
	if drain != drainNone {
		inProgress.reason = v1alpha1.NodeReasonDrain
	}
	wanted[v1alpha1.NodeConditionMaintenanceInProgress] = inProgress

	set := func(draining, drained corev1.ConditionStatus, reason, format string) {
		message := fmt.Sprintf(format, listHolders(drainingOf(holders)))
		wanted[v1alpha1.NodeConditionDrainInProgress] = nodeVerdict{draining, reason, message}
		wanted[v1alpha1.NodeConditionDrained] = nodeVerdict{drained, reason, message}
	}
	switch drain {
	case drainNone:
	case drainGoesOn:
		set(corev1.ConditionTrue, corev1.ConditionFalse, v1alpha1.NodeReasonPodsLeaving, "Waiting for the pods that are covered by %s")
		if hasResumed(node, before, holders) {
			drained := wanted[v1alpha1.NodeConditionDrained]
			drained.reason = v1alpha1.NodeReasonPodsReturned
			wanted[v1alpha1.NodeConditionDrained] = drained
		}
	case drainDone:
		set(corev1.ConditionFalse, corev1.ConditionTrue, v1alpha1.NodeReasonNoPodsLeft, "No pod is left that is covered by %s")
	case drainRefused:
		set(corev1.ConditionFalse, corev1.ConditionFalse, v1alpha1.NodeReasonNotAuthorized, "A requester may no longer maintain this node, so no further pod is asked to leave: %s")
	}
	return wanted
}

// hasResumed reports whether a node that is not drained was drained before, for the same
// maintenances.
func hasResumed(node *corev1.Node, before marks.Conditions, holders []holder) bool {
	for _, h := range drainingOf(holders) {
		if before.StageOf(h.name, h.uid) != v1alpha1.NodeMaintenanceStageDrain {
			return false
		}
	}
	drained := ours(before, node, v1alpha1.NodeConditionDrained)
	return drained != nil && (drained.Status == corev1.ConditionTrue || drained.Reason == v1alpha1.NodeReasonPodsReturned)
}

const (
	// A message names at most maxNamedHolders maintenances, and quotes at most maxReasonRunes of
	// the reason of each.
	maxNamedHolders = 5
	maxReasonRunes  = 120
)

func listHolders(holders []holder) string {
	named := make([]string, 0, maxNamedHolders)
	for _, h := range holders[:min(maxNamedHolders, len(holders))] {
		text := h.name
		if reason := []rune(strings.Join(strings.Fields(h.reason), " ")); len(reason) > maxReasonRunes {
			text += " (" + string(reason[:maxReasonRunes]) + "…)"
		} else if len(reason) > 0 {
			text += " (" + string(reason) + ")"
		}
		named = append(named, text)
	}
	text := "NodeMaintenance " + strings.Join(named, ", ")
	if more := len(holders) - len(named); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// newsOf returns the events about what has changed on a node since its conditions were last
// written.
func newsOf(node *corev1.Node, before marks.Conditions, holders []holder, drain drainState) []conditionNews {
	var news []conditionNews
	tell := func(reason, action, name string, uid types.UID, format string, args ...any) {
		news = append(news, conditionNews{reason: reason, action: action, note: fmt.Sprintf(format, args...), name: name, uid: uid})
	}
	holding := map[types.UID]bool{}
	for _, h := range holders {
		if h.stage == v1alpha1.NodeMaintenanceStageIdle {
			continue
		}
		holding[h.uid] = true
		switch {
		case h.stage == v1alpha1.NodeMaintenanceStageDrain && before.StageOf(h.name, h.uid) != h.stage:
			tell(EventNodeDrainStarted, actionDrain, h.name, h.uid, "%s drains the node", listHolders([]holder{h}))
		case !before.Holds(h.name, h.uid):
			tell(EventNodeMaintenanceStarted, actionMaintain, h.name, h.uid, "Held by %s", listHolders([]holder{h}))
		}
	}
	drained := ours(before, node, v1alpha1.NodeConditionDrained)
	was := drained != nil && drained.Status == corev1.ConditionTrue
	foreign := isForeign(before, node, v1alpha1.NodeConditionDrained, drain)
	if draining := drainingOf(holders); len(draining) > 0 && !foreign {
		first := draining[0]
		switch {
		case drain == drainDone && !was:
			tell(EventNodeDrained, actionDrain, first.name, first.uid, "No pod is left that is covered by %s", listHolders(draining))
		case drain == drainGoesOn && was && hasResumed(node, before, holders):
			tell(EventNodeDrainResumed, actionDrain, first.name, first.uid, "Not drained any more: waiting again for pods that are covered by %s", listHolders(draining))
		}
	}
	cordon := marks.CordonedBy(node)
	for _, name := range slices.Sorted(maps.Keys(before.Maintenances)) {
		uid := before.Maintenances[name].UID
		// The event about the end of the cordon names the only maintenance that has set it.
		isUncordoning := len(holding) == 0 && node.Spec.Unschedulable && len(cordon) == 1 && cordon[name] == uid
		if before.Holds(name, uid) && !holding[uid] && !isUncordoning {
			tell(EventNodeReleased, actionComplete, name, uid, "No longer held by NodeMaintenance %s", name)
		}
	}
	return news
}
