// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/controller/nodestate"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestDoneWorkIsNotGrantedAgain checks that a leader with an old cache, which has offered a node a
// second time, grants no claim: the stored maintenance records that the work is done.
func TestDoneWorkIsNotGrantedAgain(t *testing.T) {
	for state, want := range map[v1alpha1.NodeTaskState]string{
		v1alpha1.NodeTaskDone:    "NodeMaintenance m has recorded that the work on it is done",
		v1alpha1.NodeTaskOffered: "",
	} {
		stored := newMaintenance("m", recorded(state), inCordon)
		f := newFacts(newMaintenance("m", inCordon), withTask(v1alpha1.NodeTaskOffered, holder("w")))
		c := &Controller{Config: Config{
			Cluster: &host.Cluster{Clients: host.Clients{Client: fake.NewClientset(f.node), Maintenance: versionedfake.NewClientset(stored)}},
		}}
		refusal := must.Get(c.look(t.Context(), f))(t)
		is.True(t, (want == "") == (refusal == "") && strings.Contains(refusal, want), "recorded %s: refused because %q, want %q", state, refusal, want)
	}
}

func TestOffersHaveTheDeadlines(t *testing.T) {
	for name, test := range map[string]struct {
		task v1alpha1.NodeMaintenanceTask
		want [3]int32
	}{
		"all":  {v1alpha1.NodeMaintenanceTask{ClaimDeadlineSeconds: new(int32(61)), ProgressDeadlineSeconds: new(int32(62)), VerifyDeadlineSeconds: new(int32(63))}, [3]int32{61, 62, 63}},
		"none": {v1alpha1.NodeMaintenanceTask{}, [3]int32{1800, 1800, 900}},
	} {
		t.Run(name, func(t *testing.T) {
			nm := newMaintenance("m")
			node := newFacts(nm).node
			nm.Spec.Task = &test.task
			api := versionedfake.NewClientset()
			c := &Controller{Config: Config{
				Cluster: &host.Cluster{Clients: host.Clients{Maintenance: api}}, Clock: clock.RealClock{},
				State: &nodestate.State{Tasks: loop.NewLatest[*v1alpha1.NodeTask](cache.NewStore(cache.MetaNamespaceKeyFunc))},
			}}
			must.Do(t, c.offer(t.Context(), node, nm))
			offered := must.Get(api.MaintenanceV1alpha1().NodeTasks().Get(t.Context(), node.Name, metav1.GetOptions{}))(t).Spec
			is.Equal(t, [3]int32{offered.ClaimDeadlineSeconds, offered.ProgressDeadlineSeconds, offered.VerifyDeadlineSeconds}, test.want)
		})
	}
}
