// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// rackLabel is the label whose value is the rack of a node.
const rackLabel = "e2e.haulout.dev/rack"

// maxUnavailable limits the nodes of a rollout that are out.
func maxUnavailable(nodes int32) v1alpha1.RolloutLimit {
	return v1alpha1.RolloutLimit{MaxUnavailable: ptr.To(intstr.FromInt32(nodes))}
}

func limited(limits ...v1alpha1.RolloutLimit) func(*v1alpha1.NodeMaintenanceRollout) {
	return func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Limits = limits }
}

// gated returns a work that sends the name of its node to claimed, and waits for an element of
// pass, or until pass is closed.
func gated(t *testing.T, work func(node string) v1alpha1.NodeTaskResult) (w func(string) v1alpha1.NodeTaskResult, claimed, pass chan string) {
	t.Helper()
	claimed, pass = make(chan string, 100), make(chan string)
	return func(node string) v1alpha1.NodeTaskResult {
		claimed <- node
		select {
		case <-pass:
			return work(node)
		case <-t.Context().Done():
			return v1alpha1.NodeTaskResultFailed
		}
	}, claimed, pass
}

// next returns the next node that a worker has got.
func next(t *testing.T, claimed <-chan string) string {
	t.Helper()
	select {
	case node := <-claimed:
		return node
	case <-time.After(framework.Timeout):
		t.Fatal("no worker has got a node")
		return ""
	}
}

// TestRolloutOfRacks rolls over two racks of four nodes, and a node without a rack, with a limit of
// four nodes. While a worker has one node of a rack, and until its last one is done, all of them
// are out.
func TestRolloutOfRacks(t *testing.T) {
	t.Parallel() // the test mostly waits
	const inRack = 4
	pool, nodes := cluster.NewPool(t, 2*inRack+1, true)
	racks := map[string][]string{}
	for i, node := range nodes[:2*inRack] {
		rack := nodes[i/inRack*inRack:][:inRack]
		must.Do(t, label(t, cluster.As(t), node, rackLabel, rack[0]))
		racks[node] = rack
	}
	recorder := recordNodes(t, pool)
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult {
		for _, other := range racks[node] {
			found, err := cluster.As(t).Nodes().Get(t.Context(), other, metav1.GetOptions{})
			is.True(t, err == nil && found.Spec.Unschedulable, "a worker has node %s of a rack, but node %s is in service (%v)", node, other, err)
		}
		return install(t, node)
	})
	r := roll(t, pool, limited(maxUnavailable(inRack)), func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.UnitKey = rackLabel })
	cluster.MustKubectl(t, "", "wait", "nmr/"+r.Name, "--for=condition=Complete", "--timeout=2m")
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 9, Done: 9})
	is.Equal(t, len(attempts(t, r.Name)), 3, "maintenances of two racks and a node")
	neverMoreOut(t, recorder, inRack, oracle.Limit{Nodes: inRack}, oracle.Limit{Key: rackLabel, Domains: 1})
}

// TestRolloutOfControlPlanes has two rollouts over three control-plane nodes, with limits that
// allow all of them: never two are out. One of the nodes has no label, and an agent that has
// published that etcd runs on it. Other tests may have control-plane nodes of their own out, so
// this one may wait for them.
func TestRolloutOfControlPlanes(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 3, true)
	for _, node := range nodes[:2] {
		must.Do(t, label(t, cluster.As(t), node, "node-role.kubernetes.io/control-plane", ""))
	}
	cluster.MustKubectl(t, "", "annotate", "node", nodes[2], v1alpha1.AnnotationKeptStaticPods+"="+protocol.EncodeKeptStaticPods("boot", true, nil))
	recorder := recordNodes(t, pool)
	disk := framework.Name("disk")
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	runWorker(t, disk, func(string) v1alpha1.NodeTaskResult { return v1alpha1.NodeTaskResultDone })
	one, two := roll(t, pool, limited(maxUnavailable(3))), roll(t, pool, limited(maxUnavailable(3)), as(disk, ""))
	for _, r := range []*v1alpha1.NodeMaintenanceRollout{one, two} {
		framework.EventuallyWithin(t, 3*framework.Timeout, r.Name+" is complete", func(ctx context.Context) (bool, error) {
			is, err := rollouts(t).Get(ctx, r.Name, metav1.GetOptions{})
			return err == nil && is.Status.Nodes == v1alpha1.RolloutNodes{Total: 3, Done: 3}, err
		})
	}
	neverMoreOut(t, recorder, 1, oracle.Limit{Nodes: 1})
}

// TestZoneLabelChangesInTheMiddle has a rollout that may be in one zone at a time. While a worker
// has the first node, another node leaves its zone, and must wait. While it has the second one, a
// node joins that zone, and must start.
func TestZoneLabelChangesInTheMiddle(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 5, true)
	first, second, leaves, joins := nodes[0], nodes[1], nodes[2], nodes[3]
	zone := func(node, zone string) {
		t.Helper()
		must.Do(t, label(t, cluster.As(t), node, zoneLabel, zone))
	}
	for i, name := range []string{"here", "here", "here", "there", "there"} {
		zone(nodes[i], name)
	}
	recorder := recordNodes(t, pool)
	work, claimed, pass := gated(t, func(node string) v1alpha1.NodeTaskResult { return install(t, node) })
	runWorker(t, pool, work)
	r := roll(t, pool, limited(v1alpha1.RolloutLimit{MaxDomains: ptr.To[int32](1), TopologyKey: zoneLabel}))
	is.Equal(t, next(t, claimed), first, "the first node")
	zone(leaves, "there")
	pass <- first
	is.Equal(t, next(t, claimed), second, "the second node")
	zone(joins, "here")
	unschedulable(t, true, joins)
	close(pass)
	r = rolloutUntil(t, r.Name, v1alpha1.ReasonRolloutComplete)
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: 5, Done: 5})
	neverMoreOut(t, recorder, 2, oracle.Limit{Key: zoneLabel, Domains: 1})
}

// TestRolloutsThatStartNothing has rollouts of which no unit can ever start. The server warns of
// the limits and of the windows when they are created, and says so in their conditions. With
// E2E_FULL=1, a unit has 5,000 nodes.
func TestRolloutsThatStartNothing(t *testing.T) {
	t.Parallel()
	many := 65
	if framework.Full(t) {
		many = 5000
	}
	oneUnit := func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.UnitKey = framework.Pool }
	window := func(w v1alpha1.RolloutWindow) func(*v1alpha1.NodeMaintenanceRollout) {
		w.Duration = metav1.Duration{Duration: time.Hour}
		return func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Windows = []v1alpha1.RolloutWindow{w} }
	}
	for sentence, tc := range map[string]struct {
		nodes     int
		simulated bool
		modify    func(*v1alpha1.NodeMaintenanceRollout)
		warning   string
		reason    string
		message   string
	}{
		"all nodes have one value of the label of the units": {
			nodes: many, modify: oneUnit, warning: "spec.limits: no unit fits", reason: v1alpha1.ReasonNodesSkipped,
			message: fmt.Sprintf("it has %d nodes; allowed: 64", many),
		},
		"no unit fits into a limit": {
			nodes: 2, simulated: true, modify: oneUnit, warning: "spec.limits: no unit fits", reason: v1alpha1.ReasonNodesSkipped,
			message: "it has 2 nodes",
		},
		"the only window is over": {
			nodes: 1, simulated: true, modify: window(v1alpha1.RolloutWindow{Start: ptr.To(metav1.NewTime(time.Now().Add(-2 * time.Hour)))}),
			warning: "no window opens any more", reason: v1alpha1.ReasonOutsideWindow,
		},
		"no day has the schedule of the window": {
			nodes: 1, simulated: true, modify: window(v1alpha1.RolloutWindow{Schedule: "0 22 30 2 *"}),
			warning: "no window opens any more", reason: v1alpha1.ReasonOutsideWindow,
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			t.Parallel()
			pool, nodes := cluster.NewPool(t, tc.nodes, tc.simulated)
			var warnings received
			config := cluster.As(t).Config
			config.WarningHandler = &warnings
			r := idleRollout(pool)
			tc.modify(r)
			r.Spec.Stage = v1alpha1.RolloutStageRoll
			theirs := clientset.NewForConfigOrDie(config).MaintenanceV1alpha1().NodeMaintenanceRollouts()
			framework.Eventually(t, "the server has seen the nodes, and warns", func(ctx context.Context) (bool, error) {
				_, err := theirs.Create(ctx, r, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				got := warnings.take()
				if !slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, tc.warning) }) {
					return false, errors.Join(err, fmt.Errorf("got the warnings %q", got))
				}
				return true, nil
			})
			r = must.Get(theirs.Create(t.Context(), r, metav1.CreateOptions{}))(t)
			t.Cleanup(func() { removeRollout(t, r) })
			r = framework.Until(t, "the rollout is "+tc.reason+": "+tc.message, rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
				return progressingIs(r, tc.reason, tc.message)
			})
			is.Equal(t, int(r.Status.Nodes.Total), tc.nodes, "nodes")
			is.Equal(t, len(attempts(t, r.Name)), 0, "maintenances")
			unschedulable(t, false, nodes[0])
		})
	}
}
