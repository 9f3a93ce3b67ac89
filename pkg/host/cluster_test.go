// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestEvacuationOf(t *testing.T) {
	cluster := must.Get(NewCluster(Clients{Client: fake.NewClientset(), Maintenance: versionedfake.NewClientset()}, 0))(t)
	for _, pod := range []struct{ name, of types.UID }{{"uid-1", "uid-1"}, {"uid-2", "uid-3"}} {
		must.Do(t, cluster.Evacuations.Informer().GetStore().Add(&v1alpha1.Evacuation{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: protocol.CanonicalName("web", pod.name)},
			Spec:       v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: "web", UID: pod.of}},
		}))
	}
	for name, tc := range map[string]struct {
		namespace string
		uid       types.UID
		want      bool
	}{
		"a pod with an Evacuation":                       {"shop", "uid-1", true},
		"a later pod with the same name":                 {"shop", "uid-4", false},
		"the Evacuation with its name is of another pod": {"shop", "uid-2", false},
		"its Evacuation has another name":                {"shop", "uid-3", false},
		"the same name and UID in another namespace":     {"bank", "uid-1", false},
	} {
		t.Run(name, func(t *testing.T) {
			e := cluster.EvacuationOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: tc.namespace, Name: "web", UID: tc.uid}})
			is.True(t, (e != nil) == tc.want && (e == nil || e.Spec.PodRef.UID == tc.uid), "got the Evacuation %+v", e)
		})
	}
}

func TestDraining(t *testing.T) {
	cluster := must.Get(NewCluster(Clients{Client: fake.NewClientset(), Maintenance: versionedfake.NewClientset()}, 0))(t)
	store := cluster.NodeMaintenances.Informer().GetStore()
	at := func(name string, stage v1alpha1.NodeMaintenanceStage) *v1alpha1.NodeMaintenance {
		return &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeMaintenanceSpec{Stage: stage}}
	}
	want := func(names ...string) {
		t.Helper()
		var got []string
		for _, nm := range must.Get(cluster.Draining())(t) {
			got = append(got, nm.Name)
		}
		slices.Sort(got)
		is.Slices(t, got, names)
	}
	for _, stage := range []v1alpha1.NodeMaintenanceStage{v1alpha1.NodeMaintenanceStageIdle, v1alpha1.NodeMaintenanceStageCordon, v1alpha1.NodeMaintenanceStageDrain, v1alpha1.NodeMaintenanceStageComplete} {
		must.Do(t, store.Add(at(string(stage), stage)))
	}
	must.Do(t, store.Add(at("paused", v1alpha1.NodeMaintenanceStageDrain)))
	want("Drain", "paused")
	must.Do(t, store.Update(at("Drain", v1alpha1.NodeMaintenanceStageComplete)))
	want("paused")
}
