// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	podUID     = "f5823a89-e03f-4752-b013-445643b8c7a0"
	name       = podUID + "-web-1"
	instigator = "evacuation.coordination.k8s.io/instigator_nodemaintenance.k8s.io"
	eviction   = "eviction.maintenance.haulout.dev"

	// startDeadline is the time within which an evacuator must send its first report.
	startDeadline = 5 * time.Minute
)

var (
	server = &user.DefaultInfo{Name: "system:apiserver", UID: "1"}
	ann    = &user.DefaultInfo{Name: "ann"}

	// start is not a whole second, like real times.
	start = time.Date(2026, 11, 21, 8, 0, 0, 123456789, time.UTC)
)

type mod func(*maintenance.Evacuation)

// newEvacuation returns an Evacuation of the pod web-1 with three evacuators and all fields that
// admission sets.
func newEvacuation(mods ...mod) *maintenance.Evacuation {
	return build.With(&maintenance.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "blue", Name: name, Finalizers: []string{instigator}, Labels: map[string]string{"app": "web"},
		},
		Spec: maintenance.EvacuationSpec{
			PodRef: maintenance.PodReference{Name: "web-1", UID: podUID}, ProgressDeadlineSeconds: ptr.To[int32](1800),
			Evacuators: []maintenance.Evacuator{
				{EvacuatorClass: "last.example.com", Priority: 5},
				{EvacuatorClass: "deployment.apps.k8s.io", Priority: 10000, Role: maintenance.EvacuatorRoleController},
				{EvacuatorClass: "first.example.com", Priority: 20000},
			},
			NodeName: "node-7",
		},
	}, mods...)
}

func withEvacuators(list ...maintenance.Evacuator) mod {
	return func(e *maintenance.Evacuation) { e.Spec.Evacuators = list }
}

func active(class string) mod {
	return func(e *maintenance.Evacuation) { e.Status.ActiveEvacuatorClass = class }
}

func message(text string) mod {
	return func(e *maintenance.Evacuation) { e.Status.Message = text }
}

func forbid(e *maintenance.Evacuation) {
	e.Status.EvacuationCancellationPolicy = maintenance.EvacuationCancellationPolicyForbid
}

func completed(e *maintenance.Evacuation) { e.Status.ActiveEvacuatorCompleted = true }

func finalizers(list ...string) mod {
	return func(e *maintenance.Evacuation) { e.Finalizers = list }
}

func condition(conditionType, reason string) mod {
	return func(e *maintenance.Evacuation) {
		e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{
			Type: conditionType, Status: metav1.ConditionTrue, Reason: reason,
			LastTransitionTime: metav1.NewTime(start).Rfc3339Copy(),
		})
	}
}

// forPod changes the Evacuation to that of another pod.
func forPod(podName string) mod {
	return func(e *maintenance.Evacuation) {
		e.Spec.PodRef.Name = podName
		e.Name = podUID + "-" + podName
	}
}

// registry is the registry of Evacuations on an etcd, with a fake clock.
type registry struct {
	Storage
	t     *testing.T
	clock *clocktesting.FakePassiveClock
}

func newRegistry(t *testing.T, options generic.RESTOptions) *registry {
	t.Helper()
	clock := clocktesting.NewFakePassiveClock(start)
	isServer := func(u user.Info) bool { return u.GetUID() == server.UID }
	storage := must.Get(NewStorage(options, NewStrategy(registrytest.Scheme, isServer, startDeadline, clock)))(t)
	t.Cleanup(storage.Evacuation.Destroy)
	// A watch cache responds only after it has read all objects.
	must.Do(t, wait.PollUntilContextTimeout(
		t.Context(), 10*time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			return storage.Evacuation.ReadinessCheck() == nil, nil
		},
	))
	return &registry{Storage: storage, t: t, clock: clock}
}

func request(t *testing.T, u user.Info, verb, subresource, name string) context.Context {
	t.Helper()
	return registrytest.Request{
		User: u, Verb: verb, Resource: "evacuations", Subresource: subresource, Namespace: "blue", Name: name,
	}.Context(t.Context())
}

func (r *registry) create(u user.Info, evacuation *maintenance.Evacuation) (*maintenance.Evacuation, error) {
	obj, err := r.Evacuation.Create(request(r.t, u, "create", "", ""), evacuation, rest.ValidateAllObjectFunc,
		&metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*maintenance.Evacuation), nil
}

func (r *registry) mustCreate(mods ...mod) *maintenance.Evacuation {
	r.t.Helper()
	return must.Get(r.create(server, newEvacuation(mods...)))(r.t)
}

// apply changes the stored object, as a patch does.
func apply(mods []mod) rest.UpdatedObjectInfo {
	return rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		evacuation := old.DeepCopyObject().(*maintenance.Evacuation)
		for _, m := range mods {
			m(evacuation)
		}
		return evacuation, nil
	})
}

func (r *registry) update(u user.Info, mods ...mod) (*maintenance.Evacuation, error) {
	obj, _, err := r.Evacuation.Update(request(r.t, u, "update", "", name), name, apply(mods),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*maintenance.Evacuation), nil
}

func (r *registry) mustUpdate(mods ...mod) {
	r.t.Helper()
	must.Get(r.update(ann, mods...))(r.t)
}

func (r *registry) updateStatus(u user.Info, mods ...mod) (*maintenance.Evacuation, error) {
	obj, _, err := r.Status.Update(request(r.t, u, "update", "status", name), name, apply(mods),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*maintenance.Evacuation), nil
}

func (r *registry) mustUpdateStatus(u user.Info, mods ...mod) *maintenance.Evacuation {
	r.t.Helper()
	return must.Get(r.updateStatus(u, mods...))(r.t)
}

func (r *registry) delete() {
	r.t.Helper()
	if _, _, err := r.Evacuation.Delete(request(r.t, ann, "delete", "", name), name, rest.ValidateAllObjectFunc,
		&metav1.DeleteOptions{}); err != nil {
		r.t.Fatal(err)
	}
}
