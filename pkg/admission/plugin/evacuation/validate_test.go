/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package evacuation

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance"
)

func TestValidateRights(t *testing.T) {
	ownedEvacuation := newEvacuation(owned)
	first := newEvacuation(active("first.example.com"))
	// Each of the rights is needed: with all of them the request is admitted, without any one it is
	// not.
	tests := map[string]struct {
		request request
		needs   []string
	}{
		"a creation": {request: request{object: newEvacuation()}, needs: []string{deletePod, useOurs}},
		"a creation for two instigators": {
			request: request{object: newEvacuation(finalizers(instigator, "example.com/other", instigatorA))},
			needs:   []string{deletePod, useOurs, useA},
		},
		"an update of labels": {
			request: request{
				operation: admission.Update,
				object:    newEvacuation(),
				old:       newEvacuation(finalizers("example.com/other", instigator)),
			},
		},
		"an instigator joins": {
			request: request{
				operation: admission.Update,
				object:    newEvacuation(finalizers(instigator, instigatorA)),
				old:       newEvacuation(),
			},
			needs: []string{useA},
		},
		"an instigator withdraws": {
			request: request{
				operation: admission.Update,
				object:    newEvacuation(finalizers(instigatorA)),
				old:       newEvacuation(finalizers(instigatorA, instigator)),
			},
			needs: []string{useOurs},
		},
		"one instigator takes another's place": {
			request: request{
				operation: admission.Update,
				object:    newEvacuation(finalizers(instigatorA)),
				old:       newEvacuation(),
			},
			needs: []string{useA, useOurs},
		},
		"an owner that the garbage collector follows": {
			request: request{operation: admission.Update, object: ownedEvacuation, old: newEvacuation()},
			needs:   []string{deletePod, useOurs},
		},
		"an owner is removed": {
			request: request{operation: admission.Update, object: newEvacuation(), old: ownedEvacuation},
			needs:   []string{deletePod, useOurs},
		},
		"a report of the active evacuator": {
			request: request{operation: admission.Update, subresource: "status", object: first, old: first},
			needs:   []string{progressFirst},
		},
		"a report counts as the stored evacuator's": {
			request: request{
				operation:   admission.Update,
				subresource: "status",
				object:      newEvacuation(active("mine.example.com")),
				old:         first,
			},
			needs: []string{progressFirst},
		},
		"an owner is set and an instigator joins": {
			request: request{
				operation: admission.Update,
				object:    newEvacuation(finalizers(instigator, instigatorA), owned),
				old:       newEvacuation(),
			},
			needs: []string{deletePod, useA, useOurs},
		},
		"a creation with an owner": {
			request: request{object: newEvacuation(finalizers(instigator, instigatorA), owned)},
			needs:   []string{deletePod, useOurs, useA},
		},
		"a deletion": {
			request: request{
				operation: admission.Delete,
				old:       newEvacuation(finalizers(instigatorA, instigator, "example.com/other")),
			},
			needs: []string{deletePod, useOurs, useA},
		},
		"another sort": {
			request: request{
				operation:   admission.Update,
				subresource: "other",
				object:      newEvacuation(),
				old:         newEvacuation(),
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil, tt.needs)
			if err := f.validate(tt.request); err != nil {
				t.Errorf("with all rights: %v", err)
			}
			asked := slices.Clone(f.authz.asked)
			slices.Sort(asked)
			needs := slices.Sorted(slices.Values(tt.needs))
			if !slices.Equal(asked, needs) {
				t.Errorf("asked for %q, want %q", asked, needs)
			}
			for i, missing := range tt.needs {
				f := newFixture(t, nil, slices.Delete(slices.Clone(tt.needs), i, i+1))
				if err := f.validate(tt.request); !apierrors.IsForbidden(err) ||
					!strings.Contains(err.Error(), missing) {
					t.Errorf("without %q: got %v", missing, err)
				}
			}
			tt.request.user = server
			f = newFixture(t, nil, nil)
			if err := f.validate(tt.request); err != nil || len(f.authz.asked) > 0 {
				t.Errorf("the server: got %v, asked for %q", err, f.authz.asked)
			}
		})
	}
}

func owned(e *maintenance.Evacuation) {
	e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}}
}

// TestDeletionForOtherInstigators: without the right to speak for them, a deletion withdraws
// nothing that others ask for.
func TestDeletionForOtherInstigators(t *testing.T) {
	namespace := func(mods ...func(*corev1.Namespace)) *corev1.Namespace {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}
		for _, mod := range mods {
			mod(n)
		}
		return n
	}
	terminating := func(n *corev1.Namespace) {
		n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
		n.Finalizers = []string{"kubernetes"}
	}
	collector := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:generic-garbage-collector"}
	deletion := request{operation: admission.Delete, old: newEvacuation()}
	tests := map[string]struct {
		namespace *corev1.Namespace
		user      user.Info
		request   request
		unread    bool
		want      string
	}{
		"in a namespace that stays":            {namespace: namespace(), request: deletion, want: "Forbidden"},
		"in a namespace that is being deleted": {namespace: namespace(terminating), request: deletion},
		"in a namespace that is gone":          {request: deletion, want: "Forbidden"},
		"the namespace cannot be read": {
			namespace: namespace(terminating),
			request:   deletion,
			unread:    true,
			want:      "InternalError",
		},
		"an owner in a namespace that is being deleted": {
			namespace: namespace(terminating),
			request:   request{operation: admission.Update, object: newEvacuation(owned), old: newEvacuation()},
			want:      "Forbidden",
		},
		"by the garbage collector": {namespace: namespace(), user: collector, request: deletion},
		"an owner removed by the garbage collector": {namespace: namespace(), user: collector,
			request: request{operation: admission.Update, object: newEvacuation(), old: newEvacuation(owned)}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			if tt.namespace != nil {
				objects = append(objects, tt.namespace)
			}
			f := newFixture(t, nil, []string{deletePod}, objects...)
			f.authz.users = append(f.authz.users, collector.Name)
			if tt.unread {
				f.client.PrependReactor("get", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewServiceUnavailable("down")
				})
			}
			tt.request.user = tt.user
			if err := f.validate(tt.request); outcome(err) != tt.want {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestValidateReportBeforeAnybodyIsActive(t *testing.T) {
	everybody := `progress evacuators.maintenance.haulout.dev in namespace "blue"`
	f := newFixture(t, nil, []string{everybody})
	r := request{operation: admission.Update, subresource: "status", object: newEvacuation(), old: newEvacuation()}
	if err := f.validate(r); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want it forbidden", err)
	}
	r.user = server
	if err := f.validate(r); err != nil {
		t.Errorf("the server: got %v", err)
	}
}

func TestValidateDeletion(t *testing.T) {
	tests := map[string]struct {
		old  *maintenance.Evacuation
		pod  *corev1.Pod
		want string
	}{
		"allowed": {
			old: newEvacuation(active("first.example.com")),
			pod: newPod(),
		},
		"forbidden, while the pod is there": {
			old:  newEvacuation(active("first.example.com"), forbid),
			pod:  newPod(),
			want: "Conflict",
		},
		"forbidden, while the pod terminates": {
			old:  newEvacuation(forbid),
			pod:  newPod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{}; p.Finalizers = []string{"a/b"} }),
			want: "Conflict",
		},
		"forbidden, but the pod is gone": {old: newEvacuation(forbid)},
		"forbidden, but there is a new pod of that name": {
			old: newEvacuation(forbid),
			pod: newPod(func(p *corev1.Pod) { p.UID = "new" }),
		},
		"forbidden, but complete": {old: newEvacuation(forbid, complete), pod: newPod()},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			if tt.pod != nil {
				objects = append(objects, tt.pod)
			}
			f := newFixture(t, nil, []string{deletePod, useOurs}, objects...)
			r := request{operation: admission.Delete, old: tt.old}
			err := f.validate(r)
			if got := outcome(err); got != tt.want {
				t.Errorf("got %q (%v), want %q", got, err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), "Forbid") {
				t.Errorf("the reason is missing in %v", err)
			}
			r.user = server
			if got := outcome(f.validate(r)); got != tt.want {
				t.Errorf("the server: got %q, want %q", got, tt.want)
			}
		})
	}
	f := newFixture(t, nil, []string{deletePod, useOurs}, newPod())
	f.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("down")
	})
	if err := f.validate(request{
		operation: admission.Delete,
		old:       newEvacuation(forbid),
	}); !apierrors.IsInternalError(err) {
		t.Errorf("the pod cannot be read: got %v", err)
	}
}

func TestRightsAreAskedOncePerRequest(t *testing.T) {
	f := newFixture(t, nil, []string{deletePod, useOurs}, newPod())
	ctx, attrs := f.attributes(request{object: newEvacuation()})
	for range 3 {
		if err := errors.Join(f.Admit(ctx, attrs, nil), f.Validate(ctx, attrs, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{deletePod, useOurs}; !slices.Equal(f.authz.asked, want) {
		t.Errorf("one request asked for %q, want %q", f.authz.asked, want)
	}

	f.authz.allowed = nil
	if err := f.Validate(ctx, attrs, nil); err != nil {
		t.Errorf("the same request changed its mind: %v", err)
	}
	ctx, attrs = f.attributes(request{object: newEvacuation()})
	if err := f.Validate(ctx, attrs, nil); !apierrors.IsForbidden(err) {
		t.Errorf("another request: got %v, want it forbidden", err)
	}
}

func TestAnErrorOfTheAuthorizerIsNotRemembered(t *testing.T) {
	f := newFixture(t, nil, []string{deletePod, useOurs})
	ctx, attrs := f.attributes(request{object: newEvacuation()})
	f.authz.err = errors.New("down")
	if err := f.Validate(ctx, attrs, nil); !apierrors.IsInternalError(err) {
		t.Errorf("got %v, want an internal error", err)
	}
	f.authz.err = nil
	if err := f.Validate(ctx, attrs, nil); err != nil {
		t.Errorf("after the error: %v", err)
	}
}

func TestValidateFailsClosedOnOtherObjects(t *testing.T) {
	for _, operation := range []admission.Operation{admission.Create, admission.Update, admission.Delete} {
		f := newFixture(t, nil, []string{deletePod, useOurs})
		if err := f.validate(request{operation: operation}); !apierrors.IsInternalError(err) {
			t.Errorf("%s without objects: got %v", operation, err)
		}
	}
}

func TestRegister(t *testing.T) {
	plugins := admission.NewPlugins()
	classes := []string{"deployment.apps.k8s.io"}
	Register(plugins, func() []string { return classes })
	if got := plugins.Registered(); !slices.Equal(got, []string{"Evacuation"}) {
		t.Fatalf("registered %q", got)
	}
	plugin, err := plugins.InitPlugin(PluginName, nil, admission.PluginInitializers{})
	if err == nil {
		t.Errorf("a plugin that was given nothing is taken for complete: %v", plugin)
	}
	if _, err := New("deployment.apps.k8s.io", "statefulset.apps.k8s.io"); err == nil {
		t.Error("an unknown built-in evacuator was accepted")
	}
	if plugin, err := New(); err != nil || plugin.builtIn.Len() != 0 {
		t.Errorf("without names: got %v, %v, want no built-in evacuator", plugin, err)
	}
}
