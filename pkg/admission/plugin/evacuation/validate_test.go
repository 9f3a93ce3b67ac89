// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestValidateRights(t *testing.T) {
	ownedEvacuation := newEvacuation(owned)
	first, both := newEvacuation(active("first.example.com")), newEvacuation(finalizers(instigator, instigatorA))
	// needs has the required rights. The request must be admitted with all of them, and refused if
	// one is missing.
	tests := map[string]struct {
		request request
		needs   []string
	}{
		"create": {request{object: newEvacuation()}, []string{deletePod, useOurs}},
		"create with two instigators": {
			request{object: newEvacuation(finalizers(instigator, "example.com/other", instigatorA))},
			[]string{deletePod, useOurs, useA},
		},
		"update with unchanged instigators": {
			request{object: newEvacuation(), old: newEvacuation(finalizers("example.com/other", instigator))}, nil,
		},
		"an instigator is added": {request{object: both, old: newEvacuation()}, []string{useA}},
		"an instigator withdraws": {
			request{
				object: newEvacuation(finalizers(instigatorA)), old: newEvacuation(finalizers(instigatorA, instigator)),
			},
			[]string{useOurs},
		},
		"an instigator replaces another one": {
			request{object: newEvacuation(finalizers(instigatorA)), old: newEvacuation()}, []string{useA, useOurs},
		},
		"the request of an eviction is withdrawn": {
			request{object: newEvacuation(), old: newEvacuation(finalizers(instigator, rawEviction))}, []string{useRaw},
		},
		"an owner is added":   {request{object: ownedEvacuation, old: newEvacuation()}, []string{deletePod, useOurs}},
		"an owner is removed": {request{object: newEvacuation(), old: ownedEvacuation}, []string{deletePod, useOurs}},
		"the active evacuator reports": {
			request{subresource: "status", object: first, old: first}, []string{progressFirst},
		},
		"the evacuator of the stored object counts, not that of the report": {
			request{subresource: "status", object: newEvacuation(active("mine.example.com")), old: first},
			[]string{progressFirst},
		},
		"an owner and an instigator are added": {
			request{object: newEvacuation(finalizers(instigator, instigatorA), owned), old: newEvacuation()},
			[]string{deletePod, useA, useOurs},
		},
		"create with an owner": {
			request{object: newEvacuation(finalizers(instigator, instigatorA), owned)},
			[]string{deletePod, useOurs, useA},
		},
		"delete what an eviction requests": {request{old: newEvacuation(finalizers(rawEviction))}, []string{deletePod, useRaw}},
		"an owner is added to what an eviction requests": {
			request{object: newEvacuation(finalizers(rawEviction), owned), old: newEvacuation(finalizers(rawEviction))},
			[]string{deletePod, useRaw},
		},
		"delete": {
			request{old: newEvacuation(finalizers(instigatorA, instigator, "example.com/other"))},
			[]string{deletePod, useOurs, useA},
		},
		"update an unknown subresource": {
			request{subresource: "other", object: newEvacuation(), old: newEvacuation()}, nil,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			switch {
			case tt.request.object == nil:
				tt.request.operation = admission.Delete
			case tt.request.old != nil:
				tt.request.operation = admission.Update
			}
			f := newFixture(t, nil, tt.needs)
			if err := f.validate(tt.request); err != nil {
				t.Errorf("with all rights: %v", err)
			}
			asked := slices.Clone(f.authz.asked)
			// Count equal access reviews once, because the delegated authorizer caches its
			// decisions.
			slices.Sort(asked)
			asked = slices.Compact(asked)
			needs := slices.Sorted(slices.Values(tt.needs))
			is.Slices(t, asked, needs, "questions about")
			for i, missing := range tt.needs {
				f := newFixture(t, nil, slices.Delete(slices.Clone(tt.needs), i, i+1))
				if err := f.validate(tt.request); !apierrors.IsForbidden(err) ||
					!strings.Contains(err.Error(), missing) {
					t.Errorf("without %q: got %v, want a Forbidden error that names it", missing, err)
				}
			}
			tt.request.user = server
			f = newFixture(t, nil, nil)
			if err := f.validate(tt.request); err != nil || len(f.authz.asked) > 0 {
				t.Errorf("the server: got %v and access reviews about %q, want none", err, f.authz.asked)
			}
		})
	}
}

// TestOnlyTheServerAsksForAnEviction has a user with all rights.
func TestOnlyTheServerAsksForAnEviction(t *testing.T) {
	for name, r := range map[string]request{
		"create": {object: newEvacuation(finalizers(rawEviction))},
		"update": {operation: admission.Update, object: newEvacuation(finalizers(instigator, rawEviction)), old: newEvacuation()},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil, []string{deletePod, useOurs, useRaw})
			if err := f.validate(r); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only the server adds the instigator raw-eviction") {
				t.Errorf("got %v, want a Forbidden error", err)
			}
			r.user = server
			if err := f.validate(r); err != nil {
				t.Errorf("the server: got %v", err)
			}
		})
	}
}

func owned(e *maintenance.Evacuation) {
	e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "gone"}}
}

// TestDeletionForOtherInstigators has a user who may not use the instigators of the object. The
// user must not be able to withdraw their requests by a deletion.
func TestDeletionForOtherInstigators(t *testing.T) {
	namespace := func(mods ...func(*corev1.Namespace)) *corev1.Namespace {
		return build.With(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue"}}, mods...)
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
		// mayNot is set if the user may not delete the pod either.
		mayNot bool
		want   string
	}{
		"the namespace is active":        {namespace: namespace(), request: deletion, want: "Forbidden"},
		"the namespace is being deleted": {namespace: namespace(terminating), request: deletion},
		"the namespace is being deleted, and the user may not delete the pod": {
			namespace: namespace(terminating), request: deletion, mayNot: true, want: "Forbidden",
		},
		"the evacuator forbids the cancellation while the namespace is being deleted": {
			namespace: namespace(terminating), request: request{operation: admission.Delete, old: newEvacuation(forbid)}, want: "Conflict",
		},
		"the namespace does not exist": {request: deletion, want: "Forbidden"},
		"the namespace cannot be read": {
			namespace: namespace(terminating), request: deletion, unread: true, want: "InternalError",
		},
		"an owner is added while the namespace is being deleted": {
			namespace: namespace(terminating),
			request:   request{operation: admission.Update, object: newEvacuation(owned), old: newEvacuation()},
			want:      "Forbidden",
		},
		"the garbage collector deletes the object": {namespace: namespace(), user: collector, request: deletion},
		"the garbage collector removes an owner": {
			namespace: namespace(), user: collector,
			request: request{operation: admission.Update, object: newEvacuation(), old: newEvacuation(owned)},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{newPod()}
			if tt.namespace != nil {
				objects = append(objects, tt.namespace)
			}
			f := newFixture(t, nil, []string{deletePod}, objects...)
			if tt.mayNot {
				f.authz.allowed = nil
			}
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

func TestValidateReportWithoutAnActiveEvacuator(t *testing.T) {
	anyClass := `progress evacuators.maintenance.haulout.dev in namespace "blue"`
	f := newFixture(t, nil, []string{anyClass})
	r := request{operation: admission.Update, subresource: "status", object: newEvacuation(), old: newEvacuation()}
	if err := f.validate(r); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want a Forbidden error", err)
	}
	r.user = server
	if err := f.validate(r); err != nil {
		t.Errorf("the server: got %v, want no error", err)
	}
}

// TestValidateReportOfANodeAgent has reports about static pods. A node agent needs no right to
// report about the static pods of its own node, but gets no other right.
func TestValidateReportOfANodeAgent(t *testing.T) {
	const progressKubelet = `progress evacuators.maintenance.haulout.dev "kubelet.k8s.io" in namespace "blue"`
	onNode := func(name string) mod { return func(e *maintenance.Evacuation) { e.Spec.NodeName = name } }
	kubelet := active(v1alpha1.EvacuatorClassKubelet)
	agent := &user.DefaultInfo{Name: "system:node:node-7", Groups: []string{user.NodesGroup}}
	for name, tt := range map[string]struct {
		user        user.Info
		object, old *maintenance.Evacuation
		// asked is the right that the plugin checks; empty for none.
		asked string
	}{
		"the agent of the node": {user: agent, old: newEvacuation(kubelet, onNode("node-7"))},
		"the agent of another node": {
			user: agent, old: newEvacuation(kubelet, onNode("node-8")), asked: progressKubelet,
		},
		"the agent of another node, which claims the pod in its report": {
			user: agent, object: newEvacuation(kubelet, onNode("node-7")), old: newEvacuation(kubelet, onNode("node-8")), asked: progressKubelet,
		},
		"the pod was not bound to a node": {user: agent, old: newEvacuation(kubelet), asked: progressKubelet},
		"a node without a name for a pod that is not bound": {
			user: &user.DefaultInfo{Name: "system:node:", Groups: []string{user.NodesGroup}}, old: newEvacuation(kubelet), asked: progressKubelet,
		},
		"another evacuator is active": {
			user: agent, old: newEvacuation(active("first.example.com"), onNode("node-7")), asked: progressFirst,
		},
		"another evacuator is active, and the report claims the agent is": {
			user: agent, object: newEvacuation(kubelet, onNode("node-7")), old: newEvacuation(active("first.example.com"), onNode("node-7")),
			asked: progressFirst,
		},
		"a user of the same name without the group": {
			user: &user.DefaultInfo{Name: "system:node:node-7", Groups: []string{user.AllAuthenticated}},
			old:  newEvacuation(kubelet, onNode("node-7")), asked: progressKubelet,
		},
		"a service account": {
			user: &user.DefaultInfo{Name: "system:serviceaccount:blue:node-7", Groups: []string{"system:serviceaccounts"}},
			old:  newEvacuation(kubelet, onNode("node-7")), asked: progressKubelet,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.object == nil {
				tt.object = tt.old
			}
			r := request{user: tt.user, operation: admission.Update, subresource: "status", object: tt.object, old: tt.old}
			f := newFixture(t, nil, nil)
			f.authz.users = []string{tt.user.GetName()}
			if err := f.validate(r); (tt.asked != "") != apierrors.IsForbidden(err) || tt.asked == "" && err != nil {
				t.Errorf("without rights: got %v", err)
			}
			if asked := strings.Join(f.authz.asked, ", "); asked != tt.asked {
				t.Errorf("access review about %q, want %q", asked, tt.asked)
			}
			f.authz.allowed = []string{tt.asked}
			if err := f.validate(r); err != nil {
				t.Errorf("with the right: got %v, want no error", err)
			}
		})
	}
}

// TestNodeAgentsHaveNoOtherRights has other writes of a node agent, for which it needs the same
// rights as any user.
func TestNodeAgentsHaveNoOtherRights(t *testing.T) {
	onNode := func(e *maintenance.Evacuation) { e.Spec.NodeName = "node-7" }
	kubelet := active(v1alpha1.EvacuatorClassKubelet)
	for name, r := range map[string]request{
		"create": {object: newEvacuation(onNode)},
		"delete": {operation: admission.Delete, old: newEvacuation(kubelet, onNode)},
		"an instigator is added": {
			operation: admission.Update, object: newEvacuation(kubelet, onNode, finalizers(instigator, instigatorA)), old: newEvacuation(kubelet, onNode),
		},
	} {
		t.Run(name, func(t *testing.T) {
			r.user = &user.DefaultInfo{Name: "system:node:node-7", Groups: []string{user.NodesGroup}}
			f := newFixture(t, nil, nil)
			f.authz.users = []string{r.user.GetName()}
			if err := f.validate(r); !apierrors.IsForbidden(err) {
				t.Errorf("got %v, want a Forbidden error", err)
			}
		})
	}
}

func TestValidateDeletion(t *testing.T) {
	tests := map[string]struct {
		old  *maintenance.Evacuation
		pod  *corev1.Pod
		want string
	}{
		"cancellation is allowed": {old: newEvacuation(active("first.example.com")), pod: newPod()},
		"cancellation is forbidden, and the pod exists": {
			old: newEvacuation(active("first.example.com"), forbid), pod: newPod(), want: "Conflict",
		},
		"cancellation is forbidden, and the pod terminates": {
			old:  newEvacuation(forbid),
			pod:  newPod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{}; p.Finalizers = []string{"a/b"} }),
			want: "Conflict",
		},
		"cancellation is forbidden, but the pod is deleted": {old: newEvacuation(forbid)},
		"cancellation is forbidden, but the pod is recreated": {
			old: newEvacuation(forbid), pod: newPod(func(p *corev1.Pod) { p.UID = "new" }),
		},
		"cancellation is forbidden, but the evacuation is complete": {
			old: newEvacuation(forbid, complete), pod: newPod(),
		},
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
			is.True(t, err == nil || strings.Contains(err.Error(), "Forbid"), "got error %v, want the policy Forbid in it", err)
			r.user = server
			is.Equal(t, outcome(f.validate(r)), tt.want, "the server")
		})
	}
	f := newFixture(t, nil, []string{deletePod, useOurs}, newPod())
	f.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("down")
	})
	if err := f.validate(request{
		operation: admission.Delete, old: newEvacuation(forbid),
	}); !apierrors.IsInternalError(err) {
		t.Errorf("the pod cannot be read: got %v, want an internal error", err)
	}
}

func TestAuthorizerIsAskedAgainAfterAnError(t *testing.T) {
	f := newFixture(t, nil, []string{deletePod, useOurs})
	ctx, attrs := f.attributes(request{object: newEvacuation()})
	f.authz.err = errors.New("down")
	if err := f.Validate(ctx, attrs, nil); !apierrors.IsInternalError(err) {
		t.Errorf("got %v, want an internal error", err)
	}
	f.authz.err = nil
	if err := f.Validate(ctx, attrs, nil); err != nil {
		t.Errorf("after the error: got %v, want no error", err)
	}
}

func TestValidateFailsClosedOnOtherObjects(t *testing.T) {
	for _, operation := range []admission.Operation{admission.Create, admission.Update, admission.Delete} {
		f := newFixture(t, nil, []string{deletePod, useOurs})
		if err := f.validate(request{operation: operation}); !apierrors.IsInternalError(err) {
			t.Errorf("%s without objects: got %v, want an internal error", operation, err)
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
	is.True(t, err != nil, "got plugin %v without an error although it was not initialized", plugin)
	if _, err := New("deployment.apps.k8s.io", "statefulset.apps.k8s.io"); err == nil {
		t.Error("got no error for an unknown built-in evacuator")
	}
	if plugin, err := New(); err != nil || plugin.enabled.Len() != 0 {
		t.Errorf("without names: got %v, %v, want no built-in evacuator", plugin, err)
	}
}
