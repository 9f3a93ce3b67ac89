// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// rolloutGoldens are the cases of rollout, take and done.
var rolloutGoldens = map[string]golden{
	"help-rollout":      {line: "rollout --help"},
	"rollout-unknown":   {line: "rollout pause kernel-6-12"},
	"rollout-mistyped":  {line: "rollout stats"},
	"rollout-status":    {line: "rollout status kernel-6-12", objects: rolling()},
	"rollout-only-one":  {line: "rollout status", objects: append(rolling(), rollout(named("old"), stopped))},
	"rollout-table":     {line: "rollout status", objects: append(rolling(), rollout(named("gpu"), halted))},
	"rollout-none":      {line: "rollout status"},
	"rollout-not-found": {line: "rollout status kernel", objects: rolling()},
	"rollout-name":      {line: "rollout status nmr/kernel-6-12 -o name", objects: rolling()},
	"rollout-names":     {line: "rollout status -o name", objects: rolling()},
	"rollout-idle":      {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(idles)}},
	"rollout-new":       {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(unobserved)}},
	"rollout-halted":    {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(halted)}},
	"rollout-held":      {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(heldBy("alice", "ceph-operator"))}},
	"rollout-closed":    {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(closed)}},
	"rollout-skipped":   {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(skips)}},
	"rollout-complete":  {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(complet)}},
	"rollout-many":      {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(manyUnits)}},
	"rollout-released":  {line: "rollout status kernel-6-12", objects: releasedUnits()},
	"rollout-no-rights": {line: "rollout status kernel-6-12", objects: rolling(), arrange: forbid("list", "nodemaintenances")},
	"rollout-watch":     {line: "rollout status --watch", objects: rolling(), arrange: becomes(complet)},
	"rollout-watch-fails": {
		line: "rollout status kernel-6-12 --watch", objects: rolling(), arrange: becomes(halted, stopped),
	},
	"rollout-watch-deleted": {line: "rollout status kernel-6-12 --watch", objects: rolling(), arrange: becomes()},
	"rollout-watch-json":    {line: "rollout status kernel-6-12 --watch -o json", objects: rolling()},
	"rollout-watch-which":   {line: "rollout status --watch", objects: append(rolling(), rollout(named("gpu")))},

	"hold":           {line: "rollout hold kernel-6-12 --reason=rebuild", objects: rolling()},
	"hold-yaml":      {line: "rollout hold kernel-6-12 --reason=rebuild --drains --name=ceph -o jsonpath={.spec.holds}", objects: rolling()},
	"hold-again":     {line: "rollout hold kernel-6-12 --reason=rebuild --name=alice", objects: []runtime.Object{rollout(heldBy("alice"))}},
	"hold-more":      {line: "rollout hold kernel-6-12 --reason=rebuild --drains", objects: []runtime.Object{rollout(heldBy("alice"))}},
	"hold-no-reason": {line: "rollout hold kernel-6-12", objects: rolling()},
	"hold-complete":  {line: "rollout hold kernel-6-12 --reason=x", objects: []runtime.Object{rollout(stopped)}},
	"hold-forbidden": {line: "rollout hold kernel-6-12 --reason=x", objects: rolling(), arrange: forbid("patch", "nodemaintenancerollouts")},
	"hold-unknown":   {line: "rollout hold kernel-6-12 --reason=x", objects: rolling(), arrange: forbid("create", "selfsubjectreviews")},
	"hold-dry-run":   {line: "rollout hold kernel-6-12 --reason=x --dry-run=client", objects: rolling()},
	"hold-nothing":   {line: "rollout hold"},

	"unhold":         {line: "rollout resume kernel-6-12", objects: []runtime.Object{rollout(heldBy("alice"))}},
	"unhold-left":    {line: "rollout resume kernel-6-12", objects: []runtime.Object{rollout(heldBy("alice", "bob"))}},
	"unhold-others":  {line: "rollout resume kernel-6-12", objects: []runtime.Object{rollout(heldBy("bob"))}},
	"unhold-named":   {line: "rollout resume kernel-6-12 --name=bob", objects: []runtime.Object{rollout(heldBy("bob"))}},
	"unhold-unknown": {line: "rollout resume kernel-6-12 --name=ann", objects: []runtime.Object{rollout(heldBy("bob"))}},
	"unhold-none":    {line: "rollout resume kernel-6-12", objects: rolling()},

	"run-now":           {line: "rollout run-now kernel-6-12 --for=2h -o jsonpath={.spec.windows}", objects: []runtime.Object{rollout(closed)}},
	"run-now-held":      {line: "rollout run-now kernel-6-12 --for=2h", objects: []runtime.Object{rollout(closed, heldBy("bob"))}},
	"run-now-idle":      {line: "rollout run-now kernel-6-12 --for=2h", objects: []runtime.Object{rollout(closed, idles)}},
	"run-now-always":    {line: "rollout run-now kernel-6-12 --for=2h", objects: []runtime.Object{rollout(always)}},
	"run-now-how-long":  {line: "rollout run-now kernel-6-12", objects: rolling()},
	"retry":             {line: "rollout retry kernel-6-12 node-002", objects: rolling()},
	"retry-released":    {line: "rollout retry kernel-6-12 node/node-005", objects: rolling()},
	"retry-runs":        {line: "rollout retry kernel-6-12 node-003", objects: rolling()},
	"retry-unknown":     {line: "rollout retry kernel-6-12 node-009", objects: rolling()},
	"retry-dry-run":     {line: "rollout retry kernel-6-12 node-002 --dry-run=server", objects: rolling(), arrange: dryRunsDelete},
	"retry-forbidden":   {line: "rollout retry kernel-6-12 node-002", objects: rolling(), arrange: forbid("delete", "nodetasks")},
	"retry-what":        {line: "rollout retry kernel-6-12", objects: rolling()},
	"stop":              {line: "rollout stop kernel-6-12", objects: rolling()},
	"stop-again":        {line: "rollout stop kernel-6-12", objects: []runtime.Object{rollout(stopped)}},
	"stop-not-found":    {line: "rollout stop none"},
	"take":              {line: "take node-005", objects: offered(), arrange: grants},
	"take-json":         {line: "take no/node-005 --message=memory -o jsonpath={.status}", objects: offered(), arrange: grants},
	"take-wait":         {line: "take node-005 --wait --timeout=1m", arrange: all(offersLater, grants)},
	"take-wait-timeout": {line: "take node-005 --wait --timeout=1m"},
	"take-no-grant":     {line: "take node-005 --timeout=30s", objects: offered()},
	"take-withdrawn":    {line: "take node-005", objects: offered(), arrange: withdraws},
	"take-other":        {line: "take node-003", objects: rolling()},
	"take-again":        {line: "take node-004", objects: rolling()},
	"take-failed":       {line: "take node-002", objects: rolling()},
	"take-verifying":    {line: "take node-001", objects: rolling()},
	"take-not-offered":  {line: "take node-005", objects: rolling()},
	"take-no-node":      {line: "take node-055", objects: rolling()},
	"take-no-node-wait": {line: "take node-055 --wait", objects: rolling()},
	"take-forbidden":    {line: "take node-005", objects: offered(), arrange: forbid("patch", "nodetasks")},
	"take-nothing":      {line: "take"},
	"done":              {line: "done node-004", objects: rolling()},
	"done-failed":       {line: "done node-004 --failed --message=broken -o jsonpath={.status}", objects: rolling()},
	"done-repaired":     {line: "done node-002", objects: rolling()},
	"done-other":        {line: "done node-003", objects: rolling()},
	"done-offered":      {line: "done node-005", objects: offered()},
	"done-again":        {line: "done node-001", objects: rolling()},
	"done-too-late":     {line: "done node-001 --failed", objects: rolling()},
	"done-not-offered":  {line: "done node-005", objects: rolling()},

	"completion-rollouts": {line: "__complete rollout hold ", objects: rolling()},
	"completion-rollout":  {line: "__complete rollout ", objects: rolling()},
	"completion-units":    {line: "__complete rollout retry kernel-6-12 node-0", objects: rolling()},
	"completion-take":     {line: "__complete take ", objects: append(rolling(), offered()...)},
	"completion-done":     {line: "__complete done ", objects: rolling()},
}

type rolloutMod = func(*v1alpha1.NodeMaintenanceRollout)

// rollout returns a rollout over 20 nodes of which 11 are done, one has failed, and three are in
// work. Three more are allowed to fail.
func rollout(modify ...rolloutMod) *v1alpha1.NodeMaintenanceRollout {
	unit := func(node string, phase v1alpha1.RolloutPhase, since time.Duration, message string) v1alpha1.RolloutUnit {
		return v1alpha1.RolloutUnit{
			Unit: node, Maintenance: "kernel-6-12-" + node + "-1", Phase: phase, Since: before(since), Message: message,
			Nodes: []v1alpha1.NodeReference{{Name: node, UID: types.UID(node)}},
		}
	}
	r := &v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: "kernel-6-12", UID: "rollout-1", Generation: 2, CreationTimestamp: before(3 * time.Hour)},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			NodeSelector: undescribed().Spec.NodeSelector, Stage: v1alpha1.RolloutStageRoll, MaxFailed: 3,
			Limits:      []v1alpha1.RolloutLimit{{MaxUnavailable: new(intstr.FromString("20%"))}},
			Windows:     []v1alpha1.RolloutWindow{{Schedule: "0 8 * * *", Duration: metav1.Duration{Duration: 6 * time.Hour}}},
			RequestedBy: &authenticationv1.UserInfo{Username: "alice"},
			Template: v1alpha1.RolloutTemplate{
				Reason: "kernel 6.12", Task: &v1alpha1.NodeMaintenanceTask{Worker: v1alpha1.WorkerClassPerson},
			},
		},
		Status: v1alpha1.NodeMaintenanceRolloutStatus{
			ObservedGeneration: 2,
			Nodes:              v1alpha1.RolloutNodes{Total: 20, Done: 11, Waiting: 4, Running: 3, Blocked: 1, Failed: 1},
			Window:             &v1alpha1.RolloutWindowStatus{Open: true, Until: new(metav1.NewTime(now.Add(4 * time.Hour)))},
			Current: []v1alpha1.RolloutUnit{
				unit("node-001", v1alpha1.RolloutPhaseVerifying, 20*time.Second, "waits for the condition Ready of the node"),
				unit("node-002", v1alpha1.RolloutPhaseFailed, 10*time.Minute, "WorkerFailed: no bootable disk"),
				unit("node-003", v1alpha1.RolloutPhaseClaimed, 3*time.Minute, "bob works on it"),
				unit("node-004", v1alpha1.RolloutPhaseClaimed, 2*time.Minute, ""),
			},
		},
	}
	progressing(metav1.ConditionTrue, v1alpha1.ReasonRolling, "3 nodes are in work; 4 of 20 nodes may be out: node-001, node-002, node-003 and node-004.")(r)
	return build.With(r, modify...)
}

func named(name string) rolloutMod {
	return func(r *v1alpha1.NodeMaintenanceRollout) { r.Name, r.UID = name, types.UID(name) }
}

func progressing(status metav1.ConditionStatus, reason, message string) rolloutMod {
	return func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionProgressing, Status: status, Reason: reason, Message: message, LastTransitionTime: before(8 * time.Minute),
		}}
	}
}

func idles(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.Stage, r.Status.Current, r.Status.Nodes = v1alpha1.RolloutStageIdle, nil, v1alpha1.RolloutNodes{Total: 20, Done: 2, Waiting: 18}
	progressing(metav1.ConditionFalse, v1alpha1.ReasonIdle, "The stage is Idle: no unit starts.")(r)
}

func unobserved(r *v1alpha1.NodeMaintenanceRollout) {
	r.Status = v1alpha1.NodeMaintenanceRolloutStatus{}
}

func halted(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.MaxFailed, r.Status.Current = 0, r.Status.Current[1:2]
	r.Status.Nodes = v1alpha1.RolloutNodes{Total: 20, Done: 14, Waiting: 4, Blocked: 1, Failed: 1}
	progressing(metav1.ConditionFalse, v1alpha1.ReasonHalted, "1 unit has failed, more than maxFailed (0): node-002.")(r)
}

func stopped(r *v1alpha1.NodeMaintenanceRollout) {
	halted(r)
	r.Spec.Stage = v1alpha1.RolloutStageComplete
	progressing(metav1.ConditionFalse, v1alpha1.ReasonStopped, "The stage is Complete, and 6 of 20 nodes are not done.")(r)
}

// heldBy holds a rollout for users, each of which has a hold with the own name.
func heldBy(users ...string) rolloutMod {
	return func(r *v1alpha1.NodeMaintenanceRollout) {
		for _, user := range users {
			r.Spec.Holds = append(r.Spec.Holds, v1alpha1.RolloutHold{
				Name: user, Reason: "rebuild", Stops: v1alpha1.RolloutHoldStarts, By: user, Since: new(before(5 * time.Minute)),
			})
		}
		r.Spec.Holds[0].Until = new(metav1.NewTime(now.Add(time.Hour)))
		progressing(metav1.ConditionFalse, v1alpha1.ReasonHeld, "Held by "+strings.Join(users, ", ")+".")(r)
	}
}

// closed has no open window, and the entry of one that is over.
func closed(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.Windows = append(r.Spec.Windows, v1alpha1.RolloutWindow{Start: new(before(4 * time.Hour)), Duration: metav1.Duration{Duration: time.Hour}})
	r.Status.Window = &v1alpha1.RolloutWindowStatus{Until: new(metav1.NewTime(now.Add(22 * time.Hour)))}
	r.Status.Current, r.Status.Nodes = nil, v1alpha1.RolloutNodes{Total: 20, Done: 11, Waiting: 9}
	progressing(metav1.ConditionFalse, v1alpha1.ReasonOutsideWindow, "No window is open. The next one opens at 2026-11-22T08:00:00Z.")(r)
}

func always(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Windows, r.Status.Window = nil, nil }

func skips(r *v1alpha1.NodeMaintenanceRollout) {
	r.Status.Current, r.Status.Window = nil, &v1alpha1.RolloutWindowStatus{}
	r.Status.Nodes = v1alpha1.RolloutNodes{Total: 20, Done: 18, Skipped: 2}
	progressing(metav1.ConditionFalse, v1alpha1.ReasonNodesSkipped, "Only skipped nodes are left: node-003 and node-004 (made unschedulable by others).")(r)
}

func complet(r *v1alpha1.NodeMaintenanceRollout) {
	r.Status.Current, r.Status.Nodes = nil, v1alpha1.RolloutNodes{Total: 20, Done: 20}
	progressing(metav1.ConditionFalse, v1alpha1.ReasonRolloutComplete, "All 20 nodes are done.")(r)
}

func manyUnits(r *v1alpha1.NodeMaintenanceRollout) {
	one := r.Status.Current[3]
	r.Status.Current = nil
	for i := range 60 {
		one.Unit = fmt.Sprintf("node-%03d", 100+i)
		r.Status.Current = append(r.Status.Current, one)
	}
	r.Status.Nodes = v1alpha1.RolloutNodes{Total: 600, Done: 200, Waiting: 340, Running: 60}
}

// rolling returns the objects of a rollout that makes progress: with the tasks of its nodes, and
// the maintenances of a unit that is done and of one whose drain was blocked.
func rolling() []runtime.Object {
	unit := func(node string, attempt int, modify ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
		nm := completed()
		nm.Name, nm.UID = fmt.Sprintf("kernel-6-12-%s-%d", node, attempt), types.UID(fmt.Sprint(node, attempt))
		nm.CreationTimestamp = before(40 * time.Minute / time.Duration(attempt))
		nm.Labels = map[string]string{v1alpha1.LabelRollout: "kernel-6-12"}
		nm.Annotations = map[string]string{v1alpha1.AnnotationRolloutUnit: node}
		return build.With(nm, modify...)
	}
	isDone := func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{
			NodeRef: v1alpha1.NodeReference{Name: "node-010"},
			Task:    &v1alpha1.NodeMaintenanceNodeTask{State: v1alpha1.NodeTaskDone, EndTime: new(before(20 * time.Minute))},
		}}
	}
	withdrawn := func(why string) func(*v1alpha1.NodeMaintenance) {
		return func(nm *v1alpha1.NodeMaintenance) {
			nm.Annotations[v1alpha1.AnnotationWithdrawn], nm.Status.NodeStatuses = why, nil
		}
	}
	return []runtime.Object{
		rollout(), unit("node-010", 1, isDone), unit("node-011", 1, isDone),
		unit("node-005", 1, withdrawn(next.WithdrawnClosed)), unit("node-005", 2, withdrawn(next.WithdrawnBlocked)),
		task("node-001", v1alpha1.NodeTaskVerifying, "alice", "alice", func(t *v1alpha1.NodeTask) { t.Status.Result = v1alpha1.NodeTaskResultDone }),
		task("node-002", v1alpha1.NodeTaskFailed, "kubelet-137 (job)", "system:serviceaccount:haulout-workers:job", func(t *v1alpha1.NodeTask) {
			t.Status.Result, t.Status.Reason = v1alpha1.NodeTaskResultFailed, v1alpha1.NodeTaskWorkerFailed
		}),
		task("node-003", v1alpha1.NodeTaskClaimed, "bob", "bob"),
		task("node-004", v1alpha1.NodeTaskClaimed, "alice", "alice"),
	}
}

// releasedUnits returns a halted rollout without a unit that runs: no worker has come to one, and a
// user has completed the maintenance of another one.
func releasedUnits() []runtime.Object {
	r := rollout(halted, progressing(metav1.ConditionFalse, v1alpha1.ReasonHalted, "1 unit has failed, more than maxFailed (0): node-005."))
	r.Status.Current = nil
	objects := []runtime.Object{r}
	for _, object := range rolling() {
		if nm, ok := object.(*v1alpha1.NodeMaintenance); ok {
			switch nm.Name {
			case "kernel-6-12-node-005-1":
				continue
			case "kernel-6-12-node-005-2":
				nm.Annotations[v1alpha1.AnnotationWithdrawn] = next.WithdrawnNoWorker
			case "kernel-6-12-node-011-1":
				nm.Status.NodeStatuses[0].Task = nil
			}
			objects = append(objects, nm)
		}
	}
	return objects
}

func task(node string, state v1alpha1.NodeTaskState, holder, by string, modify ...func(*v1alpha1.NodeTask)) *v1alpha1.NodeTask {
	return build.With(&v1alpha1.NodeTask{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID("task-" + node), CreationTimestamp: before(5 * time.Minute)},
		Spec: v1alpha1.NodeTaskSpec{
			NodeUID: types.UID(node), Maintenance: v1alpha1.NodeTaskMaintenance{Name: "kernel-6-12-" + node + "-1"},
			Worker: v1alpha1.WorkerClassPerson, Reason: "kernel 6.12", Parameters: map[string]string{"slot": "3", "size": "64 GiB"},
			ProgressDeadlineSeconds: 1800,
		},
		Status: v1alpha1.NodeTaskStatus{State: state, Holder: holder, ClaimedBy: by, StateTime: new(before(3 * time.Minute))},
	}, modify...)
}

func offered() []runtime.Object {
	return []runtime.Object{task("node-005", v1alpha1.NodeTaskOffered, "", "")}
}

var tasksResource = v1alpha1.SchemeGroupVersion.WithResource("nodetasks")

// onClaim calls back with a task that a worker has claimed, when the worker reads it again.
func onClaim(w *world, then func(*v1alpha1.NodeTask)) {
	w.haulout.PrependReactor("get", "nodetasks", func(action clienttesting.Action) (bool, runtime.Object, error) {
		object, err := w.haulout.Tracker().Get(tasksResource, "", action.(clienttesting.GetAction).GetName())
		if err == nil && object.(*v1alpha1.NodeTask).Status.Holder != "" && object.(*v1alpha1.NodeTask).Status.State == v1alpha1.NodeTaskOffered {
			then(object.(*v1alpha1.NodeTask))
		}
		return false, nil, nil
	})
}

// grants grants a claimed task.
func grants(w *world) {
	onClaim(w, func(task *v1alpha1.NodeTask) {
		task.Status.State, task.Status.ClaimedBy = v1alpha1.NodeTaskClaimed, task.Status.Holder
		if err := w.haulout.Tracker().Update(tasksResource, task, ""); err != nil {
			panic(err)
		}
	})
}

// withdraws deletes a claimed task instead of granting it.
func withdraws(w *world) {
	onClaim(w, func(task *v1alpha1.NodeTask) {
		if err := w.haulout.Tracker().Delete(tasksResource, "", task.Name); err != nil {
			panic(err)
		}
	})
}

// offersLater offers a node when it was asked for three times.
func offersLater(w *world) {
	reads := 0
	w.haulout.PrependReactor("get", "nodetasks", func(clienttesting.Action) (bool, runtime.Object, error) {
		if reads++; reads == 3 {
			if err := w.haulout.Tracker().Add(offered()[0]); err != nil {
				panic(err)
			}
		}
		return false, nil, nil
	})
}

// becomes makes each further read of the rollout return its next state, and then the last one;
// without states, the rollout is deleted. The first two reads return it as it is.
func becomes(states ...rolloutMod) func(*world) {
	return func(w *world) {
		reads := 0
		resource := v1alpha1.SchemeGroupVersion.WithResource("nodemaintenancerollouts")
		w.haulout.PrependReactor("get", "nodemaintenancerollouts", func(clienttesting.Action) (bool, runtime.Object, error) {
			switch reads++; {
			case reads <= 2:
			case len(states) == 0:
				_ = w.haulout.Tracker().Delete(resource, "", "kernel-6-12")
			default:
				return true, rollout(states[min(reads-3, len(states)-1)]), nil
			}
			return false, nil, nil
		})
	}
}

// hostileRollout has the hostile text in every text of a rollout and of the tasks of its nodes.
func hostileRollout() []runtime.Object {
	r := rollout(heldBy("bob" + hostile))
	r.Spec.Template.Reason, r.Spec.RequestedBy.Username, r.Spec.Holds[0].Reason = hostile, hostile, hostile
	r.Status.Conditions[0].Message, r.Status.Current[1].Message, r.Status.Current[1].Unit = hostile, hostile, hostile
	r.Status.Current[1].Nodes[0].Name = hostile
	mine := task("node-004", v1alpha1.NodeTaskClaimed, "alice", "alice")
	mine.Spec.Reason, mine.Spec.Parameters = hostile, map[string]string{hostile: hostile}
	return []runtime.Object{r, mine, task("node-003", v1alpha1.NodeTaskClaimed, hostile, "bob"+hostile)}
}

// TestAFullTerminalHasTheFailedUnitAndWhoMustAct shows a rollout with many units on a terminal.
func TestAFullTerminalHasTheFailedUnitAndWhoMustAct(t *testing.T) {
	r := rollout(manyUnits)
	r.Status.Current[40].Phase, r.Status.Nodes.Failed = v1alpha1.RolloutPhaseFailed, 1
	w := newWorld(t, "", r)
	w.environment.screen = func(out io.Writer) *screen.Screen { return screen.NewTerminal(out, 80, 24) }
	is.Equal(t, w.run(t.Context(), []string{"rollout", "status", "kernel-6-12"}), exitBlocked)
	lines := strings.Split(strings.TrimSuffix(w.out.String(), "\n"), "\n")
	is.True(t, len(lines) <= 23, "%d lines do not fit:\n%s", len(lines), w.out)
	for _, want := range []string{"200 of 600 done", "node-140  Failed", "more units", "kubectl maintenance rollout retry kernel-6-12 node-140"} {
		is.True(t, strings.Contains(w.out.String(), want), "%q is missing:\n%s", want, w.out)
	}
}

// TestAChangeInTheMeantimeIsNotLost lets another user add a hold between the read and the write.
func TestAChangeInTheMeantimeIsNotLost(t *testing.T) {
	w := newWorld(t, "", rollout())
	resource := v1alpha1.SchemeGroupVersion.WithResource("nodemaintenancerollouts")
	first := true
	w.haulout.PrependReactor("patch", "nodemaintenancerollouts", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !first {
			return false, nil, nil
		}
		first = false
		must.Do(t, w.haulout.Tracker().Update(resource, rollout(heldBy("bob")), ""))
		return true, nil, apierrors.NewConflict(v1alpha1.Resource("nodemaintenancerollouts"), "kernel-6-12", errors.New("it was changed"))
	})
	is.Equal(t, w.run(t.Context(), strings.Fields("rollout hold kernel-6-12 --reason=x")), exitDone)
	object := must.Get(w.haulout.Tracker().Get(resource, "", "kernel-6-12"))(t)
	var names []string
	for _, hold := range object.(*v1alpha1.NodeMaintenanceRollout).Spec.Holds {
		names = append(names, hold.Name)
	}
	is.Equal(t, strings.Join(names, " "), "bob alice")
}
