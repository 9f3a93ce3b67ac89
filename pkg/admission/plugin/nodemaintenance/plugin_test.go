// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/admission/noderights"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/identity"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestAuthorization(t *testing.T) {
	blue, red, first, second := []string{"blue-1", "blue-2"}, []string{"red-1"}, []string{"blue-1"}, []string{"blue-2"}
	ofBlue, ofRed := maintain(pools("blue")), maintain(pools("red"))
	for name, test := range map[string]struct {
		may []string
		// request is a request of bob unless it has another user.
		request request
		// refused are the nodes that the error names; nil if there is no error.
		refused []string
	}{
		"create with nodes that the user may delete":      {may: blue, request: request{nm: ofBlue}},
		"create with a node that the user may not delete": {may: first, request: request{nm: ofBlue}, refused: second},
		"create in stage Idle with a node that the user may not delete": {
			may: first, request: request{nm: maintain(pools("blue"), atStage("Idle"))}, refused: second,
		},
		"create without nodes":                            {request: request{nm: maintain(pools("green"))}},
		"delete with nodes that the user may delete":      {may: blue, request: request{old: ofBlue}},
		"delete with a node that the user may not delete": {may: first, request: request{old: ofBlue}, refused: second},
		"delete with a held node that the selector does not match": {
			may: blue, request: request{old: maintain(pools("blue"), holding("red-1"))}, refused: red,
		},
		"delete with a held node that does not exist": {
			may: blue, request: request{old: maintain(pools("blue"), holding("gone"))}, refused: []string{"gone"},
		},
		"remove a node that the user may not delete": {
			may: blue, request: request{nm: ofBlue, old: maintain(pools("blue", "red"))}, refused: red,
		},
		"add a node that the user may not delete": {
			may: blue, request: request{nm: maintain(pools("blue", "red")), old: ofBlue}, refused: red,
		},
		"drain a node that the user may not delete": {
			may: first, request: request{nm: ofBlue, old: maintain(pools("blue"), atStage("Cordon"))}, refused: second,
		},
		"complete with a node that the user may not delete": {
			may:     first,
			request: request{nm: maintain(pools("blue"), atStage("Complete")), old: ofBlue},
			refused: second,
		},
		"complete with a new selector": {
			may: red, request: request{nm: maintain(pools("red"), atStage("Complete")), old: ofBlue}, refused: blue,
		},
		"no access review about a new node that is ignored": {
			may: blue,
			request: request{
				nm:  maintain(pools("blue", "new"), newest),
				old: maintain(pools("blue", "new"), newest, atStage("Cordon")),
			},
		},
		"an access review about a new node that joins": {
			may: blue,
			request: request{
				nm: maintain(pools("blue", "new"), newest, joins), old: maintain(pools("blue", "new"), newest),
			},
			refused: []string{"new-1"},
		},
		"remove a new node that has joined": {
			may: blue,
			request: request{
				nm:  maintain(pools("blue"), newest, holding("new-1")),
				old: maintain(pools("blue", "new"), newest, holding("new-1")),
			},
			refused: []string{"new-1"},
		},
		"pause a drain of nodes that the user may delete":      {may: blue, request: request{nm: maintain(pools("blue"), paused), old: ofBlue}},
		"pause a drain of a node that the user may not delete": {may: first, request: request{nm: maintain(pools("blue"), paused), old: ofBlue}, refused: second},
		"resume a drain of a node that the user may not delete": {
			may: first, request: request{nm: ofBlue, old: maintain(pools("blue"), paused)}, refused: second,
		},
		"change the reason": {request: request{nm: maintain(pools("red"), because("x")), old: ofRed}, refused: red},
		"add an owner, so that the maintenance is garbage-collected": {
			request: request{nm: maintain(pools("red"), ownedBy("x")), old: ofRed}, refused: red,
		},
		"remove an owner": {request: request{nm: ofRed, old: maintain(pools("red"), ownedBy("x"))}, refused: red},
		"add a finalizer": {
			request: request{nm: maintain(pools("red"), finalizers("orphan")), old: ofRed}, refused: red,
		},
		"let a rollout take a node again": {
			request: request{
				nm: maintain(pools("red"), atStage("Complete"), holding("red-1"), func(nm *maintenance.NodeMaintenance) {
					nm.Annotations = map[string]string{v1alpha1.AnnotationRetried: "true"}
				}),
				old: maintain(pools("red"), atStage("Complete"), holding("red-1")),
			},
			refused: red,
		},
		"add a label, because of which a tool prunes it": {
			request: request{
				nm:  maintain(pools("red"), func(nm *maintenance.NodeMaintenance) { nm.Labels = map[string]string{"a": "b"} }),
				old: ofRed,
			},
			refused: red,
		},
		"add an annotation, because of which kubectl apply changes it": {
			request: request{
				nm:  maintain(pools("red"), func(nm *maintenance.NodeMaintenance) { nm.Annotations = map[string]string{"a": "b"} }),
				old: ofRed,
			},
			refused: red,
		},
		"complete by the server": {
			request: request{by: self, nm: maintain(pools("red"), atStage("Complete")), old: ofRed},
		},
		"complete by a user": {
			request: request{nm: maintain(pools("red"), atStage("Complete")), old: ofRed}, refused: red,
		},
		"remove the finalizer orphan by the garbage collector": {
			request: request{
				by: collector, nm: maintain(pools("red"), finalizers("x")),
				old: maintain(pools("red"), finalizers("orphan", "x")),
			},
		},
		"remove the finalizer foregroundDeletion by the garbage collector": {
			request: request{
				by: collector, nm: maintain(pools("red"), finalizers()),
				old: maintain(pools("red"), finalizers("foregroundDeletion")),
			},
		},
		"create another kind":    {request: request{nm: ofRed, resource: "evacuations"}},
		"an unknown subresource": {request: request{nm: ofRed, subresource: "preview"}},
		"the user may delete all nodes, none of the control plane": {
			may: []string{"", "blue-1", "blue-2", "red-1"}, request: request{nm: maintain(pools("blue", "red"))},
		},
		"the user may delete all nodes, but not one of them by name": {
			may: []string{"", "blue-1", "red-1"}, request: request{nm: maintain(pools("blue", "red"))}, refused: second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.request.by == nil {
				test.request.by = bob
			}
			f := newFixture(t, may(test.may...), twoPools)
			ctx, _ := f.context(test.request)
			err := f.validate(ctx, test.request)
			if test.refused == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			must.True(t, apierrors.IsForbidden(err), "got %v, want a Forbidden error", err)
			want := " of the nodes (" + strings.Join(test.refused, ", ") + ")"
			is.True(t, strings.Contains(err.Error(), want), "got error %q, want %q in it", err, want)
		})
	}
}

func TestGarbageCollectorMayOnlyRemoveItsFinalizers(t *testing.T) {
	old := maintain(pools("red"), finalizers("orphan", "x"), ownedBy("x"))
	for name, test := range map[string]struct {
		nm   *maintenance.NodeMaintenance
		want bool
	}{
		"removes its finalizer":                   {maintain(pools("red"), finalizers("x"), ownedBy("x")), true},
		"removes the finalizer of another client": {maintain(pools("red"), finalizers("orphan"), ownedBy("x")), false},
		"removes both":                            {maintain(pools("red"), finalizers(), ownedBy("x")), false},
		"replaces its finalizer":                  {maintain(pools("red"), finalizers("x", "y"), ownedBy("x")), false},
		"removes its finalizer and changes the stage": {
			nm: maintain(pools("red"), finalizers("x"), ownedBy("x"), atStage("Complete")),
		},
		"removes its finalizer and the owner": {maintain(pools("red"), finalizers("x")), false},
		"replaces its finalizer by foregroundDeletion": {
			nm: maintain(pools("red"), finalizers("foregroundDeletion", "x"), ownedBy("x")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, isGarbageCollection(collector, test.nm, old), test.want)
			is.True(t, !isGarbageCollection(bob, test.nm, old), "got true for user bob, want false")
		})
	}
}

func TestOnlyTheServerMayWriteTheStatus(t *testing.T) {
	for name, test := range map[string]struct {
		by      user.Info
		allowed bool
	}{
		"the server":                    {self, true},
		"a user":                        {bob, false},
		"a cluster administrator":       {admin, false},
		"a user with the server's name": {sameName, false},
		"the garbage collector":         {collector, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may("", "red-1"), twoPools)
			r := request{by: test.by, nm: maintain(pools("red")), old: maintain(pools("red")), subresource: "status"}
			ctx, _ := f.context(r)
			if err := f.validate(ctx, r); apierrors.IsForbidden(err) == test.allowed {
				t.Errorf("got %v, want allowed %t", err, test.allowed)
			}
		})
	}
}

func TestValidateWaitsForTheNodes(t *testing.T) {
	f := newFixture(t, may(""), twoPools)
	calls := 0
	f.plugin.SetReadyFunc(func() bool { calls++; return calls > 1 })
	r := request{by: bob, nm: maintain(pools("green"))}
	ctx, _ := f.context(r)
	if err := f.validate(ctx, r); err != nil || calls < 2 {
		t.Errorf("got %v after %d calls of the ready function, want no error after 2", err, calls)
	}
}

func TestQuestionsToTheAuthorizer(t *testing.T) {
	nodes := manyNodes(600)
	for name, test := range map[string]struct {
		host   *host
		byName bool
		// least and most are the limits for the number of access reviews; always has nodes that
		// must be among them.
		least, most int
		always      []string
		err         func(error) bool
		more        bool
	}{
		"the user may delete all nodes: access reviews for all, the control plane, and 100 other nodes": {
			host: may(append(allOf(nodes), "")...), least: 103, most: 103,
			always: []string{"", "z-1", "z-2", "n-0000", "n-0099"},
		},
		"the user may not delete all nodes: access reviews for all, and 500 nodes, the control plane first": {
			host: may(allOf(nodes)...), least: 501, most: 501, always: []string{"", "z-1", "z-2", "n-0000", "n-0497"},
		},
		"with EveryByName, no access review for all nodes": {
			host: may(append(allOf(nodes), "")...), byName: true, least: 500, most: 500,
			always: []string{"z-1", "z-2", "n-0497"},
		},
		"the checks stop after ten refusals": {
			host: may(), least: 11, most: 11 + rights.AtOnce, err: apierrors.IsForbidden, more: true,
		},
		"the authorizer fails for a node": {
			host: func() *host { h := may(allOf(nodes)...); h.fails["n-0005"] = true; return h }(), least: 2, most: 501,
			err: apierrors.IsInternalError,
		},
		"the authorizer fails for all nodes": {
			host: func() *host { h := may(); h.fails[""] = true; return h }(), least: 1, most: 1,
			err: apierrors.IsInternalError,
		},
		"a refusal takes precedence over an error": {
			host: func() *host {
				h := may(allOf(nodes)...)
				h.allowed["z-1"] = false
				h.fails["n-0497"] = true
				return h
			}(),
			least: 2, most: 501, err: apierrors.IsForbidden, more: false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, test.host, nodes)
			f.plugin.Rules.EveryByName = test.byName
			r := request{by: bob, nm: maintain(pools("blue"))}
			ctx, _ := f.context(r)
			err := f.validate(ctx, r)
			if test.err == nil && err != nil || test.err != nil && !test.err(err) {
				t.Fatalf("got %v", err)
			}
			if test.more &&
				(!strings.Contains(err.Error(), "at least 10 of the nodes (") ||
					strings.Count(err.Error(), ",") < noderights.RefusalsAtMost) {
				t.Errorf("got error %q, want ten names and \"at least\"", err)
			}
			if n := len(test.host.asked); n < test.least || n > test.most {
				t.Errorf("got %d questions, want %d to %d", n, test.least, test.most)
			}
			for _, name := range test.always {
				is.True(t, slices.Contains(test.host.asked, name), "no access review about %q", name)
			}
			if test.host.most > rights.AtOnce {
				t.Errorf("got %d concurrent questions, want at most %d", test.host.most, rights.AtOnce)
			}
		})
	}
}

func TestCancelledRequestIsNotAllowed(t *testing.T) {
	f := newFixture(t, may("", "blue-1", "blue-2"), twoPools)
	r := request{by: bob, nm: maintain(pools("blue"))}
	ctx, _ := f.context(r)
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if err := f.validate(ctx, r); err == nil {
		t.Error("got no error for a request whose context is cancelled")
	}
}

func TestRegister(t *testing.T) {
	plugins := admission.NewPlugins()
	rules := &rights.Rules{}
	Register(plugins, rules)
	rules.EveryByName = true
	plugin, err := plugins.InitPlugin(PluginName, nil, admission.PluginInitializers{})
	is.True(t, err != nil, "got no error for a plugin that was not initialized")
	is.True(t, plugin == nil, "got plugin %v, want none", plugin)
	chain := must.Get(plugins.NewFromPlugins([]string{PluginName}, noConfig{}, everything(t), nil))(t)
	if !chain.Handles(admission.Delete) || chain.Handles(admission.Connect) {
		t.Error("the plugin handles Connect, or does not handle Delete")
	}
}

type noConfig struct{}

func (noConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }

// initialize is a plugin initializer that sets all required fields, and checks that the
// configuration of the plugin has the values of the flags.
type initialize struct{ t *testing.T }

func everything(t *testing.T) admission.PluginInitializer {
	t.Helper()
	return initialize{t}
}

func (i initialize) Initialize(plugin admission.Interface) {
	p := plugin.(*Plugin)
	is.True(i.t, p.Rules.EveryByName, "the plugin has the rules from before the flags were parsed")
	p.SetExternalKubeInformerFactory(kubeinformers.NewSharedInformerFactory(kubefake.NewClientset(), 0))
	p.SetUnconditionalAuthorizer(may())
	p.SetDependencies(initializer.Dependencies{
		Informers: informers.NewSharedInformerFactory(maintenancefake.NewClientset(), 0), Identity: &identity.Server{},
	})
}

// TestReleaseOfNodesAmongManyOthers has a write that concerns hundreds of nodes that the user may
// delete, and releases three nodes that the user may not delete.
func TestReleaseOfNodesAmongManyOthers(t *testing.T) {
	nodes := []*corev1.Node{node("prod-0", "prod"), node("prod-1", "prod"), node("prod-2", "prod")}
	own := []string{}
	for i := range 600 {
		nodes = append(nodes, node(fmt.Sprintf("dev-%03d", i), "dev"))
		own = append(own, fmt.Sprintf("dev-%03d", i))
	}
	held := holding("prod-0", "prod-1", "prod-2")
	for name, r := range map[string]request{
		"a new selector": {nm: maintain(pools("dev"), held), old: maintain(pools("prod"), held)},
		"a new selector and stage Complete": {
			nm: maintain(pools("dev"), held, atStage("Complete")), old: maintain(pools("prod"), held),
		},
		"the deletion of a maintenance that holds both": {old: maintain(pools("dev", "prod"), held, holding(own...))},
	} {
		t.Run(name, func(t *testing.T) {
			r.by = bob
			f := newFixture(t, may(own...), nodes)
			ctx, _ := f.context(r)
			if err := f.validate(ctx, r); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "prod-2") {
				t.Errorf("got %v, want a Forbidden error that names prod-2", err)
			}
		})
	}
}

// TestReleaseOfManyNodes has a user who may delete each of 1,202 nodes by name, and releases them
// in one write.
func TestReleaseOfManyNodes(t *testing.T) {
	nodes := manyNodes(1200)
	f := newFixture(t, may(allOf(nodes)...), nodes)
	r := request{by: bob, old: maintain(pools("blue"))}
	ctx, _ := f.context(r)
	if err := f.validate(ctx, r); err != nil {
		t.Error(err)
	}
	if n := len(f.host.asked); n != 1203 {
		t.Errorf("got %d questions, want 1203: one for each of 1,202 nodes and one for all", n)
	}
}

func TestReleaseFailsBeforeTheRequestTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := may("blue-1")
		h.hangs["blue-2"] = true
		f := newFixture(t, h, twoPools)
		r := request{by: bob, old: maintain(pools("blue"))}
		ctx, _ := f.context(r)
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		err := f.validate(ctx, r)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "2 nodes to release") ||
			!strings.Contains(err.Error(), "in steps") {
			t.Errorf("got %v, want an error that the nodes are to be released in steps", err)
		}
		is.True(t, ctx.Err() == nil, "the request timed out before the response")
	})
}

func TestErrorsNameOnlyNodesThatTheUserMayGet(t *testing.T) {
	for name, test := range map[string]struct {
		hidden []string
		want   string
	}{
		"the user may get all nodes": {want: "may not maintain 2 of the nodes (blue-1, blue-2),"},
		"the user may get one node": {
			hidden: []string{"blue-1"}, want: "may not maintain 2 of the nodes (blue-2 and 1 that the user may not get),",
		},
		"the user may get no node": {hidden: []string{"blue-1", "blue-2"}, want: "may not maintain 2 of the nodes,"},
	} {
		t.Run(name, func(t *testing.T) {
			h := may()
			for _, node := range test.hidden {
				h.hidden[node] = true
			}
			f := newFixture(t, h, twoPools)
			r := request{by: bob, nm: maintain(pools("blue"))}
			ctx, _ := f.context(r)
			err := f.validate(ctx, r)
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q in it", err, test.want)
			}
			for _, node := range test.hidden {
				is.True(t, !strings.Contains(err.Error(), node), "got error %q, want it without the name of node %s", err, node)
			}
		})
	}
}

// TestDrainPlanIsRefusedIfTheStatusWouldBeTooLarge checks that the error has the number of nodes
// and the limit.
func TestDrainPlanIsRefusedIfTheStatusWouldBeTooLarge(t *testing.T) {
	nodes := manyNodes(5000)
	plan := func(own, length int) func(*maintenance.NodeMaintenance) {
		return func(nm *maintenance.NodeMaintenance) {
			for i := range own {
				nm.Spec.DrainPlan = append(nm.Spec.DrainPlan, maintenance.DrainPlanEntry{
					PodType: "Default",
					PodSelector: &metav1.LabelSelector{
						MatchLabels: map[string]string{fmt.Sprintf("app-%d", i): strings.Repeat("x", length)},
					},
				})
			}
		}
	}
	for name, test := range map[string]struct {
		request request
		want    bool
	}{
		"a plan of 441 KiB for 5,000 nodes": {
			request: request{nm: maintain(pools("blue"), plan(100, 4400))}, want: true,
		},
		"the same plan in stage Idle": {
			request: request{nm: maintain(pools("blue"), plan(100, 4400), atStage("Idle"))}, want: true,
		},
		"the same plan for one node": {request: request{nm: maintain(pools("red"), plan(100, 4400))}},
		"a new selector makes the status too large": {
			request: request{nm: maintain(pools("blue"), plan(100, 50)), old: maintain(pools("red"), plan(100, 50))},
			want:    true,
		},
		"the plan stays, and the reason changes": {
			request: request{
				nm: maintain(pools("blue"), plan(100, 50), because("x")), old: maintain(pools("blue"), plan(100, 50)),
			},
		},
		"the plan stays, and the maintenance is completed": {
			request: request{
				nm:  maintain(pools("blue"), plan(100, 50), atStage("Complete")),
				old: maintain(pools("blue"), plan(100, 50)),
			},
		},
		"a plan without entries for 5,000 nodes": {request: request{nm: maintain(pools("blue"))}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may(append(allOf(nodes), "")...), nodes)
			test.request.by = bob
			ctx, _ := f.context(test.request)
			err := f.validate(ctx, test.request)
			if !test.want {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.drainPlan") ||
				!strings.Contains(err.Error(), "for 5002 nodes") ||
				!strings.Contains(err.Error(), "at most 1024 KiB") || len(err.Error()) > 500 {
				t.Errorf("got %v, want a short error with the number of nodes and the limit", err)
			}
		})
	}
}

// TestMatchingOfALargeSelectorStopsWithTheRequest has an object that was stored before selectors
// had a limit: the matching stops when the request is cancelled.
func TestMatchingOfALargeSelectorStopsWithTheRequest(t *testing.T) {
	selector := &corev1.NodeSelector{}
	for i := range 26_000 {
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: fmt.Sprintf("k%d", i), Operator: corev1.NodeSelectorOpExists},
			}})
	}
	f := newFixture(t, may(""), manyNodes(100))
	r := request{by: bob, nm: maintain(selector)}
	ctx, _ := f.context(r)
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if err := f.validate(ctx, r); err == nil || len(f.host.asked) > 0 {
		t.Errorf("got %v after %d access reviews, want an error before the first one", err, len(f.host.asked))
	}
}
