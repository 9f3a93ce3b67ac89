// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	kubeinformers "k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/apis/maintenance"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/host/noderights"
	"haulout.dev/haulout/pkg/identity"
)

func TestAuthorization(t *testing.T) {
	for name, test := range map[string]struct {
		may     []string
		request request
		// refused are the nodes that the error names; nil if there is no error.
		refused []string
	}{
		"create with nodes that the user may delete": {
			may: []string{"blue-1", "blue-2"}, request: request{by: bob, nm: maintain(pools("blue"))},
		},
		"create with a node that the user may not delete": {
			may: []string{"blue-1"}, request: request{by: bob, nm: maintain(pools("blue"))},
			refused: []string{"blue-2"},
		},
		"create in stage Idle with a node that the user may not delete": {
			may: []string{"blue-1"}, request: request{by: bob, nm: maintain(pools("blue"), atStage("Idle"))},
			refused: []string{"blue-2"},
		},
		"create without nodes": {request: request{by: bob, nm: maintain(pools("green"))}},
		"delete with nodes that the user may delete": {
			may: []string{"blue-1", "blue-2"}, request: request{by: bob, old: maintain(pools("blue"))},
		},
		"delete with a node that the user may not delete": {
			may: []string{"blue-1"}, request: request{by: bob, old: maintain(pools("blue"))},
			refused: []string{"blue-2"},
		},
		"delete with a held node that the selector does not match": {
			may:     []string{"blue-1", "blue-2"},
			request: request{by: bob, old: maintain(pools("blue"), holding("red-1"))}, refused: []string{"red-1"},
		},
		"delete with a held node that does not exist": {
			may: []string{"blue-1", "blue-2"}, request: request{by: bob, old: maintain(pools("blue"), holding("gone"))},
			refused: []string{"gone"},
		},
		"remove a node that the user may not delete": {
			may:     []string{"blue-1", "blue-2"},
			request: request{by: bob, nm: maintain(pools("blue")), old: maintain(pools("blue", "red"))},
			refused: []string{"red-1"},
		},
		"add a node that the user may not delete": {
			may:     []string{"blue-1", "blue-2"},
			request: request{by: bob, nm: maintain(pools("blue", "red")), old: maintain(pools("blue"))},
			refused: []string{"red-1"},
		},
		"drain a node that the user may not delete": {
			may:     []string{"blue-1"},
			request: request{by: bob, nm: maintain(pools("blue")), old: maintain(pools("blue"), atStage("Cordon"))},
			refused: []string{"blue-2"},
		},
		"complete with a node that the user may not delete": {
			may:     []string{"blue-1"},
			request: request{by: bob, nm: maintain(pools("blue"), atStage("Complete")), old: maintain(pools("blue"))},
			refused: []string{"blue-2"},
		},
		"complete with a new selector": {
			may:     []string{"red-1"},
			request: request{by: bob, nm: maintain(pools("red"), atStage("Complete")), old: maintain(pools("blue"))},
			refused: []string{"blue-1", "blue-2"},
		},
		"the authorizer is not asked about a new node that is ignored": {
			may: []string{"blue-1", "blue-2"},
			request: request{
				by: bob, nm: maintain(pools("blue", "new"), newest),
				old: maintain(pools("blue", "new"), newest, atStage("Cordon")),
			},
		},
		"the authorizer is asked about a new node that joins": {
			may: []string{"blue-1", "blue-2"},
			request: request{
				by: bob, nm: maintain(pools("blue", "new"), newest, joins), old: maintain(pools("blue", "new"), newest),
			},
			refused: []string{"new-1"},
		},
		"remove a new node that has joined": {
			may: []string{"blue-1", "blue-2"},
			request: request{
				by: bob, nm: maintain(pools("blue"), newest, holding("new-1")),
				old: maintain(pools("blue", "new"), newest, holding("new-1")),
			},
			refused: []string{"new-1"},
		},
		"change the reason": {
			request: request{by: bob, nm: maintain(pools("red"), because("x")), old: maintain(pools("red"))},
			refused: []string{"red-1"},
		},
		"add an owner, so that the maintenance is garbage-collected": {
			request: request{by: bob, nm: maintain(pools("red"), ownedBy("x")), old: maintain(pools("red"))},
			refused: []string{"red-1"},
		},
		"remove an owner": {
			request: request{by: bob, nm: maintain(pools("red")), old: maintain(pools("red"), ownedBy("x"))},
			refused: []string{"red-1"},
		},
		"add a finalizer": {
			request: request{by: bob, nm: maintain(pools("red"), finalizers("orphan")), old: maintain(pools("red"))},
			refused: []string{"red-1"},
		},
		"add a label": {
			request: request{
				by: bob,
				nm: maintain(pools("red"),
					func(nm *maintenance.NodeMaintenance) { nm.Labels = map[string]string{"a": "b"} }),
				old: maintain(pools("red")),
			},
		},
		"complete by the server": {
			request: request{by: self, nm: maintain(pools("red"), atStage("Complete")), old: maintain(pools("red"))},
		},
		"complete by a user": {
			request: request{by: bob, nm: maintain(pools("red"), atStage("Complete")), old: maintain(pools("red"))},
			refused: []string{"red-1"},
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
		"create another kind":    {request: request{by: bob, nm: maintain(pools("red")), resource: "evacuations"}},
		"an unknown subresource": {request: request{by: bob, nm: maintain(pools("red")), subresource: "preview"}},
		"the user may delete all nodes, none of the control plane": {
			may:     []string{"", "blue-1", "blue-2", "red-1"},
			request: request{by: bob, nm: maintain(pools("blue", "red"))},
		},
		"the user may delete all nodes, but not one of them by name": {
			may: []string{"", "blue-1", "red-1"}, request: request{by: bob, nm: maintain(pools("blue", "red"))},
			refused: []string{"blue-2"},
		},
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
				t.Fatalf("got %v, want a Forbidden error", err)
			}
			want := " of the nodes (" + strings.Join(test.refused, ", ") + ")"
			if !strings.Contains(err.Error(), want) {
				t.Errorf("got error %q, want %q in it", err, want)
			}
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
			if got := isGarbageCollection(collector, test.nm, old); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
			if isGarbageCollection(bob, test.nm, old) {
				t.Error("got true for user bob, want false")
			}
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
		// least and most limit the number of questions; always lists some of them.
		least, most int
		always      []string
		err         func(error) bool
		more        bool
	}{
		"the user may delete all nodes: it asks for all, the control plane, and 100 others": {
			host: may(append(allOf(nodes), "")...), least: 103, most: 103,
			always: []string{"", "z-1", "z-2", "n-0000", "n-0099"},
		},
		"the user may not delete all nodes: it asks for all, and 500, the control plane first": {
			host: may(allOf(nodes)...), least: 501, most: 501, always: []string{"", "z-1", "z-2", "n-0000", "n-0497"},
		},
		"with AskEveryNodeByName it does not ask for all": {
			host: may(append(allOf(nodes), "")...), byName: true, least: 500, most: 500,
			always: []string{"z-1", "z-2", "n-0497"},
		},
		"it stops after ten refusals": {
			host: may(), least: 11, most: 11 + noderights.AtOnce, err: apierrors.IsForbidden, more: true,
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
			f.plugin.config.AskEveryNodeByName = test.byName
			r := request{by: bob, nm: maintain(pools("blue"))}
			ctx, _ := f.context(r)
			err := f.validate(ctx, r)
			if test.err == nil && err != nil || test.err != nil && !test.err(err) {
				t.Fatalf("got %v", err)
			}
			if test.more &&
				(!strings.Contains(err.Error(), "at least 10 of the nodes (") ||
					strings.Count(err.Error(), ",") < refusalsAtMost) {
				t.Errorf("got error %q, want ten names and \"at least\"", err)
			}
			if n := len(test.host.asked); n < test.least || n > test.most {
				t.Errorf("got %d questions, want %d to %d", n, test.least, test.most)
			}
			for _, name := range test.always {
				if !slices.Contains(test.host.asked, name) {
					t.Errorf("the authorizer was not asked about %q", name)
				}
			}
			if test.host.most > noderights.AtOnce {
				t.Errorf("got %d concurrent questions, want at most %d", test.host.most, noderights.AtOnce)
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
	config := &Config{}
	Register(plugins, config)
	config.AskEveryNodeByName = true
	plugin, err := plugins.InitPlugin(PluginName, nil, admission.PluginInitializers{})
	if err == nil {
		t.Error("got no error for a plugin that was not initialized")
	}
	if plugin != nil {
		t.Errorf("got plugin %v, want none", plugin)
	}
	chain, err := plugins.NewFromPlugins([]string{PluginName}, noConfig{}, everything(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !chain.Handles(admission.Delete) || chain.Handles(admission.Connect) {
		t.Error("the plugin handles Connect, or does not handle Delete")
	}
}

type noConfig struct{}

func (noConfig) ConfigFor(string) (io.Reader, error) { return nil, nil }

// initialize sets all fields that a plugin needs, and checks that its configuration has the values
// of flags.
type initialize struct{ t *testing.T }

func everything(t *testing.T) admission.PluginInitializer {
	t.Helper()
	return initialize{t}
}

func (i initialize) Initialize(plugin admission.Interface) {
	p := plugin.(*Plugin)
	if !p.config.AskEveryNodeByName {
		i.t.Error("the plugin has the configuration from before the flags were parsed")
	}
	p.SetExternalKubeInformerFactory(kubeinformers.NewSharedInformerFactory(kubefake.NewClientset(), 0))
	p.SetMaintenanceInformers(informers.NewSharedInformerFactory(maintenancefake.NewClientset(), 0))
	p.SetUnconditionalAuthorizer(may())
	p.SetServerIdentity(&identity.Server{})
}
