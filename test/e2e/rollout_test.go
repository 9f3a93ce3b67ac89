// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientv1alpha1 "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// kernelLabel is the label that the workers of the rollouts change, to the value newKernel.
const (
	kernelLabel = "e2e.haulout.dev/kernel"
	newKernel   = "6.12"
)

func rollouts(t *testing.T) clientv1alpha1.NodeMaintenanceRolloutInterface {
	t.Helper()
	return cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
}

// roll creates a rollout over a pool, whose nodes have to get the new kernel, and deletes it after
// the test.
func roll(t *testing.T, pool string, modify ...func(*v1alpha1.NodeMaintenanceRollout)) *v1alpha1.NodeMaintenanceRollout {
	t.Helper()
	r := build.With(&v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: framework.Name("nmr")},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			Stage: v1alpha1.RolloutStageRoll, NodeSelector: framework.Select(framework.Pool, pool),
			Template: v1alpha1.RolloutTemplate{Task: &v1alpha1.NodeMaintenanceTask{
				Worker: pool + ".example.com", DoneWhen: labelled(kernelLabel, newKernel),
			}},
		},
	}, modify...)
	r = must.Get(rollouts(t).Create(t.Context(), r, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		if t.Failed() {
			cluster.Diagnose(t)
		}
		removeRollout(t, r)
	})
	return r
}

// removeRollout deletes a rollout, and waits until its nodes are released. It takes back those that
// the worker had at the end of the test: a NodeTask without a node would take a place in all other
// rollouts.
func removeRollout(t *testing.T, r *v1alpha1.NodeMaintenanceRollout) {
	t.Helper()
	admin := cluster.As(t).Haulout.MaintenanceV1alpha1()
	err := admin.NodeMaintenanceRollouts().Delete(context.WithoutCancel(t.Context()), r.Name, metav1.DeleteOptions{})
	is.True(t, err == nil || apierrors.IsNotFound(err), "delete rollout %s: %v", r.Name, err)
	framework.Eventually(t, "the maintenances of rollout "+r.Name+" are gone", func(ctx context.Context) (bool, error) {
		left, err := admin.NodeMaintenances().List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelRollout + "=" + r.Name})
		if err != nil || len(left.Items) == 0 {
			return err == nil, err
		}
		tasks, err := admin.NodeTasks().List(ctx, metav1.ListOptions{FieldSelector: "spec.worker=" + r.Spec.Template.Task.Worker})
		if err != nil {
			return false, err
		}
		for i := range tasks.Items {
			if task := &tasks.Items[i]; slices.ContainsFunc(left.Items, func(nm v1alpha1.NodeMaintenance) bool { return nm.UID == task.Spec.Maintenance.UID }) {
				// The next attempt repeats a failed deletion.
				_ = admin.NodeTasks().Delete(ctx, task.Name, metav1.DeleteOptions{})
			}
		}
		return false, fmt.Errorf("%d are left", len(left.Items))
	})
}

// as sets the class of the workers of a rollout: the name of a worker, with the domain that
// runWorker adds. doneWhen is the condition for their nodes.
func as(worker, doneWhen string) func(*v1alpha1.NodeMaintenanceRollout) {
	return func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Template.Task = &v1alpha1.NodeMaintenanceTask{Worker: worker + ".example.com", DoneWhen: doneWhen}
	}
}

// labelled returns the condition that a node has a label with a value.
func labelled(key, value string) string {
	return fmt.Sprintf("%[1]q in node.metadata.labels && node.metadata.labels[%[1]q] == %[2]q", key, value)
}

// runWorker claims the NodeTasks of its class, which roll names by the pool, until the test ends.
// work does the work on a node, and returns its result.
func runWorker(t *testing.T, name string, work func(node string) v1alpha1.NodeTaskResult) {
	t.Helper()
	tasks := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeTasks()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	report := func(task *v1alpha1.NodeTask, status string) {
		patch := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":%s}`, task.UID, status)
		_, err := tasks.Patch(ctx, task.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
			t.Errorf("report %s about node %s: %v", status, task.Name, err)
		}
	}
	go func() {
		defer close(done)
		for ticker := time.Tick(200 * time.Millisecond); ctx.Err() == nil; <-ticker {
			list, err := tasks.List(ctx, metav1.ListOptions{FieldSelector: "spec.worker=" + name + ".example.com"})
			if err != nil {
				continue
			}
			for i := range list.Items {
				switch task := &list.Items[i]; {
				case task.Status.State == v1alpha1.NodeTaskOffered && task.Status.Holder == "":
					report(task, `{"holder":"e2e"}`)
				case task.Status.State == v1alpha1.NodeTaskClaimed && task.Status.Result == "":
					report(task, fmt.Sprintf(`{"result":%q}`, work(task.Name)))
				}
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// install gives a node the new kernel.
func install(t *testing.T, node string) v1alpha1.NodeTaskResult {
	t.Helper()
	if err := label(t, cluster.As(t), node, kernelLabel, newKernel); err != nil {
		t.Errorf("label node %s: %v", node, err)
		return v1alpha1.NodeTaskResultFailed
	}
	return v1alpha1.NodeTaskResultDone
}

func rolloutUntil(t *testing.T, name, reason string) *v1alpha1.NodeMaintenanceRollout {
	t.Helper()
	return framework.Until(t, "rollout "+name+" is "+reason, rollouts(t), name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		progressing := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing)
		return progressing != nil && progressing.Reason == reason
	})
}

// recordNodes records the changes of the nodes of a pool from now to the end of the test.
func recordNodes(t *testing.T, pool string) *oracle.Recorder {
	t.Helper()
	return cluster.Record(t, oracle.Scope{
		Only: []string{"nodes"}, Nodes: labels.SelectorFromSet(labels.Set{framework.Pool: pool}),
	})
}

// neverMoreOut waits until all recorded nodes are schedulable, and reports the times at which they
// broke a limit. So many were out at the same time at least, or the recorder has seen too little.
func neverMoreOut(t *testing.T, recorder *oracle.Recorder, atLeast int, limits ...oracle.Limit) {
	t.Helper()
	waitFor(t, recorder, oracle.PutBack(nil))
	log, err := recorder.Log()
	found, most := oracle.Outages(log, limits...)
	framework.Accept(t, found, err)
	is.True(t, most >= atLeast, "at most %d nodes were out of service at the same time, want at least %d", most, atLeast)
}

// fleetOfZones is the size of TestRolloutZoneByZone.
type fleetOfZones struct {
	nodes, apps, replicas, budget int
	// percent is the limit of the rollout, and out the number of nodes that it is.
	percent string
	out     int
	// patience is the time that the rollout may take.
	patience time.Duration
}

// TestRolloutZoneByZone installs a new kernel on six nodes in three zones, of which one has it
// already. With E2E_FULL=1, there are 60 nodes with 300 pods.
func TestRolloutZoneByZone(t *testing.T) {
	t.Parallel() // the test mostly waits
	size := fleetOfZones{nodes: 6, apps: 1, replicas: 6, budget: 2, percent: "40%", out: 2, patience: framework.Timeout}
	if framework.Full(t) {
		size = fleetOfZones{nodes: 60, apps: 10, replicas: 30, budget: 3, percent: "10%", out: 6, patience: 15 * time.Minute}
	}
	pool, nodes := cluster.NewPool(t, size.nodes, true)
	for i, node := range nodes {
		must.Do(t, label(t, cluster.As(t), node, zoneLabel, fmt.Sprintf("zone-%d", i/(size.nodes/3))))
	}
	must.Do(t, setKernel(t, nodes[0]))
	namespace := cluster.NewNamespace(t)
	for i := range size.apps {
		name := fmt.Sprintf("web-%d", i)
		cluster.Deployment(t, namespace, name, pool, int32(size.replicas))
		cluster.Budget(t, namespace, name, size.budget)
	}
	recorder := cluster.Judge(t, pool, namespace)
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult {
		// Long enough for the oracle to see what happens to the node meanwhile: the begin is seen a
		// moment late, and the end is stored in whole seconds.
		<-time.After(3 * time.Second)
		if err := setKernel(t, node); err != nil {
			t.Errorf("install the kernel on node %s: %v", node, err)
			return v1alpha1.NodeTaskResultFailed
		}
		return v1alpha1.NodeTaskResultDone
	})
	r := roll(t, pool, as(pool, "node.status.nodeInfo.kernelVersion.startsWith('"+newKernel+".')"), func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Limits = []v1alpha1.RolloutLimit{
			{MaxUnavailable: ptr.To(intstr.FromString(size.percent))}, {MaxDomains: ptr.To[int32](1), TopologyKey: zoneLabel},
		}
		// A window that is always open, in a zone of which the server's image has no file.
		r.Spec.Windows = []v1alpha1.RolloutWindow{{Schedule: "* * * * *", Duration: metav1.Duration{Duration: time.Hour}, TimeZone: "Europe/Berlin"}}
	})
	framework.EventuallyWithin(t, size.patience, "all nodes have the kernel", func(ctx context.Context) (bool, error) {
		var err error
		r, err = rollouts(t).Get(ctx, r.Name, metav1.GetOptions{})
		return err == nil && meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete), err
	})
	is.Equal(t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: int32(size.nodes), Done: int32(size.nodes)})
	is.True(t, r.Status.Window != nil && r.Status.Window.Open, "got the window %+v, want an open one", r.Status.Window)
	list := attempts(t, r.Name)
	is.Equal(t, len(list), size.nodes-1, "maintenances of the rollout")
	for i := range list {
		is.True(t, !strings.Contains(list[i].Name, nodes[0]), "node %s had the new kernel, but got %s", nodes[0], list[i].Name)
		is.Equal(t, list[i].Spec.RequestedBy.Username, r.Spec.RequestedBy.Username, "requester of "+list[i].Name)
		waitFor(t, recorder, oracle.Done(list[i].Name))
	}
	neverMoreOut(t, recorder, size.out, oracle.Limit{Nodes: size.out}, oracle.Limit{Key: zoneLabel, Domains: 1})
	keptItsPromises(t, recorder)
}

// keptItsPromises waits until no Evacuation is left, and reports what else the server did wrong.
func keptItsPromises(t *testing.T, recorder *oracle.Recorder) {
	t.Helper()
	waitFor(t, recorder, oracle.PutBack(nil))
	must.Do(t, recorder.Settle(t.Context()))
	found, err := recorder.Verdict(oracle.Rules{Server: serverUser})
	framework.Accept(t, found, err)
}

// setKernel gives a node the new kernel, as the kubelet does after a reboot.
func setKernel(t *testing.T, node string) error {
	t.Helper()
	_, err := cluster.As(t).Nodes().Patch(t.Context(), node, types.MergePatchType,
		fmt.Appendf(nil, `{"status":{"nodeInfo":{"kernelVersion":%q}}}`, newKernel+".1"), metav1.PatchOptions{}, "status")
	return err
}

// attempts returns the maintenances of a rollout.
func attempts(t *testing.T, rollout string) []v1alpha1.NodeMaintenance {
	t.Helper()
	return must.Get(cluster.As(t).Maintenances().List(t.Context(), metav1.ListOptions{LabelSelector: v1alpha1.LabelRollout + "=" + rollout}))(t).Items
}

// TestRolloutHaltsAndIsHeld: the work fails on the first node, so no other node is disturbed. A
// user repairs the node, and two hold the rollout meanwhile. It stays held when one of them removes
// the own hold. The deletion of the rollout releases all nodes.
func TestRolloutHaltsAndIsHeld(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 3, true)
	recorder := recordNodes(t, pool)
	broken := make(chan struct{})
	runWorker(t, pool, func(node string) v1alpha1.NodeTaskResult {
		select {
		case <-broken:
			return install(t, node)
		default:
			return v1alpha1.NodeTaskResultFailed
		}
	})
	holder := framework.Name("holder")
	cluster.Bind(t, holder, "haulout-rollout-holder")
	r := roll(t, pool)
	cluster.MustKubectl(t, "", "wait", "nmr/"+r.Name, "--for=condition=Stalled", "--timeout=2m")
	halted := rolloutUntil(t, r.Name, v1alpha1.ReasonHalted)
	is.Equal(t, halted.Status.Nodes, v1alpha1.RolloutNodes{Total: 3, Failed: 1, Waiting: 2})
	failed := halted.Status.Current[0].Unit
	unschedulable(t, true, failed)
	must.Do(t, patchRollout(t, rolloutsOf(t, holder), r.Name, `{"spec":{"holds":[{"name":"ceph","reason":"rebuild"}]}}`, true))
	setRollout(t, r.Name, "holds", []v1alpha1.RolloutHold{{Name: "ceph", Reason: "rebuild"}, {Name: "power"}})
	close(broken)
	must.Do(t, cluster.As(t).Haulout.MaintenanceV1alpha1().NodeTasks().Delete(t.Context(), failed, metav1.DeleteOptions{}))
	framework.Until(t, "the node is done, and the rollout held", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		progressing := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgressing)
		return r.Status.Nodes.Done == 1 && len(r.Status.Current) == 0 && progressing.Reason == v1alpha1.ReasonHeld && strings.Contains(progressing.Message, holder)
	})
	must.Do(t, patchRollout(t, rolloutsOf(t, holder), r.Name, `{"spec":{"holds":[{"name":"power"}]}}`, true))
	held := framework.Until(t, "one hold is left", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool {
		return r.Status.ObservedGeneration == r.Generation && progressingIs(r, v1alpha1.ReasonHeld, "Hold power") && !progressingIs(r, v1alpha1.ReasonHeld, "ceph")
	})
	is.True(t, len(held.Spec.Holds) == 1 && len(held.Status.Current) == 0, "got the holds %+v and the units %+v", held.Spec.Holds, held.Status.Current)
	unschedulable(t, false, nodes...)
	setRollout(t, r.Name, "holds", nil)
	framework.Until(t, "the next unit runs", rollouts(t), r.Name, func(r *v1alpha1.NodeMaintenanceRollout) bool { return len(r.Status.Current) > 0 })
	must.Do(t, rollouts(t).Delete(t.Context(), r.Name, metav1.DeleteOptions{}))
	framework.Eventually(t, "the maintenances of the rollout are deleted", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Maintenances().List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelRollout + "=" + r.Name})
		return err == nil && len(list.Items) == 0, err
	})
	neverMoreOut(t, recorder, 1, oracle.Limit{Nodes: 1})
	unschedulable(t, false, nodes...)
}
