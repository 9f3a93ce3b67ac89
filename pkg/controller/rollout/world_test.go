// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	hostfake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/drain/marks"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

// The scripts of nodes: what happens to them instead of a drain and a work that succeed.
const (
	drainStuck  = "the drain does not move"
	claimed     = "the worker keeps the node"
	workFails   = "the worker fails"
	noOneClaims = "no worker claims the node"
)

// world is a controller of rollouts with two fake clusters. The test plays all other controllers,
// the API server and the workers, see play.
type world struct {
	*testing.T
	host     *hostfake.Clientset
	api      *maintenancefake.Clientset
	recorder *events.FakeRecorder
	refused  *refusals
	// scripts has the scripts of nodes by name.
	scripts map[string]string
	// played is called before each round of play; it may be nil.
	played func()
	stop   func()
	c      *Controller
	// lateIndex is set if the controller finds a maintenance by its name before it finds it by its
	// rollout.
	lateIndex bool
	// maxUnavailable is the percentage of all nodes that may be out.
	maxUnavailable int
	// ahead is how far the clock of the server is ahead. A test may change it before start.
	ahead time.Duration
}

// refusals allows everything but what it has, by "verb name".
type refusals struct {
	mu  sync.Mutex
	all map[string]bool
}

func (r *refusals) set(what string, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[what] = refused
}

func (r *refusals) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all[a.GetVerb()+" "+a.GetName()] {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

func (r *refusals) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(r.Authorize(ctx, a))
}

func (r *refusals) EvaluateConditions(
	context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", nil
}

// newWorld returns a world with objects. It must be called in a bubble of synctest; start starts
// the controller.
func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	w := &world{
		T: t, host: hostfake.NewClientset(), api: maintenancefake.NewClientset(), recorder: events.NewFakeRecorder(10000),
		refused: &refusals{all: map[string]bool{}}, scripts: map[string]string{}, maxUnavailable: 100,
	}
	informertest.Versioned(t, w.api)
	created := 0
	w.api.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		object := must.Get(meta.Accessor(action.(clienttesting.CreateAction).GetObject()))(t)
		created++
		if object.GetUID() == "" {
			object.SetUID(types.UID(fmt.Sprintf("%s-%d", object.GetName(), created)))
		}
		object.SetResourceVersion(fmt.Sprint(created))
		object.SetGeneration(1)
		return false, nil, nil
	})
	w.api.PrependReactor("patch", "nodemaintenances", w.recordPause)
	for _, object := range objects {
		switch o := object.(type) {
		case *corev1.Node:
			must.Get(w.host.CoreV1().Nodes().Create(t.Context(), o, metav1.CreateOptions{}))(t)
		case *v1alpha1.NodeMaintenanceRollout:
			must.Get(w.api.MaintenanceV1alpha1().NodeMaintenanceRollouts().Create(t.Context(), o, metav1.CreateOptions{}))(t)
		case *v1alpha1.NodeMaintenance:
			must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().Create(t.Context(), o, metav1.CreateOptions{}))(t)
		default:
			t.Fatalf("cannot create %T", o)
		}
	}
	return w
}

// recordPause does what the API server does in the write that pauses or resumes a maintenance.
func (w *world) recordPause(action clienttesting.Action) (bool, runtime.Object, error) {
	patch := action.(clienttesting.PatchAction)
	stored, err := w.api.Tracker().Get(action.GetResource(), "", patch.GetName())
	if err != nil || !strings.Contains(string(patch.GetPatch()), `"paused"`) {
		return false, nil, nil
	}
	nm := stored.(*v1alpha1.NodeMaintenance).DeepCopy()
	now := w.now().Rfc3339Copy()
	nm.Status.Pause, nm.Status.LastProgressTimestamp = nil, &now
	if strings.Contains(string(patch.GetPatch()), `"paused":true`) {
		nm.Status.Pause = &v1alpha1.NodeMaintenancePause{By: protocol.ServerUser, Since: now}
	}
	return false, nil, w.api.Tracker().Update(action.GetResource(), nm, "")
}

// skewed is a clock that is ahead of that of the bubble.
type skewed struct {
	informertest.Clock

	ahead time.Duration
}

// Now implements clock.PassiveClock.
func (c skewed) Now() time.Time { return time.Now().Add(c.ahead) }

// Since implements clock.PassiveClock.
func (c skewed) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// now returns the time of the server, which sets all times but those of the test.
func (w *world) now() metav1.Time { return metav1.NewTime(time.Now().Add(w.ahead)) }

// start starts a new controller, which knows only what is in the clusters, until the test ends or
// stop is called.
func (w *world) start() {
	w.Helper()
	cluster := must.Get(host.NewCluster(host.Clients{Client: w.host, Maintenance: w.api, Recorder: w.recorder}, 0))(w)
	clock := skewed{ahead: w.ahead}
	selected := must.Get(selection.New(cluster.Nodes.Informer(), cluster.NodeMaintenances.Informer(), clock))(w)
	w.c = must.Get(New(Config{
		Cluster: cluster, Clock: clock, Selection: selected, MaxUnavailableNodes: w.maxUnavailable,
		Rights: rights.NewCache(rights.CacheConfig{Authorizer: w.refused, Clock: clock}),
	}))(w)
	if w.lateIndex {
		w.c.maintenances = lateIndex{w.c.maintenances, map[string]bool{}}
	}
	ctx, cancel := context.WithCancel(w.Context())
	watches := informertest.Count(w.host, w.api)
	cluster.Start(ctx)
	watches.Wait(w.T, 0, "nodes", "pods", "nodemaintenances", "nodemaintenancerollouts", "nodetasks")
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.c.Run(ctx, 1)
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		<-done
		cluster.Shutdown()
	})
	w.Cleanup(w.stop)
}

// lateIndex leaves each key out once: as if the cache got the object between a look into the index
// and a look for the object itself.
type lateIndex struct {
	cache.Indexer
	known map[string]bool
}

// IndexKeys implements cache.Indexer.
func (l lateIndex) IndexKeys(index, value string) ([]string, error) {
	keys, err := l.Indexer.IndexKeys(index, value)
	return slices.DeleteFunc(keys, func(key string) bool {
		late := !l.known[key]
		l.known[key] = true
		return late
	}), err
}

// until plays the other controllers until a condition is true. Each round takes the time step.
func (w *world) until(what string, step time.Duration, condition func() bool) {
	w.Helper()
	for range 2000 {
		synctest.Wait()
		if condition() {
			return
		}
		w.play()
		synctest.Wait()
		<-time.After(max(step, time.Millisecond))
	}
	r := w.rollout()
	w.Fatalf("never came true: %s; current %+v; nodes %+v; Progressing %s %q", what, r.Status.Current, r.Status.Nodes, w.reason(), w.message())
}

// rest plays the other controllers for some time, in which nothing has to happen.
func (w *world) rest(d time.Duration) {
	w.Helper()
	end := time.Now().Add(d)
	w.until("the end of the rest", d/20, func() bool { return !time.Now().Before(end) })
}

// play takes one step of the API server, of the controllers of maintenances, nodes and tasks, and
// of the workers, for each maintenance.
func (w *world) play() {
	w.Helper()
	if w.played != nil {
		w.played()
		synctest.Wait()
	}
	for _, nm := range w.maintenances() {
		before := nm.DeepCopy()
		w.serve(nm)
		ending := v1alpha1.IsEnding(nm)
		kept := false
		for _, name := range nodesOf(nm) {
			if node, err := w.host.CoreV1().Nodes().Get(w.Context(), name, metav1.GetOptions{}); err == nil {
				kept = w.playNode(nm, node, ending) || kept
			}
		}
		if ending && !kept {
			nm.Finalizers = nil
		}
		nm.Status.ObservedGeneration = nm.Generation
		if !equality.Semantic.DeepEqual(before, nm) {
			must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().Update(w.Context(), nm, metav1.UpdateOptions{}))(w)
		}
	}
}

// serve sets what the API server sets in the write of a client.
func (w *world) serve(nm *v1alpha1.NodeMaintenance) {
	now := w.now().Rfc3339Copy()
	if v1alpha1.StageEntered(nm, nm.Spec.Stage).IsZero() {
		nm.Status.StageStatuses = append(nm.Status.StageStatuses, v1alpha1.StageStatus{Name: nm.Spec.Stage, StartTimestamp: &now})
		if v1alpha1.IsHolding(nm) {
			nm.Finalizers = []string{v1alpha1.FinalizerMaintenanceCompletion}
			nm.Status.LastProgressTimestamp = &now
		}
	}
}

// playNode takes a step for a node of a maintenance. It reports whether the maintenance keeps the
// node.
func (w *world) playNode(nm *v1alpha1.NodeMaintenance, node *corev1.Node, ending bool) (kept bool) {
	tasks := w.api.MaintenanceV1alpha1().NodeTasks()
	task, err := tasks.Get(w.Context(), node.Name, metav1.GetOptions{})
	script := w.scripts[node.Name]
	entry := entryOf(nm, node)
	switch {
	case err == nil && task.Spec.Maintenance.UID != nm.UID:
		return false
	case ending && (err != nil || task.Status.State != v1alpha1.NodeTaskClaimed && task.Status.State != v1alpha1.NodeTaskVerifying):
		if err == nil {
			must.Do(w, tasks.Delete(w.Context(), node.Name, metav1.DeleteOptions{}))
		}
		if marks.CordonedBy(node).Has(nm) {
			w.cordon(node, nil)
		}
		return false
	case !node.Spec.Unschedulable:
		w.cordon(node, nm)
	case err != nil && entry.Task == nil && script != drainStuck && !nm.Spec.Paused:
		must.Get(tasks.Create(w.Context(), &v1alpha1.NodeTask{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name},
			Spec: v1alpha1.NodeTaskSpec{
				NodeUID: node.UID, Maintenance: v1alpha1.NodeTaskMaintenance{Name: nm.Name, UID: nm.UID}, Worker: nm.Spec.Task.Worker,
			},
			Status: v1alpha1.NodeTaskStatus{State: v1alpha1.NodeTaskOffered, StateTime: new(w.now())},
		}, metav1.CreateOptions{}))(w)
	case err == nil:
		w.playTask(entry, task, script)
	}
	return true
}

// playTask takes a step of a NodeTask.
func (w *world) playTask(entry *v1alpha1.NodeMaintenanceNodeStatus, task *v1alpha1.NodeTask, script string) {
	state := task.Status.State
	switch {
	case state == v1alpha1.NodeTaskOffered && script != noOneClaims:
		state = v1alpha1.NodeTaskClaimed
		task.Status.Holder = "worker-1"
	case state == v1alpha1.NodeTaskClaimed && script == workFails:
		state = v1alpha1.NodeTaskFailed
		task.Status.Reason, task.Status.Message = v1alpha1.NodeTaskWorkerFailed, "no space left"
	case state == v1alpha1.NodeTaskClaimed && script != claimed:
		state = v1alpha1.NodeTaskVerifying
	case state == v1alpha1.NodeTaskVerifying:
		entry.Task = &v1alpha1.NodeMaintenanceNodeTask{State: v1alpha1.NodeTaskDone, EndTime: new(w.now())}
		must.Do(w, w.api.MaintenanceV1alpha1().NodeTasks().Delete(w.Context(), task.Name, metav1.DeleteOptions{}))
		return
	}
	if state != task.Status.State {
		task.Status.State, task.Status.StateTime = state, new(w.now())
		must.Get(w.api.MaintenanceV1alpha1().NodeTasks().Update(w.Context(), task, metav1.UpdateOptions{}))(w)
	}
}

func entryOf(nm *v1alpha1.NodeMaintenance, node *corev1.Node) *v1alpha1.NodeMaintenanceNodeStatus {
	ref := v1alpha1.NodeReference{Name: node.Name, UID: node.UID}
	if entry := v1alpha1.NodeStatusOf(nm, ref); entry != nil {
		return entry
	}
	nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{NodeRef: ref})
	slices.SortFunc(nm.Status.NodeStatuses, func(a, b v1alpha1.NodeMaintenanceNodeStatus) int {
		return strings.Compare(a.NodeRef.Name, b.NodeRef.Name)
	})
	return v1alpha1.NodeStatusOf(nm, ref)
}

// cordon makes a node unschedulable for a maintenance, or schedulable for nil.
func (w *world) cordon(node *corev1.Node, nm *v1alpha1.NodeMaintenance) {
	w.Helper()
	changed := node.DeepCopy()
	changed.Spec.Unschedulable = nm != nil
	delete(changed.Annotations, v1alpha1.AnnotationCordonedBy)
	if nm != nil {
		mark := marks.Mark{Storage: "storage-1", Maintenances: marks.Owners{nm.Name: nm.UID}}
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.AnnotationCordonedBy, mark.Encode().(string))
	}
	must.Get(w.host.CoreV1().Nodes().Update(w.Context(), changed, metav1.UpdateOptions{}))(w)
}

// relabel moves a node to another pool.
func (w *world) relabel(name, pool string) {
	w.Helper()
	node := must.Get(w.host.CoreV1().Nodes().Get(w.Context(), name, metav1.GetOptions{}))(w)
	node.Labels["pool"] = pool
	must.Get(w.host.CoreV1().Nodes().Update(w.Context(), node, metav1.UpdateOptions{}))(w)
}

// nodesOf returns the names in the selector of a maintenance that the controller has created.
func nodesOf(nm *v1alpha1.NodeMaintenance) []string {
	var names []string
	if nm.Spec.NodeSelector != nil {
		for i := range nm.Spec.NodeSelector.NodeSelectorTerms {
			for _, field := range nm.Spec.NodeSelector.NodeSelectorTerms[i].MatchFields {
				names = append(names, field.Values...)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (w *world) maintenances() []*v1alpha1.NodeMaintenance {
	w.Helper()
	list := must.Get(w.api.MaintenanceV1alpha1().NodeMaintenances().List(w.Context(), metav1.ListOptions{}))(w)
	var all []*v1alpha1.NodeMaintenance
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

// maintenance returns a maintenance, nil if it does not exist.
func (w *world) maintenance(name string) *v1alpha1.NodeMaintenance {
	w.Helper()
	for _, nm := range w.maintenances() {
		if nm.Name == name {
			return nm
		}
	}
	return nil
}

func (w *world) rollout() *v1alpha1.NodeMaintenanceRollout {
	w.Helper()
	return must.Get(w.api.MaintenanceV1alpha1().NodeMaintenanceRollouts().Get(w.Context(), "kernel", metav1.GetOptions{}))(w)
}

// change changes the spec of the rollout, as a user does.
func (w *world) change(change func(*v1alpha1.NodeMaintenanceRolloutSpec)) {
	w.Helper()
	must.Do(w, retry.RetryOnConflict(retry.DefaultRetry, func() error {
		r := w.rollout()
		change(&r.Spec)
		r.Generation++
		_, err := w.api.MaintenanceV1alpha1().NodeMaintenanceRollouts().Update(w.Context(), r, metav1.UpdateOptions{})
		return err
	}))
}

// reason returns the reason of the condition Progressing.
func (w *world) reason() string {
	w.Helper()
	if c := meta.FindStatusCondition(w.rollout().Status.Conditions, v1alpha1.ConditionProgressing); c != nil {
		return c.Reason
	}
	return ""
}

func (w *world) message() string {
	w.Helper()
	if c := meta.FindStatusCondition(w.rollout().Status.Conditions, v1alpha1.ConditionProgressing); c != nil {
		return c.Message
	}
	return ""
}

// untilReason plays until the condition Progressing has a reason.
func (w *world) untilReason(reason string) {
	w.Helper()
	w.until("Progressing has the reason "+reason, time.Second, func() bool { return w.reason() == reason })
}

// untilPhase plays until a unit has a phase.
func (w *world) untilPhase(unit string, phase v1alpha1.RolloutPhase) {
	w.Helper()
	w.until(fmt.Sprintf("unit %s is %s", unit, phase), time.Second, func() bool { return w.phase(unit) == phase })
}

// phase returns the phase of a unit, "" if it is not in status.current.
func (w *world) phase(unit string) v1alpha1.RolloutPhase {
	w.Helper()
	for _, u := range w.rollout().Status.Current {
		if u.Unit == unit {
			return u.Phase
		}
	}
	return ""
}

// untilBothDone waits until the rollout is complete and another one has done all its nodes.
func (w *world) untilBothDone(other string, nodes int32) {
	w.Helper()
	w.until("both are complete", time.Second, func() bool {
		r := must.Get(w.api.MaintenanceV1alpha1().NodeMaintenanceRollouts().Get(w.Context(), other, metav1.GetOptions{}))(w)
		return w.reason() == v1alpha1.ReasonRolloutComplete && r.Status.Nodes.Done == nodes
	})
}

// out returns the number of nodes whose maintenances have not ended.
func (w *world) out() int {
	out := map[string]bool{}
	for _, nm := range w.maintenances() {
		for _, name := range nodesOf(nm) {
			if !v1alpha1.IsDone(nm) {
				out[name] = true
			}
		}
	}
	return len(out)
}

// told returns the events so far, each as "reason: note".
func (w *world) told() []string {
	var all []string
	for {
		select {
		case text := <-w.recorder.Events:
			fields := strings.SplitN(text, " ", 3)
			all = append(all, fields[1]+": "+fields[2])
		default:
			return all
		}
	}
}

func newNode(name string, modify ...func(*corev1.Node)) *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"pool": "blue"}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{KernelVersion: "6.11.0", BootID: "boot-1"},
		},
	}
	return build.With(node, modify...)
}

func newRollout(modify ...func(*v1alpha1.NodeMaintenanceRollout)) *v1alpha1.NodeMaintenanceRollout {
	r := &v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: "kernel", UID: "uid-kernel", Generation: 1},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			NodeSelector: build.Labelled("pool", "blue"), Stage: v1alpha1.RolloutStageRoll,
			Limits:                  []v1alpha1.RolloutLimit{{MaxUnavailable: new(intstr.FromInt32(2))}},
			ProgressDeadlineSeconds: new(int32(600)),
			Template: v1alpha1.RolloutTemplate{
				Reason: "kernel 6.12", Task: &v1alpha1.NodeMaintenanceTask{Worker: "reboot.maintenance.haulout.dev"},
			},
			RequestedBy: &authenticationv1.UserInfo{Username: "ann"},
		},
	}
	return build.With(r, modify...)
}

// works makes the work of a rollout, by its UID, set the version of the kernel of the node.
func (w *world) works(versions map[string]string) {
	w.played = func() {
		tasks := must.Get(w.api.MaintenanceV1alpha1().NodeTasks().List(w.Context(), metav1.ListOptions{}))(w)
		for i := range tasks.Items {
			if tasks.Items[i].Status.State != v1alpha1.NodeTaskVerifying {
				continue
			}
			nm := w.maintenance(tasks.Items[i].Spec.Maintenance.Name)
			node := must.Get(w.host.CoreV1().Nodes().Get(w.Context(), tasks.Items[i].Name, metav1.GetOptions{}))(w)
			node.Status.NodeInfo.KernelVersion = versions[string(metav1.GetControllerOf(nm).UID)]
			must.Get(w.host.CoreV1().Nodes().Update(w.Context(), node, metav1.UpdateOptions{}))(w)
		}
	}
}
