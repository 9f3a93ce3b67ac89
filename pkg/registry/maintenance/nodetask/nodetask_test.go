// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	testclock "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var (
	start = time.Date(2026, 11, 27, 8, 0, 0, 123456789, time.UTC)

	worker = &user.DefaultInfo{Name: "system:serviceaccount:haulout-workers:reboot"}
	self   = &user.DefaultInfo{Name: "system:apiserver", UID: "loopback"}
)

// registry is the real storage with a fake clock.
type registry struct {
	t       testing.TB
	storage Storage
	clock   *testclock.FakePassiveClock
	// noLeader is the warning that no replica leads, and outdated is why the storage may be older
	// than the cluster.
	noLeader, outdated string
}

func newRegistry(t testing.TB, etcd *registrytest.Etcd) *registry {
	t.Helper()
	r := &registry{t: t, clock: testclock.NewFakePassiveClock(start)}
	isServer := func(u user.Info) bool { return u.GetName() == self.Name && u.GetUID() == self.UID }
	r.storage = must.Get(NewStorage(etcd.RESTOptions(maintenance.Resource("nodetasks")), NewStrategy(registrytest.Scheme, isServer, r.clock),
		func() string { return r.noLeader }, func() string { return r.outdated }))(t)
	t.Cleanup(r.storage.NodeTask.Destroy)
	return r
}

func (r *registry) ctx(u user.Info, subresource string) context.Context {
	return registrytest.Request{User: u, Resource: "nodetasks", Subresource: subresource}.Context(r.t.Context())
}

func (r *registry) create(name, class string) *maintenance.NodeTask {
	r.t.Helper()
	task := &maintenance.NodeTask{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: maintenance.NodeTaskSpec{
			NodeUID: "u-1", Maintenance: maintenance.NodeTaskMaintenance{Name: "m", UID: "m-1"}, Worker: class,
			ClaimDeadlineSeconds: 1800, ProgressDeadlineSeconds: 1800, VerifyDeadlineSeconds: 900,
		},
		Status: maintenance.NodeTaskStatus{State: maintenance.NodeTaskClaimed, Holder: "forged"},
	}
	out := must.Get(r.storage.NodeTask.Create(r.ctx(self, ""), task, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}))(r.t)
	return out.(*maintenance.NodeTask)
}

// write changes the status as a user.
func (r *registry) write(u user.Info, change func(*maintenance.NodeTask)) (*maintenance.NodeTask, error) {
	update := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		task := old.DeepCopyObject().(*maintenance.NodeTask)
		change(task)
		return task, nil
	})
	out, _, err := r.storage.Status.Update(r.ctx(u, "status"), "a", update, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return out.(*maintenance.NodeTask), nil
}

func (r *registry) mustWrite(u user.Info, change func(*maintenance.NodeTask)) *maintenance.NodeTask {
	r.t.Helper()
	out, err := r.write(u, change)
	must.True(r.t, err == nil, "write: %v", err)
	return out
}

// to brings a new task into a state, and sets its result.
func (r *registry) to(state maintenance.NodeTaskState, result maintenance.NodeTaskResult) {
	r.t.Helper()
	r.create("a", "reboot.example.com")
	if state == maintenance.NodeTaskOffered {
		return
	}
	r.mustWrite(worker, claim("w1"))
	r.mustWrite(self, func(task *maintenance.NodeTask) { task.Status.State = maintenance.NodeTaskClaimed })
	if result != "" {
		r.mustWrite(worker, report(result))
	}
	r.mustWrite(self, func(task *maintenance.NodeTask) { task.Status.State = state })
}

func claim(holder string) func(*maintenance.NodeTask) {
	return func(task *maintenance.NodeTask) { task.Status.Holder = holder }
}

func report(result maintenance.NodeTaskResult) func(*maintenance.NodeTask) {
	return func(task *maintenance.NodeTask) { task.Status.Result = result }
}

// TestOutdatedStorage checks that no worker can report to a storage that was restored from a
// backup.
func TestOutdatedStorage(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.to(maintenance.NodeTaskClaimed, "")
	r.outdated = "it was restored from a backup"
	_, err := r.write(worker, func(*maintenance.NodeTask) {})
	is.True(t, apierrors.IsServiceUnavailable(err) && strings.Contains(err.Error(), r.outdated), "got error %v", err)
	r.mustWrite(self, func(task *maintenance.NodeTask) { task.Status.ServerMessage = "still writes" })
	r.outdated = ""
	r.mustWrite(worker, report(maintenance.NodeTaskResultDone))
}

func TestWarningWithoutLeader(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.to(maintenance.NodeTaskClaimed, "")
	r.noLeader = "no replica leads"
	ctx, warnings := registrytest.WithWarnings(r.ctx(worker, ""))
	must.Get(r.storage.NodeTask.Get(ctx, "a", &metav1.GetOptions{}))(t)
	is.Slices(t, warnings.Texts(), []string{"no replica leads"})
}

func TestTripOfATask(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	minute := func(n int) metav1.Time {
		now := start.Add(time.Duration(n) * time.Minute)
		r.clock.SetTime(now)
		return metav1.NewTime(now).Rfc3339Copy()
	}
	created := minute(0)
	task := r.create("a", "reboot.example.com")
	is.Equal(t, task.Status.State, maintenance.NodeTaskOffered, "state")
	is.Equal(t, task.Status.Holder, "", "holder")
	is.True(t, task.Status.StateTime.Equal(&created), "offered at %v", task.Status.StateTime)

	claimed := minute(1)
	forged := metav1.NewTime(start.Add(-time.Hour))
	task = r.mustWrite(worker, func(task *maintenance.NodeTask) {
		claim("w1")(task)
		task.Status.ClaimedBy, task.Status.ProgressTime, task.Status.StateTime = "root", &forged, &forged
	})
	is.Equal(t, task.Status.ClaimedBy, worker.Name, "claimedBy")
	is.True(t, task.Status.ProgressTime.Equal(&claimed), "claimed at %v", task.Status.ProgressTime)
	is.True(t, task.Status.StateTime.Equal(&created), "a claim has changed the time of the state")

	granted := minute(2)
	task = r.mustWrite(self, func(task *maintenance.NodeTask) { task.Status.State = maintenance.NodeTaskClaimed })
	is.True(t, task.Status.StateTime.Equal(&granted) && task.Status.ProgressTime.Equal(&claimed), "the grant is from %v, the last report from %v",
		task.Status.StateTime, task.Status.ProgressTime)

	heartbeat := minute(3)
	task = r.mustWrite(worker, func(*maintenance.NodeTask) {})
	is.True(t, task.Status.ProgressTime.Equal(&heartbeat), "a write without a change is no heartbeat: %v", task.Status.ProgressTime)
	minute(4)
	task = r.mustWrite(self, func(task *maintenance.NodeTask) { task.Status.ServerMessage = "x" })
	is.True(t, task.Status.StateTime.Equal(&granted) && task.Status.ProgressTime.Equal(&heartbeat), "a message of the server has changed the times")
	is.Equal(t, r.mustWrite(worker, report(maintenance.NodeTaskResultDone)).Status.Result, maintenance.NodeTaskResultDone, "result")
}

func TestReportsOfWorkers(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	const done, failed maintenance.NodeTaskResult = "Done", "Failed"
	for name, test := range map[string]struct {
		state  maintenance.NodeTaskState
		result maintenance.NodeTaskResult
		write  func(*maintenance.NodeTask)
		want   string
	}{
		"a claim":                    {"Offered", "", claim("w1"), ""},
		"a second claim":             {"Claimed", "", claim("w2"), `status.holder: Forbidden: is "w1" and must not change`},
		"a claim that is given up":   {"Claimed", "", claim(""), `status.holder: Forbidden: is "w1" and must not change`},
		"a holder of 129 bytes":      {"Offered", "", claim(strings.Repeat("w", 129)), "status.holder: Too long"},
		"a message before the claim": {"Offered", "", func(task *maintenance.NodeTask) { task.Status.Message = "x" }, "status.holder: Required"},
		"a result with the claim":    {"Offered", "", func(task *maintenance.NodeTask) { claim("w1")(task); report(done)(task) }, "status.result: Forbidden: the task is Offered, not Claimed"},
		"a grant to oneself":         {"Offered", "", func(task *maintenance.NodeTask) { claim("w1")(task); task.Status.State = "Claimed" }, "status.state: Forbidden: only the server may write it"},
		"a message of the server":    {"Claimed", "", func(task *maintenance.NodeTask) { task.Status.ServerMessage = "x" }, "status.serverMessage: Forbidden"},
		"a reason":                   {"Claimed", "", func(task *maintenance.NodeTask) { task.Status.Reason = "Lost" }, "status.reason: Forbidden"},
		"a message of 1025 bytes":    {"Claimed", "", func(task *maintenance.NodeTask) { task.Status.Message = strings.Repeat("x", 1025) }, "status.message: Too long"},
		"another result":             {"Claimed", "", report("Maybe"), "status.result: Unsupported value"},
		"done":                       {"Claimed", "", report(done), ""},
		"failed":                     {"Claimed", "", report(failed), ""},
		"late done after a failure":  {"Failed", failed, report(done), ""},
		"late done after silence":    {"Failed", "", report(done), ""},
		"failed after done":          {"Verifying", done, report(failed), `status.result: Forbidden: is "Done" and must not change`},
		"no result after done":       {"Verifying", done, report(""), `status.result: Forbidden: is "Done" and must not change`},
		"a message while verifying":  {"Verifying", done, func(task *maintenance.NodeTask) { task.Status.Message = "x" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRegistry(t, etcd)
			r.to(test.state, test.result)
			switch _, err := r.write(worker, test.write); {
			case test.want == "" && err != nil, test.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestSpecIsImmutable(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.create("a", "reboot.example.com")
	out := r.mustWrite(self, func(task *maintenance.NodeTask) { task.Spec.Worker = "x.example.com" })
	is.Equal(t, out.Spec.Worker, "reboot.example.com", "worker after a write of the status")
	update := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		task := old.DeepCopyObject().(*maintenance.NodeTask)
		task.Spec.Worker = "x.example.com"
		return task, nil
	})
	_, _, err := r.storage.NodeTask.Update(r.ctx(self, ""), "a", update, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	is.True(t, apierrors.IsInvalid(err) && strings.Contains(err.Error(), "spec: Invalid value: is immutable"), "got %v", err)
}

func TestFieldSelectors(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	r.create("a", "reboot.example.com")
	r.create("b", "reboot.example.com")
	r.create("c", "job.example.com")
	r.mustWrite(worker, claim("w1"))
	r.mustWrite(self, func(task *maintenance.NodeTask) { task.Status.State = maintenance.NodeTaskClaimed })
	for selector, want := range map[string][]string{
		"spec.worker=reboot.example.com":                      {"a", "b"},
		"spec.worker=reboot.example.com,status.state=Offered": {"b"},
		"status.state=Claimed":                                {"a"},
		"metadata.name=c":                                     {"c"},
	} {
		list := must.Get(r.storage.NodeTask.List(r.ctx(worker, ""), &internalversion.ListOptions{FieldSelector: must.Get(fields.ParseSelector(selector))(t)}))(t)
		var names []string
		for _, task := range list.(*maintenance.NodeTaskList).Items {
			names = append(names, task.Name)
		}
		is.Slices(t, names, want, selector)
	}
}

func TestTable(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t))
	ago := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: start.Add(-d)} }
	task := &maintenance.NodeTask{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: maintenance.NodeTaskSpec{Worker: "reboot.example.com"},
		Status: maintenance.NodeTaskStatus{
			State: "Verifying", StateTime: ago(time.Minute), ProgressTime: ago(3 * time.Second), Holder: "w1\x1b[2J", Message: "rebooting\nnow",
		},
	}
	cells := func() []any {
		return must.Get(r.storage.NodeTask.ConvertToTable(t.Context(), task, nil))(t).Rows[0].Cells
	}
	want := []any{"a", "Verifying", "reboot.example.com", "w1[2J", "60s", "3s", "rebooting now"}
	is.True(t, slices.Equal(cells(), want), "got %v, want %v", cells(), want)
	task.Status = maintenance.NodeTaskStatus{State: maintenance.NodeTaskOffered}
	want = []any{"a", "Offered", "reboot.example.com", "-", "-", "-", "-"}
	is.True(t, slices.Equal(cells(), want), "got %v, want %v", cells(), want)
	task.Status.Message, task.Status.ServerMessage = "of the worker", "of the server"
	is.Equal(t, cells()[6], any("of the server"), "message")
	is.Slices(t, r.storage.NodeTask.ShortNames(), []string{"ntask"})
}
