// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package size

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestValidate(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	naming := func(nodes int) *maintenance.NodeMaintenance {
		values := make([]string, nodes)
		for i := range values {
			values[i] = strings.Repeat("n", 50)
		}
		return &maintenance.NodeMaintenance{
			Spec: maintenance.NodeMaintenanceSpec{NodeSelector: build.Labelled(corev1.LabelHostname, values...)},
		}
	}
	// Here a label or an annotation takes nine bytes more than its value.
	large := &maintenance.Evacuation{}
	large.Labels = map[string]string{"a": strings.Repeat("x", MaxEvacuationMetadataBytes)}
	fits := &maintenance.Evacuation{}
	fits.Labels = map[string]string{"a": strings.Repeat("x", 8<<10)}
	fits.Annotations = map[string]string{"a": strings.Repeat("x", 8<<10-18)}
	annotated := fits.DeepCopy()
	annotated.Annotations["a"] += "x"
	manyLabels := &maintenance.Evacuation{}
	manyLabels.Labels = map[string]string{}
	for i := range 22000 {
		manyLabels.Labels[fmt.Sprintf("k%05d", i)] = "v"
	}
	owned := &maintenance.Evacuation{}
	for i := range 1000 {
		owned.OwnerReferences = append(owned.OwnerReferences, metav1.OwnerReference{
			APIVersion: "v1", Kind: "ConfigMap", Name: fmt.Sprintf("owner-%04d", i),
			UID: types.UID(strings.Repeat("u", 36)),
		})
	}
	annotatedMaintenance := naming(1)
	annotatedMaintenance.Annotations = map[string]string{"a": strings.Repeat("x", MaxBytes)}
	full := naming(1)
	full.Status.NodeStatuses = make([]maintenance.NodeMaintenanceNodeStatus, 5000)
	for i := range full.Status.NodeStatuses {
		full.Status.NodeStatuses[i].DrainMessage = strings.Repeat("m", 128)
	}
	cases := map[string]struct {
		obj  runtime.Object
		path string
	}{
		"a selector that names 5,000 nodes one by one is fine":    {obj: naming(5000)},
		"a status does not count":                                 {obj: full},
		"a selector above the limit is an error of the spec":      {obj: naming(20000), path: "spec"},
		"metadata above the limit is an error of the metadata":    {obj: annotatedMaintenance, path: "metadata"},
		"an Evacuation may have 16 KiB of labels and annotations": {obj: fits},
		"labels of an Evacuation beyond 16 KiB are refused":       {obj: large, path: "metadata"},
		"annotations and labels of a byte too much are refused":   {obj: annotated, path: "metadata"},
		"a thousand owners of an Evacuation are refused":          {obj: owned, path: "metadata"},
		"22,000 labels on an Evacuation are refused":              {obj: manyLabels, path: "metadata"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			errs := Validate(scheme, c.obj)
			if c.path == "" && len(errs) == 0 {
				return
			}
			if len(errs) != 1 || errs[0].Field != c.path || len(errs[0].Error()) > 200 {
				t.Errorf("got %v, want one short error at %q", errs, c.path)
			}
		})
	}
}

func TestValidateGrowth(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	labelled := func(bytes int) *maintenance.Evacuation {
		e := &maintenance.Evacuation{}
		e.Labels = map[string]string{"a": strings.Repeat("x", bytes)}
		return e
	}
	for name, test := range map[string]struct {
		old, now int
		refused  bool
	}{
		"a small object grows":                         {10, 20, false},
		"a small object becomes too large":             {10, 20 << 10, true},
		"an object that was too large grows":           {20 << 10, 21 << 10, true},
		"an object that was too large stays":           {20 << 10, 20 << 10, false},
		"an object that was too large shrinks":         {20 << 10, 19 << 10, false},
		"an object that was too large fits afterwards": {20 << 10, 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			if errs := ValidateGrowth(scheme, labelled(test.now), labelled(test.old)); (len(errs) > 0) != test.refused {
				t.Errorf("got %v, want refused %t", errs, test.refused)
			}
		})
	}
}

// TestGrowthBesideLabels: the total limit includes what the limit of the metadata does not.
func TestGrowthBesideLabels(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	for name, change := range map[string]func(*maintenance.Evacuation){
		"generateName": func(e *maintenance.Evacuation) { e.GenerateName = strings.Repeat("a", MaxEvacuationBytes) },
		"managedFields": func(e *maintenance.Evacuation) {
			e.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: strings.Repeat("a", MaxEvacuationBytes)}}
		},
	} {
		old, now := &maintenance.Evacuation{}, &maintenance.Evacuation{}
		change(now)
		if errs := ValidateGrowth(scheme, now, old); len(errs) != 1 {
			t.Errorf("%s grows: got %v, want it refused", name, errs)
		}
		if errs := ValidateGrowth(scheme, now, now.DeepCopy()); len(errs) != 0 {
			t.Errorf("%s stays: got %v", name, errs)
		}
	}
}

// TestLabelBytes has labels with all lengths that protobuf encodes differently.
func TestLabelBytes(t *testing.T) {
	for _, key := range []int{1, 127, 128, 317} {
		for _, value := range []int{0, 1, 63, 127, 128} {
			k, v := strings.Repeat("k", key), strings.Repeat("v", value)
			one := EvacuationMetadataBytes(&metav1.ObjectMeta{Labels: map[string]string{k: v}})
			if estimate := LabelBytes(k, v); estimate < one || estimate > one+labelBytes {
				t.Errorf("a key of %d and a value of %d bytes: got %d, want at least %d and not much more", key, value, estimate, one)
			}
		}
	}
}

// longPools returns pools with the longest names.
func longPools(n int) []string {
	pools := make([]string, n)
	for i := range pools {
		pools[i] = fmt.Sprintf("%063d", i)
	}
	return pools
}

// TestPoolsBytes compares the bytes with those of a status that is stored. Its nodes have names of
// a usual length, so that a few bytes more do not change the length of an entry's length.
func TestPoolsBytes(t *testing.T) {
	stored := func(pools []string, nodes int) int {
		status := v1alpha1.NodeMaintenanceStatus{Pools: pools}
		for i := range nodes {
			node := v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: "node"}}
			if len(pools) > 0 {
				node.PoolIndex = ptr.To(int32(len(pools) - 1 - i%2*min(1, len(pools)-1)))
			}
			status.NodeStatuses = append(status.NodeStatuses, node)
		}
		return status.Size()
	}
	for _, pools := range [][]string{nil, {"a"}, longPools(1), longPools(100), longPools(130), longPools(20000)} {
		is.Equal(t, PoolsBytes(pools, 10), stored(pools, 10)-stored(nil, 10), fmt.Sprintf("bytes of %d pools", len(pools)))
	}
}

func TestStatusBytes(t *testing.T) {
	plan := func(own int, value string) []v1alpha1.DrainPlanEntry {
		nm := &v1alpha1.NodeMaintenance{}
		for i := range own {
			nm.Spec.DrainPlan = append(nm.Spec.DrainPlan, v1alpha1.DrainPlanEntry{
				PodPriority: int32(i),
				PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{fmt.Sprintf("app-%d", i): value}},
			})
		}
		v1alpha1.SetObjectDefaults_NodeMaintenance(nm)
		return nm.Spec.DrainPlan
	}
	for name, test := range map[string]struct {
		plan  []v1alpha1.DrainPlanEntry
		nodes int
		fits  bool
	}{
		"the default plan over 5,000 nodes":  {plan(0, ""), 5000, true},
		"100 selectors over 20 nodes":        {plan(100, strings.Repeat("x", 50)), 20, true},
		"100 selectors over 200 nodes":       {plan(100, strings.Repeat("x", 50)), 200, false},
		"a plan of 441 KiB over 5,000 nodes": {plan(100, strings.Repeat("x", 4400)), 5000, false},
		"a plan of 441 KiB over two nodes":   {plan(100, strings.Repeat("x", 4400)), 2, true},
		"a plan of 441 KiB over three nodes": {plan(100, strings.Repeat("x", 4400)), 3, false},
		"any plan over no node":              {plan(100, strings.Repeat("x", 4400)), 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := StatusBytes(test.plan, test.nodes); (got <= MaxStatusBytes) != test.fits {
				t.Errorf("got %d bytes, the limit is %d", got, MaxStatusBytes)
			}
		})
	}
	t.Run("the default plan over 5,000 nodes of 128 pools with the longest names", func(t *testing.T) {
		got := StatusBytes(plan(0, ""), 5000) + PoolsBytes(longPools(128), 5000)
		is.True(t, got <= MaxStatusBytes, "got %d bytes, the limit is %d", got, MaxStatusBytes)
	})
	t.Run("it is not less than the stored size", func(t *testing.T) {
		stored := &v1alpha1.NodeMaintenanceStatus{
			ObservedGeneration: 1 << 60, Nodes: 1000, PodsGone: 1 << 30, Pools: longPools(100),
			Pause: &v1alpha1.NodeMaintenancePause{By: strings.Repeat("x", 1024), Since: metav1.Unix(1<<40, 0)},
		}
		for _, conditionType := range []string{
			v1alpha1.ConditionDrained, v1alpha1.ConditionProgressing, v1alpha1.ConditionReady, v1alpha1.ConditionStalled, v1alpha1.ConditionNodeMessagesOmitted,
		} {
			stored.Conditions = append(stored.Conditions, metav1.Condition{
				Type: conditionType, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonDrainCompleteWithPodsLeft, ObservedGeneration: 1 << 60,
				LastTransitionTime: metav1.Unix(1<<40, 0), Message: strings.Repeat("x", 400),
			})
		}
		entries := plan(10, "value")
		reached := map[string]v1alpha1.DrainPlanEntry{}
		for _, e := range entries {
			reached[string(e.PodType)+e.PodSelector.String()] = e
		}
		for i := range 1000 {
			n := v1alpha1.NodeMaintenanceNodeStatus{
				NodeRef:               v1alpha1.NodeReference{Name: fmt.Sprintf("%063d", i), UID: types.UID(fmt.Sprintf("%036d", i))},
				PodsPendingEvacuation: 250, PodsEvacuating: 250, PodsBlocked: 250, PodsKept: 20, PodsPeak: 500, PodsGonePeak: 450,
				Reason: v1alpha1.NodeStatusNodeTaskInProgress, PoolIndex: ptr.To(int32(i % 100)),
			}
			for _, e := range reached {
				n.DrainTargets = append(n.DrainTargets, e)
			}
			stored.NodeStatuses = append(stored.NodeStatuses, n)
		}
		for i := range entries {
			at := &metav1.Time{Time: time.Unix(1<<40, 0)}
			stored.Waves = append(stored.Waves, v1alpha1.NodeMaintenanceWave{Entry: int32(i), PodsPeak: 1 << 30, PodsLeft: 1 << 30, StartTime: at, EndTime: at})
		}
		got, want := StatusBytes(entries, 1000)+PoolsBytes(stored.Pools, 1000), stored.Size()
		is.True(t, got >= want && got <= want*5/4, "got %d bytes, stored are %d", got, want)
	})
}
