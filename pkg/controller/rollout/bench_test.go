// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"testing"

	hostfake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/selection"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/must"
)

// BenchmarkSync is what an event of a node costs each rollout: the facts about 5,000 nodes, one of
// which has changed, and the decision. Compare it with the debounce.
func BenchmarkSync(b *testing.B) {
	cluster := must.Get(host.NewCluster(host.Clients{
		Client: hostfake.NewClientset(), Maintenance: maintenancefake.NewClientset(), Recorder: events.NewFakeRecorder(1),
	}, 0))(b)
	now, nodes := clock.RealClock{}, cluster.Nodes.Informer()
	selected := must.Get(selection.New(nodes, cluster.NodeMaintenances.Informer(), now))(b)
	c := must.Get(New(Config{
		Cluster: cluster, Clock: now, Selection: selected, MaxUnavailableNodes: 20,
		Rights: rights.NewCache(rights.CacheConfig{Authorizer: &refusals{}, Clock: now}),
	}))(b)
	for i := range 5000 {
		must.Do(b, nodes.GetStore().Add(newNode(fmt.Sprintf("node-%d", i))))
	}
	r := newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Template.Task.DoneWhen = "node.status.nodeInfo.kernelVersion == '6.12'"
	})
	for b.Loop() {
		must.Do(b, nodes.GetStore().Update(newNode("node-0")))
		if d := decide(must.Get(c.gather(b.Context(), r))(b)); d.status.Nodes.Total != 5000 {
			b.Fatalf("got %+v", d.status.Nodes)
		}
	}
}
