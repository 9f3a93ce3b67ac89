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

package nodemaintenance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/host/noderights"
	"haulout.dev/haulout/pkg/identity"
	"haulout.dev/haulout/pkg/registry/registrytest"
)

var (
	bob       = &user.DefaultInfo{Name: "bob"}
	admin     = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	self      = &user.DefaultInfo{Name: "system:apiserver", UID: "drawn at random", Groups: []string{user.SystemPrivilegedGroup}}
	sameName  = &user.DefaultInfo{Name: "system:apiserver", Groups: []string{user.SystemPrivilegedGroup}}
	collector = &user.DefaultInfo{Name: identity.GarbageCollector}
)

// host is an authorizer that allows the deletion of the nodes it has, and counts.
type host struct {
	mu      sync.Mutex
	allowed map[string]bool
	// hidden are the nodes that bob may not get.
	hidden map[string]bool
	// hangs are the nodes about which there is no answer before the request ends.
	hangs   map[string]bool
	fails   map[string]bool
	asked   []string
	running int
	most    int
}

func (h *host) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "get" && a.GetResource() == "nodes" && !h.hidden[a.GetName()] {
		return authorizer.DecisionAllow, "", nil
	}
	if a.GetVerb() == "get" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	h.mu.Lock()
	h.running++
	h.most = max(h.most, h.running)
	h.asked = append(h.asked, a.GetName())
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.running--
		h.mu.Unlock()
	}()
	wellAsked := a.GetVerb() == "delete" && a.GetResource() == "nodes" && a.GetAPIGroup() == "" && a.IsResourceRequest() && a.GetUser() == bob
	switch {
	case !wellAsked:
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("asked %v", a)
	case h.hangs[a.GetName()]:
		<-ctx.Done()
		return authorizer.DecisionNoOpinion, "", ctx.Err()
	case h.fails[a.GetName()]:
		return authorizer.DecisionNoOpinion, "", errors.New("the webhook is down")
	case h.allowed[a.GetName()]:
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// may returns an authorizer that allows bob to delete the nodes named; the empty name stands for
// all, unless asked by name.
func may(names ...string) *host {
	h := &host{allowed: map[string]bool{}, fails: map[string]bool{}, hidden: map[string]bool{}, hangs: map[string]bool{}}
	for _, name := range names {
		h.allowed[name] = true
	}
	return h
}

// fixture is a plugin over a cluster.
type fixture struct {
	t      *testing.T
	plugin *Plugin
	host   *host
}

func newFixture(t *testing.T, h *host, nodes []*corev1.Node, others ...*v1alpha1.NodeMaintenance) *fixture {
	t.Helper()
	host := kubeinformers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	own := informers.NewSharedInformerFactory(maintenancefake.NewClientset(), 0)
	plugin := New(Config{})
	server := &identity.Server{}
	server.Set(self)
	initializer.Initializer{Informers: own, Identity: server, Self: initializer.Self{NodeName: "home"}}.Initialize(plugin)
	plugin.SetExternalKubeInformerFactory(host)
	plugin.SetUnconditionalAuthorizer(h)
	if err := plugin.ValidateInitialization(); err != nil {
		t.Fatal(err)
	}
	// The stores are filled by hand: nothing runs that could be waited for.
	plugin.SetReadyFunc(func() bool { return true })
	for _, node := range nodes {
		if err := host.Core().V1().Nodes().Informer().GetStore().Add(node); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range others {
		if err := own.Maintenance().V1alpha1().NodeMaintenances().Informer().GetStore().Add(other); err != nil {
			t.Fatal(err)
		}
	}
	return &fixture{t: t, plugin: plugin, host: h}
}

// request is an admission request with its context.
type request struct {
	by          user.Info
	nm, old     *maintenance.NodeMaintenance
	subresource string
	resource    string
}

func (f *fixture) context(r request) (context.Context, *registrytest.Warnings) {
	ctx := registrytest.Request{User: r.by, Resource: "nodemaintenances", Subresource: r.subresource, Name: "a"}.Context(f.t.Context())
	return registrytest.WithWarnings(ctx)
}

func (f *fixture) validate(ctx context.Context, r request) error {
	operation := admission.Update
	var options runtime.Object = &metav1.UpdateOptions{}
	// A nil of the concrete type would not be a nil object.
	var nm, old runtime.Object
	if r.nm != nil {
		nm = r.nm
	} else {
		operation, options = admission.Delete, &metav1.DeleteOptions{}
	}
	if r.old != nil {
		old = r.old
	} else {
		operation, options = admission.Create, &metav1.CreateOptions{}
	}
	if r.resource == "" {
		r.resource = "nodemaintenances"
	}
	attributes := admission.NewAttributesRecord(nm, old, v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance"), "", "a",
		v1alpha1.SchemeGroupVersion.WithResource(r.resource), r.subresource, operation, options, false, r.by)
	if !f.plugin.Handles(operation) {
		f.t.Fatalf("%s is not handled", operation)
	}
	return f.plugin.Validate(ctx, attributes, nil)
}

func node(name, pool string, roles ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": pool}}}
	for _, role := range roles {
		n.Labels["node-role.kubernetes.io/"+role] = ""
	}
	return n
}

func pools(names ...string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn, Values: names}},
	}}}
}

func maintain(selector *corev1.NodeSelector, modifiers ...func(*maintenance.NodeMaintenance)) *maintenance.NodeMaintenance {
	nm := &maintenance.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       maintenance.NodeMaintenanceSpec{NodeSelector: selector, Stage: maintenance.NodeMaintenanceStageDrain},
	}
	for _, modify := range modifiers {
		modify(nm)
	}
	return nm
}

func atStage(stage maintenance.NodeMaintenanceStage) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) { nm.Spec.Stage = stage }
}

func holding(nodes ...string) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) {
		for _, name := range nodes {
			nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, maintenance.NodeMaintenanceNodeStatus{NodeRef: maintenance.NodeReference{Name: name}})
		}
	}
}

func finalizers(names ...string) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) { nm.Finalizers = names }
}

func ownedBy(name string) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) { nm.OwnerReferences = []metav1.OwnerReference{{Name: name}} }
}

func because(reason string) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) { nm.Spec.Reason = reason }
}

// twoPools has a node of a third pool that was created later than newest.
var twoPools = []*corev1.Node{node("blue-1", "blue"), node("blue-2", "blue"), node("red-1", "red"), created(node("new-1", "new"))}

func created(n *corev1.Node) *corev1.Node {
	n.CreationTimestamp = metav1.Unix(2000, 0)
	return n
}

func newest(nm *maintenance.NodeMaintenance) {
	nm.Status.NewestNodeTimestamp = &metav1.Time{Time: metav1.Unix(1000, 0).Time}
}

func joins(nm *maintenance.NodeMaintenance) { nm.Spec.NewNodes = maintenance.NewNodesPolicyJoin }

func TestAuthorization(t *testing.T) {
	for name, test := range map[string]struct {
		may     []string
		request request
		// refused are the nodes that the error names; nil means that there is none.
		refused []string
	}{
		"create over nodes that may be deleted":                     {[]string{"blue-1", "blue-2"}, request{by: bob, nm: maintain(pools("blue"))}, nil},
		"create over a node that may not":                           {[]string{"blue-1"}, request{by: bob, nm: maintain(pools("blue"))}, []string{"blue-2"}},
		"create in Idle is no less":                                 {[]string{"blue-1"}, request{by: bob, nm: maintain(pools("blue"), atStage("Idle"))}, []string{"blue-2"}},
		"create over no node":                                       {nil, request{by: bob, nm: maintain(pools("green"))}, nil},
		"delete":                                                    {[]string{"blue-1", "blue-2"}, request{by: bob, old: maintain(pools("blue"))}, nil},
		"delete over a node that may not":                           {[]string{"blue-1"}, request{by: bob, old: maintain(pools("blue"))}, []string{"blue-2"}},
		"delete of one that holds a node it does not select":        {[]string{"blue-1", "blue-2"}, request{by: bob, old: maintain(pools("blue"), holding("red-1"))}, []string{"red-1"}},
		"delete of one that holds a node that is gone":              {[]string{"blue-1", "blue-2"}, request{by: bob, old: maintain(pools("blue"), holding("gone"))}, []string{"gone"}},
		"narrow away a node that may not":                           {[]string{"blue-1", "blue-2"}, request{by: bob, nm: maintain(pools("blue")), old: maintain(pools("blue", "red"))}, []string{"red-1"}},
		"widen by a node that may not":                              {[]string{"blue-1", "blue-2"}, request{by: bob, nm: maintain(pools("blue", "red")), old: maintain(pools("blue"))}, []string{"red-1"}},
		"advance":                                                   {[]string{"blue-1"}, request{by: bob, nm: maintain(pools("blue")), old: maintain(pools("blue"), atStage("Cordon"))}, []string{"blue-2"}},
		"complete over a node that may not":                         {[]string{"blue-1"}, request{by: bob, nm: maintain(pools("blue"), atStage("Complete")), old: maintain(pools("blue"))}, []string{"blue-2"}},
		"complete with another selector":                            {[]string{"red-1"}, request{by: bob, nm: maintain(pools("red"), atStage("Complete")), old: maintain(pools("blue"))}, []string{"blue-1", "blue-2"}},
		"a new node that is ignored is not asked about":             {[]string{"blue-1", "blue-2"}, request{by: bob, nm: maintain(pools("blue", "new"), newest), old: maintain(pools("blue", "new"), newest, atStage("Cordon"))}, nil},
		"a new node that joins":                                     {[]string{"blue-1", "blue-2"}, request{by: bob, nm: maintain(pools("blue", "new"), newest, joins), old: maintain(pools("blue", "new"), newest)}, []string{"new-1"}},
		"a new node that has joined leaves":                         {[]string{"blue-1", "blue-2"}, request{by: bob, nm: maintain(pools("blue"), newest, holding("new-1")), old: maintain(pools("blue", "new"), newest, holding("new-1"))}, []string{"new-1"}},
		"another reason":                                            {nil, request{by: bob, nm: maintain(pools("red"), because("x")), old: maintain(pools("red"))}, []string{"red-1"}},
		"an owner, to have it collected":                            {nil, request{by: bob, nm: maintain(pools("red"), ownedBy("x")), old: maintain(pools("red"))}, []string{"red-1"}},
		"an owner taken away":                                       {nil, request{by: bob, nm: maintain(pools("red")), old: maintain(pools("red"), ownedBy("x"))}, []string{"red-1"}},
		"a finalizer":                                               {nil, request{by: bob, nm: maintain(pools("red"), finalizers("orphan")), old: maintain(pools("red"))}, []string{"red-1"}},
		"a label is free":                                           {nil, request{by: bob, nm: maintain(pools("red"), func(nm *maintenance.NodeMaintenance) { nm.Labels = map[string]string{"a": "b"} }), old: maintain(pools("red"))}, nil},
		"the server may all":                                        {nil, request{by: self, nm: maintain(pools("red"), atStage("Complete")), old: maintain(pools("red"))}, nil},
		"who bears its name may not":                                {nil, request{by: bob, nm: maintain(pools("red"), atStage("Complete")), old: maintain(pools("red"))}, []string{"red-1"}},
		"the garbage collector takes off its finalizer":             {nil, request{by: collector, nm: maintain(pools("red"), finalizers("x")), old: maintain(pools("red"), finalizers("orphan", "x"))}, nil},
		"the garbage collector takes off the other":                 {nil, request{by: collector, nm: maintain(pools("red"), finalizers()), old: maintain(pools("red"), finalizers("foregroundDeletion"))}, nil},
		"another kind":                                              {nil, request{by: bob, nm: maintain(pools("red")), resource: "evacuations"}, nil},
		"a subresource of later":                                    {nil, request{by: bob, nm: maintain(pools("red")), subresource: "preview"}, nil},
		"all nodes by the shortcut, as none is the control plane's": {[]string{"", "blue-1", "blue-2", "red-1"}, request{by: bob, nm: maintain(pools("blue", "red"))}, nil},
		"all nodes by the shortcut, but one denied by name":         {[]string{"", "blue-1", "red-1"}, request{by: bob, nm: maintain(pools("blue", "red"))}, []string{"blue-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may(test.may...), twoPools)
			ctx, _ := f.context(test.request)
			err := f.validate(ctx, test.request)
			if test.refused == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !apierrors.IsForbidden(err) {
				t.Fatalf("got %v, want forbidden", err)
			}
			if want := " of the nodes (" + strings.Join(test.refused, ", ") + ")"; !strings.Contains(err.Error(), want) {
				t.Errorf("the error is %q, want %q in it", err, want)
			}
		})
	}
}

func TestGarbageCollectorIsExemptForItsFinalizersAlone(t *testing.T) {
	old := maintain(pools("red"), finalizers("orphan", "x"), ownedBy("x"))
	for name, test := range map[string]struct {
		nm   *maintenance.NodeMaintenance
		want bool
	}{
		"its finalizer":                    {maintain(pools("red"), finalizers("x"), ownedBy("x")), true},
		"the finalizer of somebody else":   {maintain(pools("red"), finalizers("orphan"), ownedBy("x")), false},
		"both":                             {maintain(pools("red"), finalizers(), ownedBy("x")), false},
		"a finalizer more":                 {maintain(pools("red"), finalizers("x", "y"), ownedBy("x")), false},
		"its finalizer and the stage":      {maintain(pools("red"), finalizers("x"), ownedBy("x"), atStage("Complete")), false},
		"its finalizer and the owner":      {maintain(pools("red"), finalizers("x")), false},
		"its finalizer and the next of it": {maintain(pools("red"), finalizers("foregroundDeletion", "x"), ownedBy("x")), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isGarbageCollection(collector, test.nm, old); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
			if isGarbageCollection(bob, test.nm, old) {
				t.Error("bob is taken for the garbage collector")
			}
		})
	}
}

func TestStatusIsTheServersAlone(t *testing.T) {
	for name, test := range map[string]struct {
		by      user.Info
		allowed bool
	}{
		"the server":                  {self, true},
		"a user":                      {bob, false},
		"a cluster administrator":     {admin, false},
		"who bears the server's name": {sameName, false},
		"the garbage collector":       {collector, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may("", "red-1"), twoPools)
			r := request{by: test.by, nm: maintain(pools("red")), old: maintain(pools("red")), subresource: "status"}
			ctx, _ := f.context(r)
			if err := f.validate(ctx, r); apierrors.IsForbidden(err) == test.allowed {
				t.Errorf("got %v, want allowed %v", err, test.allowed)
			}
		})
	}
}

func TestNothingIsAdmittedBeforeTheNodesAreKnown(t *testing.T) {
	f := newFixture(t, may(""), twoPools)
	calls := 0
	f.plugin.SetReadyFunc(func() bool { calls++; return calls > 1 })
	r := request{by: bob, nm: maintain(pools("green"))}
	ctx, _ := f.context(r)
	if err := f.validate(ctx, r); err != nil || calls < 2 {
		t.Errorf("after %d calls: %v, want it to wait", calls, err)
	}
}

// manyNodes are n nodes of the pool blue, in order, and three of the control plane.
func manyNodes(n int) []*corev1.Node {
	nodes := []*corev1.Node{node("z-1", "blue", "control-plane"), node("z-2", "blue", "master"), node("z-3", "red", "control-plane")}
	for i := range n {
		nodes = append(nodes, node(fmt.Sprintf("n-%04d", i), "blue"))
	}
	return nodes
}

func allOf(nodes []*corev1.Node) []string {
	names := make([]string, len(nodes))
	for i := range nodes {
		names[i] = nodes[i].Name
	}
	return names
}

func TestQuestions(t *testing.T) {
	nodes := manyNodes(600)
	for name, test := range map[string]struct {
		host   *host
		byName bool
		// asked is how many questions there are at most; always lists some of them.
		least, most int
		always      []string
		err         func(error) bool
		more        bool
	}{
		"with the shortcut: itself, the control plane, a hundred others": {
			host: may(append(allOf(nodes), "")...), least: 103, most: 103, always: []string{"", "z-1", "z-2", "n-0000", "n-0099"},
		},
		"without the shortcut: itself, five hundred, the control plane first": {
			host: may(allOf(nodes)...), least: 501, most: 501, always: []string{"", "z-1", "z-2", "n-0000", "n-0497"},
		},
		"with the shortcut switched off": {
			host: may(append(allOf(nodes), "")...), byName: true, least: 500, most: 500, always: []string{"z-1", "z-2", "n-0497"},
		},
		"after ten refusals no more are asked": {
			host: may(), least: 11, most: 11 + noderights.AtOnce, err: apierrors.IsForbidden, more: true,
		},
		"a question without an answer is an error": {
			host: func() *host { h := may(allOf(nodes)...); h.fails["n-0005"] = true; return h }(), least: 2, most: 501, err: apierrors.IsInternalError,
		},
		"as is the first one": {
			host: func() *host { h := may(); h.fails[""] = true; return h }(), least: 1, most: 1, err: apierrors.IsInternalError,
		},
		"a refusal prevails over an error": {
			host: func() *host {
				h := may(allOf(nodes)...)
				h.allowed["z-1"] = false
				h.fails["n-0497"] = true
				return h
			}(), least: 2, most: 501, err: apierrors.IsForbidden, more: false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.host, nodes)
			f.plugin.config.AskEveryNodeByName = test.byName
			r := request{by: bob, nm: maintain(pools("blue"))}
			ctx, _ := f.context(r)
			err := f.validate(ctx, r)
			if test.err == nil && err != nil || test.err != nil && !test.err(err) {
				t.Fatalf("got %v", err)
			}
			if test.more && (!strings.Contains(err.Error(), "at least 10 of the nodes (") || strings.Count(err.Error(), ",") < refusalsAtMost) {
				t.Errorf("the error is %q, want ten names and that there are more", err)
			}
			if n := len(test.host.asked); n < test.least || n > test.most {
				t.Errorf("%d questions, want %d to %d", n, test.least, test.most)
			}
			for _, name := range test.always {
				if !slices.Contains(test.host.asked, name) {
					t.Errorf("%q was not asked", name)
				}
			}
			if test.host.most > noderights.AtOnce {
				t.Errorf("%d questions at a time", test.host.most)
			}
		})
	}
}

func TestAnEndedRequestIsNotAllowed(t *testing.T) {
	f := newFixture(t, may("", "blue-1", "blue-2"), twoPools)
	r := request{by: bob, nm: maintain(pools("blue"))}
	ctx, _ := f.context(r)
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if err := f.validate(ctx, r); err == nil {
		t.Error("it was allowed without being asked about")
	}
}

func TestRegister(t *testing.T) {
	plugins := admission.NewPlugins()
	config := &Config{}
	Register(plugins, config)
	config.AskEveryNodeByName = true
	made, err := plugins.InitPlugin(PluginName, nil, admission.PluginInitializers{})
	if err == nil {
		t.Error("a plugin that nobody has initialized is not refused")
	}
	if made != nil {
		t.Errorf("it is %v", made)
	}
	chain, err := plugins.NewFromPlugins([]string{PluginName}, noConfig{}, everything(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !chain.Handles(admission.Delete) || chain.Handles(admission.Connect) {
		t.Error("it does not handle what it should")
	}
}

type noConfig struct{}

func (noConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }

// initialize gives a plugin all it asks for, with the configuration asserted that flags have filled
// in.
type initialize struct{ t *testing.T }

func everything(t *testing.T) admission.PluginInitializer {
	t.Helper()
	return initialize{t}
}

func (i initialize) Initialize(plugin admission.Interface) {
	p := plugin.(*Plugin)
	if !p.config.AskEveryNodeByName {
		i.t.Error("the configuration was read before the flags")
	}
	p.SetExternalKubeInformerFactory(kubeinformers.NewSharedInformerFactory(kubefake.NewClientset(), 0))
	p.SetMaintenanceInformers(informers.NewSharedInformerFactory(maintenancefake.NewClientset(), 0))
	p.SetUnconditionalAuthorizer(may())
	p.SetServerIdentity(&identity.Server{})
}
