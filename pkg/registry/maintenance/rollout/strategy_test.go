// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/applyconfiguration"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func at(d time.Duration) metav1.Time { return metav1.NewTime(start.Add(d)).Rfc3339Copy() }

func requesterOf(r *maintenance.NodeMaintenanceRollout) string {
	if r.Spec.RequestedBy == nil {
		return ""
	}
	return r.Spec.RequestedBy.Username
}

func TestCreate(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	forge := func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.RequestedBy = &authenticationv1.UserInfo{Username: "root", Groups: []string{user.SystemPrivilegedGroup}}
		r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "x", By: "root", Since: inAnHour}}
		r.Status.Nodes.Done = 7
	}
	out := r.mustCreate(ann, forge)
	is.Equal(t, requesterOf(out), "ann", "requester")
	is.Equal(t, len(out.Spec.RequestedBy.Groups), 0, "groups of the requester")
	is.Equal(t, out.Spec.Holds[0].By, "ann", "user of the hold")
	is.True(t, out.Spec.Holds[0].Since.Time.Equal(at(0).Time), "the hold is from %v", out.Spec.Holds[0].Since)
	is.Equal(t, out.Status.Nodes.Done, 0, "nodes done")
	is.Equal(t, out.Generation, int64(1), "generation")
	ready := apimeta.FindStatusCondition(out.Status.Conditions, v1alpha1.ConditionReady)
	is.True(t, ready != nil && ready.Reason == v1alpha1.ReasonNotObserved, "the condition Ready is %v", ready)

	// The defaults of section 3.
	limit := out.Spec.Limits[0]
	is.True(t, len(out.Spec.Limits) == 1 && limit.MaxUnavailable.IntValue() == 1 && limit.MaxDomains == nil, "limits are %v", out.Spec.Limits)
	is.Equal(t, out.Spec.Stage, maintenance.RolloutStageIdle, "stage")
	is.Equal(t, out.Spec.WhenClosed, "Finish", "whenClosed")
	is.Equal(t, out.Spec.Holds[0].Stops, "Starts", "stops")
	task := out.Spec.Template.Task
	is.Equal(t, task.Stage, "Drain", "stage of the task")
	for what, got := range map[string][2]*int32{
		"progressDeadlineSeconds":              {out.Spec.ProgressDeadlineSeconds, ptr.To[int32](3600)},
		"template.task.claimDeadlineSeconds":   {task.ClaimDeadlineSeconds, ptr.To[int32](1800)},
		"template.task.progressDeadlineSecond": {task.ProgressDeadlineSeconds, ptr.To[int32](1800)},
		"template.task.verifyDeadlineSeconds":  {task.VerifyDeadlineSeconds, ptr.To[int32](900)},
	} {
		is.Equal(t, *got[0], *got[1], what)
	}
	is.Equal(t, len(out.Spec.Template.DrainPlan), 0, "entries of the plan of the template")
}

func TestRequester(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	for name, test := range map[string]struct {
		change func(*maintenance.NodeMaintenanceRollout)
		want   string
	}{
		"a new stage": {setStage("Roll"), "bob"},
		"a new selector": {func(r *maintenance.NodeMaintenanceRollout) {
			r.Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Key = "x"
		}, "bob"},
		"a limit":         {func(r *maintenance.NodeMaintenanceRollout) { r.Spec.MaxFailed = 5 }, "bob"},
		"a hold":          {addHold(maintenance.RolloutHold{Name: "b"}), "ann"},
		"a removed hold":  {func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Holds = nil }, "ann"},
		"a hold and more": {func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Holds, r.Spec.MaxFailed = nil, 5 }, "bob"},
		"a label":         {func(r *maintenance.NodeMaintenanceRollout) { r.Labels = map[string]string{"a": "b"} }, "ann"},
		"a forged name": {func(r *maintenance.NodeMaintenanceRollout) {
			r.Spec.RequestedBy = &authenticationv1.UserInfo{Username: "root"}
		}, "ann"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			r.mustCreate(ann, func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "a"}} })
			is.Equal(t, requesterOf(r.mustUpdate(bob, test.change)), test.want, "requester")
		})
	}
}

func TestHoldsNameTheirUsers(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, func(r *v1alpha1.NodeMaintenanceRollout) {
		r.Spec.Holds = []v1alpha1.RolloutHold{{Name: "ceph", Reason: "rebuild"}}
	})
	want := func(out *maintenance.NodeMaintenanceRollout, users ...string) {
		t.Helper()
		var got []string
		for _, hold := range out.Spec.Holds {
			got = append(got, hold.Name+" "+hold.By+" "+hold.Since.UTC().Format("15:04"))
		}
		is.Slices(t, got, users)
	}
	r.clock.SetTime(start.Add(time.Minute))
	out := r.mustUpdate(bob, addHold(maintenance.RolloutHold{Name: "audit", By: "ann", Since: inAnHour}))
	want(out, "ceph ann 08:00", "audit bob 08:01")
	is.Equal(t, out.Generation, int64(2), "generation")
	r.clock.SetTime(start.Add(2 * time.Minute))
	out = r.mustUpdate(ann, func(r *maintenance.NodeMaintenanceRollout) {
		for i := range r.Spec.Holds {
			r.Spec.Holds[i].By, r.Spec.Holds[i].Since = "mallory", nil
		}
	})
	want(out, "ceph ann 08:00", "audit bob 08:01")
	is.Equal(t, out.Generation, int64(2), "generation after a forged user")
	want(r.mustUpdate(ann, func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Holds[1].Stops = "Drains" }),
		"ceph ann 08:00", "audit ann 08:02")
	want(r.mustUpdate(bob, func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Holds = r.Spec.Holds[1:] }), "audit ann 08:02")
}

// TestLineBetweenOldAndNewNodes has the line in the first write after stage Idle that knows it.
func TestLineBetweenOldAndNewNodes(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd)
	is.True(t, r.mustCreate(ann).Status.NewestNodeTimestamp == nil, "a line in stage Idle")
	out := r.mustUpdate(ann, setStage("Roll"))
	is.True(t, out.Status.NewestNodeTimestamp.Equal(r.newest), "the line is %v", out.Status.NewestNodeTimestamp)
	line := r.newest
	r.newest = inAnHour
	out = r.mustUpdate(ann, func(r *maintenance.NodeMaintenanceRollout) { r.Spec.MaxFailed = 1 })
	is.True(t, out.Status.NewestNodeTimestamp.Equal(line), "the line has moved to %v", out.Status.NewestNodeTimestamp)

	r = newRegistry(t, etcd)
	line, r.newest, r.known = r.newest, nil, false
	out = r.mustCreate(ann, atStage(v1alpha1.RolloutStageRoll))
	is.True(t, out.Status.NewestNodeTimestamp == nil, "a line of a replica that does not know the nodes")
	r.newest, r.known = line, true
	out = must.Get(r.updateStatus(func(r *maintenance.NodeMaintenanceRollout) { r.Status.Nodes.Total = 1 }))(t)
	is.True(t, out.Status.NewestNodeTimestamp.Equal(line), "after a write of the status the line is %v", out.Status.NewestNodeTimestamp)
}

func TestStatusWritesKeepTheRest(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, atStage(v1alpha1.RolloutStageRoll))
	out := must.Get(r.updateStatus(func(r *maintenance.NodeMaintenanceRollout) {
		r.Spec.MaxFailed, r.Status.Nodes.Total = 7, 3
	}))(t)
	is.True(t, out.Spec.MaxFailed == 0 && out.Status.Nodes.Total == 3 && out.Generation == 1, "got %v", out)
	out = r.mustUpdate(ann, func(r *maintenance.NodeMaintenanceRollout) { r.Spec.MaxFailed, r.Status.Nodes.Total = 7, 0 })
	is.True(t, out.Spec.MaxFailed == 7 && out.Status.Nodes.Total == 3 && out.Generation == 2, "got %v", out)
}

func TestWarningWithoutLeader(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.noLeader = "no replica leads"
	ctx, warnings := registrytest.WithWarnings(r.ctx(ann, ""))
	must.Get(r.storage.Rollout.Create(ctx, newRollout(t), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}))(t)
	is.Slices(t, warnings.Texts(), []string{"no replica leads"})
	ctx, warnings = registrytest.WithWarnings(r.ctx(ann, ""))
	must.Get(r.storage.Rollout.Get(ctx, newRollout(t).Name, &metav1.GetOptions{}))(t)
	is.Slices(t, warnings.Texts(), []string{"no replica leads"})
}

// TestApplyOfHoldsByTwoManagers has two tools that apply only their own hold, server-side.
func TestApplyOfHoldsByTwoManagers(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.mustCreate(ann, atStage(v1alpha1.RolloutStageRoll))
	r.apply("ceph-operator", "ceph", "rebuild")
	out := r.apply("auditor", "audit", "year end")
	is.Slices(t, holdNames(out), []string{"ceph", "audit"})
	is.Equal(t, requesterOf(out), "ann", "requester")
	is.Slices(t, holdNames(r.apply("ceph-operator")), []string{"audit"})
	is.Slices(t, holdNames(r.apply("ceph-operator", "ceph", "again")), []string{"audit", "ceph"})
	is.Slices(t, holdNames(r.apply("auditor")), []string{"ceph"})
}

func holdNames(r *maintenance.NodeMaintenanceRollout) []string {
	var names []string
	for i := range r.Spec.Holds {
		names = append(names, r.Spec.Holds[i].Name)
	}
	return names
}

// apply applies the hold of a field manager, or none, as the handlers of the server do.
func (r *registry) apply(manager string, hold ...string) *maintenance.NodeMaintenanceRollout {
	r.t.Helper()
	scheme := registrytest.Scheme
	fields := must.Get(managedfields.NewDefaultFieldManager(applyconfiguration.NewTypeConverter(scheme), scheme, scheme, scheme,
		v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenanceRollout"), maintenance.SchemeGroupVersion, "",
		fieldpath.NewExcludeFilterSetMap(r.storage.Rollout.GetResetFields())))(r.t)
	spec := map[string]any{}
	if len(hold) > 0 {
		spec["holds"] = []any{map[string]any{"name": hold[0], "reason": hold[1]}}
	}
	manifest := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": "NodeMaintenanceRollout", "metadata": map[string]any{"name": "a"}, "spec": spec,
	}}
	merge := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		return fields.Apply(old, manifest.DeepCopy(), manager, false)
	})
	out, _, err := r.storage.Rollout.Update(r.ctx(bob, ""), "a", merge, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true,
		&metav1.UpdateOptions{FieldManager: manager})
	must.True(r.t, err == nil, "apply by %s: %v", manager, err)
	return out.(*maintenance.NodeMaintenanceRollout)
}

func TestTable(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	until := metav1.NewTime(start.Add(3 * time.Hour))
	for name, test := range map[string]struct {
		window *maintenance.RolloutWindowStatus
		want   string
	}{
		"no windows":             {nil, "-"},
		"open":                   {&maintenance.RolloutWindowStatus{Open: true, Until: &until}, "open 3h"},
		"open for ever":          {&maintenance.RolloutWindowStatus{Open: true}, "open"},
		"closed":                 {&maintenance.RolloutWindowStatus{Until: &until}, "in 3h"},
		"closed for ever":        {&maintenance.RolloutWindowStatus{}, "closed"},
		"a time that has passed": {&maintenance.RolloutWindowStatus{Until: ptr.To(metav1.NewTime(start.Add(-time.Hour)))}, "in 0s"},
	} {
		rollout := newRollout(t, atStage(v1alpha1.RolloutStageRoll))
		rollout.Status = maintenance.NodeMaintenanceRolloutStatus{
			Nodes: maintenance.RolloutNodes{Total: 120, Done: 71, Running: 3, Failed: 1}, Window: test.window,
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionProgressing, Reason: v1alpha1.ReasonHalted}},
		}
		table := must.Get(r.storage.Rollout.ConvertToTable(t.Context(), rollout, nil))(t)
		want := []any{"a", "Roll", "71/120", int64(3), int64(1), "Halted", test.want, "<unknown>"}
		is.True(t, slices.Equal(table.Rows[0].Cells, want), "%s: got %v, want %v", name, table.Rows[0].Cells, want)
	}
	table := must.Get(r.storage.Rollout.ConvertToTable(t.Context(), newRollout(t), nil))(t)
	var names []string
	for _, c := range table.ColumnDefinitions {
		names = append(names, strings.ToUpper(c.Name))
	}
	is.Slices(t, names, []string{"NAME", "STAGE", "DONE", "RUNNING", "FAILED", "STATE", "WINDOW", "AGE"})
	is.Equal(t, table.Rows[0].Cells[5], any("-"), "state before the first status")
	is.Slices(t, r.storage.Rollout.ShortNames(), []string{"nmr"})
}
