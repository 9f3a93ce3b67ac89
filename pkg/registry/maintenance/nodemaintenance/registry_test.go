// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	testclock "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	idle     = maintenance.NodeMaintenanceStageIdle
	cordon   = maintenance.NodeMaintenanceStageCordon
	drain    = maintenance.NodeMaintenanceStageDrain
	complete = maintenance.NodeMaintenanceStageComplete

	completion = v1alpha1.FinalizerMaintenanceCompletion
)

var (
	start = time.Date(2026, 11, 21, 8, 0, 0, 123456789, time.UTC)

	ann = &user.DefaultInfo{
		Name: "ann", UID: "1", Groups: []string{"ops", "system:authenticated"},
		Extra: map[string][]string{"team": {"blue"}},
	}
	bob = &user.DefaultInfo{Name: "bob", UID: "2", Groups: []string{"system:authenticated"}}
	// self is the server; root is a user with the name of the server.
	self = &user.DefaultInfo{Name: "system:apiserver", UID: "loopback", Groups: []string{user.SystemPrivilegedGroup}}
	root = &user.DefaultInfo{Name: "system:apiserver", UID: "", Groups: []string{user.SystemPrivilegedGroup}}
)

func annInfo() *authenticationv1.UserInfo {
	return &authenticationv1.UserInfo{
		Username: "ann", UID: "1", Groups: []string{"ops", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"team": {"blue"}},
	}
}

func bobInfo() *authenticationv1.UserInfo {
	return &authenticationv1.UserInfo{Username: "bob", UID: "2", Groups: []string{"system:authenticated"}}
}

// registry is the real storage with a fake clock.
type registry struct {
	t       testing.TB
	storage Storage
	clock   *testclock.FakePassiveClock
	options generic.RESTOptions

	previewer *fakePreviewer
	// noLeader is the warning that no replica leads.
	noLeader string
	// newest is the creation time of the newest node. known is set if this replica has read the
	// nodes.
	newest *metav1.Time
	known  bool
}

func newRegistry(t testing.TB, etcd *registrytest.Etcd) *registry {
	t.Helper()
	return newRegistryWith(t, etcd.RESTOptions(maintenance.Resource("nodemaintenances")))
}

func newRegistryWith(t testing.TB, options generic.RESTOptions) *registry {
	t.Helper()
	clock := testclock.NewFakePassiveClock(start)
	isServer := func(u user.Info) bool { return u.GetName() == self.Name && u.GetUID() == self.UID }
	previewer := &fakePreviewer{}
	r := &registry{t: t, clock: clock, options: options, previewer: previewer, newest: &metav1.Time{Time: start.Truncate(time.Second)}, known: true}
	strategy := NewStrategy(registrytest.Scheme, isServer, func() string { return r.noLeader }, func() (*metav1.Time, bool) { return r.newest, r.known }, clock)
	r.storage = must.Get(NewStorage(options, strategy, previewer))(t)
	t.Cleanup(r.storage.NodeMaintenance.Destroy)
	return r
}

func (r *registry) ctx(u user.Info, subresource string) context.Context {
	return registrytest.Request{User: u, Resource: "nodemaintenances", Subresource: subresource}.Context(r.t.Context())
}

func (r *registry) create(u user.Info, nm *maintenance.NodeMaintenance) (*maintenance.NodeMaintenance, error) {
	out, err := r.storage.NodeMaintenance.Create(r.ctx(u, ""), nm, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return out.(*maintenance.NodeMaintenance), nil
}

func (r *registry) mustCreate(u user.Info, nm *maintenance.NodeMaintenance) *maintenance.NodeMaintenance {
	r.t.Helper()
	out, err := r.create(u, nm)
	must.True(r.t, err == nil, "create: %v", err)
	return out
}

// transform returns an update of the stored object, as a patch does it.
func transform(change func(*maintenance.NodeMaintenance)) rest.UpdatedObjectInfo {
	return rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		nm := old.DeepCopyObject().(*maintenance.NodeMaintenance)
		// Set the defaults, as the decoder does for an object in a request.
		change(nm)
		return nm, nil
	})
}

func (r *registry) update(
	u user.Info, name string, change func(*maintenance.NodeMaintenance),
) (*maintenance.NodeMaintenance, error) {
	out, _, err := r.storage.NodeMaintenance.Update(r.ctx(u, ""), name, transform(change), rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return out.(*maintenance.NodeMaintenance), nil
}

func (r *registry) mustUpdate(
	u user.Info, name string, change func(*maintenance.NodeMaintenance),
) *maintenance.NodeMaintenance {
	r.t.Helper()
	out, err := r.update(u, name, change)
	must.True(r.t, err == nil, "update: %v", err)
	return out
}

func (r *registry) updateStatus(
	name string, change func(*maintenance.NodeMaintenance),
) (*maintenance.NodeMaintenance, error) {
	out, _, err := r.storage.Status.Update(r.ctx(self, "status"), name, transform(change), rest.ValidateAllObjectFunc,
		rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return out.(*maintenance.NodeMaintenance), nil
}

func (r *registry) delete(u user.Info, name string, options *metav1.DeleteOptions) error {
	_, _, err := r.storage.NodeMaintenance.Delete(r.ctx(u, ""), name, rest.ValidateAllObjectFunc, options)
	return err
}

// get returns nil if the object does not exist.
func (r *registry) get(name string) *maintenance.NodeMaintenance {
	r.t.Helper()
	out, err := r.storage.NodeMaintenance.Get(r.ctx(ann, ""), name, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	must.True(r.t, err == nil, "get: %v", err)
	return out.(*maintenance.NodeMaintenance)
}

// newMaintenance returns an object as the server decodes it from a request.
func newMaintenance(
	t testing.TB, name string, modifiers ...func(*v1alpha1.NodeMaintenance),
) *maintenance.NodeMaintenance {
	t.Helper()
	versioned := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.NodeMaintenanceSpec{NodeSelector: poolSelector("blue")},
	}
	for _, modify := range modifiers {
		modify(versioned)
	}
	registrytest.Scheme.Default(versioned)
	nm := &maintenance.NodeMaintenance{}
	must.Do(t, registrytest.Scheme.Convert(versioned, nm, nil))
	return nm
}

func poolSelector(pool string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: []string{pool}},
		},
	}}}
}

func atStage(stage maintenance.NodeMaintenanceStage) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = v1alpha1.NodeMaintenanceStage(stage) }
}

func setStage(stage maintenance.NodeMaintenanceStage) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) { nm.Spec.Stage = stage }
}

func setFinalizers(finalizers ...string) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) { nm.Finalizers = finalizers }
}

// stagesOf returns the entered stages. It fails the test if a stage has another time than the
// expected one.
func stagesOf(t testing.TB, nm *maintenance.NodeMaintenance, times ...time.Time) []maintenance.NodeMaintenanceStage {
	t.Helper()
	var names []maintenance.NodeMaintenanceStage
	for i, status := range nm.Status.StageStatuses {
		names = append(names, status.Name)
		if i < len(times) && !status.StartTimestamp.Time.Equal(times[i].Truncate(time.Second)) {
			t.Errorf("%s was entered at %v, want %v", status.Name, status.StartTimestamp, times[i])
		}
	}
	return names
}

func wantStages(t testing.TB, nm *maintenance.NodeMaintenance, want ...maintenance.NodeMaintenanceStage) {
	t.Helper()
	if got := stagesOf(t, nm); !slices.Equal(got, want) {
		t.Errorf("entered stages %q, want %q", got, want)
	}
}

func wantFinalizers(t testing.TB, nm *maintenance.NodeMaintenance, want ...string) {
	t.Helper()
	if !slices.Equal(nm.Finalizers, want) {
		t.Errorf("finalizers are %q, want %q", nm.Finalizers, want)
	}
}

// interceptedStorage runs a function once, after a read of one object.
type interceptedStorage struct {
	storage.Interface
	once  sync.Once
	after func()
}

func (s *interceptedStorage) Get(
	ctx context.Context, key string, options storage.GetOptions, out runtime.Object,
) error {
	err := s.Interface.Get(ctx, key, options, out)
	s.once.Do(s.after)
	return err
}
