// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientv1alpha1 "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

const (
	// longestRun is the longest time for which the server runs between two kills.
	longestRun = 1500 * time.Millisecond
	// missedAfter is the time after a restart within which a recorder may still learn late what has
	// happened.
	missedAfter = 5 * time.Second
	// rollTime is the time that a rollout may take after the last kill.
	rollTime = 5 * time.Minute
	// workTime is how long a worker has a node: long enough for the oracle to see what happens to
	// it, since changes may be seen late.
	workTime = 2 * time.Second
)

// outlived is a pool over which rollouts roll while the server is killed.
type outlived struct {
	*rig

	t               *testing.T
	random          *rand.Rand
	pool, namespace string
	nodes           []string
	// limit is the number of nodes that may be out of service.
	limit int
	// victims are the processes that are killed.
	victims []string
}

// TestRolloutsOutliveKills rolls over nodes with pods while the server is killed at random moments:
// ten times, or 300 times with E2E_FULL=1, and then etcd and kube-apiserver are killed as well. The
// rollouts have no goal, so that only what is stored keeps a node from being worked on twice. An
// observer checks that never more nodes were out than the limit allows, and the worker that it got
// each node once, cordoned and without pods.
func TestRolloutsOutliveKills(t *testing.T) {
	const server = "haulout-apiserver"
	x := &outlived{rig: newRig(t, false), t: t, random: framework.Random(t), limit: 3, victims: []string{server}}
	nodes, kills := 9, 10
	if framework.Full(t) {
		nodes, kills, x.limit = 20, 330, 5
		x.victims = []string{"etcd", "kube-apiserver"}
		for range 20 {
			x.victims = append(x.victims, server)
		}
	}
	x.pool, x.nodes = x.NewPool(t, nodes, true)
	x.namespace = x.NewNamespace(t)
	for i := range 2 {
		name := fmt.Sprintf("app-%d", i)
		x.Deployment(t, x.namespace, name, x.pool, int32(nodes))
		x.Budget(t, x.namespace, name, 3)
	}
	go x.nudge(t.Context(), x.namespace)
	t.Cleanup(func() {
		if t.Failed() {
			x.Diagnose(t)
		}
	})
	for done := 0; done < kills && !t.Failed(); {
		done += x.roll(kills - done)
	}
}

// roll rolls over all nodes, and kills processes until the rollout is complete or has outlived so
// many kills. It returns the number of kills.
func (x *outlived) roll(most int) (kills int) {
	x.t.Helper()
	judge := x.record(x.t, x.pool, x.namespace)
	defer judge.Stop()
	w := &worker{
		rig: x.rig, t: x.t, tasks: x.As(x.t).Haulout.MaintenanceV1alpha1().NodeTasks(), namespace: x.namespace,
		class: framework.Name("worker") + ".example.com", begun: map[types.UID]time.Time{}, works: map[string]int{},
	}
	ctx, cancel := context.WithCancel(x.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.run(ctx) })
	defer func() {
		cancel()
		wg.Wait()
	}()
	rollouts := x.As(x.t).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
	r := x.create(w.class)
	isComplete := func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, writeTime)
		defer cancel()
		now, err := rollouts.Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		r = now
		return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete), nil
	}
	for ; kills < most; kills++ {
		<-time.After(time.Duration(x.random.Int64N(int64(longestRun))))
		if over, err := isComplete(x.t.Context()); over && err == nil {
			break
		}
		x.kill(judge, one(x.random, x.victims))
	}
	framework.EventuallyWithin(x.t, rollTime, "the rollout is complete", func(ctx context.Context) (bool, error) {
		over, err := isComplete(ctx)
		if err != nil {
			// The server may have ended because of another process.
			err = errors.Join(err, x.Up())
		}
		return over, err
	})
	x.check(judge, w, r)
	x.t.Logf("rolled over %d nodes with %d kills", len(x.nodes), kills)
	return kills
}

// create creates a rollout over the pool.
func (x *outlived) create(class string) *v1alpha1.NodeMaintenanceRollout {
	x.t.Helper()
	r := &v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: framework.Name("nmr")},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			Stage: v1alpha1.RolloutStageRoll, NodeSelector: framework.Select(framework.Pool, x.pool),
			Limits:   []v1alpha1.RolloutLimit{{MaxUnavailable: ptr.To(intstr.FromInt(x.limit))}},
			Template: v1alpha1.RolloutTemplate{Task: &v1alpha1.NodeMaintenanceTask{Worker: class}},
		},
	}
	framework.EventuallyWithin(x.t, repairTime, "the rollout is created", func(ctx context.Context) (bool, error) {
		_, err := x.As(x.t).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().Create(ctx, r, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return false, errors.Join(err, x.Up())
		}
		return true, nil
	})
	return r
}

// kill kills a process, which may have ended, and starts what does not run.
func (x *outlived) kill(judge *oracle.Recorder, process string) {
	x.t.Helper()
	from := time.Now()
	pid := must.Get(stateOf(x.Cluster))(x.t).Processes[process].PID
	must.True(x.t, pid > 1, "%s has no process", process)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	framework.Gone(x.t, process, pid)
	x.up(x.t)
	judge.NoteGap(from, time.Now().Add(missedAfter))
}

// check judges a rollout that is complete, and deletes it.
func (x *outlived) check(judge *oracle.Recorder, w *worker, r *v1alpha1.NodeMaintenanceRollout) {
	x.t.Helper()
	is.Equal(x.t, r.Status.Nodes, v1alpha1.RolloutNodes{Total: int32(len(x.nodes)), Done: int32(len(x.nodes))})
	client := x.As(x.t).Haulout.MaintenanceV1alpha1()
	ofRollout := metav1.ListOptions{LabelSelector: v1alpha1.LabelRollout + "=" + r.Name}
	var names []string
	framework.EventuallyWithin(x.t, drainTime, "the maintenances can be listed", func(ctx context.Context) (bool, error) {
		list, err := client.NodeMaintenances().List(ctx, ofRollout)
		if err != nil {
			return false, errors.Join(err, x.Up())
		}
		names = nil
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return true, nil
	})
	is.True(x.t, len(names) >= len(x.nodes), "the rollout has the maintenances %v, want one for each of %d nodes", names, len(x.nodes))
	framework.Await(x.t, judge, drainTime, oracle.PutBack(nil, names...))
	must.Do(x.t, judge.Settle(x.t.Context()))
	log := must.Get(judge.Log())(x.t)
	found, out := oracle.Outages(log, oracle.Limit{Nodes: x.limit})
	is.True(x.t, out > 1, "at most %d nodes were out of service at the same time, want more than one", out)
	framework.Accept(x.t, found, nil)
	found, err := judge.Verdict(oracle.Rules{Server: serverUser, SeesLate: true})
	framework.Accept(x.t, found, err)
	w.check(x.nodes)
	framework.EventuallyWithin(x.t, rollTime, "no NodeTask is left, and the rollout is deleted", func(ctx context.Context) (bool, error) {
		tasks, err := client.NodeTasks().List(ctx, metav1.ListOptions{FieldSelector: "spec.worker=" + w.class})
		if err != nil || len(tasks.Items) > 0 {
			return false, errors.Join(err, fmt.Errorf("NodeTasks: %+v", tasks))
		}
		if err := client.NodeMaintenanceRollouts().Delete(ctx, r.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return false, err
		}
		list, err := client.NodeMaintenances().List(ctx, ofRollout)
		return err == nil && len(list.Items) == 0, err
	})
}

// worker claims the nodes of a class, and reports for workTime without doing anything on them. It
// never works on a task twice, as a worker that reads its own notes after a restart.
type worker struct {
	*rig

	t                *testing.T
	tasks            clientv1alpha1.NodeTaskInterface
	namespace, class string

	mu    sync.Mutex
	begun map[types.UID]time.Time
	// works counts the works by node, and found describes the nodes that were not ready for them.
	works map[string]int
	found []string
}

// run works until the context ends.
func (w *worker) run(ctx context.Context) {
	for ticker := time.Tick(100 * time.Millisecond); ctx.Err() == nil; <-ticker {
		w.step(ctx)
	}
}

// step claims what is offered, and works on what is claimed. Requests may fail, and the next step
// repeats them.
func (w *worker) step(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	list, err := w.tasks.List(ctx, metav1.ListOptions{FieldSelector: "spec.worker=" + w.class})
	if err != nil {
		return
	}
	for i := range list.Items {
		task := &list.Items[i]
		var status string
		switch {
		case task.Status.State == v1alpha1.NodeTaskOffered && task.Status.Holder == "":
			status = fmt.Sprintf(`{"holder":%q}`, w.class)
		case task.Status.State == v1alpha1.NodeTaskClaimed && task.Status.Result == "":
			status = w.work(ctx, task)
		}
		if status == "" {
			continue
		}
		_, _ = w.tasks.Patch(ctx, task.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":%s}`, task.UID, status),
			metav1.PatchOptions{}, "status")
	}
}

// work returns what to report about the work on a node; "" if the observer cannot read whether the
// node is ready for it.
func (w *worker) work(ctx context.Context, task *v1alpha1.NodeTask) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if begun, ok := w.begun[task.UID]; ok {
		if worked := time.Since(begun); worked < workTime {
			// A report that changes nothing might be no event for the oracle.
			return fmt.Sprintf(`{"message":%q}`, worked)
		}
		return fmt.Sprintf(`{"result":%q}`, v1alpha1.NodeTaskResultDone)
	}
	node, err := w.observer.Nodes().Get(ctx, task.Name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	pods, err := w.observer.Pods(w.namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", task.Name).String()})
	if err != nil {
		return ""
	}
	if !node.Spec.Unschedulable || len(pods.Items) > 0 {
		w.found = append(w.found, fmt.Sprintf("a worker got node %s, unschedulable %t, with %d pods", node.Name, node.Spec.Unschedulable, len(pods.Items)))
	}
	w.begun[task.UID] = time.Now()
	w.works[task.Name]++
	return `{"message":"working"}`
}

// check reports what the worker found, and the nodes that it did not get once.
func (w *worker) check(nodes []string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	framework.Accept(w.t, w.found, nil)
	for _, node := range nodes {
		is.Equal(w.t, w.works[node], 1, "works on node "+node)
	}
}
