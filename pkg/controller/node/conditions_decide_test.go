// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

const (
	stageIdle   = v1alpha1.NodeMaintenanceStageIdle
	stageCordon = v1alpha1.NodeMaintenanceStageCordon
	stageDrain  = v1alpha1.NodeMaintenanceStageDrain

	testStorage = "storage-1"
)

func newNode(name string, modify ...func(*corev1.Node)) *corev1.Node {
	return build.With(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"pool": "blue"},
	}}, modify...)
}

func cordoned(node *corev1.Node) { node.Spec.Unschedulable = true }

var (
	longAgo = metav1.NewTime(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))
	justNow = metav1.NewTime(time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC))
)

func heldBy(name string, stage v1alpha1.NodeMaintenanceStage, modify ...func(*holder)) holder {
	h := holder{name: name, uid: types.UID("uid-" + name), stage: stage}
	return *build.With(&h, modify...)
}

func withPods(h *holder)      { h.left = true }
func notAllowed(h *holder)    { h.refused = true }
func because(h *holder)       { h.reason = "kernel\n update" }
func at(t metav1.Time) string { return t.Format(time.TimeOnly) }

// showing adds conditions ("Type=Status Reason") with the transition time longAgo to a node. The
// annotation does not record them as ours.
func showing(conditions ...string) func(*corev1.Node) {
	return func(node *corev1.Node) {
		for _, c := range conditions {
			var conditionType, status, reason string
			_, err := fmt.Sscanf(strings.Replace(c, "=", " ", 1), "%s %s %s", &conditionType, &status, &reason)
			if err != nil {
				panic(err)
			}
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: corev1.NodeConditionType(conditionType), Status: corev1.ConditionStatus(status), Reason: reason,
				LastTransitionTime: longAgo,
			})
		}
	}
}

// byKubectl are the conditions that kubectl drain leaves on a node.
var byKubectl = []string{"DrainInProgress=False KubectlDrainCompleted", "Drained=True KubectlDrainCompleted"}

// drainedByKubectl overwrites the conditions about the drain of a node as kubectl drain does.
func drainedByKubectl(node *corev1.Node) {
	draining, drained := conditionOf(node, v1alpha1.NodeConditionDrainInProgress), conditionOf(node, v1alpha1.NodeConditionDrained)
	draining.Status, draining.Reason = corev1.ConditionFalse, "KubectlDrainCompleted"
	drained.Status, drained.Reason = corev1.ConditionTrue, "KubectlDrainCompleted"
}

// shownFor gives a node the conditions that the controller wrote for the given holders at longAgo.
func shownFor(holders ...holder) func(*corev1.Node) {
	return func(node *corev1.Node) {
		applyConditions(node, decideConditions(node, marks.ReadConditions(node), holders, longAgo))
	}
}

// applyConditions changes a node as the API server does for the patch.
func applyConditions(node *corev1.Node, change conditionsChange) {
	node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		isSet := slices.ContainsFunc(change.set, func(s corev1.NodeCondition) bool { return s.Type == c.Type })
		return isSet || slices.Contains(change.remove, c.Type)
	})
	node.Status.Conditions = append(node.Status.Conditions, change.set...)
	if change.setRecord {
		if node.Annotations == nil {
			node.Annotations = map[string]string{}
		}
		node.Annotations[v1alpha1.AnnotationConditionsBy] = change.record.Encode(testStorage)
		if change.record.IsEmpty() {
			delete(node.Annotations, v1alpha1.AnnotationConditionsBy)
		}
	}
}

// shown returns the conditions of a node with the time of their last transition, sorted.
func shown(node *corev1.Node) []string {
	out := []string{}
	for _, c := range node.Status.Conditions {
		out = append(out, fmt.Sprintf("%s=%s %s %s", c.Type, c.Status, c.Reason, at(c.LastTransitionTime)))
	}
	slices.Sort(out)
	return out
}

func TestDecideConditions(t *testing.T) {
	const before, now = " 08:00:00", " 12:00:00"
	const (
		cordonedOnly = "MaintenanceInProgress=True HauloutCordon"
		inProgress   = "MaintenanceInProgress=True HauloutDrain"
		draining     = "DrainInProgress=True HauloutPodsLeaving"
		notDraining  = "DrainInProgress=False HauloutNoPodsLeft"
		drained      = "Drained=True HauloutNoPodsLeft"
		notDrained   = "Drained=False HauloutPodsLeaving"
		returned     = "Drained=False HauloutPodsReturned"
		planned      = "MaintenancePlanned=True HauloutMaintenancePlanned"

		notDrainingRefused = "DrainInProgress=False HauloutNotAuthorized"
		notDrainedRefused  = "Drained=False HauloutNotAuthorized"
	)
	for name, tc := range map[string]struct {
		node     *corev1.Node
		holders  []holder
		want     []string
		wantNews []string
	}{
		"no maintenance holds the node": {node: newNode("one"), want: []string{}},
		"a maintenance cordons the node": {
			node: newNode("one"), holders: []holder{heldBy("a", stageCordon)}, want: []string{cordonedOnly + now},
			wantNews: []string{"NodeMaintenanceStarted a"},
		},
		"a maintenance drains the node": {
			node: newNode("one"), holders: []holder{heldBy("a", stageDrain, withPods)},
			want:     []string{draining + now, notDrained + now, inProgress + now},
			wantNews: []string{"NodeDrainStarted a"},
		},
		"the maintenance goes from stage Cordon to Drain": {
			node:     newNode("one", shownFor(heldBy("a", stageCordon))),
			holders:  []holder{heldBy("a", stageDrain, withPods)},
			want:     []string{draining + now, notDrained + now, inProgress + before},
			wantNews: []string{"NodeDrainStarted a"},
		},
		"no pod is left": {
			node:    newNode("one", shownFor(heldBy("a", stageDrain, withPods))),
			holders: []holder{heldBy("a", stageDrain)},
			want:    []string{notDraining + now, drained + now, inProgress + before}, wantNews: []string{"NodeDrained a"},
		},
		"a new pod is on a drained node": {
			node:     newNode("one", shownFor(heldBy("a", stageDrain))),
			holders:  []holder{heldBy("a", stageDrain, withPods)},
			want:     []string{draining + now, returned + now, inProgress + before},
			wantNews: []string{"NodeDrainResumed a"},
		},
		"the new pod has left, and the clock of the previous leader was ahead": {
			node: newNode("one", shownFor(heldBy("a", stageDrain)), shownFor(heldBy("a", stageDrain, withPods)), func(node *corev1.Node) {
				for i := range node.Status.Conditions {
					if c := &node.Status.Conditions[i]; c.Type == v1alpha1.NodeConditionDrained {
						c.LastTransitionTime = metav1.NewTime(justNow.Add(5 * time.Minute))
					}
				}
			}),
			holders: []holder{heldBy("a", stageDrain)},
			want:    []string{notDraining + now, drained + now, inProgress + before}, wantNews: []string{"NodeDrained a"},
		},
		"the new pod is still on the node": {
			node:    newNode("one", shownFor(heldBy("a", stageDrain)), shownFor(heldBy("a", stageDrain, withPods))),
			holders: []holder{heldBy("a", stageDrain, withPods)},
			want:    []string{draining + before, returned + before, inProgress + before},
		},
		"a second maintenance cordons a node that is drained": {
			node:     newNode("one", shownFor(heldBy("a", stageDrain))),
			holders:  []holder{heldBy("a", stageDrain), heldBy("b", stageCordon)},
			want:     []string{notDraining + before, drained + before, inProgress + before},
			wantNews: []string{"NodeMaintenanceStarted b"},
		},
		"a second maintenance covers pods that the first, which is drained, does not": {
			node:     newNode("one", shownFor(heldBy("a", stageDrain))),
			holders:  []holder{heldBy("a", stageDrain), heldBy("b", stageDrain, withPods)},
			want:     []string{draining + now, notDrained + now, inProgress + before},
			wantNews: []string{"NodeDrainStarted b"},
		},
		"one of two maintenances releases the node": {
			node:     newNode("one", shownFor(heldBy("a", stageDrain, withPods), heldBy("b", stageDrain, withPods))),
			holders:  []holder{heldBy("b", stageDrain, withPods)},
			want:     []string{draining + before, notDrained + before, inProgress + before},
			wantNews: []string{"NodeMaintenanceReleased a"},
		},
		"the only maintenance that drains the node releases it, another one cordons it": {
			node:    newNode("one", shownFor(heldBy("a", stageDrain, withPods), heldBy("b", stageCordon))),
			holders: []holder{heldBy("b", stageCordon)}, want: []string{cordonedOnly + before},
			wantNews: []string{"NodeMaintenanceReleased a"},
		},
		"the maintenance whose pods are left releases the node": {
			node:     newNode("one", shownFor(heldBy("a", stageDrain), heldBy("b", stageDrain, withPods))),
			holders:  []holder{heldBy("a", stageDrain)},
			want:     []string{notDraining + now, drained + now, inProgress + before},
			wantNews: []string{"NodeDrained a", "NodeMaintenanceReleased b"},
		},
		"the last maintenance releases the node": {
			node: newNode("one", shownFor(heldBy("a", stageDrain))), want: []string{},
			wantNews: []string{"NodeMaintenanceReleased a"},
		},
		"the last maintenance uncordons the node": {
			node: newNode("one", shownFor(heldBy("a", stageDrain)), func(node *corev1.Node) {
				node.Spec.Unschedulable = true
				metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationCordonedBy,
					marks.Mark{Storage: testStorage, Maintenances: marks.Owners{"a": heldBy("a", stageDrain).uid}}.Encode().(string))
			}), want: []string{},
		},
		"another maintenance of the same name holds the node": {
			node:     newNode("one", shownFor(heldBy("a", stageCordon))),
			holders:  []holder{heldBy("a", stageCordon, func(h *holder) { h.uid = "other" })},
			want:     []string{cordonedOnly + before},
			wantNews: []string{"NodeMaintenanceStarted a", "NodeMaintenanceReleased a"},
		},
		"a maintenance is planned": {
			node: newNode("one"), holders: []holder{heldBy("a", stageIdle)}, want: []string{planned + now},
		},
		"a planned maintenance cordons the node": {
			node: newNode("one", shownFor(heldBy("a", stageIdle))), holders: []holder{heldBy("a", stageCordon)},
			want: []string{cordonedOnly + now}, wantNews: []string{"NodeMaintenanceStarted a"},
		},
		"a planned maintenance is withdrawn": {
			node: newNode("one", shownFor(heldBy("a", stageIdle))), want: []string{},
		},
		"a maintenance is planned for a node that another one holds": {
			node:    newNode("one", shownFor(heldBy("a", stageCordon))),
			holders: []holder{heldBy("a", stageCordon), heldBy("b", stageIdle)},
			want:    []string{cordonedOnly + before, planned + now},
		},
		"the requester loses the right during a drain": {
			node:    newNode("one", shownFor(heldBy("a", stageDrain, withPods))),
			holders: []holder{heldBy("a", stageDrain, withPods, notAllowed)},
			want:    []string{notDrainingRefused + now, notDrainedRefused + before, inProgress + before},
		},
		"one of two requesters loses the right, pods of the other are left": {
			node:    newNode("one", shownFor(heldBy("a", stageDrain, withPods), heldBy("b", stageDrain, withPods))),
			holders: []holder{heldBy("a", stageDrain, withPods, notAllowed), heldBy("b", stageDrain, withPods)},
			want:    []string{draining + before, notDrained + before, inProgress + before},
		},
		"one of two requesters loses the right, no pod of the other is left": {
			node:    newNode("one", shownFor(heldBy("a", stageDrain, withPods), heldBy("b", stageDrain, withPods))),
			holders: []holder{heldBy("a", stageDrain, withPods, notAllowed), heldBy("b", stageDrain)},
			want:    []string{notDrainingRefused + now, notDrainedRefused + before, inProgress + before},
		},
		"the condition of another client stays while the node is held": {
			node:    newNode("one", showing("Drained=True Manual", "Ready=True KubeletReady")),
			holders: []holder{heldBy("a", stageDrain, withPods)},
			want: []string{
				draining + now, "Drained=True Manual" + before, inProgress + now, "Ready=True KubeletReady" + before,
			},
			wantNews: []string{"NodeDrainStarted a"},
		},
		"the condition of another client stays when the node is released": {
			node: newNode("one", showing("Drained=True Manual"), shownFor(heldBy("a", stageDrain, withPods))),
			want: []string{"Drained=True Manual" + before}, wantNews: []string{"NodeMaintenanceReleased a"},
		},
		"a condition whose reason another client has changed stays": {
			node: newNode("one", shownFor(heldBy("a", stageDrain)), func(node *corev1.Node) {
				conditionOf(node, v1alpha1.NodeConditionDrained).Reason = "Manual"
			}),
			want: []string{"Drained=True Manual" + before}, wantNews: []string{"NodeMaintenanceReleased a"},
		},
		"a condition that the annotation does not record stays, whatever its reason": {
			node: newNode("one", showing(drained)), want: []string{drained + before},
		},
		"all conditions stay if the annotation cannot be read": {
			node: newNode("one", showing(drained), func(node *corev1.Node) {
				node.Annotations = map[string]string{v1alpha1.AnnotationConditionsBy: "{"}
			}),
			want: []string{drained + before},
		},
		"conditions of kubectl drain stay while a maintenance is planned": {
			node: newNode("one", showing(byKubectl...)), holders: []holder{heldBy("a", stageIdle)},
			want: []string{"DrainInProgress=False KubectlDrainCompleted" + before, "Drained=True KubectlDrainCompleted" + before, planned + now},
		},
		"conditions of kubectl drain stay while a maintenance cordons the node": {
			node: newNode("one", showing(byKubectl...)), holders: []holder{heldBy("a", stageCordon)},
			want:     []string{"DrainInProgress=False KubectlDrainCompleted" + before, "Drained=True KubectlDrainCompleted" + before, cordonedOnly + now},
			wantNews: []string{"NodeMaintenanceStarted a"},
		},
		"conditions of kubectl drain are taken over while pods are left": {
			node: newNode("one", showing(byKubectl...)), holders: []holder{heldBy("a", stageDrain, withPods)},
			want:     []string{draining + now, notDrained + now, inProgress + now},
			wantNews: []string{"NodeDrainStarted a"},
		},
		"conditions of kubectl drain are taken over when no pod is left": {
			node: newNode("one", showing(byKubectl...)), holders: []holder{heldBy("a", stageDrain)},
			want:     []string{notDraining + before, drained + before, inProgress + now},
			wantNews: []string{"NodeDrainStarted a", "NodeDrained a"},
		},
		"conditions of kubectl drain are taken over although the requester has lost the right": {
			node: newNode("one", showing(byKubectl...)), holders: []holder{heldBy("a", stageDrain, withPods, notAllowed)},
			want:     []string{notDrainingRefused + before, notDrainedRefused + now, inProgress + now},
			wantNews: []string{"NodeDrainStarted a"},
		},
		"conditions that kubectl drain has overwritten are taken back": {
			node:    newNode("one", shownFor(heldBy("a", stageDrain, withPods)), drainedByKubectl),
			holders: []holder{heldBy("a", stageDrain, withPods)},
			want:    []string{draining + now, notDrained + now, inProgress + before},
		},
		"conditions that kubectl drain has overwritten stay when the node is released": {
			node:     newNode("one", shownFor(heldBy("a", stageDrain, withPods)), drainedByKubectl),
			want:     []string{"DrainInProgress=False KubectlDrainCompleted" + before, "Drained=True KubectlDrainCompleted" + before},
			wantNews: []string{"NodeMaintenanceReleased a"},
		},
		"conditions that were taken over from kubectl drain are removed with the maintenance": {
			node: newNode("one", showing(byKubectl...), shownFor(heldBy("a", stageDrain))), want: []string{},
			wantNews: []string{"NodeMaintenanceReleased a"},
		},
		"another condition is not taken over, whatever its reason": {
			node:     newNode("one", showing("MaintenanceInProgress=True KubectlDrainStarted")),
			holders:  []holder{heldBy("a", stageDrain, withPods)},
			want:     []string{draining + now, notDrained + now, "MaintenanceInProgress=True KubectlDrainStarted" + before},
			wantNews: []string{"NodeDrainStarted a"},
		},
		"a condition that another client has removed is added again": {
			node: newNode("one", shownFor(heldBy("a", stageDrain)), func(node *corev1.Node) {
				node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
					return c.Type == v1alpha1.NodeConditionDrainInProgress
				})
			}),
			holders: []holder{heldBy("a", stageDrain)},
			want:    []string{notDraining + now, drained + before, inProgress + before},
		},
	} {
		t.Run(name, func(t *testing.T) {
			change := decideConditions(tc.node, marks.ReadConditions(tc.node), tc.holders, justNow)
			applyConditions(tc.node, change)
			if got := shown(tc.node); !slices.Equal(got, tc.want) {
				t.Errorf("got conditions\n%q, want\n%q", got, tc.want)
			}
			var news []string
			for _, n := range change.news {
				news = append(news, n.reason+" "+n.name)
			}
			is.Slices(t, news, tc.wantNews, "news")
			_, annotated := tc.node.Annotations[v1alpha1.AnnotationConditionsBy]
			if annotated != (len(tc.holders) > 0) {
				t.Errorf("got annotations %q with %d holders", tc.node.Annotations, len(tc.holders))
			}
			again := decideConditions(tc.node, marks.ReadConditions(tc.node), tc.holders,
				metav1.NewTime(justNow.Add(time.Hour)))
			is.True(t, again.empty() && len(again.news) == 0, "a second decision is not empty: %+v", again)
		})
	}
}

func TestConditionsNameMaintenancesAndReasons(t *testing.T) {
	var many []holder
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		many = append(many, heldBy(name, stageCordon))
	}
	for name, tc := range map[string]struct {
		holders []holder
		want    map[corev1.NodeConditionType]string
	}{
		"a maintenance with a reason": {
			[]holder{heldBy("a", stageDrain, withPods, because)},
			map[corev1.NodeConditionType]string{
				"MaintenanceInProgress": "Held by NodeMaintenance a (kernel update)",
				"DrainInProgress":       "Waiting for the pods that are covered by NodeMaintenance a (kernel update)",
				"Drained":               "Waiting for the pods that are covered by NodeMaintenance a (kernel update)",
			},
		},
		"a maintenance that drains and one that cordons": {
			[]holder{heldBy("a", stageDrain, because), heldBy("b", stageCordon)},
			map[corev1.NodeConditionType]string{
				"MaintenanceInProgress": "Held by NodeMaintenance a (kernel update), b",
				"DrainInProgress":       "No pod is left that is covered by NodeMaintenance a (kernel update)",
				"Drained":               "No pod is left that is covered by NodeMaintenance a (kernel update)",
			},
		},
		"a planned maintenance": {
			[]holder{heldBy("a", stageIdle, because)},
			map[corev1.NodeConditionType]string{"MaintenancePlanned": "Planned by NodeMaintenance a (kernel update)"},
		},
		"more maintenances than the message names": {
			many,
			map[corev1.NodeConditionType]string{
				"MaintenanceInProgress": "Held by NodeMaintenance a, b, c, d, e and 2 more",
			},
		},
		"a long reason": {
			[]holder{heldBy("a", stageCordon, func(h *holder) { h.reason = strings.Repeat("é", 500) })},
			map[corev1.NodeConditionType]string{
				"MaintenanceInProgress": "Held by NodeMaintenance a (" + strings.Repeat("é", maxReasonRunes) + "…)",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			change := decideConditions(newNode("one"), marks.Conditions{}, tc.holders, justNow)
			is.Equal(t, len(change.set), len(tc.want), "conditions")
			for _, c := range change.set {
				is.True(t, c.Message == tc.want[c.Type], "got message %q of %s, want %q", c.Message, c.Type, tc.want[c.Type])
			}
		})
	}
}
