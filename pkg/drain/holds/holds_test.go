// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package holds

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestAskedBy(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-one"}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.PodSpec{NodeName: "one"},
	}
	covers := v1alpha1.DrainPlanEntry{PodType: v1alpha1.PodTypeDefault, PodPriority: 1000}
	misses := v1alpha1.DrainPlanEntry{PodType: v1alpha1.PodTypeDaemonSet, PodPriority: 1000}
	maintenance := func(
		name string, minute int, uid types.UID, targets ...v1alpha1.DrainPlanEntry,
	) *v1alpha1.NodeMaintenance {
		return &v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, CreationTimestamp: metav1.NewTime(time.Date(2026, 11, 1, 0, minute, 0, 0, time.UTC)),
			},
			Spec: v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.NodeMaintenanceStageDrain},
			Status: v1alpha1.NodeMaintenanceStatus{
				NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{
					{NodeRef: v1alpha1.NodeReference{Name: "one", UID: uid}, DrainTargets: targets},
					{
						NodeRef:      v1alpha1.NodeReference{Name: "other", UID: "uid-other"},
						DrainTargets: []v1alpha1.DrainPlanEntry{covers},
					},
				},
			},
		}
	}
	paused := func(nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
		nm.Spec.Paused = true
		return nm
	}
	at := func(stage v1alpha1.NodeMaintenanceStage) *v1alpha1.NodeMaintenance {
		nm := maintenance("a", 0, "uid-one", covers)
		nm.Spec.Stage = stage
		return nm
	}
	deleting := maintenance("a", 0, "uid-one", covers)
	deleting.DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 11, 1, 1, 0, 0, 0, time.UTC)}
	for name, tc := range map[string]struct {
		maintenances []*v1alpha1.NodeMaintenance
		want         string
		// pausedBy is the maintenance whose pause keeps the pod.
		pausedBy string
	}{
		"no maintenance": {},
		"a maintenance whose drain targets cover the pod": {
			maintenances: []*v1alpha1.NodeMaintenance{maintenance("a", 0, "uid-one", covers)}, want: "a",
		},
		"not a maintenance whose drain targets do not cover the pod": {
			maintenances: []*v1alpha1.NodeMaintenance{
				maintenance("a", 0, "uid-one", misses), maintenance("b", 0, "uid-one", covers),
			},
			want: "b",
		},
		"not a maintenance without drain targets": {
			maintenances: []*v1alpha1.NodeMaintenance{
				maintenance("a", 0, "uid-one"), maintenance("b", 0, "uid-one", covers),
			},
			want: "b",
		},
		"the oldest of several maintenances": {
			maintenances: []*v1alpha1.NodeMaintenance{
				maintenance("a", 2, "uid-one", covers), maintenance("b", 1, "uid-one", covers),
			},
			want: "b",
		},
		"the first by name of several maintenances of the same age": {
			maintenances: []*v1alpha1.NodeMaintenance{
				maintenance("b", 1, "uid-one", covers), maintenance("a", 1, "uid-one", covers),
			},
			want: "a",
		},
		"not a maintenance of an earlier node with the same name": {
			maintenances: []*v1alpha1.NodeMaintenance{maintenance("a", 0, "earlier", covers)},
		},
		"not a maintenance in stage Complete": {
			maintenances: []*v1alpha1.NodeMaintenance{at(v1alpha1.NodeMaintenanceStageComplete)},
		},
		"not a maintenance that is being deleted": {maintenances: []*v1alpha1.NodeMaintenance{deleting}},
		"not a paused maintenance": {
			maintenances: []*v1alpha1.NodeMaintenance{paused(maintenance("a", 0, "uid-one", covers))}, pausedBy: "a",
		},
		"not a paused maintenance without drain targets": {
			maintenances: []*v1alpha1.NodeMaintenance{paused(maintenance("a", 0, "uid-one"))}, pausedBy: "a",
		},
		"not a paused maintenance that is being deleted": {
			maintenances: []*v1alpha1.NodeMaintenance{paused(deleting.DeepCopy())},
		},
		"a maintenance beside an older one that is paused": {
			maintenances: []*v1alpha1.NodeMaintenance{
				paused(maintenance("a", 0, "uid-one", covers)), maintenance("b", 1, "uid-one", covers),
			},
			want: "b",
		},
		"not a paused maintenance beside one whose drain targets do not cover the pod": {
			maintenances: []*v1alpha1.NodeMaintenance{
				paused(maintenance("a", 0, "uid-one", covers)), maintenance("b", 1, "uid-one", misses),
			},
			pausedBy: "a",
		},
		"none of two paused maintenances": {
			maintenances: []*v1alpha1.NodeMaintenance{
				paused(maintenance("a", 2, "uid-one", covers)), paused(maintenance("b", 1, "uid-one", covers)),
			},
			pausedBy: "b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			nameOf := func(nm *v1alpha1.NodeMaintenance) string {
				if nm == nil {
					return ""
				}
				return nm.Name
			}
			nm, err := AskedBy(pod, node, tc.maintenances, time.Now())
			is.True(t, err == nil && nameOf(nm) == tc.want, "got %q, %v; want %q", nameOf(nm), err, tc.want)
			is.Equal(t, nameOf(PausedBy(pod, node, tc.maintenances, time.Now())), tc.pausedBy, "paused by")
		})
	}
}

// TestPlansThatDoNotDrainAPod covers maintenances whose targets cover a pod.
func TestPlansThatDoNotDrainAPod(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-one"}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: corev1.PodSpec{NodeName: "one"},
	}
	began := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	covers := v1alpha1.DrainPlanEntry{PodType: v1alpha1.PodTypeDefault, PodPriority: 1000}
	maintenance := func(name string, behavior v1alpha1.DrainBehavior) *v1alpha1.NodeMaintenance {
		entry := covers
		if behavior != "" {
			entry.Behavior = &behavior
		}
		if behavior == v1alpha1.DrainBehaviorWaitCompleted {
			entry.WaitSeconds = ptr.To(int32(60))
		}
		return &v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.NodeMaintenanceSpec{
				Stage: v1alpha1.NodeMaintenanceStageDrain, DrainPlan: []v1alpha1.DrainPlanEntry{entry},
			},
			Status: v1alpha1.NodeMaintenanceStatus{
				StageStatuses: []v1alpha1.StageStatus{
					{Name: v1alpha1.NodeMaintenanceStageDrain, StartTimestamp: &metav1.Time{Time: began}},
				},
				NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{{
					NodeRef:      v1alpha1.NodeReference{Name: "one", UID: "uid-one"},
					DrainTargets: []v1alpha1.DrainPlanEntry{covers},
				}},
			},
		}
	}
	waits := maintenance("waits", v1alpha1.DrainBehaviorWaitCompleted)
	skips := maintenance("skips", v1alpha1.DrainBehaviorSkip)
	drains, untargeted := maintenance("drains", ""), maintenance("untargeted", v1alpha1.DrainBehaviorDrain)
	untargeted.Status.NodeStatuses = nil
	paused := maintenance("paused", "")
	paused.Spec.Paused = true
	for name, tc := range map[string]struct {
		maintenances []*v1alpha1.NodeMaintenance
		after        int
		askedBy      string
		pausedBy     string
		stays        bool
	}{
		"none":                           {},
		"one that waits":                 {maintenances: []*v1alpha1.NodeMaintenance{waits}, after: 59, stays: true},
		"one that has waited":            {maintenances: []*v1alpha1.NodeMaintenance{waits}, after: 60, askedBy: "waits"},
		"one that skips":                 {maintenances: []*v1alpha1.NodeMaintenance{skips}, after: 3600, stays: true},
		"the one that drains":            {maintenances: []*v1alpha1.NodeMaintenance{skips, waits, drains}, askedBy: "drains"},
		"one that has no targets yet":    {maintenances: []*v1alpha1.NodeMaintenance{skips, untargeted}},
		"one that would drain is paused": {maintenances: []*v1alpha1.NodeMaintenance{waits, paused}, pausedBy: "paused"},
	} {
		t.Run(name, func(t *testing.T) {
			now := began.Add(time.Duration(tc.after) * time.Second)
			askedBy, pausedBy := "", ""
			nm, err := AskedBy(pod, node, tc.maintenances, now)
			if nm != nil {
				askedBy = nm.Name
			}
			if nm := PausedBy(pod, node, tc.maintenances, now); nm != nil {
				pausedBy = nm.Name
			}
			is.True(t, err == nil && askedBy == tc.askedBy, "asked by %q, %v; want %q", askedBy, err, tc.askedBy)
			is.Equal(t, pausedBy, tc.pausedBy, "paused by")
			is.Equal(t, Stays(pod, node, tc.maintenances, now), tc.stays, "stays")
		})
	}
}

// TestOfANode covers one maintenance of each stage. Each selects a node and has targets for it.
func TestOfANode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-one"}}
	all := map[string]*v1alpha1.NodeMaintenance{}
	for name, stage := range map[string]v1alpha1.NodeMaintenanceStage{
		"idle": v1alpha1.NodeMaintenanceStageIdle, "cordon": v1alpha1.NodeMaintenanceStageCordon,
		"drain": v1alpha1.NodeMaintenanceStageDrain, "complete": v1alpha1.NodeMaintenanceStageComplete,
		"deleted": v1alpha1.NodeMaintenanceStageDrain, "untargeted": v1alpha1.NodeMaintenanceStageDrain,
		"reborn": v1alpha1.NodeMaintenanceStageDrain,
	} {
		all[name] = &v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage},
			Status: v1alpha1.NodeMaintenanceStatus{NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{{
				NodeRef:      v1alpha1.NodeReference{Name: "one", UID: "uid-one"},
				DrainTargets: []v1alpha1.DrainPlanEntry{{PodType: v1alpha1.PodTypeDefault}},
			}}},
		}
	}
	all["deleted"].DeletionTimestamp = &metav1.Time{Time: time.Date(2026, 11, 1, 1, 0, 0, 0, time.UTC)}
	all["untargeted"].Status.NodeStatuses[0].DrainTargets = nil
	all["reborn"].Status.NodeStatuses[0].NodeRef.UID = "uid-before"
	index := Index{
		On: func(node string) []string {
			if node != "one" {
				return nil
			}
			return append(slices.Sorted(maps.Keys(all)), "unread")
		},
		Get: func(name string) (*v1alpha1.NodeMaintenance, error) {
			if nm := all[name]; nm != nil {
				return nm, nil
			}
			return nil, errors.New("not found")
		},
	}
	for name, tc := range map[string]struct {
		is   func(*v1alpha1.NodeMaintenance) bool
		want []string
	}{
		"hold":   {v1alpha1.IsHolding, []string{"cordon", "drain", "reborn", "untargeted"}},
		"drain":  {v1alpha1.IsDraining, []string{"drain", "reborn", "untargeted"}},
		"target": {Targeting(node), []string{"drain"}},
		"stored": {
			func(nm *v1alpha1.NodeMaintenance) bool { return len(Stored(nm, node)) > 0 },
			[]string{"complete", "cordon", "deleted", "drain", "idle"},
		},
		"none": {func(*v1alpha1.NodeMaintenance) bool { return false }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, nm := range index.Which("one", tc.is) {
				got = append(got, nm.Name)
			}
			if !slices.Equal(got, tc.want) || index.Any("one", tc.is) != (len(tc.want) > 0) {
				t.Errorf("got %v, any %t; want %v", got, index.Any("one", tc.is), tc.want)
			}
			if others := index.Which("two", tc.is); len(others) > 0 || index.Any("two", tc.is) {
				t.Errorf("got %v on a node that none selects", others)
			}
		})
	}
}

func TestLeavesAlone(t *testing.T) {
	node := func(annotations map[string]string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-one", Annotations: annotations}}
	}
	maintenance := func(reason v1alpha1.NodeStatusReason, observed int64) *v1alpha1.NodeMaintenance {
		nm := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "uid-m", Generation: 2}}
		nm.Status.ObservedGeneration = observed
		nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "one", UID: "uid-one"}, Reason: reason}}
		return nm
	}
	marked := map[string]string{v1alpha1.AnnotationCordonedBy: `{"maintenances":{"m":"uid-m"}}`}
	refused := maintenance(v1alpha1.NodeStatusNotAuthorized, 2)
	for name, tc := range map[string]struct {
		nm   *v1alpha1.NodeMaintenance
		node *corev1.Node
		want bool
	}{
		"a node that it drains":                {maintenance("", 2), node(nil), false},
		"a node that it is refused":            {refused, node(nil), true},
		"a node for which there is no place":   {maintenance(v1alpha1.NodeStatusTooManyMaintenances, 2), node(nil), true},
		"a node that it still has":             {refused, node(marked), false},
		"by the status of an earlier spec":     {maintenance(v1alpha1.NodeStatusNotAuthorized, 1), node(nil), false},
		"a node that is registered again":      {refused, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-two"}}, false},
		"a node that the status does not have": {refused, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two", UID: "uid-two"}}, false},
	} {
		t.Run(name, func(t *testing.T) { is.Equal(t, LeavesAlone(tc.nm, tc.node), tc.want) })
	}
	is.True(t, SameLeftAlone(refused, refused.DeepCopy()), "equal states")
	is.True(t, !SameLeftAlone(refused, maintenance("", 2)), "a node is no longer refused")
	is.True(t, !SameLeftAlone(refused, maintenance(v1alpha1.NodeStatusNotAuthorized, 1)), "the status is about an earlier spec")
}
