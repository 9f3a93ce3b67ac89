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
		// refused are the nodes that the error names; nil means that there is none.
		refused []string
	}{
		"create over nodes that may be deleted": {
			may:     []string{"blue-1", "blue-2"},
			request: request{by: bob, nm: maintain(pools("blue"))},
		},
		"create over a node that may not": {
			may:     []string{"blue-1"},
			request: request{by: bob, nm: maintain(pools("blue"))},
			refused: []string{"blue-2"},
		},
		"create in Idle is no less": {
			may:     []string{"blue-1"},
			request: request{by: bob, nm: maintain(pools("blue"), atStage("Idle"))},
			refused: []string{"blue-2"},
		},
		"create over no node": {request: request{by: bob, nm: maintain(pools("green"))}},
		"delete": {
			may:     []string{"blue-1", "blue-2"},
			request: request{by: bob, old: maintain(pools("blue"))},
		},
		"delete over a node that may not": {
			may:     []string{"blue-1"},
			request: request{by: bob, old: maintain(pools("blue"))},
			refused: []string{"blue-2"},
		},
		"delete of one that holds a node it does not select": {
			may:     []string{"blue-1", "blue-2"},
			request: request{by: bob, old: maintain(pools("blue"), holding("red-1"))},
			refused: []string{"red-1"},
		},
		"delete of one that holds a node that is gone": {
			may:     []string{"blue-1", "blue-2"},
			request: request{by: bob, old: maintain(pools("blue"), holding("gone"))},
			refused: []string{"gone"},
		},
		"narrow away a node that may not": {
			may:     []string{"blue-1", "blue-2"},
			request: request{by: bob, nm: maintain(pools("blue")), old: maintain(pools("blue", "red"))},
			refused: []string{"red-1"},
		},
		"widen by a node that may not": {
			may:     []string{"blue-1", "blue-2"},
			request: request{by: bob, nm: maintain(pools("blue", "red")), old: maintain(pools("blue"))},
			refused: []string{"red-1"},
		},
		"advance": {
			may:     []string{"blue-1"},
			request: request{by: bob, nm: maintain(pools("blue")), old: maintain(pools("blue"), atStage("Cordon"))},
			refused: []string{"blue-2"},
		},
		"complete over a node that may not": {
			may:     []string{"blue-1"},
			request: request{by: bob, nm: maintain(pools("blue"), atStage("Complete")), old: maintain(pools("blue"))},
			refused: []string{"blue-2"},
		},
		"complete with another selector": {
			may:     []string{"red-1"},
			request: request{by: bob, nm: maintain(pools("red"), atStage("Complete")), old: maintain(pools("blue"))},
			refused: []string{"blue-1", "blue-2"},
		},
		"a new node that is ignored is not asked about": {
			may: []string{"blue-1", "blue-2"},
			request: request{
				by:  bob,
				nm:  maintain(pools("blue", "new"), newest),
				old: maintain(pools("blue", "new"), newest, atStage("Cordon")),
			},
		},
		"a new node that joins": {
			may: []string{"blue-1", "blue-2"},
			request: request{
				by:  bob,
				nm:  maintain(pools("blue", "new"), newest, joins),
				old: maintain(pools("blue", "new"), newest),
			},
			refused: []string{"new-1"},
		},
		"a new node that has joined leaves": {
			may: []string{"blue-1", "blue-2"},
			request: request{
				by:  bob,
				nm:  maintain(pools("blue"), newest, holding("new-1")),
				old: maintain(pools("blue", "new"), newest, holding("new-1")),
			},
			refused: []string{"new-1"},
		},
		"another reason": {
			request: request{by: bob, nm: maintain(pools("red"), because("x")), old: maintain(pools("red"))},
			refused: []string{"red-1"},
		},
		"an owner, to have it collected": {
			request: request{by: bob, nm: maintain(pools("red"), ownedBy("x")), old: maintain(pools("red"))},
			refused: []string{"red-1"},
		},
		"an owner taken away": {
			request: request{by: bob, nm: maintain(pools("red")), old: maintain(pools("red"), ownedBy("x"))},
			refused: []string{"red-1"},
		},
		"a finalizer": {
			request: request{by: bob, nm: maintain(pools("red"), finalizers("orphan")), old: maintain(pools("red"))},
			refused: []string{"red-1"},
		},
		"a label is free": {
			request: request{
				by: bob,
				nm: maintain(
					pools("red"), func(nm *maintenance.NodeMaintenance) { nm.Labels = map[string]string{"a": "b"} },
				),
				old: maintain(pools("red")),
			},
		},
		"the server may all": {
			request: request{by: self, nm: maintain(pools("red"), atStage("Complete")), old: maintain(pools("red"))},
		},
		"a user with the server's name may not": {
			request: request{by: bob, nm: maintain(pools("red"), atStage("Complete")), old: maintain(pools("red"))},
			refused: []string{"red-1"},
		},
		"the garbage collector removes its finalizer": {
			request: request{
				by:  collector,
				nm:  maintain(pools("red"), finalizers("x")),
				old: maintain(pools("red"), finalizers("orphan", "x")),
			},
		},
		"the garbage collector removes the other": {
			request: request{
				by:  collector,
				nm:  maintain(pools("red"), finalizers()),
				old: maintain(pools("red"), finalizers("foregroundDeletion")),
			},
		},
		"another kind":           {request: request{by: bob, nm: maintain(pools("red")), resource: "evacuations"}},
		"a subresource of later": {request: request{by: bob, nm: maintain(pools("red")), subresource: "preview"}},
		"all nodes by the shortcut, as none is the control plane's": {
			may:     []string{"", "blue-1", "blue-2", "red-1"},
			request: request{by: bob, nm: maintain(pools("blue", "red"))},
		},
		"all nodes by the shortcut, but one denied by name": {
			may:     []string{"", "blue-1", "red-1"},
			request: request{by: bob, nm: maintain(pools("blue", "red"))},
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
				t.Fatalf("got %v, want forbidden", err)
			}
			if want := " of the nodes (" + strings.Join(
				test.refused, ", ",
			) + ")"; !strings.Contains(err.Error(), want) {
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
		"its finalizer":                   {maintain(pools("red"), finalizers("x"), ownedBy("x")), true},
		"the finalizer of another client": {maintain(pools("red"), finalizers("orphan"), ownedBy("x")), false},
		"both":                            {maintain(pools("red"), finalizers(), ownedBy("x")), false},
		"a finalizer more":                {maintain(pools("red"), finalizers("x", "y"), ownedBy("x")), false},
		"its finalizer and the stage": {
			nm: maintain(pools("red"), finalizers("x"), ownedBy("x"), atStage("Complete")),
		},
		"its finalizer and the owner": {maintain(pools("red"), finalizers("x")), false},
		"its finalizer and the next of it": {
			nm: maintain(pools("red"), finalizers("foregroundDeletion", "x"), ownedBy("x")),
		},
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
			host:   may(append(allOf(nodes), "")...),
			least:  103,
			most:   103,
			always: []string{"", "z-1", "z-2", "n-0000", "n-0099"},
		},
		"without the shortcut: itself, five hundred, the control plane first": {
			host: may(allOf(nodes)...), least: 501, most: 501, always: []string{"", "z-1", "z-2", "n-0000", "n-0497"},
		},
		"with the shortcut switched off": {
			host:   may(append(allOf(nodes), "")...),
			byName: true,
			least:  500,
			most:   500,
			always: []string{"z-1", "z-2", "n-0497"},
		},
		"after ten refusals no more are asked": {
			host: may(), least: 11, most: 11 + noderights.AtOnce, err: apierrors.IsForbidden, more: true,
		},
		"a question without an answer is an error": {
			host:  func() *host { h := may(allOf(nodes)...); h.fails["n-0005"] = true; return h }(),
			least: 2,
			most:  501,
			err:   apierrors.IsInternalError,
		},
		"as is the first one": {
			host:  func() *host { h := may(); h.fails[""] = true; return h }(),
			least: 1,
			most:  1,
			err:   apierrors.IsInternalError,
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
			if test.more &&
				(!strings.Contains(err.Error(), "at least 10 of the nodes (") ||
					strings.Count(err.Error(), ",") < refusalsAtMost) {
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
		t.Error("a plugin that was not initialized is not refused")
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
