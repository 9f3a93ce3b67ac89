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

// holder is a maintenance as one of its nodes sees it.
type holder struct {
	name, reason string
	uid          types.UID
	stage        v1alpha1.NodeMaintenanceStage
	// refused says that the requester may not delete the node any more: what was begun there stays,
	// but the drain does not go on.
	refused bool
	// plan is what it drains in stage Drain, and left says that such pods are on the node, or may
	// be.
	plan drainplan.Targets
	left bool
}

// ours returns a condition of the node if it is ours: the annotation has it, and no other writer
// has changed its reason since.
func ours(record marks.Conditions, node *corev1.Node, conditionType corev1.NodeConditionType) *corev1.NodeCondition {
	condition := conditionOf(node, conditionType)
	if condition == nil || !slices.Contains(record.Conditions, conditionType) || !strings.HasPrefix(condition.Reason, v1alpha1.NodeReasonPrefix) {
		return nil
	}
	return condition
}

func conditionOf(node *corev1.Node, conditionType corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == conditionType {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// conditionsChange is what is to be written to a node's status; the zero value changes nothing.
type conditionsChange struct {
	set    []corev1.NodeCondition
	remove []corev1.NodeConditionType
	// record is the wanted annotation if setRecord; an empty one is removed.
	record    marks.Conditions
	setRecord bool
	// wait is when to decide again without an event, 0 if there is no need.
	wait time.Duration
	// news are to be told when the change is written.
	news []conditionNews
}

func (c conditionsChange) empty() bool { return len(c.set) == 0 && len(c.remove) == 0 && !c.setRecord }

// conditionNews is an event of a node.
type conditionNews struct {
	reason, action, note string
	name                 string
	uid                  types.UID
}

// decideConditions says what changes about a node's conditions when the given maintenances, sorted
// by name, hold or plan to hold it. Conditions that are not ours are left as they are.
func decideConditions(node *corev1.Node, before marks.Conditions, holders []holder, now metav1.Time) conditionsChange {
	var change conditionsChange
	drain := drainOf(holders)
	if drained := ours(before, node, v1alpha1.NodeConditionDrained); drain == drainDone && drained != nil && drained.Reason == v1alpha1.NodeReasonPodsReturned {
		if wait := returnPatience - now.Sub(drained.LastTransitionTime.Time); wait > 0 {
			drain, change.wait = drainGoesOn, min(wait, returnPatience)
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
		case current == nil && conditionOf(node, conditionType) != nil:
			// Another writer's.
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
				if current != nil && current.Status == want.status {
					next.LastTransitionTime = current.LastTransitionTime
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

// isUnreadable reports whether the annotation of a node is there and records nothing.
func isUnreadable(node *corev1.Node) bool {
	_, there := node.Annotations[v1alpha1.AnnotationConditionsBy]
	return there && marks.ReadConditions(node).IsEmpty()
}

// returnPatience is how long a node that was drained and got a pod again is shown as not drained at
// least. Where new pods keep coming to the node, every one of them would cost two writes.
const returnPatience = 30 * time.Second

// drainState is how far the drain of a node is.
type drainState int

const (
	// drainNone: no maintenance drains it.
	drainNone drainState = iota
	// drainGoesOn: pods are left, or it is too early to say that none are.
	drainGoesOn
	// drainDone: no pod is left.
	drainDone
	// drainRefused: pods are waited for no longer, but for a maintenance that may not go on.
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

// nodeVerdict is a state of a condition of a node. The zero value is its absence.
type nodeVerdict struct {
	status          corev1.ConditionStatus
	reason, message string
}

// wantedConditions says what the conditions of a node are, if all of them are ours. They change
// with stages and not with every pod.
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
		set(corev1.ConditionFalse, corev1.ConditionFalse, v1alpha1.NodeReasonNotAuthorized, "A requester may not delete this node any more, of %s")
	}
	return wanted
}

// hasResumed reports whether a node that is not drained was so before, for the same maintenances.
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
	// maxNamedHolders is how many maintenances a message names, and maxReasonRunes how much of the
	// reason of each it quotes.
	maxNamedHolders = 5
	maxReasonRunes  = 120
)

// listHolders names maintenances with what they are for.
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

// newsOf says what is new about a node, compared to what was recorded when its conditions were last
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
		if !before.Holds(h.name, h.uid) {
			tell(EventNodeMaintenanceStarted, actionMaintain, h.name, h.uid, "Held by %s", listHolders([]holder{h}))
		}
		if h.stage == v1alpha1.NodeMaintenanceStageDrain && before.StageOf(h.name, h.uid) != h.stage {
			tell(EventNodeDrainStarted, actionDrain, h.name, h.uid, "%s drains the node", listHolders([]holder{h}))
		}
	}
	drained := ours(before, node, v1alpha1.NodeConditionDrained)
	was := drained != nil && drained.Status == corev1.ConditionTrue
	foreign := drained == nil && conditionOf(node, v1alpha1.NodeConditionDrained) != nil
	if draining := drainingOf(holders); len(draining) > 0 && !foreign {
		first := draining[0]
		switch {
		case drain == drainDone && !was:
			tell(EventNodeDrained, actionDrain, first.name, first.uid, "No pod is left that is covered by %s", listHolders(draining))
		case drain == drainGoesOn && was && hasResumed(node, before, holders):
			tell(EventNodeDrainResumed, actionDrain, first.name, first.uid, "Not drained any more: waiting again for pods that are covered by %s", listHolders(draining))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before.Maintenances)) {
		if uid := before.Maintenances[name].UID; before.Holds(name, uid) && !holding[uid] {
			tell(EventNodeReleased, actionComplete, name, uid, "No longer held by NodeMaintenance %s", name)
		}
	}
	return news
}
