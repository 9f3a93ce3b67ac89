// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/identity"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	podUID           = "f5823a89-e03f-4752-b013-445643b8c7a0"
	evacuationName   = podUID + "-web-1"
	instigator       = "evacuation.coordination.k8s.io/instigator_nodemaintenance.k8s.io"
	instigatorA      = "evacuation.coordination.k8s.io/instigator_a"
	rawEviction      = "evacuation.coordination.k8s.io/instigator_raw-eviction.maintenance.haulout.dev"
	annotationPrefix = "evacuation.coordination.k8s.io/priority_"

	deletePod     = `delete pods "web-1" in namespace "blue"`
	useOurs       = `use instigators.maintenance.haulout.dev "nodemaintenance.k8s.io" in namespace "blue"`
	useA          = `use instigators.maintenance.haulout.dev "a" in namespace "blue"`
	useRaw        = `use instigators.maintenance.haulout.dev "raw-eviction.maintenance.haulout.dev" in namespace "blue"`
	scaleWeb      = `update deployments.apps/scale "web" in namespace "blue"`
	scaleAny      = `update deployments.apps/scale in namespace "blue"`
	assignA       = `assign evacuators.maintenance.haulout.dev "a.example.com" in namespace "blue"`
	progressFirst = `progress evacuators.maintenance.haulout.dev "first.example.com" in namespace "blue"`
)

var (
	server = &user.DefaultInfo{Name: "system:apiserver", UID: "1"}
	ann    = &user.DefaultInfo{Name: "ann"}
)

// authz is an authorizer that allows the listed rights and records the rights that it is asked to
// check.
type authz struct {
	allowed []string
	err     error
	asked   []string
	// users are the names of users other than ann whose rights the plugin is expected to check.
	users []string
}

func (a *authz) Authorize(_ context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	if !attrs.IsResourceRequest() ||
		attrs.GetUser().GetName() != ann.Name && !slices.Contains(a.users, attrs.GetUser().GetName()) {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("unexpected question: %+v", attrs)
	}
	asked := right{
		verb: attrs.GetVerb(), group: attrs.GetAPIGroup(), resource: attrs.GetResource(),
		subresource: attrs.GetSubresource(), namespace: attrs.GetNamespace(), name: attrs.GetName(),
	}.String()
	a.asked = append(a.asked, asked)
	if a.err != nil {
		return authorizer.DecisionNoOpinion, "", a.err
	}
	if slices.Contains(a.allowed, asked) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// fixture is a plugin with a fake host cluster.
type fixture struct {
	*Plugin
	t      *testing.T
	authz  *authz
	client *fake.Clientset
	events chan string
}

func newFixture(t *testing.T, builtIn []string, allowed []string, objects ...runtime.Object) *fixture {
	t.Helper()
	plugin := must.Get(New(builtIn...))(t)
	f := &fixture{
		Plugin: plugin, t: t, authz: &authz{allowed: allowed}, client: fake.NewClientset(objects...),
		events: make(chan string, 100),
	}
	self := &identity.Server{}
	self.Set(server)
	plugin.SetExternalKubeClientSet(f.client)
	plugin.SetUnconditionalAuthorizer(f.authz)
	plugin.SetDependencies(initializer.Dependencies{
		Identity: self, Recorder: &events.FakeRecorder{Events: f.events},
		Informers: informers.NewSharedInformerFactory(maintenancefake.NewClientset(), 0),
	})
	// The tests fill the store, and no informer runs that could report that it has synced.
	plugin.SetReadyFunc(func() bool { return true })
	must.Do(t, plugin.ValidateInitialization())
	return f
}

// request is an admission request for Evacuations; the default is a creation by ann.
type request struct {
	operation   admission.Operation
	user        user.Info
	subresource string
	object, old *maintenance.Evacuation
	dryRun      bool
}

func (f *fixture) attributes(r request) (context.Context, admission.Attributes) {
	if r.operation == "" {
		r.operation = admission.Create
	}
	if r.user == nil {
		r.user = ann
	}
	var object, old runtime.Object
	name := ""
	if r.object != nil {
		object, name = r.object, r.object.Name
	}
	if r.old != nil {
		old, name = r.old, r.old.Name
	}
	ctx := registrytest.Request{
		User: r.user, Verb: "create", Resource: "evacuations", Subresource: r.subresource, Namespace: "blue",
		Name: name,
	}.Context(f.t.Context())
	return ctx, admission.NewAttributesRecord(object, old, v1alpha1.SchemeGroupVersion.WithKind("Evacuation"), "blue",
		name, v1alpha1.SchemeGroupVersion.WithResource("evacuations"), r.subresource, r.operation, nil, r.dryRun,
		r.user)
}

func (f *fixture) admit(r request) ([]string, error) {
	ctx, attrs := f.attributes(r)
	ctx, warnings := registrytest.WithWarnings(ctx)
	err := f.Admit(ctx, attrs, nil)
	return warnings.Texts(), err
}

func (f *fixture) validate(r request) error {
	ctx, attrs := f.attributes(r)
	return f.Validate(ctx, attrs, nil)
}

type mod func(*maintenance.Evacuation)

func newEvacuation(mods ...mod) *maintenance.Evacuation {
	return build.With(&maintenance.Evacuation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: evacuationName, Finalizers: []string{instigator}},
		Spec:       maintenance.EvacuationSpec{PodRef: maintenance.PodReference{Name: "web-1", UID: podUID}},
		Status: maintenance.EvacuationStatus{
			EvacuationCancellationPolicy: maintenance.EvacuationCancellationPolicyAllow,
		},
	}, mods...)
}

func named(list ...maintenance.Evacuator) mod {
	return func(e *maintenance.Evacuation) { e.Spec.Evacuators = list }
}

func finalizers(list ...string) mod {
	return func(e *maintenance.Evacuation) { e.Finalizers = list }
}

func active(class string) mod {
	return func(e *maintenance.Evacuation) { e.Status.ActiveEvacuatorClass = class }
}

func forbid(e *maintenance.Evacuation) {
	e.Status.EvacuationCancellationPolicy = maintenance.EvacuationCancellationPolicyForbid
}

func complete(e *maintenance.Evacuation) {
	e.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue}}
}

type podMod func(*corev1.Pod)

func newPod(mods ...podMod) *corev1.Pod {
	return build.With(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "blue", Name: "web-1", UID: podUID, Labels: map[string]string{"app": "web"},
		},
		Spec: corev1.PodSpec{NodeName: "node-7"},
	}, mods...)
}

func annotated(class, value string) podMod {
	return func(pod *corev1.Pod) { metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotationPrefix+class, value) }
}

func ownedBy(apiVersion, kind, name string, uid types.UID) podMod {
	return func(pod *corev1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{controllerRef(apiVersion, kind, name, uid)}
	}
}

func controllerRef(apiVersion, kind, name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: ptr.To(true)}
}

var selectWeb = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}

// newDeployment returns the Deployment web and its ReplicaSet.
func newDeployment() (*appsv1.Deployment, *appsv1.ReplicaSet) {
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web", UID: "deployment"},
		Spec:       appsv1.DeploymentSpec{Selector: selectWeb},
	}
	replicaSet := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "blue", Name: "web-6b59", UID: "replicaset",
			OwnerReferences: []metav1.OwnerReference{controllerRef("apps/v1", "Deployment", "web", "deployment")},
		},
		Spec: appsv1.ReplicaSetSpec{Selector: selectWeb},
	}
	return deployment, replicaSet
}
