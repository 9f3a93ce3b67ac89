// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) *metav1.Time { return &metav1.Time{Time: noon.Add(-d)} }

// newNode returns node one, which maintenances m and younger hold.
func newNode() *corev1.Node {
	mark := marks.Mark{Storage: "s", Maintenances: marks.Owners{"m": "uid-m", "younger": "uid-younger"}}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-one", Annotations: map[string]string{
			v1alpha1.AnnotationCordonedBy: mark.Encode().(string),
		}},
		Spec: corev1.NodeSpec{Unschedulable: true},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			NodeInfo:   corev1.NodeSystemInfo{BootID: "boot-1", KernelVersion: "6.1"},
		},
	}
}

// newMaintenance returns a maintenance with a task that has drained node one.
func newMaintenance(name string, changes ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), Generation: 2, CreationTimestamp: *ago(time.Hour),
			Finalizers: []string{v1alpha1.FinalizerMaintenanceCompletion},
		},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageDrain,
			Task:  &v1alpha1.NodeMaintenanceTask{Worker: "w.example.com", Stage: v1alpha1.NodeTaskStageDrain},
		},
		Status: v1alpha1.NodeMaintenanceStatus{
			ObservedGeneration: 2,
			NodeStatuses:       []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "one", UID: "uid-one"}}},
		},
	}
	drained(metav1.ConditionTrue)(nm)
	return build.With(nm, changes...)
}

func drained(status metav1.ConditionStatus) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.Conditions = nil
		meta.SetStatusCondition(&nm.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionDrained, Status: status, Reason: "Test", LastTransitionTime: *ago(time.Minute),
		})
	}
}

func doneWhen(expression string) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Task.DoneWhen = expression }
}

func recorded(state v1alpha1.NodeTaskState) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.NodeStatuses[0].Task = &v1alpha1.NodeMaintenanceNodeTask{State: state}
	}
}

func drainsFor(d time.Duration) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.StageStatuses = []v1alpha1.StageStatus{{Name: v1alpha1.NodeMaintenanceStageDrain, StartTimestamp: ago(d)}}
	}
}

func withoutTask(nm *v1alpha1.NodeMaintenance) { nm.Spec.Task = nil }

func ofRollout(nm *v1alpha1.NodeMaintenance) {
	nm.Labels = map[string]string{v1alpha1.LabelRollout: "kernel"}
	nm.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&metav1.ObjectMeta{Name: "kernel", UID: "uid-kernel"}, protocol.RolloutKind)}
}
func complete(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete }
func paused(nm *v1alpha1.NodeMaintenance)   { nm.Spec.Paused = true }

// inCordon has the maintenance offer its nodes in stage Cordon, in which it is.
func inCordon(nm *v1alpha1.NodeMaintenance) {
	nm.Spec.Stage, nm.Spec.Task.Stage = v1alpha1.NodeMaintenanceStageCordon, v1alpha1.NodeTaskStageCordon
	drained(metav1.ConditionFalse)(nm)
}

// newFacts returns the facts about node one, which m has drained. doneWhen "true" is true, "error"
// is an error, and all else is false.
func newFacts(nm *v1alpha1.NodeMaintenance, changes ...func(*facts)) *facts {
	f := &facts{now: noon, served: time.Hour, node: newNode(), holding: []*v1alpha1.NodeMaintenance{nm}}
	f.assigns = map[types.UID]rights.Answer{nm.UID: {Allowed: true}, "uid-younger": {Allowed: true}, "uid-m": {Allowed: true}}
	f.tasks = func() map[string]*v1alpha1.NodeTask { return nil }
	f.doneWhen = func(expression string, _ v1alpha1.NodeVersions) (bool, error) {
		if expression == "error" {
			return false, errors.New("no such key: kernalVersion")
		}
		return expression == "true", nil
	}
	return build.With(f, changes...)
}

// withTask adds a NodeTask of the first maintenance, whose state began two minutes ago.
func withTask(state v1alpha1.NodeTaskState, changes ...func(*v1alpha1.NodeTask)) func(*facts) {
	return func(f *facts) {
		f.owner, f.selected = f.holding[0], true
		if v1alpha1.IsEnding(f.owner) {
			f.holding = nil
		}
		f.task = build.With(&v1alpha1.NodeTask{
			ObjectMeta: metav1.ObjectMeta{Name: "one"},
			Spec: v1alpha1.NodeTaskSpec{
				NodeUID: "uid-one", Maintenance: v1alpha1.NodeTaskMaintenance{Name: f.owner.Name, UID: f.owner.UID}, Worker: "w.example.com",
				ClaimDeadlineSeconds: 1800, ProgressDeadlineSeconds: 1200, VerifyDeadlineSeconds: 900,
			},
			Status: v1alpha1.NodeTaskStatus{State: state, StateTime: ago(2 * time.Minute)},
		}, changes...)
	}
}

func since(d time.Duration) func(*v1alpha1.NodeTask) {
	return func(task *v1alpha1.NodeTask) { task.Status.StateTime = ago(d) }
}
func heartbeat(d time.Duration) func(*v1alpha1.NodeTask) {
	return func(task *v1alpha1.NodeTask) { task.Status.ProgressTime = ago(d) }
}
func holder(name string) func(*v1alpha1.NodeTask) {
	return func(task *v1alpha1.NodeTask) { task.Status.Holder, task.Status.ClaimedBy = name, "user-"+name }
}
func because(reason v1alpha1.NodeTaskReason) func(*v1alpha1.NodeTask) {
	return func(task *v1alpha1.NodeTask) { task.Status.Reason = reason }
}
func serverSays(text string) func(*v1alpha1.NodeTask) {
	return func(task *v1alpha1.NodeTask) { task.Status.ServerMessage = text }
}
func result(r v1alpha1.NodeTaskResult) func(*v1alpha1.NodeTask) {
	return func(task *v1alpha1.NodeTask) { task.Status.Result = r }
}

// beside adds the NodeTask of another node of the same maintenance.
func beside(state v1alpha1.NodeTaskState) func(*facts) {
	return func(f *facts) {
		f.tasks = func() map[string]*v1alpha1.NodeTask {
			return map[string]*v1alpha1.NodeTask{"one": f.task, "two": {Status: v1alpha1.NodeTaskStatus{State: state}}}
		}
	}
}

// workedOn adds a node to a maintenance whose state began five minutes ago.
func workedOn(state v1alpha1.NodeTaskState) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: "two"},
			Task:    &v1alpha1.NodeMaintenanceNodeTask{State: state, Holder: "agent-7", EndTime: ago(5 * time.Minute)},
		})
	}
}

func also(nm *v1alpha1.NodeMaintenance) func(*facts) {
	return func(f *facts) { f.holding = append(f.holding, nm) }
}
func looked(refusal string) func(*facts) {
	return func(f *facts) { f.isLive, f.refusal = true, refusal }
}
func heardBefore(d time.Duration) func(*facts) {
	return func(f *facts) { f.heard = noon.Add(-d) }
}
func enteredBefore(d time.Duration) func(*facts) {
	return func(f *facts) { f.heard, f.entered = noon.Add(-d), noon.Add(-d) }
}
func served(d time.Duration) func(*facts) {
	return func(f *facts) { f.served = d }
}
func assigned(answer rights.Answer) func(*facts) {
	return func(f *facts) { f.assigns[f.holding[0].UID] = answer }
}
func volumes(n int) func(*facts) { return func(f *facts) { f.volumes = n } }
func noNode(f *facts)            { f.node = nil }
func noOwner(f *facts)           { f.owner, f.holding = nil, nil }
func deselected(f *facts)        { f.selected, f.holding = false, nil }
func otherUID(f *facts)          { f.node.UID = "uid-other" }
func unmarked(f *facts)          { f.node.Annotations = nil }
func uncordoned(f *facts)        { f.node.Spec.Unschedulable = false }
func notReady(f *facts)          { f.node.Status.Conditions[0].Status = corev1.ConditionUnknown }
func tainted(f *facts) {
	f.node.Spec.Taints = []corev1.Taint{{Key: "readiness.k8s.io/gpu", Effect: corev1.TaintEffectNoSchedule}}
}

// wanted is the expected decision. note is a part of the note of the event or, without an event, of
// the message of the server.
type wanted struct {
	step   step
	state  v1alpha1.NodeTaskState
	reason v1alpha1.NodeTaskReason
	event  string
	note   string
	wake   time.Duration
}

func (w wanted) check(t *testing.T, d decision) {
	t.Helper()
	is.Equal(t, d.step, w.step)
	is.Equal(t, d.status.State, w.state)
	is.Equal(t, d.status.Reason, w.reason)
	is.Equal(t, d.event.reason, w.event)
	is.Equal(t, d.wake, w.wake)
	is.Equal(t, d.result, w.result())
	text := d.event.note
	if d.event.reason == "" {
		text = d.status.ServerMessage
	}
	is.True(t, strings.Contains(text, w.note), "want text with %q, got %q", w.note, text)
}

// result returns the end of the work that the metrics count, "" if the work has not ended.
func (w wanted) result() string {
	switch {
	case w.step == stepRelease:
		return string(v1alpha1.NodeTaskNoWorker)
	case w.event == EventNodeGone:
		return string(v1alpha1.NodeTaskGone)
	case w.state == v1alpha1.NodeTaskFailed:
		return string(w.reason)
	case w.state == v1alpha1.NodeTaskDone:
		return string(v1alpha1.NodeTaskDone)
	}
	return ""
}

func TestDecideOffer(t *testing.T) {
	offered := wanted{step: stepOffer, event: EventOffered, note: "class w.example.com by NodeMaintenance m"}
	for name, test := range map[string]struct {
		facts *facts
		want  wanted
	}{
		"a drained maintenance offers its node": {newFacts(newMaintenance("m")), offered},
		"one that is not drained does not":      {newFacts(newMaintenance("m", drained(metav1.ConditionFalse))), wanted{}},
		"in stage Cordon, if the task says so":  {newFacts(newMaintenance("m", inCordon)), offered},
		"a paused one does not":                 {newFacts(newMaintenance("m", paused)), wanted{}},
		"one without a task does not":           {newFacts(newMaintenance("m", withoutTask)), wanted{}},
		"not with a status of an earlier spec":  {newFacts(newMaintenance("m", func(nm *v1alpha1.NodeMaintenance) { nm.Generation++ })), wanted{}},
		"not a node that a user uncordoned":     {newFacts(newMaintenance("m"), uncordoned), wanted{}},
		"not a node that it does not hold":      {newFacts(newMaintenance("third")), wanted{}},
		"not a node that was registered again":  {newFacts(newMaintenance("m"), otherUID), wanted{}},
		"not a node that does not exist":        {newFacts(newMaintenance("m"), noNode), wanted{}},
		"not beside a maintenance of a user":    {newFacts(newMaintenance("m"), also(newMaintenance("other", withoutTask))), wanted{}},
		"beside one of a user that does not get the node": {newFacts(newMaintenance("m"), also(newMaintenance("third", withoutTask, func(nm *v1alpha1.NodeMaintenance) {
			nm.Status.NodeStatuses[0].Reason = v1alpha1.NodeStatusTooManyMaintenances
		}))), offered},
		"not while the status has an earlier task": {newFacts(newMaintenance("m", recorded(v1alpha1.NodeTaskFailed))), wanted{}},
		"not twice": {newFacts(newMaintenance("m", recorded(v1alpha1.NodeTaskDone))), wanted{}},
		"a node that is outside of the drain": {newFacts(newMaintenance("m", func(nm *v1alpha1.NodeMaintenance) {
			nm.Status.NodeStatuses[0].Reason = v1alpha1.NodeStatusNotAuthorized
		})), wanted{}},
		"not for a user who lost the right to assign the worker": {newFacts(newMaintenance("m"), assigned(rights.Answer{})), wanted{}},
		"not before the authorizer has answered":                 {newFacts(newMaintenance("m"), assigned(rights.Answer{Err: rights.ErrAsking})), wanted{}},
		"not with an old answer":                                 {newFacts(newMaintenance("m"), assigned(rights.Answer{Allowed: true, Stale: true})), wanted{}},
		"after ten minutes with volumes":                         {newFacts(newMaintenance("m"), volumes(1)), wanted{wake: 9 * time.Minute}},
		"and then nevertheless":                                  {newFacts(newMaintenance("m"), volumes(1), func(f *facts) { f.now = noon.Add(9 * time.Minute) }), offered},
		"the oldest first":                                       {newFacts(newMaintenance("younger", func(nm *v1alpha1.NodeMaintenance) { nm.CreationTimestamp = *ago(0) }), also(newMaintenance("m"))), offered},
		"the next one after the oldest is done": {
			newFacts(newMaintenance("m", recorded(v1alpha1.NodeTaskDone)), also(newMaintenance("younger"))),
			wanted{step: stepOffer, event: EventOffered, note: "by NodeMaintenance younger"},
		},
		"none while the oldest is not drained": {newFacts(newMaintenance("m", drained(metav1.ConditionFalse)), also(newMaintenance("younger"))), wanted{}},
		"none while the oldest is paused":      {newFacts(newMaintenance("m", paused), also(newMaintenance("younger"))), wanted{}},
		"the next one if the oldest does not get the node": {
			newFacts(newMaintenance("m", func(nm *v1alpha1.NodeMaintenance) {
				nm.Status.NodeStatuses[0].Reason = v1alpha1.NodeStatusNotAuthorized
			}), also(newMaintenance("younger"))),
			wanted{step: stepOffer, event: EventOffered, note: "by NodeMaintenance younger"},
		},
		"the next one if the oldest is only cordoned": {
			newFacts(newMaintenance("m", func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = v1alpha1.NodeMaintenanceStageCordon }), also(newMaintenance("younger"))),
			wanted{step: stepOffer, event: EventOffered, note: "by NodeMaintenance younger"},
		},
		"the one that drains for longer": {
			newFacts(newMaintenance("m", drainsFor(time.Minute)), also(newMaintenance("younger", drainsFor(time.Hour)))),
			wanted{step: stepOffer, event: EventOffered, note: "by NodeMaintenance younger"},
		},
		"none but the oldest while that waits for volumes": {newFacts(newMaintenance("m"), also(newMaintenance("younger")), volumes(2)), wanted{wake: 9 * time.Minute}},
		"a node at its goal is not announced":              {newFacts(newMaintenance("m", doneWhen("true"))), wanted{step: stepOffer}},
		"one that is not is":                               {newFacts(newMaintenance("m", doneWhen("error"))), offered},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide(test.facts)) })
	}
}

func TestDecideOffered(t *testing.T) {
	offered := v1alpha1.NodeTaskOffered
	withdrawn := func(note string) wanted { return wanted{step: stepDelete, event: EventWithdrawn, note: note} }
	for name, test := range map[string]struct {
		facts *facts
		want  wanted
	}{
		"waits for a worker":            {newFacts(newMaintenance("m"), withTask(offered)), wanted{wake: 28 * time.Minute}},
		"without a time of the state":   {newFacts(newMaintenance("m"), withTask("", func(task *v1alpha1.NodeTask) { task.Status.StateTime, task.CreationTimestamp = nil, *ago(time.Minute) })), wanted{wake: 29 * time.Minute}},
		"is withdrawn: completed":       {newFacts(newMaintenance("m", complete), withTask(offered)), withdrawn("m: it ends")},
		"is withdrawn: deleted":         {newFacts(newMaintenance("m"), withTask(offered), noOwner), withdrawn("does not exist")},
		"is withdrawn: deselected":      {newFacts(newMaintenance("m"), withTask(offered), deselected), withdrawn("does not select")},
		"is withdrawn: paused":          {newFacts(newMaintenance("m", paused), withTask(offered)), withdrawn("paused")},
		"is withdrawn: pods are back":   {newFacts(newMaintenance("m", drained(metav1.ConditionFalse)), withTask(offered)), withdrawn("not drained")},
		"is withdrawn: uncordoned":      {newFacts(newMaintenance("m"), withTask(offered), uncordoned), withdrawn("not cordoned")},
		"is withdrawn: node deleted":    {newFacts(newMaintenance("m"), withTask(offered), noNode), withdrawn("gone")},
		"is withdrawn: another node":    {newFacts(newMaintenance("m"), withTask(offered), otherUID), withdrawn("gone")},
		"is withdrawn: user came":       {newFacts(newMaintenance("m"), withTask(offered), also(newMaintenance("ann", withoutTask))), withdrawn("ann holds the node")},
		"is withdrawn: right revoked":   {newFacts(newMaintenance("m"), assigned(rights.Answer{}), withTask(offered)), withdrawn("may not assign workers of class w.example.com")},
		"waits for the authorizer":      {newFacts(newMaintenance("m"), assigned(rights.Answer{Err: rights.ErrAsking}), withTask(offered, holder("w"))), wanted{}},
		"is granted with an old answer": {newFacts(newMaintenance("m"), assigned(rights.Answer{Allowed: true, Stale: true}), withTask(offered, holder("w"))), wanted{step: stepLook}},
		"waits for the present status":  {newFacts(newMaintenance("m", func(nm *v1alpha1.NodeMaintenance) { nm.Generation++ }), withTask(offered, holder("w"))), wanted{}},
		"is done at its goal": {
			newFacts(newMaintenance("m", doneWhen("true")), withTask(offered, holder("w"))),
			wanted{step: stepWrite, state: v1alpha1.NodeTaskDone, event: EventVerified, note: "without any work"},
		},
		"stays offered at its goal: not Ready": {newFacts(newMaintenance("m", doneWhen("true")), withTask(offered), notReady), wanted{wake: 28 * time.Minute}},
		"stays offered at its goal: a taint":   {newFacts(newMaintenance("m", doneWhen("true")), withTask(offered), tainted), wanted{wake: 28 * time.Minute}},
		"a claim at the goal, not Ready":       {newFacts(newMaintenance("m", doneWhen("true")), withTask(offered, holder("w")), notReady), wanted{step: stepLook}},
		"a claim needs a look":                 {newFacts(newMaintenance("m"), withTask(offered, holder("w"))), wanted{step: stepLook}},
		"a claim is granted": {
			newFacts(newMaintenance("m"), withTask(offered, holder("w")), looked("")),
			wanted{step: stepWrite, state: v1alpha1.NodeTaskClaimed, event: EventClaimed, note: `Worker "w" of user "user-w"`},
		},
		"a claim is refused":             {newFacts(newMaintenance("m"), withTask(offered, holder("w")), looked("pod a/b is on the node again")), withdrawn("a/b")},
		"a claim after the end is not":   {newFacts(newMaintenance("m", complete), withTask(offered, holder("w"))), withdrawn("it ends")},
		"a late claim is granted":        {newFacts(newMaintenance("m"), withTask(offered, holder("w"), since(time.Hour))), wanted{step: stepLook}},
		"no worker came":                 {newFacts(newMaintenance("m"), withTask(offered, since(30*time.Minute))), wanted{step: stepRelease, event: EventFailed, note: "NoWorker: no worker of class w.example.com has claimed the node within 30m0s"}},
		"no worker came to a new leader": {newFacts(newMaintenance("m"), withTask(offered, since(time.Hour)), served(time.Minute)), wanted{wake: 4 * time.Minute}},
		"no worker came, and not to another node": {
			newFacts(newMaintenance("m"), withTask(offered, since(time.Hour)), beside(offered)), wanted{step: stepRelease, event: EventFailed},
		},
		"no worker came, but another node is worked on":   {newFacts(newMaintenance("m"), withTask(offered, since(time.Hour)), beside(v1alpha1.NodeTaskClaimed)), wanted{}},
		"no worker came, but another node is verified":    {newFacts(newMaintenance("m"), withTask(offered, since(time.Hour)), beside(v1alpha1.NodeTaskVerifying)), wanted{}},
		"no worker came, but another node has failed":     {newFacts(newMaintenance("m"), withTask(offered, since(time.Hour)), beside(v1alpha1.NodeTaskFailed)), wanted{}},
		"no worker came after another node was done":      {newFacts(newMaintenance("m", ofRollout, workedOn(v1alpha1.NodeTaskDone)), withTask(offered, since(time.Hour))), wanted{wake: 25 * time.Minute}},
		"no worker came, and a user's other node is done": {newFacts(newMaintenance("m", workedOn(v1alpha1.NodeTaskDone)), withTask(offered, since(time.Hour))), wanted{}},
		"no worker came, and a user's other node needed no work": {newFacts(newMaintenance("m", workedOn(v1alpha1.NodeTaskDone), func(nm *v1alpha1.NodeMaintenance) {
			nm.Status.NodeStatuses[len(nm.Status.NodeStatuses)-1].Task.Holder = ""
		}), withTask(offered, since(time.Hour))), wanted{wake: 25 * time.Minute}},
		"no worker came while another node is worked on": {newFacts(newMaintenance("m", workedOn(v1alpha1.NodeTaskClaimed)), withTask(offered, since(time.Hour))), wanted{}},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide(test.facts)) })
	}
}

// TestFailureCountsUntilItIsVerified: a late result Done is not believed before the node is
// verified.
func TestFailureCountsUntilItIsVerified(t *testing.T) {
	late := decide(newFacts(newMaintenance("m", doneWhen("false")),
		withTask(v1alpha1.NodeTaskFailed, because(v1alpha1.NodeTaskLost), result(v1alpha1.NodeTaskResultDone)))).status
	is.True(t, late.State == v1alpha1.NodeTaskVerifying && late.Reason == v1alpha1.NodeTaskLost, "got %s %s", late.State, late.Reason)
	verified := decide(newFacts(newMaintenance("m", doneWhen("true")),
		withTask(v1alpha1.NodeTaskVerifying, because(v1alpha1.NodeTaskLost), result(v1alpha1.NodeTaskResultDone)))).status
	is.True(t, verified.State == v1alpha1.NodeTaskDone && verified.Reason == "", "got %s %s", verified.State, verified.Reason)
}

func TestDecideClaimed(t *testing.T) {
	claimed := v1alpha1.NodeTaskClaimed
	failed := func(reason v1alpha1.NodeTaskReason, note string) wanted {
		return wanted{step: stepWrite, state: v1alpha1.NodeTaskFailed, reason: reason, event: EventFailed, note: note}
	}
	gone := wanted{step: stepDelete, event: EventNodeGone, note: "goes on without it"}
	verifying := wanted{step: stepWrite, state: v1alpha1.NodeTaskVerifying}
	done := wanted{step: stepWrite, state: v1alpha1.NodeTaskDone, event: EventVerified, note: "the node is verified"}
	for name, test := range map[string]struct {
		facts *facts
		want  wanted
	}{
		"waits for the worker":                {newFacts(newMaintenance("m"), withTask(claimed)), wanted{wake: 18 * time.Minute}},
		"even if the maintenance ends":        {newFacts(newMaintenance("m", complete), withTask(claimed)), wanted{wake: 18 * time.Minute}},
		"even if the maintenance is deleted":  {newFacts(newMaintenance("m"), withTask(claimed), noOwner), wanted{wake: 18 * time.Minute}},
		"even if pods return":                 {newFacts(newMaintenance("m", drained(metav1.ConditionFalse)), withTask(claimed)), wanted{wake: 18 * time.Minute}},
		"even if a user comes":                {newFacts(newMaintenance("m"), withTask(claimed), also(newMaintenance("ann", withoutTask))), wanted{wake: 18 * time.Minute}},
		"even if the node is gone":            {newFacts(newMaintenance("m"), withTask(claimed), noNode), wanted{wake: 18 * time.Minute}},
		"any write is a heartbeat":            {newFacts(newMaintenance("m"), withTask(claimed, since(time.Hour), heartbeat(time.Minute))), wanted{wake: 19 * time.Minute}},
		"by a clock that is behind":           {newFacts(newMaintenance("m"), withTask(claimed, since(time.Hour), heartbeat(30*time.Minute)), heardBefore(time.Minute)), wanted{wake: 19 * time.Minute}},
		"a silent worker is lost":             {newFacts(newMaintenance("m"), withTask(claimed, holder("w"), since(time.Hour), heartbeat(20*time.Minute))), failed(v1alpha1.NodeTaskLost, `Worker "w" has not reported for 20m0s`)},
		"not for a leader that came just now": {newFacts(newMaintenance("m"), withTask(claimed, since(time.Hour)), served(2*time.Minute)), wanted{wake: 3 * time.Minute}},
		"a node that does not return is gone": {newFacts(newMaintenance("m"), withTask(claimed, since(time.Hour)), noNode), gone},
		"the worker is done":                  {newFacts(newMaintenance("m"), withTask(claimed, result(v1alpha1.NodeTaskResultDone))), done},
		"the worker is done, the node is not": {newFacts(newMaintenance("m"), withTask(claimed, result(v1alpha1.NodeTaskResultDone)), notReady), verifying},
		"the worker is done in vain":          {newFacts(newMaintenance("m", doneWhen("false")), withTask(claimed, result(v1alpha1.NodeTaskResultDone))), verifying},
		"the worker is done without a node":   {newFacts(newMaintenance("m"), withTask(claimed, result(v1alpha1.NodeTaskResultDone)), noNode), verifying},
		"the worker has failed":               {newFacts(newMaintenance("m"), withTask(claimed, result(v1alpha1.NodeTaskResultFailed))), failed(v1alpha1.NodeTaskWorkerFailed, "reported Failed")},
		"the worker has failed, it says why": {
			newFacts(newMaintenance("m"), withTask(claimed, result(v1alpha1.NodeTaskResultFailed), func(task *v1alpha1.NodeTask) { task.Status.Message = "exit code 3" })),
			failed(v1alpha1.NodeTaskWorkerFailed, "WorkerFailed: exit code 3"),
		},
		"the worker is done, and the new node has no labels yet":    {newFacts(newMaintenance("m"), withTask(claimed, result(v1alpha1.NodeTaskResultDone)), deselected, otherUID, unmarked), verifying},
		"the worker has failed, and the new node has no labels yet": {newFacts(newMaintenance("m"), withTask(claimed, result(v1alpha1.NodeTaskResultFailed)), deselected, otherUID, unmarked), wanted{}},
		"the worker has failed on a new node that is held": {
			newFacts(newMaintenance("m"), withTask(claimed, result(v1alpha1.NodeTaskResultFailed)), deselected, otherUID), failed(v1alpha1.NodeTaskWorkerFailed, "reported Failed"),
		},
		"the worker has failed without a node": {newFacts(newMaintenance("m"), withTask(claimed, result(v1alpha1.NodeTaskResultFailed)), noNode), failed(v1alpha1.NodeTaskWorkerFailed, "reported Failed")},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide(test.facts)) })
	}
}

// TestDoneAfterAFailureIsLate checks that no result Done is left when a task fails: one that is
// there afterwards was reported late, whatever the clocks say.
func TestDoneAfterAFailureIsLate(t *testing.T) {
	m := newMaintenance("m", doneWhen("false"))
	d := decide(newFacts(m, withTask(v1alpha1.NodeTaskVerifying, since(time.Hour), result(v1alpha1.NodeTaskResultDone))))
	is.Equal(t, d.status.Reason, v1alpha1.NodeTaskNotVerified)
	is.Equal(t, d.status.Result, v1alpha1.NodeTaskResultFailed)
	d = decide(newFacts(m, withTask(v1alpha1.NodeTaskClaimed, since(time.Hour))))
	is.Equal(t, d.status.Reason, v1alpha1.NodeTaskLost)
	is.Equal(t, d.status.Result, v1alpha1.NodeTaskResult(""))
	d = decide(newFacts(newMaintenance("m"), withTask(v1alpha1.NodeTaskFailed, because(v1alpha1.NodeTaskNotVerified), result(v1alpha1.NodeTaskResultFailed))))
	is.Equal(t, d.status.Result, v1alpha1.NodeTaskResultDone, "a result that can be verified later")
}

func TestDecideVerifying(t *testing.T) {
	verifying := v1alpha1.NodeTaskVerifying
	done := wanted{step: stepWrite, state: v1alpha1.NodeTaskDone, event: EventVerified, note: "the node is verified"}
	waits := func(why string) wanted {
		return wanted{step: stepWrite, state: verifying, note: why, wake: 13 * time.Minute}
	}
	notVerified := func(why string) wanted {
		return wanted{step: stepWrite, state: v1alpha1.NodeTaskFailed, reason: v1alpha1.NodeTaskNotVerified, event: EventFailed, note: why}
	}
	for name, test := range map[string]struct {
		facts *facts
		want  wanted
	}{
		"a node that is Ready is done":     {newFacts(newMaintenance("m"), withTask(verifying)), done},
		"even if it was registered again":  {newFacts(newMaintenance("m"), withTask(verifying), otherUID), done},
		"even if the maintenance ends":     {newFacts(newMaintenance("m", complete), withTask(verifying)), done},
		"even if the maintenance is gone":  {newFacts(newMaintenance("m"), withTask(verifying), noOwner), done},
		"one that meets the condition":     {newFacts(newMaintenance("m", doneWhen("true")), withTask(verifying)), done},
		"waits until it is Ready":          {newFacts(newMaintenance("m"), withTask(verifying), notReady), waits("not Ready")},
		"waits for the readiness taint":    {newFacts(newMaintenance("m"), withTask(verifying), tainted), waits("readiness.k8s.io/")},
		"waits until the condition is met": {newFacts(newMaintenance("m", doneWhen("false")), withTask(verifying)), waits("doneWhen is false")},
		"an error is false":                {newFacts(newMaintenance("m", doneWhen("error")), withTask(verifying)), waits("no such key: kernalVersion")},
		"writes why only once":             {newFacts(newMaintenance("m", doneWhen("false")), withTask(verifying, serverSays("doneWhen is false"))), wanted{wake: 13 * time.Minute}},
		"fails after the deadline":         {newFacts(newMaintenance("m", doneWhen("false")), withTask(verifying, since(15*time.Minute))), notVerified("NotVerified: 15m0s after the worker reported Done: doneWhen is false")},
		"with the last message of the worker": {
			newFacts(newMaintenance("m", doneWhen("false")), withTask(verifying, since(15*time.Minute), func(task *v1alpha1.NodeTask) { task.Status.Message = "The Job w/one runs" })),
			notVerified("doneWhen is false; its last message: The Job w/one runs"),
		},
		"whatever the worker reports later": {
			newFacts(newMaintenance("m", doneWhen("false")), withTask(verifying, since(16*time.Minute), heartbeat(time.Minute)), heardBefore(time.Minute)), notVerified("15m0s after"),
		},
		"not by a clock that is behind":      {newFacts(newMaintenance("m"), withTask(verifying, since(time.Hour), serverSays("the node is not Ready")), notReady, enteredBefore(time.Minute)), wanted{wake: 14 * time.Minute}},
		"is done even after the deadline":    {newFacts(newMaintenance("m"), withTask(verifying, since(time.Hour))), done},
		"waits for the node":                 {newFacts(newMaintenance("m"), withTask(verifying), noNode), wanted{wake: 18 * time.Minute}},
		"goes on without it at the deadline": {newFacts(newMaintenance("m"), withTask(verifying, since(20*time.Minute)), noNode), wanted{step: stepDelete, event: EventNodeGone}},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide(test.facts)) })
	}
}

func TestDecideEnd(t *testing.T) {
	done, failed := v1alpha1.NodeTaskDone, v1alpha1.NodeTaskFailed
	released := func(nm *v1alpha1.NodeMaintenance) { nm.Finalizers = nil }
	deleted := wanted{step: stepDelete}
	verifying := wanted{step: stepWrite, state: v1alpha1.NodeTaskVerifying}
	for name, test := range map[string]struct {
		facts *facts
		want  wanted
	}{
		"done work waits for the record":           {newFacts(newMaintenance("m", recorded(v1alpha1.NodeTaskVerifying)), withTask(done)), wanted{}},
		"done work that is recorded":               {newFacts(newMaintenance("m", recorded(done)), withTask(done)), deleted},
		"done work of an earlier node of the name": {newFacts(newMaintenance("m", recorded(done)), withTask(done), otherUID), wanted{}},
		"done work without a maintenance":          {newFacts(newMaintenance("m"), withTask(done), noOwner), deleted},
		"done work of a node with other labels":    {newFacts(newMaintenance("m"), withTask(done), deselected), deleted},
		"done work of a new node without labels":   {newFacts(newMaintenance("m"), withTask(done), deselected, otherUID), wanted{}},
		"done work without a node":                 {newFacts(newMaintenance("m"), withTask(done), noNode), deleted},
		"done work of a maintenance that is over":  {newFacts(newMaintenance("m", complete, released), withTask(done)), deleted},
		"failed work waits for a user":             {newFacts(newMaintenance("m", recorded(failed)), withTask(failed, result(v1alpha1.NodeTaskResultFailed))), wanted{}},
		"failed work that is done late":            {newFacts(newMaintenance("m"), withTask(failed, result(v1alpha1.NodeTaskResultDone))), verifying},
		"failed work whose node is Ready":          {newFacts(newMaintenance("m"), withTask(failed, because(v1alpha1.NodeTaskWorkerFailed))), wanted{}},
		"work that was not verified and can be": {
			newFacts(newMaintenance("m", doneWhen("true")), withTask(failed, because(v1alpha1.NodeTaskNotVerified))),
			wanted{step: stepWrite, state: v1alpha1.NodeTaskVerifying, reason: v1alpha1.NodeTaskNotVerified},
		},
		"work that was not verified and cannot be": {newFacts(newMaintenance("m", doneWhen("false")), withTask(failed, because(v1alpha1.NodeTaskNotVerified))), wanted{}},
		"failed work whose node is deleted":        {newFacts(newMaintenance("m"), withTask(failed), noNode), wanted{}},
		"which could not be verified before":       {newFacts(newMaintenance("m"), withTask(failed, because(v1alpha1.NodeTaskNotVerified)), noNode), wanted{}},
		"which a user reports as done":             {newFacts(newMaintenance("m"), withTask(failed, result(v1alpha1.NodeTaskResultDone)), noNode), verifying},
		"which a user releases":                    {newFacts(newMaintenance("m", complete), withTask(failed), noNode), deleted},
		"failed work of a node with other labels":  {newFacts(newMaintenance("m", recorded(failed)), withTask(failed), deselected), wanted{step: stepDelete, event: EventWithdrawn, note: "NodeMaintenance m does not select the node any more"}},
		"failed work of a new node of another use": {newFacts(newMaintenance("m", recorded(failed)), withTask(failed), deselected, otherUID, unmarked), wanted{step: stepDelete, event: EventWithdrawn, note: "does not select the node any more"}},
		"failed work of a new node without labels": {newFacts(newMaintenance("m", recorded(failed)), withTask(failed), deselected, otherUID), wanted{}},
		"failed work of an ended maintenance":      {newFacts(newMaintenance("m", complete, recorded(failed)), withTask(failed)), deleted},
		"but only after the record":                {newFacts(newMaintenance("m", complete), withTask(failed)), wanted{}},
		"failed work without a maintenance":        {newFacts(newMaintenance("m"), withTask(failed), noOwner), deleted},
		"a state of a newer server":                {newFacts(newMaintenance("m"), withTask("Weighing")), wanted{}},
	} {
		t.Run(name, func(t *testing.T) { test.want.check(t, decide(test.facts)) })
	}
}
