// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	testclock "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

var (
	start = time.Date(2026, 11, 27, 8, 0, 0, 123456789, time.UTC)

	ann  = &user.DefaultInfo{Name: "ann", UID: "1"}
	bob  = &user.DefaultInfo{Name: "bob", UID: "2"}
	self = &user.DefaultInfo{Name: "system:apiserver", UID: "loopback"}
)

// registry is the real storage with a fake clock.
type registry struct {
	t       testing.TB
	storage Storage
	clock   *testclock.FakePassiveClock
	// noLeader is the warning that no replica leads.
	noLeader string
	// newest is the creation time of the newest node. known is set if this replica has read the
	// nodes.
	newest *metav1.Time
	known  bool
}

func newRegistry(t testing.TB, etcd *registrytest.Etcd) *registry {
	t.Helper()
	r := &registry{t: t, clock: testclock.NewFakePassiveClock(start), newest: &metav1.Time{Time: start.Truncate(time.Second)}, known: true}
	newest := func() (*metav1.Time, bool) { return r.newest, r.known }
	strategy := NewStrategy(registrytest.Scheme, func() string { return r.noLeader }, newest, r.clock)
	r.storage = must.Get(NewStorage(etcd.RESTOptions(maintenance.Resource("nodemaintenancerollouts")), strategy))(t)
	t.Cleanup(r.storage.Rollout.Destroy)
	return r
}

func (r *registry) ctx(u user.Info, subresource string) context.Context {
	return registrytest.Request{User: u, Resource: "nodemaintenancerollouts", Subresource: subresource}.Context(r.t.Context())
}

func (r *registry) create(u user.Info, modifiers ...func(*v1alpha1.NodeMaintenanceRollout)) (*maintenance.NodeMaintenanceRollout, error) {
	out, err := r.storage.Rollout.Create(r.ctx(u, ""), newRollout(r.t, modifiers...), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return out.(*maintenance.NodeMaintenanceRollout), nil
}

func (r *registry) mustCreate(u user.Info, modifiers ...func(*v1alpha1.NodeMaintenanceRollout)) *maintenance.NodeMaintenanceRollout {
	r.t.Helper()
	out, err := r.create(u, modifiers...)
	must.True(r.t, err == nil, "create: %v", err)
	return out
}

// transform returns an update of the stored object, as a patch does it.
func transform(change func(*maintenance.NodeMaintenanceRollout)) rest.UpdatedObjectInfo {
	return rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		rollout := old.DeepCopyObject().(*maintenance.NodeMaintenanceRollout)
		change(rollout)
		return rollout, nil
	})
}

func (r *registry) update(u user.Info, change func(*maintenance.NodeMaintenanceRollout)) (*maintenance.NodeMaintenanceRollout, error) {
	out, _, err := r.storage.Rollout.Update(r.ctx(u, ""), "a", transform(change), rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return out.(*maintenance.NodeMaintenanceRollout), nil
}

func (r *registry) mustUpdate(u user.Info, change func(*maintenance.NodeMaintenanceRollout)) *maintenance.NodeMaintenanceRollout {
	r.t.Helper()
	out, err := r.update(u, change)
	must.True(r.t, err == nil, "update: %v", err)
	return out
}

func (r *registry) updateStatus(change func(*maintenance.NodeMaintenanceRollout)) (*maintenance.NodeMaintenanceRollout, error) {
	out, _, err := r.storage.Status.Update(r.ctx(self, "status"), "a", transform(change), rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return out.(*maintenance.NodeMaintenanceRollout), nil
}

// newRollout returns an object as the server decodes it from a request.
func newRollout(t testing.TB, modifiers ...func(*v1alpha1.NodeMaintenanceRollout)) *maintenance.NodeMaintenanceRollout {
	t.Helper()
	versioned := &v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			NodeSelector: build.Labelled("pool", "blue"),
			Template:     v1alpha1.RolloutTemplate{Task: &v1alpha1.NodeMaintenanceTask{Worker: "reboot.example.com"}},
		},
	}
	for _, modify := range modifiers {
		modify(versioned)
	}
	registrytest.Scheme.Default(versioned)
	rollout := &maintenance.NodeMaintenanceRollout{}
	must.Do(t, registrytest.Scheme.Convert(versioned, rollout, nil))
	return rollout
}

func atStage(stage v1alpha1.RolloutStage) func(*v1alpha1.NodeMaintenanceRollout) {
	return func(r *v1alpha1.NodeMaintenanceRollout) { r.Spec.Stage = stage }
}

func setStage(stage maintenance.RolloutStage) func(*maintenance.NodeMaintenanceRollout) {
	return func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Stage = stage }
}

func addHold(hold maintenance.RolloutHold) func(*maintenance.NodeMaintenanceRollout) {
	if hold.Stops == "" {
		hold.Stops = "Starts"
	}
	return func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Holds = append(r.Spec.Holds, hold) }
}
