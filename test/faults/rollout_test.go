// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	// workTime is how long a worker has a node. Changes may be seen a second late, and the end of
	// the work is stored in whole seconds: the oracle judges the two seconds between.
	workTime = 4 * time.Second
	// soakTime is how long the nodes of a rollout soak. Its rack is the label of the nodes with the
	// same value.
	soakTime = 6 * time.Second
	rack     = "faults.haulout.dev/rack"
	// openTime is the time after which the window of a rollout closes, and closedTime the time
	// after which the next one opens.
	openTime, closedTime = 10 * time.Second, 15 * time.Second
	// longestHold is the longest time before a user adds a hold, and for which it stays.
	longestHold = 10 * time.Second
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
	// victims are the processes that are still to be killed, in this order.
	victims []string
	// trips is the number of works on nodes.
	trips int
}

// TestRolloutsOutliveKills rolls over nodes with pods while the server is killed at random moments:
// ten times, or 300 times with E2E_FULL=1, in at least 200 trips, and etcd and kube-apiserver 15
// times each. The rollouts have no goal, so that only what is stored keeps a node from being worked
// on twice. They differ at random: units of one node or of two, a time to soak, a window that
// closes, a hold, a work that fails and is retried. An observer checks that never more nodes were
// out than the limit allows, that no unit started while the rollout was held or its window closed,
// and the worker that it got each node once, or twice if its first work has failed, cordoned and
// without pods.
func TestRolloutsOutliveKills(t *testing.T) {
	x := &outlived{rig: newRig(t, false), t: t, random: framework.Random(t), limit: 3}
	nodes, trips := 9, 0
	x.victims = slices.Repeat([]string{"haulout-apiserver"}, 10)
	if framework.Full(t) {
		nodes, trips, x.limit = 20, 200, 5
		x.victims = slices.Concat(slices.Repeat(x.victims, 30), slices.Repeat([]string{"etcd", "kube-apiserver"}, 15))
		x.random.Shuffle(len(x.victims), func(i, j int) { x.victims[i], x.victims[j] = x.victims[j], x.victims[i] })
	}
	x.pool, x.nodes = x.NewPool(t, nodes, true)
	for i, node := range x.nodes {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"rack-%d"}}}`, rack, i/2)
		must.Get(x.observer.Nodes().Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
	}
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
	for (len(x.victims) > 0 || x.trips < trips) && !t.Failed() {
		x.roll(x.newShape())
	}
}

// shape is what a rollout has beside its limit.
type shape struct {
	// racks is set if the units are racks of two nodes.
	racks bool
	// soaks is set if nodes count as out for soakTime after their return, and closes if a window
	// closes after openTime, and the next one opens after closedTime.
	soaks, closes bool
	// holds are the times for which a user waits before adding a hold, and before removing it. The
	// user does neither if they are 0.
	holds [2]time.Duration
	// fails is the node whose first work fails; "" if none does.
	fails string
}

func (x *outlived) newShape() shape {
	s := shape{racks: x.random.IntN(2) == 0}
	switch x.random.IntN(3) {
	case 0:
		s.soaks = true
	case 1:
		s.closes = true
	}
	if x.random.IntN(2) == 0 {
		for i := range s.holds {
			s.holds[i] = time.Duration(x.random.Int64N(int64(longestHold)))
		}
	}
	if x.random.IntN(2) == 0 {
		s.fails = one(x.random, x.nodes)
	}
	return s
}

// spec returns the spec of a rollout over the pool.
func (x *outlived) spec(s shape, class string) v1alpha1.NodeMaintenanceRolloutSpec {
	spec := v1alpha1.NodeMaintenanceRolloutSpec{
		Stage: v1alpha1.RolloutStageRoll, NodeSelector: framework.Select(framework.Pool, x.pool),
		Limits:   []v1alpha1.RolloutLimit{{MaxUnavailable: ptr.To(intstr.FromInt(x.limit))}},
		Template: v1alpha1.RolloutTemplate{Task: &v1alpha1.NodeMaintenanceTask{Worker: class}},
	}
	if s.racks {
		spec.UnitKey = rack
	}
	if s.soaks {
		spec.SoakSeconds = int32(soakTime.Seconds())
	}
	if s.closes {
		now := time.Now()
		spec.WhenClosed = v1alpha1.RolloutClosedWithdraw
		spec.Windows = []v1alpha1.RolloutWindow{
			{Start: ptr.To(metav1.NewTime(now.Add(openTime - time.Minute))), Duration: metav1.Duration{Duration: time.Minute}},
			{Start: ptr.To(metav1.NewTime(now.Add(openTime + closedTime))), Duration: metav1.Duration{Duration: time.Hour}},
		}
	}
	return spec
}

// roll rolls over all nodes, and kills processes, at most two for each node, until the rollout is
// complete.
func (x *outlived) roll(s shape) {
	x.t.Helper()
	judge := x.record(x.t, x.pool, x.namespace)
	defer judge.Stop()
	w := &worker{
		rig: x.rig, t: x.t, tasks: x.As(x.t).Haulout.MaintenanceV1alpha1().NodeTasks(), namespace: x.namespace,
		class: framework.Name("worker") + ".example.com", fails: s.fails, begun: map[types.UID]time.Time{}, works: map[string]int{},
	}
	starts := &starts{class: w.class}
	ctx, cancel := context.WithCancel(x.t.Context())
	must.Do(x.t, oracle.Follow(ctx, oracle.Resource{
		Client: x.observer.Haulout.MaintenanceV1alpha1().RESTClient(), Name: "nodemaintenancerollouts", MayRestart: true,
		See: starts.see, Fail: starts.fail,
	}))
	r := x.create(x.spec(s, w.class))
	var wg sync.WaitGroup
	wg.Go(func() { w.run(ctx) })
	wg.Go(func() { x.hold(ctx, r.Name, s.holds) })
	defer func() {
		cancel()
		wg.Wait()
	}()
	rollouts := x.As(x.t).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
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
	// A leader that is killed again within the soak time waits for it again.
	before := len(x.victims)
	for len(x.victims) > 0 && before-len(x.victims) < 2*len(x.nodes) {
		<-time.After(time.Duration(x.random.Int64N(int64(longestRun))))
		if over, err := isComplete(x.t.Context()); over && err == nil {
			break
		}
		x.kill(judge, x.victims[0])
		x.victims = x.victims[1:]
	}
	framework.EventuallyWithin(x.t, rollTime, "the rollout is complete", func(ctx context.Context) (bool, error) {
		over, err := isComplete(ctx)
		if err != nil {
			// The server may have ended because of another process.
			err = errors.Join(err, x.Up())
		}
		return over, err
	})
	x.check(judge, w, r, s)
	starts.check(x.t)
	x.trips += w.trips()
	x.t.Logf("rolled over %d nodes with %d kills: %+v", len(x.nodes), before-len(x.victims), s)
}

// create creates a rollout.
func (x *outlived) create(spec v1alpha1.NodeMaintenanceRolloutSpec) *v1alpha1.NodeMaintenanceRollout {
	x.t.Helper()
	r := &v1alpha1.NodeMaintenanceRollout{ObjectMeta: metav1.ObjectMeta{Name: framework.Name("nmr")}, Spec: spec}
	framework.EventuallyWithin(x.t, repairTime, "the rollout is created", func(ctx context.Context) (bool, error) {
		_, err := x.As(x.t).Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().Create(ctx, r, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return false, errors.Join(err, x.Up())
		}
		return true, nil
	})
	return r
}

// hold adds a hold to a rollout, and removes it.
func (x *outlived) hold(ctx context.Context, name string, after [2]time.Duration) {
	if after == [2]time.Duration{} {
		return
	}
	for i, holds := range []string{`[{"name":"kills"}]`, `null`} {
		pause := time.After(after[i])
		for isWritten := false; !isWritten; {
			select {
			case <-ctx.Done():
				return
			case <-pause:
			}
			isWritten = x.patchHolds(ctx, name, holds) == nil
			pause = time.After(nudgeInterval)
		}
	}
}

func (x *outlived) patchHolds(ctx context.Context, name, holds string) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	_, err := x.observer.Haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts().Patch(ctx, name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"holds":%s}}`, holds), metav1.PatchOptions{})
	return err
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
func (x *outlived) check(judge *oracle.Recorder, w *worker, r *v1alpha1.NodeMaintenanceRollout, s shape) {
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
	units := len(x.nodes)
	if s.racks {
		units = (units + 1) / 2
	}
	is.True(x.t, len(names) >= units, "the rollout has the maintenances %v, want one for each of %d units", names, units)
	framework.Await(x.t, judge, drainTime, oracle.PutBack(nil, names...))
	must.Do(x.t, judge.Settle(x.t.Context()))
	log := must.Get(judge.Log())(x.t)
	limit := oracle.Limit{Nodes: x.limit}
	if s.soaks {
		// The recorder may see the return of a node later than that of the next one.
		limit.Soak = soakTime / 2
	}
	found, out := oracle.Outages(log, limit)
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
	// fails is the node whose first work fails; "" if none does.
	fails string

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
		case task.Status.State == v1alpha1.NodeTaskFailed:
			// A user who has repaired the node has the work repeated in this way.
			_ = w.tasks.Delete(ctx, task.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(task.UID))})
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
		result := v1alpha1.NodeTaskResultDone
		if task.Name == w.fails && w.works[task.Name] == 1 {
			result = v1alpha1.NodeTaskResultFailed
		}
		return fmt.Sprintf(`{"result":%q}`, result)
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

// check reports what the worker found, and the nodes that it got too often or not at all.
func (w *worker) check(nodes []string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	framework.Accept(w.t, w.found, nil)
	for _, node := range nodes {
		want := 1
		if node == w.fails {
			want = 2
		}
		is.Equal(w.t, w.works[node], want, "works on node "+node)
	}
}

// trips returns the number of works.
func (w *worker) trips() (trips int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, works := range w.works {
		trips += works
	}
	return trips
}
