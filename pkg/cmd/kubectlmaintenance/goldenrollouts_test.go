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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/testing/bubble"
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
	"rollout-unverified": {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(halted, func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Status.Current[0].Message = "NotVerified: the node is not Ready"
	})}},
	"rollout-stopped":   {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(stopped)}},
	"rollout-held":      {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(heldBy("alice", "ceph-operator"))}},
	"rollout-closed":    {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(closed)}},
	"rollout-never":     {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(never)}},
	"rollout-skipped":   {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(skips)}},
	"rollout-blocked":   {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(blocks)}},
	"rollout-failing":   {line: "rollout status kernel-6-12", objects: []runtime.Object{failingRollout()}},
	"rollout-full":      {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(full)}},
	"rollout-complete":  {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(complet)}},
	"rollout-many":      {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(manyUnits)}},
	"rollout-released":  {line: "rollout status kernel-6-12", objects: releasedUnits()},
	"rollout-rack":      {line: "rollout status kernel-6-12", objects: []runtime.Object{rollout(rackFails)}},
	"rollout-next-day":  {line: "rollout status kernel-6-12", objects: nextDay()},
	"rollout-gone":      {line: "rollout status kernel-6-12", objects: goneUnits()},
	"rollout-recovered": {line: "rollout status kernel-6-12", objects: recoveredUnits()},
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
	"hold-less":      {line: "rollout hold kernel-6-12 --reason=rebuild", objects: []runtime.Object{rollout(heldBy("alice"), holdsDrains)}},
	"hold-other":     {line: "rollout hold kernel-6-12 --reason=freeze", objects: []runtime.Object{rollout(heldBy("alice"))}},
	"hold-of-other":  {line: "rollout hold kernel-6-12 --reason=rebuild", objects: []runtime.Object{rollout(heldBy("alice"), holdsAsOther)}},
	"hold-renamed":   {line: "rollout hold kernel-6-12 --reason=freeze --name=alice -o jsonpath={.spec.holds[*].stops}", objects: []runtime.Object{rollout(heldBy("alice"), holdsDrains)}},
	"hold-over":      {line: "rollout hold kernel-6-12 --reason=freeze -o jsonpath={.spec.holds}", objects: []runtime.Object{rollout(heldBy("alice"), holdIsOver)}},
	"hold-later":     {line: "rollout hold kernel-6-12 --reason=rebuild -o jsonpath={.spec.holds}", objects: []runtime.Object{rollout(heldBy("alice"), holdIsLater)}},
	"hold-not-begun": {line: "rollout hold kernel-6-12 --reason=freeze", objects: []runtime.Object{rollout(heldBy("alice"), holdIsLater)}},
	"hold-no-reason": {line: "rollout hold kernel-6-12", objects: rolling()},
	"hold-complete":  {line: "rollout hold kernel-6-12 --reason=x", objects: []runtime.Object{rollout(stopped)}},
	"hold-forbidden": {line: "rollout hold kernel-6-12 --reason=x", objects: rolling(), arrange: forbid("patch", "nodemaintenancerollouts")},
	"hold-unknown":   {line: "rollout hold kernel-6-12 --reason=x", objects: rolling(), arrange: forbid("create", "selfsubjectreviews")},
	"hold-dry-run":   {line: "rollout hold kernel-6-12 --reason=x --dry-run=client", objects: rolling()},
	"hold-nothing":   {line: "rollout hold"},

	"unhold":         {line: "rollout resume kernel-6-12", objects: []runtime.Object{rollout(heldBy("alice"))}},
	"unhold-left":    {line: "rollout resume kernel-6-12", objects: []runtime.Object{rollout(heldBy("alice", "bob"))}},
	"unhold-others":  {line: "rollout resume kernel-6-12", objects: []runtime.Object{rollout(heldBy("bob"))}},
	"unhold-over":    {line: "rollout resume kernel-6-12 --name=bob", objects: []runtime.Object{rollout(heldBy("alice", "bob"), holdIsOver)}},
	"unhold-several": {line: "rollout resume kernel-6-12", objects: []runtime.Object{rollout(heldBy("alice", "ceph", "bob"), sharedAccount)}},
	"unhold-named":   {line: "rollout resume kernel-6-12 --name=bob", objects: []runtime.Object{rollout(heldBy("bob"))}},
	"unhold-unknown": {line: "rollout resume kernel-6-12 --name=ann", objects: []runtime.Object{rollout(heldBy("bob"))}},
	"unhold-none":    {line: "rollout resume kernel-6-12", objects: rolling()},

	"run-now":           {line: "rollout run-now kernel-6-12 --for=2h -o jsonpath={.spec.windows}", objects: []runtime.Object{rollout(closed)}},
	"run-now-held":      {line: "rollout run-now kernel-6-12 --for=2h", objects: []runtime.Object{rollout(closed, heldBy("bob"))}},
	"run-now-over":      {line: "rollout run-now kernel-6-12 --for=2h", objects: []runtime.Object{rollout(closed, heldBy("bob"), holdIsOver)}},
	"run-now-idle":      {line: "rollout run-now kernel-6-12 --for=2h", objects: []runtime.Object{rollout(closed, idles)}},
	"run-now-always":    {line: "rollout run-now kernel-6-12 --for=2h", objects: []runtime.Object{rollout(always)}},
	"run-now-too-long":  {line: "rollout run-now kernel-6-12 --for=168h", objects: rolling()},
	"run-now-how-long":  {line: "rollout run-now kernel-6-12", objects: rolling()},
	"retry":             {line: "rollout retry kernel-6-12 node-002", objects: rolling()},
	"retry-released":    {line: "rollout retry kernel-6-12 node/node-005", objects: rolling()},
	"retry-recreated":   {line: "rollout retry kernel-6-12 node/node-005", objects: leftBehind()},
	"retry-runs":        {line: "rollout retry kernel-6-12 node-003", objects: rolling()},
	"retry-unknown":     {line: "rollout retry kernel-6-12 node-009", objects: rolling()},
	"retry-dry-run":     {line: "rollout retry kernel-6-12 node-002 --dry-run=server", objects: rolling(), arrange: dryRunsDelete},
	"retry-forbidden":   {line: "rollout retry kernel-6-12 node-002", objects: rolling(), arrange: forbid("delete", "nodetasks")},
	"retry-stopped":     {line: "rollout retry kernel-6-12 node-002", objects: []runtime.Object{rollout(stopped)}},
	"retry-closed":      {line: "rollout retry kernel-6-12 node-002", objects: append(rolling()[1:], rollout(halted, closes))},
	"retry-deleted":     {line: "rollout retry kernel-6-12 node-002", objects: rolling(), arrange: all(withoutNode("node-002"))},
	"retry-left":        {line: "rollout retry kernel-6-12 node-002", objects: append(rolling()[1:], rollout(halted, selectsOthers))},
	"retry-what":        {line: "rollout retry kernel-6-12", objects: rolling()},
	"stop":              {line: "rollout stop kernel-6-12", objects: rolling()},
	"stop-again":        {line: "rollout stop kernel-6-12", objects: []runtime.Object{rollout(stopped)}},
	"stop-not-found":    {line: "rollout stop none"},
	"take":              {line: "take node-005", objects: offered(), arrange: grants},
	"take-json":         {line: "take no/node-005 --message=memory -o jsonpath={.status}", objects: offered(), arrange: grants},
	"take-wait":         {line: "take node-005 --wait --timeout=1m", arrange: all(offersLater, grants)},
	"take-wait-timeout": {line: "take node-005 --wait --timeout=1m"},
	"take-not-served":   {line: "take node-005 --wait", arrange: notInstalled},
	"take-no-grant":     {line: "take node-005 --timeout=30s", objects: offered()},
	"take-down":         {line: "take node-005", objects: offered(), arrange: isDown},
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
	"done-in-rollout":   {line: "done node-004", objects: append(rolling(), holding("node-004"))},
	"done-by-hand": {line: "done node-004", objects: append(rolling(), build.With(holding("node-004"), func(nm *v1alpha1.NodeMaintenance) {
		nm.Labels, nm.OwnerReferences = nil, nil
	}))},
	"done-repaired":    {line: "done node-002", objects: rolling()},
	"done-other":       {line: "done node-003", objects: rolling()},
	"done-offered":     {line: "done node-005", objects: offered()},
	"done-again":       {line: "done node-001", objects: rolling()},
	"done-too-late":    {line: "done node-001 --failed", objects: rolling()},
	"done-not-offered": {line: "done node-005", objects: rolling()},

	"pause-held-unit":  {line: "pause kernel-6-12-node-004-1", objects: append(rolling(), heldUnit())},
	"resume-held-unit": {line: "resume kernel-6-12-node-004-1", objects: append(rolling()[1:], heldUnit(), rollout(heldBy("alice"), holdsDrains))},
	"resume-hold-over": {line: "resume kernel-6-12-node-004-1", objects: append(rolling(), heldUnit())},
	"status-held-unit": {line: "status kernel-6-12-node-004-1", objects: append(rolling(), heldUnit())},
	"cancel-unit":      {line: "cancel kernel-6-12-node-005-2", objects: rolling()},

	"completion-rollouts": {line: "__complete rollout hold ", objects: rolling()},
	"completion-rollout":  {line: "__complete rollout ", objects: rolling()},
	"completion-take":     {line: "__complete take ", objects: append(rolling(), offered()...)},
	"completion-done":     {line: "__complete done ", objects: rolling()},
}

type rolloutMod = func(*v1alpha1.NodeMaintenanceRollout)

// rollout returns a rollout over 20 nodes of which 11 are done, one has failed, one is blocked, and
// three are in work. Three more are allowed to fail. Modifications change what the server decides
// from, see decided.
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
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"none"}}},
			}}}, Stage: v1alpha1.RolloutStageRoll, MaxFailed: 3,
			Limits:      []v1alpha1.RolloutLimit{{MaxUnavailable: new(intstr.FromString("20%"))}},
			Windows:     []v1alpha1.RolloutWindow{{Schedule: "0 8 * * *", Duration: metav1.Duration{Duration: 6 * time.Hour}}},
			RequestedBy: &authenticationv1.UserInfo{Username: "alice"},
			Template: v1alpha1.RolloutTemplate{
				Reason: "kernel 6.12", Task: &v1alpha1.NodeMaintenanceTask{
					Worker: v1alpha1.WorkerClassPerson, DoneWhen: "node.status.nodeInfo.kernelVersion.startsWith('6.12.')",
				},
			},
		},
		Status: v1alpha1.NodeMaintenanceRolloutStatus{
			ObservedGeneration: 2,
			Nodes:              v1alpha1.RolloutNodes{Total: 20, Done: 11, Blocked: 1},
			Current: []v1alpha1.RolloutUnit{
				unit("node-001", v1alpha1.RolloutPhaseVerifying, 20*time.Second, "the node is not Ready"),
				unit("node-002", v1alpha1.RolloutPhaseFailed, 10*time.Minute, "WorkerFailed: no bootable disk"),
				unit("node-003", v1alpha1.RolloutPhaseClaimed, 3*time.Minute, "bob: replaces the memory"),
				unit("node-004", v1alpha1.RolloutPhaseClaimed, 2*time.Minute, "alice"),
			},
		},
	}
	return decided(build.With(r, modify...))
}

func named(name string) rolloutMod {
	return func(r *v1alpha1.NodeMaintenanceRollout) { r.Name, r.UID = name, types.UID(name) }
}

func idles(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.Stage, r.Status.Current, r.Status.Nodes = v1alpha1.RolloutStageIdle, nil, v1alpha1.RolloutNodes{Total: 20, Done: 2}
}

func unobserved(r *v1alpha1.NodeMaintenanceRollout) {
	r.Status = v1alpha1.NodeMaintenanceRolloutStatus{}
}

func halted(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.MaxFailed, r.Status.Current, r.Status.Nodes.Done = 0, r.Status.Current[1:2], 14
}

func stopped(r *v1alpha1.NodeMaintenanceRollout) {
	halted(r)
	r.Spec.Stage = v1alpha1.RolloutStageComplete
}

func holdsDrains(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.Holds[0].Stops = v1alpha1.RolloutHoldDrains
}

func holdsAsOther(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.Holds[0].By = "Alice"
}

func holdIsOver(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.Holds[0].Until = new(before(24 * time.Hour))
}

func holdIsLater(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.Holds[0].From, r.Spec.Holds[0].Until = new(before(-24*time.Hour)), nil
}

// sharedAccount makes the second hold one of the user of the first one.
func sharedAccount(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.Holds[1].By = r.Spec.Holds[0].By
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
	}
}

// closed has no open window, and the entry of one that is over.
func closed(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.Windows[0].Schedule = "0 22 * * *"
	r.Spec.Windows = append(r.Spec.Windows, v1alpha1.RolloutWindow{Start: new(before(4 * time.Hour)), Duration: metav1.Duration{Duration: time.Hour}})
	r.Status.Current, r.Status.Nodes.Blocked = nil, 0
}

// never has no window that opens again.
func never(r *v1alpha1.NodeMaintenanceRollout) {
	closed(r)
	r.Spec.Windows = r.Spec.Windows[1:]
}

func always(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Windows = nil }

func skips(r *v1alpha1.NodeMaintenanceRollout) {
	r.Status.Current, r.Status.Nodes = nil, v1alpha1.RolloutNodes{Total: 20, Done: 18, Skipped: 2}
}

func blocks(r *v1alpha1.NodeMaintenanceRollout) {
	r.Status.Current, r.Status.Nodes = nil, v1alpha1.RolloutNodes{Total: 20, Done: 19, Blocked: 1}
}

// full has no place for a unit: others have cordoned as many nodes as may be out.
func full(r *v1alpha1.NodeMaintenanceRollout) {
	r.Status.Current, r.Status.Nodes = nil, v1alpha1.RolloutNodes{Total: 20, Done: 11, Skipped: 4}
}

func complet(r *v1alpha1.NodeMaintenanceRollout) {
	r.Status.Current, r.Status.Nodes = nil, v1alpha1.RolloutNodes{Total: 20, Done: 20}
}

func manyUnits(r *v1alpha1.NodeMaintenanceRollout) {
	one := r.Status.Current[3]
	r.Status.Current = nil
	for i := range 60 {
		one.Unit = fmt.Sprintf("node-%03d", 100+i)
		one.Nodes = []v1alpha1.NodeReference{{Name: one.Unit, UID: types.UID(one.Unit)}}
		r.Status.Current = append(r.Status.Current, one)
	}
	r.Status.Nodes = v1alpha1.RolloutNodes{Total: 600, Done: 200}
}

// attempt returns a completed maintenance for a unit of the rollout, which is a node. how is Done,
// Released, or a reason of a withdrawal.
func attempt(node string, number int, how string) *v1alpha1.NodeMaintenance {
	nm := completed()
	nm.Name, nm.UID = fmt.Sprintf("kernel-6-12-%s-%d", node, number), types.UID(fmt.Sprint(node, number))
	nm.CreationTimestamp = before(40 * time.Minute / time.Duration(number))
	nm.Labels = map[string]string{v1alpha1.LabelRollout: "kernel-6-12"}
	nm.Annotations = map[string]string{v1alpha1.AnnotationRolloutUnit: node}
	nm.OwnerReferences = build.Owner("maintenance.haulout.dev/v1alpha1", "NodeMaintenanceRollout", "kernel-6-12", "rollout-1")
	nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: node, UID: types.UID(node)}}}
	switch next.Outcome(how) {
	case next.Released:
	case next.Done:
		nm.Status.NodeStatuses[0].Task = &v1alpha1.NodeMaintenanceNodeTask{State: v1alpha1.NodeTaskDone, EndTime: new(before(20 * time.Minute))}
	default:
		nm.Annotations[v1alpha1.AnnotationWithdrawn] = how
	}
	return nm
}

// leftBehind returns the objects of a rollout whose name a deleted rollout had, and a unit that was
// released for the deleted one.
func leftBehind() []runtime.Object {
	nm := attempt("node-005", 1, string(next.Released))
	nm.OwnerReferences[0].UID = "rollout-0"
	return []runtime.Object{rollout(), nm}
}

// rolling returns the objects of a rollout that makes progress: with the tasks of its nodes, and
// the maintenances of units that are done and of one whose drain was blocked.
func rolling() []runtime.Object {
	r := rollout()
	r.Status.Nodes = v1alpha1.RolloutNodes{Total: 20, Done: 11}
	return append(withAttempts(r, attempt("node-010", 1, string(next.Done)), attempt("node-011", 1, string(next.Done)),
		attempt("node-005", 1, next.WithdrawnClosed), attempt("node-005", 2, next.WithdrawnBlocked)),
		task("node-001", v1alpha1.NodeTaskVerifying, "alice", "alice", func(t *v1alpha1.NodeTask) { t.Status.Result = v1alpha1.NodeTaskResultDone }),
		task("node-002", v1alpha1.NodeTaskFailed, "kubelet-137 (job)", "system:serviceaccount:haulout-workers:job", func(t *v1alpha1.NodeTask) {
			t.Status.Result, t.Status.Reason = v1alpha1.NodeTaskResultFailed, v1alpha1.NodeTaskWorkerFailed
		}),
		task("node-003", v1alpha1.NodeTaskClaimed, "bob", "bob"),
		task("node-004", v1alpha1.NodeTaskClaimed, "alice", "alice"),
	)
}

// withAttempts returns a rollout as decided does, and its attempts.
func withAttempts(r *v1alpha1.NodeMaintenanceRollout, attempts ...*v1alpha1.NodeMaintenance) []runtime.Object {
	objects := []runtime.Object{decided(r, attempts...)}
	for _, nm := range attempts {
		objects = append(objects, nm)
	}
	return objects
}

// releasedUnits returns a halted rollout without a unit that runs: no worker has come to one, and a
// user has completed the maintenance of another one.
func releasedUnits() []runtime.Object {
	r := rollout(halted)
	r.Status.Current, r.Status.Nodes = nil, v1alpha1.RolloutNodes{Total: 20, Done: 14}
	return withAttempts(r, attempt("node-010", 1, string(next.Done)), attempt("node-005", 2, next.WithdrawnNoWorker),
		attempt("node-006", 1, string(next.Released)))
}

// recoveredUnits returns a complete rollout: the nodes of units that had failed, were blocked or
// released have met the goal without another attempt.
func recoveredUnits() []runtime.Object {
	return withAttempts(rollout(complet), attempt("node-010", 1, string(next.Done)), attempt("node-005", 2, next.WithdrawnNoWorker),
		attempt("node-006", 1, string(next.Released)), attempt("node-007", 1, next.WithdrawnBlocked))
}

// failingRollout returns a rollout about which the server cannot decide.
func failingRollout() *v1alpha1.NodeMaintenanceRollout {
	r := rollout()
	r.Status.Conditions[0].Status, r.Status.Conditions[0].Reason = metav1.ConditionFalse, v1alpha1.ReasonProgressSyncFailed
	r.Status.Conditions[0].Message = "The server cannot decide about the rollout; requests fail since 2026-11-21T09:52:00Z: list NodeTasks: forbidden"
	return r
}

// goneUnits returns a rollout of which a unit is blocked because its node had left for a while.
func goneUnits() []runtime.Object {
	return withAttempts(rollout(blocks), attempt("node-010", 1, string(next.Done)), attempt("node-001", 1, next.WithdrawnGone))
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

// holding returns the maintenance of a task.
func holding(node string) *v1alpha1.NodeMaintenance {
	return build.With(attempt(node, 1, string(next.Released)), func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = v1alpha1.NodeMaintenanceStageDrain })
}

// heldUnit returns the maintenance of a unit that a hold of its rollout has paused.
func heldUnit() *v1alpha1.NodeMaintenance {
	return build.With(holding("node-004"), func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.Paused, nm.Status.Pause = true, &v1alpha1.NodeMaintenancePause{By: "system:apiserver", Since: before(time.Minute)}
	})
}

// closes lets a window be closed in which drains would be withdrawn.
func closes(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.WhenClosed, r.Spec.Windows[0].Schedule = v1alpha1.RolloutClosedWithdraw, "0 22 * * *"
	r.Status.Window = &v1alpha1.RolloutWindowStatus{}
}

// selectsOthers lets a rollout select none of its nodes any more.
func selectsOthers(r *v1alpha1.NodeMaintenanceRollout) {
	r.Spec.NodeSelector = build.Labelled("pool", "gone")
}

// withoutNode deletes a node.
func withoutNode(name string) func(*world) {
	return func(w *world) {
		if err := w.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", name); err != nil {
			panic(err)
		}
	}
}

// isDown lets no server answer.
func isDown(w *world) {
	w.haulout.PrependReactor("get", "nodetasks", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("no server answers")
	})
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

var rolloutsResource = v1alpha1.SchemeGroupVersion.WithResource("nodemaintenancerollouts")

// changesMeanwhile lets another user change the rollout between the first read and the write.
func changesMeanwhile(w *world, r *v1alpha1.NodeMaintenanceRollout) {
	first := true
	w.haulout.PrependReactor("patch", "nodemaintenancerollouts", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !first {
			return false, nil, nil
		}
		first = false
		if err := w.haulout.Tracker().Update(rolloutsResource, r, ""); err != nil {
			return true, nil, err
		}
		return true, nil, apierrors.NewConflict(v1alpha1.Resource("nodemaintenancerollouts"), "kernel-6-12", errors.New("it was changed"))
	})
}

func storedHolds(t *testing.T, w *world) []v1alpha1.RolloutHold {
	t.Helper()
	return must.Get(w.haulout.Tracker().Get(rolloutsResource, "", "kernel-6-12"))(t).(*v1alpha1.NodeMaintenanceRollout).Spec.Holds
}

// TestAChangeInTheMeantimeIsNotLost lets another user add a hold between the read and the write.
func TestAChangeInTheMeantimeIsNotLost(t *testing.T) {
	w := newWorld(t, "", rollout())
	changesMeanwhile(w, rollout(heldBy("bob")))
	is.Equal(t, w.run(t.Context(), strings.Fields("rollout hold kernel-6-12 --reason=x")), exitDone)
	var names []string
	for _, hold := range storedHolds(t, w) {
		names = append(names, hold.Name)
	}
	is.Equal(t, strings.Join(names, " "), "bob alice")
}

// TestARefusedTryLeavesNoTrace lets another user remove a hold that stops drains between the read
// and the write of a user who does not ask for that.
func TestARefusedTryLeavesNoTrace(t *testing.T) {
	w := newWorld(t, "", rollout(heldBy("alice"), holdsDrains))
	changesMeanwhile(w, rollout())
	is.Equal(t, w.run(t.Context(), strings.Fields("rollout hold kernel-6-12 --reason=x --name=alice")), exitDone)
	holds := storedHolds(t, w)
	is.True(t, len(holds) == 1 && holds[0].Stops == v1alpha1.RolloutHoldStarts, "got holds %+v, want one that stops starts", holds)
}

// TestAWatchKeepsWhatItCannotReadAgain: when the list of maintenances fails after a minute, the
// screen still has what the first one showed, and says that it may be out of date.
func TestAWatchKeepsWhatItCannotReadAgain(t *testing.T) {
	bubble.Run(t, "", func(t *testing.T) {
		w := newWorld(t, "", rolling()...)
		w.environment.screen = func(out io.Writer) *screen.Screen { return screen.NewTerminal(out, 120, 60) }
		start, lists, reads, last := time.Now(), 0, 0, ""
		w.environment.now = func() time.Time { return now.Add(time.Since(start)) }
		w.haulout.PrependReactor("list", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
			lists++
			return lists > 1, nil, apierrors.NewServiceUnavailable("no replica is ready")
		})
		w.haulout.PrependReactor("get", "nodemaintenancerollouts", func(clienttesting.Action) (bool, runtime.Object, error) {
			if reads++; reads < 40 {
				return false, nil, nil
			}
			last = w.out.String()
			return true, rollout(complet), nil
		})
		is.Equal(t, w.run(t.Context(), strings.Fields("rollout status kernel-6-12 --watch")), exitDone)
		last = last[strings.LastIndex(last, "requested by"):]
		is.True(t, lists > 1, "the maintenances were listed %d times", lists)
		is.True(t, strings.Contains(last, "node-005  Blocked") && strings.Contains(last, "may be out of date"), "the last screen before the end:\n%s", last)
	})
}
