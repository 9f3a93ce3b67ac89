// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/identity"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

var (
	bob       = &user.DefaultInfo{Name: "bob"}
	admin     = &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}
	self      = &user.DefaultInfo{Name: "system:apiserver", UID: "random", Groups: []string{user.SystemPrivilegedGroup}}
	sameName  = &user.DefaultInfo{Name: "system:apiserver", Groups: []string{user.SystemPrivilegedGroup}}
	collector = &user.DefaultInfo{Name: identity.GarbageCollector}
)

// host is an authorizer that allows the deletion of the allowed nodes, and counts the access
// reviews.
type host struct {
	mu sync.Mutex
	// user is the user in the requests.
	user    *user.DefaultInfo
	allowed map[string]bool
	// hidden are the nodes that the user may not get.
	hidden map[string]bool
	// hangs has the nodes for which the authorizer does not respond before the request ends.
	hangs map[string]bool
	fails map[string]bool
	asked []string
	// maintains has the nodes and pools that the user may maintain: nodes/NAME and nodepools/NAME.
	// maintainAsked are the access reviews about this verb.
	maintains     []string
	maintainAsked []string
	running       int
	most          int
	// assigns has the classes of workers that the user may assign.
	assigns []string
}

func (h *host) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "get" && a.GetResource() == "nodes" && !h.hidden[a.GetName()] {
		return authorizer.DecisionAllow, "", nil
	}
	if a.GetVerb() == "get" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if a.GetVerb() == "maintain" && a.GetAPIGroup() == "maintenance.haulout.dev" && a.GetUser() == h.user {
		return h.maintain(a)
	}
	if a.GetVerb() == "assign" && a.GetResource() == "workers" {
		if slices.Contains(h.assigns, a.GetName()) {
			return authorizer.DecisionAllow, "", nil
		}
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
	isExpected := a.GetVerb() == "delete" && a.GetResource() == "nodes" && a.GetAPIGroup() == "" &&
		a.IsResourceRequest() && a.GetUser() == h.user
	switch {
	case !isExpected:
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("unexpected question %v", a)
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

// maintain answers access reviews about the verb maintain.
func (h *host) maintain(a authorizer.Attributes) (authorizer.Decision, string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	about := a.GetResource() + "/" + a.GetName()
	h.maintainAsked = append(h.maintainAsked, about)
	if slices.Contains(h.maintains, about) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// may returns an authorizer that allows bob to delete the named nodes. An empty name means all
// nodes.
func may(names ...string) *host {
	h := &host{
		user:    bob,
		allowed: map[string]bool{},
		fails:   map[string]bool{},
		hidden:  map[string]bool{},
		hangs:   map[string]bool{},
	}
	for _, name := range names {
		h.allowed[name] = true
	}
	return h
}

// fixture is a plugin whose caches have the nodes and maintenances of a cluster.
type fixture struct {
	t      *testing.T
	plugin *Plugin
	host   *host
}

func newFixture(t *testing.T, h *host, nodes []*corev1.Node, others ...*v1alpha1.NodeMaintenance) *fixture {
	t.Helper()
	host := kubeinformers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	own := informers.NewSharedInformerFactory(maintenancefake.NewClientset(), 0)
	plugin := New(rights.Rules{})
	server := &identity.Server{}
	server.Set(self)
	initializer.Dependencies{Informers: own, Identity: server, NodeName: "home"}.Initialize(plugin)
	plugin.SetExternalKubeInformerFactory(host)
	plugin.SetUnconditionalAuthorizer(h)
	must.Do(t, plugin.ValidateInitialization())
	// The tests fill the stores, and no informer runs that could report that it has synced.
	plugin.SetReadyFunc(func() bool { return true })
	for _, node := range nodes {
		must.Do(t, host.Core().V1().Nodes().Informer().GetStore().Add(node))
	}
	for _, other := range others {
		must.Do(t, own.Maintenance().V1alpha1().NodeMaintenances().Informer().GetStore().Add(other))
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
	ctx := registrytest.Request{
		User: r.by, Resource: "nodemaintenances", Subresource: r.subresource, Name: "a",
	}.Context(f.t.Context())
	return registrytest.WithWarnings(ctx)
}

func (f *fixture) validate(ctx context.Context, r request) error {
	operation := admission.Update
	var options runtime.Object = &metav1.UpdateOptions{}
	// Use variables of the interface type: an interface value with a nil pointer is not nil.
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
	attributes := admission.NewAttributesRecord(nm, old, v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance"), "",
		"a", v1alpha1.SchemeGroupVersion.WithResource(r.resource), r.subresource, operation, options, false, r.by)
	must.True(f.t, f.plugin.Handles(operation), "the plugin does not handle %s", operation)
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
	return build.Labelled("pool", names...)
}

func maintain(
	selector *corev1.NodeSelector, modifiers ...func(*maintenance.NodeMaintenance),
) *maintenance.NodeMaintenance {
	return build.With(&maintenance.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       maintenance.NodeMaintenanceSpec{NodeSelector: selector, Stage: maintenance.NodeMaintenanceStageDrain},
	}, modifiers...)
}

func atStage(stage maintenance.NodeMaintenanceStage) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) { nm.Spec.Stage = stage }
}

func holding(nodes ...string) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) {
		for _, name := range nodes {
			nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, maintenance.NodeMaintenanceNodeStatus{
				NodeRef: maintenance.NodeReference{Name: name},
			})
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

// twoPools has nodes of the pools blue and red, and one node of pool new, which was created after
// newest.
var twoPools = []*corev1.Node{
	node("blue-1", "blue"), node("blue-2", "blue"), node("red-1", "red"), created(node("new-1", "new")),
}

func created(n *corev1.Node) *corev1.Node {
	n.CreationTimestamp = metav1.Unix(2000, 0)
	return n
}

func newest(nm *maintenance.NodeMaintenance) {
	nm.Status.NewestNodeTimestamp = &metav1.Time{Time: metav1.Unix(1000, 0).Time}
}

func joins(nm *maintenance.NodeMaintenance) { nm.Spec.NewNodes = maintenance.NewNodesPolicyJoin }

// manyNodes returns n nodes of pool blue, sorted, and three control-plane nodes.
func manyNodes(n int) []*corev1.Node {
	nodes := []*corev1.Node{
		node("z-1", "blue", "control-plane"), node("z-2", "blue", "master"), node("z-3", "red", "control-plane"),
	}
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
