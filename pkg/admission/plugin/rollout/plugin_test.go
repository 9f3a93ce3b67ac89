// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/identity"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const class = "reboot.example.com"

var (
	start = time.Date(2026, 11, 27, 8, 0, 0, 0, time.UTC)

	bob       = &user.DefaultInfo{Name: "bob"}
	self      = &user.DefaultInfo{Name: "system:apiserver", UID: "random"}
	collector = &user.DefaultInfo{Name: identity.GarbageCollector}
)

// grants is an authorizer that allows what is in it: "verb group/resource name".
type grants struct {
	mu      sync.Mutex
	allowed []string
	asked   []string
}

func (g *grants) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	about := fmt.Sprintf("%s %s/%s %s", a.GetVerb(), a.GetAPIGroup(), a.GetResource(), a.GetName())
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked = append(g.asked, about)
	if slices.Contains(g.allowed, about) && a.IsResourceRequest() {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// onNodes returns the grants for the workers and for the named nodes.
func onNodes(names ...string) *grants {
	g := &grants{allowed: []string{"assign maintenance.haulout.dev/workers " + class}}
	for _, name := range names {
		g.allowed = append(g.allowed, "delete /nodes "+name)
	}
	return g
}

type fixture struct {
	t            *testing.T
	plugin       *Plugin
	grants       *grants
	maintenances cache.Store
}

// The cluster has the nodes blue-1, blue-2 and red-1 of two zones.
func newFixture(t *testing.T, g *grants, others ...*v1alpha1.NodeMaintenanceRollout) *fixture {
	t.Helper()
	host := kubeinformers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	own := informers.NewSharedInformerFactory(maintenancefake.NewClientset(), 0)
	plugin := New(rights.Rules{})
	plugin.clock = testclock.NewFakePassiveClock(start)
	server := &identity.Server{}
	server.Set(self)
	initializer.Dependencies{Informers: own, Identity: server}.Initialize(plugin)
	plugin.SetExternalKubeInformerFactory(host)
	plugin.SetUnconditionalAuthorizer(g)
	must.Do(t, plugin.ValidateInitialization())
	// The tests fill the stores, and no informer runs that could report that it has synced.
	plugin.SetReadyFunc(func() bool { return true })
	for i, name := range []string{"blue-1", "blue-2", "red-1"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Labels: map[string]string{
			"pool": strings.TrimRight(name, "-12"), "zone": fmt.Sprintf("z%d", i),
		}}}
		node.Status.NodeInfo.KernelVersion = "6.11"
		must.Do(t, host.Core().V1().Nodes().Informer().GetStore().Add(node))
	}
	for _, other := range others {
		must.Do(t, own.Maintenance().V1alpha1().NodeMaintenanceRollouts().Informer().GetStore().Add(other))
	}
	return &fixture{t: t, plugin: plugin, grants: g, maintenances: own.Maintenance().V1alpha1().NodeMaintenances().Informer().GetStore()}
}

func (f *fixture) validate(u user.Info, rollout, old *maintenance.NodeMaintenanceRollout, subresource string) ([]string, error) {
	operation := admission.Update
	var options runtime.Object = &metav1.UpdateOptions{}
	// Use variables of the interface type: an interface value with a nil pointer is not nil.
	var now, before runtime.Object
	if rollout != nil {
		now = rollout
	} else {
		operation, options = admission.Delete, &metav1.DeleteOptions{}
	}
	if old != nil {
		before = old
	} else {
		operation, options = admission.Create, &metav1.CreateOptions{}
	}
	attributes := admission.NewAttributesRecord(now, before, v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenanceRollout"), "", "a",
		v1alpha1.SchemeGroupVersion.WithResource("nodemaintenancerollouts"), subresource, operation, options, false, u)
	ctx, warnings := registrytest.WithWarnings(registrytest.Request{User: u, Resource: "nodemaintenancerollouts", Name: "a"}.Context(f.t.Context()))
	must.True(f.t, f.plugin.Handles(operation), "the plugin does not handle %s", operation)
	err := f.plugin.Validate(ctx, attributes, nil)
	return warnings.Texts(), err
}

// expect checks the result; want is a part of the error, "" if the write is admitted.
func (f *fixture) expect(rollout, old *maintenance.NodeMaintenanceRollout, want string) {
	f.t.Helper()
	_, err := f.validate(bob, rollout, old, "")
	switch {
	case want == "" && err != nil, want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want)):
		f.t.Errorf("got %v, want %q", err, want)
	}
}

type modifier = func(*maintenance.NodeMaintenanceRollout)

// roll returns a rollout over pools.
func roll(pools []string, modifiers ...modifier) *maintenance.NodeMaintenanceRollout {
	return build.With(&maintenance.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: maintenance.NodeMaintenanceRolloutSpec{
			Stage: maintenance.RolloutStageRoll, NodeSelector: build.Labelled("pool", pools...),
			Limits:   []maintenance.RolloutLimit{{MaxUnavailable: ptr.To(intstr.FromInt32(1))}},
			Template: maintenance.RolloutTemplate{Task: &maintenance.NodeMaintenanceTask{Worker: class}},
		},
	}, modifiers...)
}

func at(stage maintenance.RolloutStage) modifier {
	return func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Stage = stage }
}

func hold(name, by, reason string) modifier {
	return func(r *maintenance.NodeMaintenanceRollout) {
		r.Spec.Holds = append(r.Spec.Holds, maintenance.RolloutHold{Name: name, By: by, Reason: reason, Stops: "Starts"})
	}
}

func by(name string) modifier {
	return func(r *maintenance.NodeMaintenanceRollout) {
		r.Spec.RequestedBy = &authenticationv1.UserInfo{Username: name}
	}
}

func running(nodes ...string) modifier {
	return func(r *maintenance.NodeMaintenanceRollout) {
		for _, name := range nodes {
			r.Status.Current = append(r.Status.Current, maintenance.RolloutUnit{Unit: name, Nodes: []maintenance.NodeReference{{Name: name, UID: "u"}}})
		}
	}
}

var blue, red = []string{"blue"}, []string{"red"}

func TestRightToNodes(t *testing.T) {
	const refused = "user \"bob\" may not maintain"
	for name, test := range map[string]struct {
		granted      []string
		rollout, old *maintenance.NodeMaintenanceRollout
		want         string
	}{
		"a new rollout":                   {[]string{"blue-1", "blue-2"}, roll(blue), nil, ""},
		"a new rollout, one node short":   {[]string{"blue-1"}, roll(blue), nil, refused + " 1 of the nodes"},
		"an idle rollout":                 {[]string{"blue-1"}, roll(blue, at("Idle")), nil, refused},
		"a limit":                         {nil, roll(blue, func(r *maintenance.NodeMaintenanceRollout) { r.Spec.MaxFailed = 1 }), roll(blue), refused},
		"a label":                         {nil, roll(blue, func(r *maintenance.NodeMaintenanceRollout) { r.Labels = map[string]string{"a": "b"} }), roll(blue), refused},
		"an owner":                        {nil, roll(blue, func(r *maintenance.NodeMaintenanceRollout) { r.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} }), roll(blue), refused},
		"a finalizer":                     {nil, roll(blue, func(r *maintenance.NodeMaintenanceRollout) { r.Finalizers = []string{"x/y"} }), roll(blue), refused},
		"nothing":                         {nil, roll(blue), roll(blue), ""},
		"the nodes of the old selector":   {[]string{"red-1"}, roll(red), roll(blue), refused},
		"the nodes of the new selector":   {[]string{"blue-1", "blue-2"}, roll(red), roll(blue), refused},
		"both selectors":                  {[]string{"blue-1", "blue-2", "red-1"}, roll(red), roll(blue), ""},
		"nodes that run, and match none":  {[]string{"blue-1", "blue-2"}, roll(blue, at("Complete")), roll(blue, running("red-1")), refused},
		"to stop":                         {[]string{"blue-1", "blue-2", "red-1"}, roll(blue, at("Complete")), roll(blue, running("red-1")), ""},
		"to stop and to change the nodes": {[]string{"blue-1", "blue-2"}, roll(red, at("Complete")), roll(blue), refused},
		"to delete":                       {[]string{"blue-1", "blue-2"}, nil, roll(blue, running("red-1")), refused},
		"to delete with the right":        {[]string{"blue-1", "blue-2", "red-1"}, nil, roll(blue, running("red-1")), ""},
		"the requester stops":             {nil, roll(blue, at("Complete")), roll(blue, by("bob")), ""},
		"the requester deletes":           {nil, nil, roll(blue, by("bob")), ""},
		"the requester narrows":           {[]string{"red-1"}, roll(red), roll([]string{"blue", "red"}, by("bob")), ""},
		"the requester, nodes that run":   {[]string{"blue-1"}, nil, roll(blue, by("bob"), running("red-1")), refused + " 1 of the nodes"},
		"the requester, of other nodes":   {[]string{"blue-1", "blue-2"}, roll([]string{"blue", "red"}), roll(blue, by("bob")), refused + " 1 of the nodes"},
		"the requester changes the plan":  {[]string{"blue-1"}, roll(blue, at("Idle")), roll(blue, by("bob")), refused + " 1 of the nodes"},
		"another user stops":              {[]string{"blue-1"}, roll(blue, at("Complete")), roll(blue, by("ann")), refused + " 1 of the nodes"},
		"a unit whose node is gone":       {[]string{"blue-1", "blue-2"}, nil, roll(blue, running("gone-1")), refused},
	} {
		t.Run(name, func(t *testing.T) { newFixture(t, onNodes(test.granted...)).expect(test.rollout, test.old, test.want) })
	}
	t.Run("the text of the error", func(t *testing.T) {
		g := onNodes()
		g.allowed = append(g.allowed, "get /nodes blue-1")
		newFixture(t, g).expect(roll(blue), nil, `user "bob" may not maintain 2 of the nodes (blue-1 and 1 that the user may not get), and so may not roll a maintenance over them; for each node`)
	})
}

// TestPoolOfAUnit has the operator of pool blue, and a unit whose node was in this pool when its
// maintenance took it.
func TestPoolOfAUnit(t *testing.T) {
	unitOf := func(node string, uid types.UID) modifier {
		return func(r *maintenance.NodeMaintenanceRollout) {
			r.UID = "uid-a"
			r.Status.Current = []maintenance.RolloutUnit{{Unit: node, Maintenance: "a-1", Nodes: []maintenance.NodeReference{{Name: node, UID: uid}}}}
		}
	}
	all := []string{"blue", "red"}
	maxFailed := func(r *maintenance.NodeMaintenanceRollout) { r.Spec.MaxFailed = 1 }
	for name, test := range map[string]struct {
		rollout, old *maintenance.NodeMaintenanceRollout
		change       func(*v1alpha1.NodeMaintenance)
		want         string
	}{
		"it is gone, to delete":            {nil, roll(blue, unitOf("gone-1", "u")), nil, ""},
		"it is gone, to stop":              {roll(blue, unitOf("gone-1", "u"), at("Complete")), roll(blue, unitOf("gone-1", "u")), nil, ""},
		"it is gone, to change a limit":    {roll(blue, unitOf("gone-1", "u"), maxFailed), roll(blue, unitOf("gone-1", "u")), nil, ""},
		"it has left the pool":             {nil, roll(blue, unitOf("red-1", "u")), nil, ""},
		"it has left the pool, and stays":  {roll(all, unitOf("red-1", "u"), maxFailed), roll(all, unitOf("red-1", "u")), nil, "may not maintain 1 of the nodes"},
		"it is a new node of the name":     {nil, roll(blue, unitOf("red-1", "earlier")), nil, "may not maintain 1 of the nodes"},
		"it was not taken through a pool":  {nil, roll(blue, unitOf("gone-1", "u")), func(nm *v1alpha1.NodeMaintenance) { nm.Status.NodeStatuses[0].PoolIndex = nil }, "may not maintain 1 of the nodes"},
		"another user has the maintenance": {nil, roll(blue, unitOf("gone-1", "u")), func(nm *v1alpha1.NodeMaintenance) { nm.OwnerReferences = nil }, "may not maintain 1 of the nodes"},
		"another user has set the owner":   {nil, roll(blue, unitOf("gone-1", "u")), func(nm *v1alpha1.NodeMaintenance) { nm.Labels = nil }, "may not maintain 1 of the nodes"},
		"its maintenance does not exist":   {nil, roll(blue, unitOf("gone-1", "u")), func(nm *v1alpha1.NodeMaintenance) { nm.Name = "other" }, "may not maintain 1 of the nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			g := onNodes()
			g.allowed = append(g.allowed, "maintain maintenance.haulout.dev/nodepools blue")
			f := newFixture(t, g)
			f.plugin.Rules = rights.Rules{PoolLabel: "pool"}
			ref := test.old.Status.Current[0].Nodes[0]
			nm := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{
				Name: "a-1", Labels: map[string]string{v1alpha1.LabelRollout: "a"},
				OwnerReferences: build.Owner("maintenance.haulout.dev/v1alpha1", "NodeMaintenanceRollout", "a", "uid-a"),
			}}
			nm.Status.Pools = []string{"blue"}
			nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: ref.Name, UID: ref.UID}, PoolIndex: ptr.To(int32(0))}}
			if test.change != nil {
				test.change(nm)
			}
			must.Do(t, f.maintenances.Add(nm))
			f.expect(test.rollout, test.old, test.want)
		})
	}
}

func TestRightToWorkers(t *testing.T) {
	const refused = `user "bob" cannot assign workers "` + class + `"`
	all := []string{"blue-1", "blue-2"}
	for name, test := range map[string]struct {
		rollout, old *maintenance.NodeMaintenanceRollout
		want         string
	}{
		"a new rollout":     {roll(blue), nil, refused},
		"the next stage":    {roll(blue), roll(blue, at("Idle")), refused},
		"a hold":            {roll(blue, hold("x", "bob", "")), roll(blue), ""},
		"to stop":           {roll(blue, at("Complete")), roll(blue), ""},
		"to delete":         {nil, roll(blue), ""},
		"of another's hold": {roll(blue), roll(blue, hold("x", "ann", "")), "changing or removing it needs the right to maintain the nodes of the rollout and to assign its workers"},
	} {
		t.Run(name, func(t *testing.T) {
			g := onNodes(all...)
			g.allowed = g.allowed[1:]
			newFixture(t, g).expect(test.rollout, test.old, test.want)
		})
	}
}

// holds returns holds of a user.
func holds(by string, count int) modifier {
	return func(r *maintenance.NodeMaintenanceRollout) {
		for i := range count {
			hold(fmt.Sprintf("%s-%d", by, i), by, "")(r)
		}
	}
}

// TestHolds has a user who may patch rollouts, and nothing else.
func TestHolds(t *testing.T) {
	for name, test := range map[string]struct {
		rollout, old *maintenance.NodeMaintenanceRollout
		want         string
	}{
		"add one":                   {roll(blue, hold("x", "bob", "")), roll(blue), ""},
		"add one to another's":      {roll(blue, hold("ceph", "ann", "r"), hold("x", "bob", "")), roll(blue, hold("ceph", "ann", "r")), ""},
		"change one's own":          {roll(blue, hold("x", "bob", "new")), roll(blue, hold("x", "bob", "old")), ""},
		"remove one's own":          {roll(blue), roll(blue, hold("x", "bob", "")), ""},
		"remove another's":          {roll(blue), roll(blue, hold("ceph", "ann", "r")), `spec.holds[ceph]: was added by user "ann"; changing or removing it needs the right to maintain the nodes of the rollout and to assign its workers`},
		"change another's":          {roll(blue, hold("ceph", "bob", "s")), roll(blue, hold("ceph", "ann", "r")), `spec.holds[ceph]: was added by user "ann"; changing or removing it needs`},
		"remove one of nobody":      {roll(blue), roll(blue, hold("x", "", "")), `was added by user "unknown"`},
		"add the last of one's own": {roll(blue, holds("bob", 4), hold("x", "ann", "")), roll(blue, holds("bob", 3), hold("x", "ann", "")), ""},
		"add one too many":          {roll(blue, holds("bob", 5)), roll(blue, holds("bob", 4)), "spec.holds: a user who may not maintain the nodes of the rollout and assign its workers can have at most 4 holds"},
		"add one to many others":    {roll(blue, holds("ann", 9), hold("x", "bob", "")), roll(blue, holds("ann", 9)), ""},
		"remove one of too many":    {roll(blue, holds("bob", 5)), roll(blue, holds("bob", 6)), ""},
		"with a label":              {roll(blue, hold("x", "bob", ""), func(r *maintenance.NodeMaintenanceRollout) { r.Labels = map[string]string{"a": "b"} }), roll(blue), "may not maintain"},
		"with a limit":              {roll(blue, hold("x", "bob", ""), func(r *maintenance.NodeMaintenanceRollout) { r.Spec.MaxFailed = 9 }), roll(blue), "may not maintain"},
		"with the end":              {roll(blue, hold("x", "bob", ""), at("Complete")), roll(blue), "may not maintain"},
		"in a new rollout":          {roll(blue, hold("x", "bob", "")), nil, "may not maintain"},
		"in a rollout over no node": {roll([]string{"green"}, hold("x", "bob", ""), func(r *maintenance.NodeMaintenanceRollout) { r.Spec.MaxFailed = 9 }), roll([]string{"green"}), "cannot assign workers"},
	} {
		t.Run(name, func(t *testing.T) { newFixture(t, &grants{}).expect(test.rollout, test.old, test.want) })
	}
	t.Run("the full right removes another's", func(t *testing.T) {
		newFixture(t, onNodes("blue-1", "blue-2")).expect(roll(blue), roll(blue, hold("ceph", "ann", "r")), "")
		newFixture(t, onNodes("blue-1", "blue-2")).expect(roll(blue, holds("bob", 5)), roll(blue, holds("bob", 4)), "")
	})
	t.Run("the right to the nodes alone does not", func(t *testing.T) {
		g := onNodes("blue-1", "blue-2")
		g.allowed = g.allowed[1:]
		newFixture(t, g).expect(roll(blue), roll(blue, hold("ceph", "ann", "r")), `spec.holds[ceph]: was added by user "ann"`)
		newFixture(t, g).expect(roll(blue, holds("bob", 5)), roll(blue, holds("bob", 4)), "can have at most 4 holds")
	})
}

func TestOtherUsers(t *testing.T) {
	f := newFixture(t, &grants{})
	_, err := f.validate(bob, roll(blue, running("red-1")), roll(blue), "status")
	is.True(t, apierrors.IsForbidden(err) && strings.Contains(err.Error(), "only the Haulout server may write it"), "a user writes the status: %v", err)
	_, err = f.validate(self, roll(blue, running("red-1")), roll(blue), "status")
	is.True(t, err == nil, "the server writes the status: %v", err)
	_, err = f.validate(self, roll(blue), nil, "")
	is.True(t, err == nil && len(f.grants.asked) == 0, "the server writes: %v, after %q", err, f.grants.asked)

	deleting := func(finalizers ...string) modifier {
		return func(r *maintenance.NodeMaintenanceRollout) { r.Finalizers = finalizers }
	}
	_, err = f.validate(collector, roll(blue, deleting("x/y")), roll(blue, deleting("foregroundDeletion", "x/y")), "")
	is.True(t, err == nil, "the garbage collector removes its finalizer: %v", err)
	_, err = f.validate(collector, roll(blue, deleting()), roll(blue, deleting("foregroundDeletion", "x/y")), "")
	is.True(t, apierrors.IsForbidden(err), "the garbage collector removes another finalizer: %v", err)
}

func TestWarnings(t *testing.T) {
	rolloutOver := func(name string, stage v1alpha1.RolloutStage, pools ...string) *v1alpha1.NodeMaintenanceRollout {
		return &v1alpha1.NodeMaintenanceRollout{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeMaintenanceRolloutSpec{Stage: stage, NodeSelector: build.Labelled("pool", pools...)},
		}
	}
	doneWhen := func(expression string) modifier {
		return func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Template.Task.DoneWhen = expression }
	}
	worker := func(class, parameter string) modifier {
		return func(r *maintenance.NodeMaintenanceRollout) {
			r.Spec.Template.Task.Worker, r.Spec.Template.Task.Parameters = class+".maintenance.haulout.dev", map[string]string{parameter: "x"}
		}
	}
	window := func(w maintenance.RolloutWindow) modifier {
		w.Duration = metav1.Duration{Duration: time.Hour}
		return func(r *maintenance.NodeMaintenanceRollout) { r.Spec.Windows = []maintenance.RolloutWindow{w} }
	}
	g := onNodes("blue-1", "blue-2", "red-1")
	for _, class := range []string{"reboot", "reboots", "person", "a.job"} {
		g.allowed = append(g.allowed, "assign maintenance.haulout.dev/workers "+class+".maintenance.haulout.dev")
	}
	f := newFixture(t, g, rolloutOver("old", "Complete", "blue"), rolloutOver("other", "Idle", "blue", "red"), rolloutOver("a", "Roll", "blue"))
	others := "spec.nodeSelector: nodes are also in the rollouts other"
	for name, test := range map[string]struct {
		rollout, old *maintenance.NodeMaintenanceRollout
		want         []string
	}{
		"other rollouts": {roll(blue), nil, []string{others}},
		"no node":        {roll([]string{"green"}), nil, []string{"spec.nodeSelector: no node matches now; nodes that match later join the rollout"}},
		"all nodes":      {roll([]string{"blue", "red"}), nil, []string{"spec.nodeSelector: all nodes of the cluster match (3)", others}},
		"no unit fits": {roll(blue, func(r *maintenance.NodeMaintenanceRollout) { r.Spec.UnitKey = "pool" }), nil,
			[]string{"spec.limits: no unit fits: unit blue: it has 2 nodes; limits[0] allows 1", others}},
		"a rack over two zones": {roll(blue, func(r *maintenance.NodeMaintenanceRollout) {
			r.Spec.UnitKey, r.Spec.Limits = "pool", []maintenance.RolloutLimit{{MaxDomains: ptr.To[int32](1), TopologyKey: "zone"}}
		}), nil, []string{"spec.limits: no unit fits: unit blue: it has nodes in 2 domains of zone; limits[0] allows 1", others}},
		"misspelt labels": {roll([]string{"blue"}, func(r *maintenance.NodeMaintenanceRollout) {
			r.Spec.UnitKey, r.Spec.Limits = "rak", []maintenance.RolloutLimit{{MaxUnavailable: ptr.To(intstr.FromInt32(1))}, {MaxDomains: ptr.To[int32](1), TopologyKey: "zones"}}
		}), nil, []string{"spec.limits[1].topologyKey: 2 of 2 matching nodes have no label zones; they count as one domain",
			"spec.unitKey: no matching node has the label rak; each is a unit of its own", others}},
		"a misspelt field": {roll(blue, doneWhen("node.status.nodeInfo.kernalVersion == '6.12'")), nil,
			[]string{"spec.template.task.doneWhen: fails on node blue-1, which counts as false: no such key: kernalVersion", others}},
		"a field that exists":     {roll(blue, doneWhen("node.status.nodeInfo.kernelVersion == '6.12'")), nil, []string{others}},
		"a window in the past":    {roll(blue, window(maintenance.RolloutWindow{Start: &metav1.Time{Time: start.Add(-2 * time.Hour)}})), nil, []string{"spec.windows: no window opens any more", others}},
		"a day that never comes":  {roll(blue, window(maintenance.RolloutWindow{Schedule: "0 0 31 2 *"})), nil, []string{"spec.windows: no window opens any more", others}},
		"a window in the future":  {roll(blue, window(maintenance.RolloutWindow{Schedule: "0 22 * * *"})), nil, []string{others}},
		"the worker that reboots": {roll(blue, worker("reboot", "a-b")), nil, []string{others}},
		"a person":                {roll(blue, worker("person", "a-b")), nil, []string{others}},
		"a Job":                   {roll(blue, worker("a.job", "a_b")), nil, []string{others}},
		"a class that does not exist": {roll(blue, worker("reboots", "a")), nil,
			[]string{"spec.template.task.worker: Haulout has no class reboots.maintenance.haulout.dev; it has reboot, person and NAME.job", others}},
		"a parameter that is no variable": {roll(blue, worker("a.job", "a-b")), nil,
			[]string{`spec.template.task.parameters: "a-b" must consist of letters, digits and underscores, and not begin with a digit`, others}},
		"a hold":  {roll(blue, hold("x", "bob", "")), roll(blue), nil},
		"the end": {roll(blue, at("Complete")), roll(blue), nil},
	} {
		got, err := f.validate(bob, test.rollout, test.old, "")
		is.True(t, err == nil, "%s: %v", name, err)
		is.Slices(t, got, test.want, name)
	}
}
