// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/must"
)

// minute is the length of a step of a world.
const minute = time.Minute

// world is a small cluster in which the decisions of this controller are carried out. The other
// controllers, workers and users are models: each acts at random, and a decision may rest on a
// state of two steps ago.
type world struct {
	rng   *rand.Rand
	now   time.Time
	calm  bool
	uid   int
	nodes map[string]*corev1.Node
	// pods has the nodes with a pod that leaves.
	pods map[string]bool
	// goal has the UIDs of the nodes on which the work has an effect.
	goal         map[types.UID]bool
	maintenances map[string]*v1alpha1.NodeMaintenance
	tasks        map[string]*v1alpha1.NodeTask
	version      int
	faults       []string
	works        int
	// off is the rule that is switched off, "" if none is.
	off string
}

func (w *world) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

func (w *world) chance(p float64) bool { return w.rng.Float64() < p }

func (w *world) nextUID() types.UID {
	w.uid++
	return types.UID(fmt.Sprint("uid-", w.uid))
}

func (w *world) addNode(name string) {
	node := newNode()
	node.Name, node.UID, node.Annotations, node.Spec.Unschedulable = name, w.nextUID(), nil, false
	w.nodes[name], w.pods[name] = node, true
}

func (w *world) addMaintenance(name string, task bool, nodes ...string) {
	nm := newMaintenance(name)
	nm.UID, nm.CreationTimestamp = w.nextUID(), metav1.NewTime(w.now)
	nm.Annotations, nm.Spec.Stage = map[string]string{}, v1alpha1.NodeMaintenanceStageCordon
	nm.Status.NodeStatuses, nm.Status.Conditions = nil, nil
	for _, node := range nodes {
		nm.Spec.Reason += node + ","
	}
	if nm.Spec.Task.DoneWhen = "goal"; !task {
		nm.Spec.Task = nil
	}
	w.maintenances[name] = nm
}

func selects(nm *v1alpha1.NodeMaintenance, node string) bool {
	return slices.Contains(splitNodes(nm.Spec.Reason), node)
}

func splitNodes(reason string) []string {
	var names []string
	for reason != "" {
		i := slices.Index([]byte(reason), ',')
		names, reason = append(names, reason[:i]), reason[i+1:]
	}
	return names
}

func newWorld(seed uint64, off string) *world {
	w := &world{
		off: off, rng: rand.New(rand.NewPCG(seed, 0)), now: noon, nodes: map[string]*corev1.Node{}, pods: map[string]bool{}, goal: map[types.UID]bool{},
		maintenances: map[string]*v1alpha1.NodeMaintenance{}, tasks: map[string]*v1alpha1.NodeTask{},
	}
	names := []string{"a", "b", "c", "d"}[:2+w.rng.IntN(3)]
	for _, name := range names {
		w.addNode(name)
	}
	for i := range 1 + w.rng.IntN(3) {
		w.now = w.now.Add(time.Second)
		of := slices.Clone(names)
		w.rng.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
		w.addMaintenance(fmt.Sprint("m", i), true, of[:1+w.rng.IntN(min(2, len(of)))]...)
	}
	return w
}

// view is a copy of what caches have.
type view struct {
	nodes        map[string]*corev1.Node
	maintenances map[string]*v1alpha1.NodeMaintenance
	tasks        map[string]*v1alpha1.NodeTask
}

func copies[T interface{ DeepCopy() T }](objects map[string]T) map[string]T {
	out := make(map[string]T, len(objects))
	for name, object := range objects {
		out[name] = object.DeepCopy()
	}
	return out
}

func (w *world) view() view {
	return view{copies(w.nodes), copies(w.maintenances), copies(w.tasks)}
}

// on returns the maintenances that select a node, sorted by name.
func (v view) on(node string) []*v1alpha1.NodeMaintenance {
	var found []*v1alpha1.NodeMaintenance
	for _, name := range slices.Sorted(maps.Keys(v.maintenances)) {
		if nm := v.maintenances[name]; selects(nm, node) && !v1alpha1.IsDone(nm) {
			found = append(found, nm)
		}
	}
	return found
}

func (v view) hands(node *corev1.Node) holds.Hands {
	return holds.HandsOn(node, v.tasks[node.Name], v.on(node.Name))
}

func (v view) tasksOf(uid types.UID) map[string]*v1alpha1.NodeTask {
	of := maps.Clone(v.tasks)
	maps.DeleteFunc(of, func(_ string, task *v1alpha1.NodeTask) bool { return task.Spec.Maintenance.UID != uid })
	return of
}

// sync carries out one decision about a node that rests on a view.
func (w *world) sync(v view, name string) {
	f := &facts{now: w.now, served: time.Hour, task: v.tasks[name], node: v.nodes[name], assigns: map[types.UID]rights.Answer{}}
	f.doneWhen = func(string, v1alpha1.NodeVersions) (bool, error) { return w.goal[f.node.UID] || w.off == "verify", nil }
	if w.off == "deadline" {
		f.now = noon
	}
	for _, nm := range v.on(name) {
		f.assigns[nm.UID] = rights.Answer{Allowed: true}
		if v1alpha1.IsHolding(nm) {
			f.holding = append(f.holding, nm)
		}
	}
	if f.task != nil {
		f.tasks = func() map[string]*v1alpha1.NodeTask { return v.tasksOf(f.task.Spec.Maintenance.UID) }
		if owner := v.maintenances[f.task.Spec.Maintenance.Name]; owner != nil && owner.UID == f.task.Spec.Maintenance.UID {
			f.owner, f.selected = owner, selects(owner, name) && !v1alpha1.IsDone(owner)
		}
	}
	d := decide(f)
	if d.step == stepLook {
		f.isLive = true
		node, live := w.nodes[name], w.maintenances[f.owner.Name]
		switch {
		case node == nil || node.UID != f.node.UID, !node.Spec.Unschedulable && w.off != "cordon", w.pods[name] && w.off != "pods":
			f.refusal = "changed"
		case w.off != "end" && (!v1alpha1.IsHolding(live) || live.Generation != f.owner.Generation):
			return
		}
		d = decide(f)
	}
	w.act(f, w.without(f, d), name)
}

// without returns the decision that would be made without the rule that is switched off.
func (w *world) without(f *facts, d decision) decision {
	state := v1alpha1.NodeTaskState("")
	if f.task != nil {
		state = f.task.Status.State
	}
	switch {
	case w.off == "keep" && state == v1alpha1.NodeTaskClaimed && f.owner != nil && v1alpha1.IsEnding(f.owner),
		w.off == "record" && state == v1alpha1.NodeTaskDone:
		return decision{step: stepDelete}
	case w.off == "late" && state == v1alpha1.NodeTaskFailed && f.task.Status.Result == v1alpha1.NodeTaskResultDone:
		return decision{}
	}
	return d
}

func (w *world) act(f *facts, d decision, name string) {
	task := w.tasks[name]
	isFresh := task != nil && f.task != nil && task.UID == f.task.UID && (task.ResourceVersion == f.task.ResourceVersion || w.off == "fence")
	switch {
	case d.step == stepOffer && task == nil:
		w.tasks[name] = &v1alpha1.NodeTask{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: w.nextUID(), CreationTimestamp: metav1.NewTime(w.now)},
			Spec: v1alpha1.NodeTaskSpec{
				NodeUID: f.node.UID, Maintenance: v1alpha1.NodeTaskMaintenance{Name: d.maintenance.Name, UID: d.maintenance.UID},
				ClaimDeadlineSeconds: 1800, ProgressDeadlineSeconds: 720, VerifyDeadlineSeconds: 720,
			},
			Status: v1alpha1.NodeTaskStatus{State: v1alpha1.NodeTaskOffered, StateTime: &metav1.Time{Time: w.now}},
		}
		w.wrote(w.tasks[name])
	case d.step == stepWrite && isFresh:
		task.Status = d.status
		w.wrote(task)
		switch {
		case d.status.State == v1alpha1.NodeTaskClaimed:
			w.granted(name, task)
		case d.status.State == v1alpha1.NodeTaskDone && !w.goal[f.node.UID]:
			w.fault("node %s is done although the work has no effect", name)
		}
	case d.step == stepDelete && isFresh:
		w.deleted(f, task)
	case d.step == stepRelease:
		nm := w.maintenances[f.owner.Name]
		if nm.ResourceVersion == f.owner.ResourceVersion {
			w.complete(nm)
			nm.Annotations[v1alpha1.AnnotationWithdrawn] = string(v1alpha1.NodeTaskNoWorker)
		}
	}
}

func (w *world) wrote(object metav1.Object) {
	w.version++
	object.SetResourceVersion(fmt.Sprint(w.version))
}

func (w *world) complete(nm *v1alpha1.NodeMaintenance) {
	nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete
	nm.Generation++
	w.wrote(nm)
}

// deleted deletes a task, and judges that.
func (w *world) deleted(f *facts, task *v1alpha1.NodeTask) {
	delete(w.tasks, task.Name)
	node, nm := w.nodes[task.Name], w.maintenances[task.Spec.Maintenance.Name]
	switch {
	case task.Status.State == v1alpha1.NodeTaskClaimed && (f.node != nil || f.task.Status.State != v1alpha1.NodeTaskClaimed):
		w.fault("node %s was taken back from its worker", task.Name)
	case task.Status.State == v1alpha1.NodeTaskDone && node != nil && f.node != nil && node.UID == f.node.UID && v1alpha1.IsHolding(nm) && !holds.IsDone(nm, node):
		w.fault("the work on node %s was forgotten", task.Name)
	}
}

// granted judges a grant.
func (w *world) granted(name string, task *v1alpha1.NodeTask) {
	w.works++
	node, nm := w.nodes[name], w.maintenances[task.Spec.Maintenance.Name]
	if node == nil || !node.Spec.Unschedulable || w.pods[name] {
		w.fault("node %s was granted although it is not empty and cordoned", name)
	}
	if !v1alpha1.IsHolding(nm) {
		w.fault("node %s was granted for %s, which had ended", name, nm.Name)
	}
	if holds.IsDone(nm, node) {
		w.fault("node %s was granted for %s although the work is done", name, nm.Name)
	}
}

// maintain is the model of the nodemaintenance controller and of the node controller.
func (w *world) maintain(nm *v1alpha1.NodeMaintenance) {
	v := view{w.nodes, w.maintenances, w.tasks}
	if v1alpha1.IsDone(nm) {
		return
	}
	before := nm.DeepCopy()
	var entries []v1alpha1.NodeMaintenanceNodeStatus
	drained, kept := nm.Spec.Stage != v1alpha1.NodeMaintenanceStageCordon, false
	if v1alpha1.StageEntered(nm, nm.Spec.Stage).IsZero() {
		nm.Status.StageStatuses = append(nm.Status.StageStatuses, v1alpha1.StageStatus{Name: nm.Spec.Stage, StartTimestamp: &metav1.Time{Time: w.now}})
	}
	for _, name := range slices.Sorted(slices.Values(splitNodes(nm.Spec.Reason))) {
		node, task := w.nodes[name], w.tasks[name]
		kept = kept || holds.Keeps(task, nm.UID)
		if node == nil {
			continue
		}
		entry := v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: name, UID: node.UID}}
		switch was := holds.TaskOf(before, node); {
		case task != nil && task.Spec.Maintenance.UID == nm.UID:
			entry.Task = &v1alpha1.NodeMaintenanceNodeTask{State: task.Status.State}
		case was != nil && (was.State == v1alpha1.NodeTaskDone || v1alpha1.IsEnding(nm)):
			entry.Task = was
		}
		if v1alpha1.IsHolding(nm) || holds.Keeps(task, nm.UID) {
			w.mark(node, nm)
		}
		hands := v.hands(node)
		switch {
		case hands.Any() && hands.Passes(nm, name):
		case hands.Any():
			entry.Reason, drained = v1alpha1.NodeStatusNodeTaskInProgress, false
		case w.pods[name]:
			if drained = false; nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain && (w.calm || w.chance(0.5)) {
				w.pods[name] = false
			}
		}
		entries = append(entries, entry)
	}
	nm.Status.NodeStatuses, nm.Status.ObservedGeneration = entries, nm.Generation
	if drainedTo(drained)(nm); v1alpha1.IsEnding(nm) && !kept {
		nm.Finalizers = nil
		for _, node := range w.nodes {
			w.unmark(node, nm)
		}
	}
	w.wrote(nm)
}

func drainedTo(is bool) func(*v1alpha1.NodeMaintenance) {
	if is {
		return drained(metav1.ConditionTrue)
	}
	return drained(metav1.ConditionFalse)
}

func (w *world) mark(node *corev1.Node, nm *v1alpha1.NodeMaintenance) {
	owners := marks.CordonedBy(node)
	if owners == nil {
		owners = marks.Owners{}
	}
	owners[nm.Name] = nm.UID
	node.Spec.Unschedulable = true
	node.Annotations = map[string]string{v1alpha1.AnnotationCordonedBy: marks.Mark{Storage: "s", Maintenances: owners}.Encode().(string)}
}

func (w *world) unmark(node *corev1.Node, nm *v1alpha1.NodeMaintenance) {
	owners := marks.CordonedBy(node)
	if !owners.Has(nm) {
		return
	}
	delete(owners, nm.Name)
	if len(owners) > 0 {
		node.Annotations[v1alpha1.AnnotationCordonedBy] = marks.Mark{Storage: "s", Maintenances: owners}.Encode().(string)
		return
	}
	if task := w.tasks[node.Name]; holds.Keeps(task, nm.UID) {
		w.fault("node %s was released while its task is %s", node.Name, task.Status.State)
	} else if task != nil && w.maintenances[task.Spec.Maintenance.Name] != nil && holds.Keeps(task, task.Spec.Maintenance.UID) {
		w.mark(node, w.maintenances[task.Spec.Maintenance.Name]) // a node that was registered again
		return
	}
	node.Annotations, node.Spec.Unschedulable, w.pods[node.Name] = nil, false, true
}

// worker is the model of a worker.
func (w *world) worker(task *v1alpha1.NodeTask) {
	status, node := &task.Status, w.nodes[task.Name]
	switch x := w.rng.Float64(); {
	case status.State == v1alpha1.NodeTaskOffered && status.Holder == "" && (w.calm || x < 0.5):
		status.Holder = "w"
	case status.State == v1alpha1.NodeTaskClaimed && status.Result == "" && node != nil:
		switch {
		case w.calm || x < 0.4:
			w.goal[node.UID], status.Result = true, v1alpha1.NodeTaskResultDone
		case x < 0.45:
			status.Result = v1alpha1.NodeTaskResultFailed
		case x < 0.5:
			status.Result = v1alpha1.NodeTaskResultDone // a lie
		case x < 0.55: // reinstalled
			w.addNode(task.Name)
			w.goal[w.nodes[task.Name].UID], w.pods[task.Name] = true, false
		case x < 0.57:
			delete(w.nodes, task.Name)
		default:
			return
		}
	case status.State == v1alpha1.NodeTaskFailed && node == nil && w.calm:
		delete(w.tasks, task.Name) // by a user
		return
	case status.State == v1alpha1.NodeTaskFailed && status.Result != v1alpha1.NodeTaskResultDone && node != nil && (w.calm || x < 0.1):
		w.goal[node.UID], status.Result = true, v1alpha1.NodeTaskResultDone
	default:
		return
	}
	status.ProgressTime = &metav1.Time{Time: w.now}
	w.wrote(task)
}

// disturb is what users, the scheduler and the machines do.
func (w *world) disturb() {
	if len(w.nodes) == 0 {
		return
	}
	names := slices.Sorted(maps.Keys(w.nodes))
	name := names[w.rng.IntN(len(names))]
	node := w.nodes[name]
	switch x := w.rng.Float64(); {
	case x < 0.10:
		w.pods[name] = true
	case x < 0.15:
		node.Spec.Unschedulable = false
	case x < 0.25:
		status := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}
		node.Status.Conditions[0].Status = status[node.Status.Conditions[0].Status != corev1.ConditionTrue]
	case x < 0.28:
		w.addNode(name)
	case x < 0.30:
		delete(w.nodes, name)
	case x < 0.35 && w.maintenances["ann"] == nil:
		w.addMaintenance("ann", false, name)
		w.wrote(w.maintenances["ann"])
	case x < 0.45 && w.maintenances["ann"] != nil && v1alpha1.IsHolding(w.maintenances["ann"]):
		w.complete(w.maintenances["ann"])
	case x < 0.47:
		if nm := w.maintenances["m0"]; v1alpha1.IsHolding(nm) {
			w.complete(nm)
		}
	case x < 0.55:
		if task := w.tasks[name]; task != nil && task.Status.State == v1alpha1.NodeTaskFailed {
			delete(w.tasks, name)
		}
	}
}

// step lets everybody act once.
func (w *world) step(views []view) {
	w.now = w.now.Add(minute)
	if !w.calm {
		w.disturb()
	}
	for _, name := range slices.Sorted(maps.Keys(w.maintenances)) {
		nm := w.maintenances[name]
		// A user starts the drains in any order.
		if nm.Spec.Stage == v1alpha1.NodeMaintenanceStageCordon && (w.calm || w.chance(0.3)) {
			nm.Spec.Stage = v1alpha1.NodeMaintenanceStageDrain
			nm.Generation++
			w.wrote(nm)
		}
		if w.calm || w.chance(0.8) {
			w.maintain(nm)
		}
	}
	for _, name := range []string{"a", "b", "c", "d"} {
		v := view{w.nodes, w.maintenances, w.tasks}
		if !w.calm && w.chance(0.4) && len(views) > 0 {
			v = views[w.rng.IntN(len(views))]
		}
		w.sync(v, name)
	}
	for _, name := range slices.Sorted(maps.Keys(w.tasks)) {
		w.worker(w.tasks[name])
	}
	for name, task := range w.tasks {
		if node := w.nodes[name]; task.Status.State == v1alpha1.NodeTaskClaimed && node != nil && node.UID == task.Spec.NodeUID && w.calm && !node.Spec.Unschedulable {
			w.fault("node %s is schedulable while it is claimed", name)
		}
	}
}

// finish completes each maintenance whose nodes are done, as a rollout does, and reports whether
// all are over and no node is held.
func (w *world) finish() bool {
	over := len(w.tasks) == 0
	for _, nm := range w.maintenances {
		isDone := nm.Spec.Task == nil || !slices.ContainsFunc(splitNodes(nm.Spec.Reason), func(name string) bool {
			node := w.nodes[name]
			return node == nil && w.tasks[name] != nil || node != nil && !holds.IsDone(nm, node)
		})
		if v1alpha1.IsHolding(nm) && isDone {
			w.complete(nm)
		}
		over = over && v1alpha1.IsDone(nm)
	}
	return over
}

// run runs a world: first wildly, then calmly until all work is done.
func run(seed uint64, off string) *world {
	w := newWorld(seed, off)
	var views []view
	for range 60 {
		w.step(views)
		views = append(views, w.view())
		views = views[max(0, len(views)-2):]
	}
	w.calm = true
	for _, node := range w.nodes {
		node.Status.Conditions[0].Status = corev1.ConditionTrue
	}
	for range 300 {
		if w.step(nil); w.finish() || len(w.faults) > 0 {
			return w
		}
	}
	w.fault("not all work was done, left are the tasks %v and the maintenances %v", w.tasks, w.maintenances)
	return w
}

// TestWorlds runs random worlds. Whatever happens in them, a worker only gets nodes that are empty
// and cordoned, keeps them until it is done, and in the end all work is done and all nodes are
// back. E2E_FULL=1 runs 100,000 worlds.
func TestWorlds(t *testing.T) {
	t.Parallel()
	n, works := uint64(2000), 0
	if value := os.Getenv("E2E_FULL"); value != "" && must.Get(strconv.ParseBool(value))(t) {
		n = 100_000
	}
	for seed := range n {
		w := run(seed, "")
		if works += w.works; len(w.faults) > 0 {
			t.Fatalf("world %d: %s", seed, w.faults[0])
		}
	}
	t.Logf("%d works", works)
	if uint64(works) < n/2 {
		t.Errorf("only %d works in all worlds", works)
	}
}

// TestWorldsFindMissingRules switches off one rule after the other. The worlds find each.
func TestWorldsFindMissingRules(t *testing.T) {
	t.Parallel()
	for rule, what := range map[string]string{
		"pods":     "a claim is granted although pods are on the node",
		"cordon":   "a claim is granted although the node was uncordoned",
		"end":      "a claim is granted although the maintenance has ended",
		"fence":    "a task is written that has changed since the decision",
		"verify":   "the server does not verify the work",
		"record":   "a task is deleted before the maintenance has recorded its work",
		"keep":     "the end of a maintenance takes nodes from workers",
		"late":     "a late result does not count",
		"deadline": "no deadline passes",
	} {
		t.Run(rule, func(t *testing.T) {
			for seed := range uint64(1000) {
				if w := run(seed, rule); len(w.faults) > 0 {
					t.Logf("world %d: %s", seed, w.faults[0])
					return
				}
			}
			t.Errorf("1000 worlds do not find that %s", what)
		})
	}
}
