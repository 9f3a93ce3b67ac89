// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"reflect"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	testingclock "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	registry "haulout.dev/haulout/pkg/registry/maintenance/nodemaintenance"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	bootID      = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	bootIDField = "metadata.annotations[maintenance.haulout.dev/boot-id]"
)

var blue1 = agentOf("blue-1")

func agentOf(node string) *user.DefaultInfo {
	return &user.DefaultInfo{Name: "system:node:" + node, Groups: []string{user.NodesGroup, user.AllAuthenticated}}
}

type modifier = func(*maintenance.NodeMaintenance)

// shutdown returns the maintenance for a shutdown of node blue-1, as the registry passes it to
// admission.
func shutdown(modifiers ...modifier) *maintenance.NodeMaintenance {
	nm := maintain(byName("blue-1"))
	nm.Name = "shutdown-blue-1-1b4e28ba"
	nm.Annotations = map[string]string{v1alpha1.AnnotationBootID: bootID}
	nm.Finalizers = []string{v1alpha1.FinalizerMaintenanceCompletion}
	nm.Spec.Reason = "node shutdown (reboot)"
	nm.Spec.NewNodes = maintenance.NewNodesPolicyIgnore
	nm.Spec.OnExcludedNode = maintenance.ExcludedNodeContinue
	nm.Spec.RequestedBy = requestedBy(blue1)
	for _, podType := range []maintenance.PodType{maintenance.PodTypeDefault, maintenance.PodTypeDaemonSet, maintenance.PodTypeStatic} {
		for _, priority := range []int32{999, 9999, 99999, 2147483647} {
			nm.Spec.DrainPlan = append(nm.Spec.DrainPlan, maintenance.DrainPlanEntry{PodType: podType, PodPriority: priority})
		}
	}
	return build.With(nm, modifiers...)
}

func requestedBy(u user.Info) *authenticationv1.UserInfo {
	return &authenticationv1.UserInfo{Username: u.GetName(), Groups: u.GetGroups()}
}

func byName(names ...string) *corev1.NodeSelector {
	return build.Named(names...)
}

// requirement changes the only requirement of the selector.
func requirement(change func(*corev1.NodeSelectorRequirement)) modifier {
	return func(nm *maintenance.NodeMaintenance) {
		change(&nm.Spec.NodeSelector.NodeSelectorTerms[0].MatchFields[0])
	}
}

func selecting(selector *corev1.NodeSelector) modifier {
	return func(nm *maintenance.NodeMaintenance) { nm.Spec.NodeSelector = selector }
}

func term(change func(*corev1.NodeSelectorTerm)) modifier {
	return func(nm *maintenance.NodeMaintenance) { change(&nm.Spec.NodeSelector.NodeSelectorTerms[0]) }
}

func metadata(change func(*metav1.ObjectMeta)) modifier {
	return func(nm *maintenance.NodeMaintenance) { change(&nm.ObjectMeta) }
}

func paused(nm *maintenance.NodeMaintenance) { nm.Spec.Paused = true }

func label(nm *maintenance.NodeMaintenance) { nm.Labels = map[string]string{"a": "b"} }

func annotation(key, value string) modifier {
	return func(nm *maintenance.NodeMaintenance) { nm.Annotations[key] = value }
}

func by(u user.Info) modifier {
	return func(nm *maintenance.NodeMaintenance) { nm.Spec.RequestedBy = requestedBy(u) }
}

// asksNothing fails the test if the plugin requests an access review about a node.
func (f *fixture) asksNothing() {
	f.t.Helper()
	is.True(f.t, len(f.host.asked) == 0, "access review about %q", f.host.asked)
}

// expect checks the result of a request: field is the path in the error; it is empty if the request
// is admitted.
func (f *fixture) expect(r request, field string) {
	f.t.Helper()
	ctx, _ := f.context(r)
	err := f.validate(ctx, r)
	switch {
	case field == "" && err != nil:
		f.t.Errorf("got %v, want no error", err)
	case field != "" && !apierrors.IsForbidden(err):
		f.t.Errorf("got %v, want a Forbidden error about %s", err, field)
	case field != "" && !strings.Contains(err.Error(), field+":"):
		f.t.Errorf("got %v, want an error about %s", err, field)
	}
}

func TestShutdownByItsNode(t *testing.T) {
	long := strings.Repeat("n", 240)
	for name, test := range map[string]struct {
		by user.Info
		nm *maintenance.NodeMaintenance
	}{
		"a reboot":                     {blue1, shutdown()},
		"a shutdown to stay off":       {blue1, shutdown(because("node shutdown (poweroff)"))},
		"a shutdown of unknown kind":   {blue1, shutdown(because("node shutdown"))},
		"without the default newNodes": {blue1, shutdown(func(nm *maintenance.NodeMaintenance) { nm.Spec.NewNodes = "" })},
		"a node that is not registered": {agentOf("gone"), shutdown(selecting(byName("gone")), metadata(func(m *metav1.ObjectMeta) {
			m.Name = "shutdown-gone-1b4e28ba"
		}))},
		"a node with a long name": {agentOf(long), shutdown(selecting(byName(long)), metadata(func(m *metav1.ObjectMeta) {
			m.Name = "shutdown-" + strings.Repeat("n", 218) + "-0c441b636731dbd5-1b4e28ba"
		}))},
		"an empty pod selector selects all": {blue1, shutdown(func(nm *maintenance.NodeMaintenance) {
			nm.Spec.DrainPlan[0].PodSelector = &metav1.LabelSelector{}
		})},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may(), twoPools)
			f.expect(request{by: test.by, nm: test.nm}, "")
			f.asksNothing()
		})
	}
}

func TestShutdownThatDeviates(t *testing.T) {
	for name, test := range map[string]struct {
		nm    *maintenance.NodeMaintenance
		field string
	}{
		"another name": {shutdown(metadata(func(m *metav1.ObjectMeta) { m.Name = "kernel-2026-11" })), "metadata.name"},
		"the name for another node": {
			shutdown(metadata(func(m *metav1.ObjectMeta) { m.Name = "shutdown-red-1-1b4e28ba" })), "metadata.name",
		},
		"the name for another boot": {shutdown(annotation(v1alpha1.AnnotationBootID, "0"+bootID[1:])), "metadata.name"},
		"a generated name":          {shutdown(metadata(func(m *metav1.ObjectMeta) { m.GenerateName = "shutdown-" })), "metadata.generateName"},
		"without a boot ID":         {shutdown(metadata(func(m *metav1.ObjectMeta) { m.Annotations = nil })), bootIDField},
		"an empty boot ID":          {shutdown(annotation(v1alpha1.AnnotationBootID, "")), bootIDField},
		"a very long boot ID":       {shutdown(annotation(v1alpha1.AnnotationBootID, strings.Repeat("0", 65))), bootIDField},
		"another annotation":        {shutdown(annotation("a", "b")), "metadata.annotations[a]"},
		"labels":                    {shutdown(label), "metadata.labels"},
		"owners":                    {shutdown(ownedBy("red-1")), "metadata.ownerReferences"},
		"a finalizer": {
			shutdown(finalizers(v1alpha1.FinalizerMaintenanceCompletion, "example.com/keep")), "metadata.finalizers[1]",
		},
		"no selector":    {shutdown(selecting(nil)), "spec.nodeSelector.nodeSelectorTerms"},
		"no term":        {shutdown(selecting(&corev1.NodeSelector{})), "spec.nodeSelector.nodeSelectorTerms"},
		"another node":   {shutdown(selecting(byName("red-1"))), "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].values"},
		"a second node":  {shutdown(selecting(byName("blue-1", "red-1"))), "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].values"},
		"the node twice": {shutdown(selecting(byName("blue-1", "blue-1"))), "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].values"},
		"no value":       {shutdown(selecting(byName())), "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].values"},
		"an empty value": {shutdown(selecting(byName(""))), "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].values"},
		"all other nodes": {
			shutdown(requirement(func(r *corev1.NodeSelectorRequirement) { r.Operator = corev1.NodeSelectorOpNotIn })),
			"spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].operator",
		},
		"another field": {
			shutdown(requirement(func(r *corev1.NodeSelectorRequirement) { r.Key = "metadata.namespace" })),
			"spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].key",
		},
		"a second term": {
			shutdown(func(nm *maintenance.NodeMaintenance) {
				nm.Spec.NodeSelector.NodeSelectorTerms = append(nm.Spec.NodeSelector.NodeSelectorTerms, byName("red-1").NodeSelectorTerms...)
			}), "spec.nodeSelector.nodeSelectorTerms",
		},
		"a label besides the name": {
			shutdown(term(func(t *corev1.NodeSelectorTerm) {
				t.MatchExpressions = pools("blue").NodeSelectorTerms[0].MatchExpressions
			})),
			"spec.nodeSelector.nodeSelectorTerms[0].matchExpressions",
		},
		"a label in place of the name": {shutdown(selecting(pools("blue"))), "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions"},
		"a second field": {
			shutdown(term(func(t *corev1.NodeSelectorTerm) { t.MatchFields = append(t.MatchFields, t.MatchFields[0]) })),
			"spec.nodeSelector.nodeSelectorTerms[0].matchFields",
		},
		"stage Idle":     {shutdown(atStage(maintenance.NodeMaintenanceStageIdle)), "spec.stage"},
		"stage Cordon":   {shutdown(atStage(maintenance.NodeMaintenanceStageCordon)), "spec.stage"},
		"stage Complete": {shutdown(atStage(maintenance.NodeMaintenanceStageComplete)), "spec.stage"},
		"no stage":       {shutdown(atStage("")), "spec.stage"},
		"new nodes join": {shutdown(joins), "spec.newNodes"},
		"waves that wait for excluded nodes": {
			shutdown(func(nm *maintenance.NodeMaintenance) { nm.Spec.OnExcludedNode = maintenance.ExcludedNodeWait }), "spec.onExcludedNode",
		},
		"paused":         {shutdown(paused), "spec.paused"},
		"another reason": {shutdown(because("please call 555-0100")), "spec.reason"},
		"no reason":      {shutdown(because("")), "spec.reason"},
		"a pod selector": {
			shutdown(func(nm *maintenance.NodeMaintenance) {
				nm.Spec.DrainPlan[2].PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			}), "spec.drainPlan[2].podSelector",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may("", "blue-1"), twoPools)
			f.expect(request{by: blue1, nm: test.nm}, test.field)
			f.asksNothing()
		})
	}
}

// TestUsersThatAreNoNodes has users whose identity is similar to that of node blue-1. They have no
// rights, so they must not be able to create the maintenance of the node.
func TestUsersThatAreNoNodes(t *testing.T) {
	for name, u := range map[string]*user.DefaultInfo{
		"the name without the group":  {Name: "system:node:blue-1", Groups: []string{user.AllAuthenticated}},
		"the name with another group": {Name: "system:node:blue-1", Groups: []string{"system:node", "nodes"}},
		"the group without the name":  {Name: "blue-1", Groups: []string{user.NodesGroup}},
		"a service account": {
			Name: "system:serviceaccount:kube-system:system:node:blue-1", Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"},
		},
		"a service account of the group": {Name: "system:serviceaccount:system:node:blue-1", Groups: []string{user.NodesGroup}},
		"a token that is bound to the node": {
			Name: "system:serviceaccount:a:b", Groups: []string{"system:serviceaccounts"},
			Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"blue-1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := may()
			h.user = u
			f := newFixture(t, h, twoPools)
			r := request{by: u, nm: shutdown()}
			ctx, _ := f.context(r)
			if err := f.validate(ctx, r); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may not maintain 1 of the nodes") {
				t.Errorf("got %v, want a Forbidden error about the right to delete the node", err)
			}
			h.allowed["blue-1"] = true
			if err := f.validate(ctx, r); err != nil {
				t.Errorf("with the right: got %v, want no error", err)
			}
		})
	}
}

func TestEndOfShutdownByItsNode(t *testing.T) {
	complete := atStage(maintenance.NodeMaintenanceStageComplete)
	held := holding("blue-1")
	for name, test := range map[string]struct {
		by user.Info
		// nm is nil for a deletion.
		nm, old *maintenance.NodeMaintenance
		field   string
	}{
		"complete":                       {by: blue1, nm: shutdown(held, complete), old: shutdown(held)},
		"complete what bob has paused":   {by: blue1, nm: shutdown(held, paused, complete), old: shutdown(held, paused)},
		"complete again":                 {by: blue1, nm: shutdown(held, complete), old: shutdown(held, complete)},
		"no change":                      {by: blue1, nm: shutdown(held), old: shutdown(held)},
		"delete":                         {by: blue1, old: shutdown(held)},
		"delete a completed maintenance": {by: blue1, old: shutdown(held, complete)},
		"complete the maintenance of another node": {
			by: blue1, nm: shutdown(selecting(byName("red-1")), by(agentOf("red-1")), complete),
			old: shutdown(selecting(byName("red-1")), by(agentOf("red-1"))), field: "spec.requestedBy",
		},
		"delete the maintenance of another node": {
			by: blue1, old: shutdown(selecting(byName("red-1")), by(agentOf("red-1"))), field: "spec.requestedBy",
		},
		"complete a maintenance of the node that bob has requested": {
			by: blue1, nm: shutdown(by(bob), complete), old: shutdown(by(bob)), field: "spec.requestedBy",
		},
		"delete a maintenance of the node that bob has requested":                  {by: blue1, old: shutdown(by(bob)), field: "spec.requestedBy"},
		"delete a maintenance of the node that bob has completed and that is over": {by: blue1, old: shutdown(by(bob), complete, finalizers())},
		"delete a maintenance of the node that bob has completed and that still holds the node": {
			by: blue1, old: shutdown(by(bob), complete), field: "spec.requestedBy",
		},
		"delete a maintenance of the node that bob has requested and that is not complete": {by: blue1, old: shutdown(by(bob), finalizers()), field: "spec.requestedBy"},
		"delete a maintenance of another node that is over": {
			by: agentOf("red-1"), old: shutdown(by(bob), complete, finalizers()), field: "spec.requestedBy",
		},
		"delete a maintenance that is over and is not of a shutdown": {
			by: blue1, old: maintain(byName("blue-1"), by(bob), complete, finalizers()), field: "spec.requestedBy",
		},
		"change a maintenance that is over": {
			by: blue1, nm: shutdown(by(bob), complete, finalizers(), label), old: shutdown(by(bob), complete, finalizers()), field: "spec.requestedBy",
		},
		"delete a maintenance that a user with the node's name but without the group has requested": {
			by: blue1, old: shutdown(by(&user.DefaultInfo{Name: blue1.Name})), field: "spec.requestedBy",
		},
		"delete a maintenance without a requester": {
			by: blue1, old: shutdown(func(nm *maintenance.NodeMaintenance) { nm.Spec.RequestedBy = nil }), field: "spec.requestedBy",
		},
		"take over the maintenance of bob with a forged requester": {
			by: blue1, nm: shutdown(by(blue1), complete), old: shutdown(by(bob)), field: "spec.requestedBy",
		},
		"change a label of the maintenance of bob": {
			by: blue1, nm: maintain(pools("red"), by(bob), label),
			old: maintain(pools("red"), by(bob)), field: "spec.requestedBy",
		},
		"complete a maintenance that selects other nodes": {
			by: blue1, nm: shutdown(selecting(pools("blue", "red")), complete), old: shutdown(selecting(pools("blue", "red"))),
			field: "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions",
		},
		"delete a maintenance that selects another node": {
			by: blue1, old: shutdown(selecting(byName("red-1"))), field: "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].values",
		},
		"widen the selector": {
			by: blue1, nm: shutdown(selecting(byName("blue-1", "red-1"))), old: shutdown(), field: "spec.nodeSelector",
		},
		"widen the selector and complete": {
			by: blue1, nm: shutdown(selecting(pools("red")), complete), old: shutdown(), field: "spec.nodeSelector",
		},
		"back to Cordon": {by: blue1, nm: shutdown(atStage(maintenance.NodeMaintenanceStageCordon)), old: shutdown(), field: "spec.stage"},
		"new nodes join": {by: blue1, nm: shutdown(joins), old: shutdown(), field: "spec.newNodes"},
		"pause":          {by: blue1, nm: shutdown(paused), old: shutdown(), field: "spec.paused"},
		"resume what bob has paused": {
			by: blue1, nm: shutdown(), old: shutdown(paused), field: "spec.paused",
		},
		"complete and resume": {by: blue1, nm: shutdown(complete), old: shutdown(paused), field: "spec.paused"},
		"another plan": {
			by: blue1, nm: shutdown(func(nm *maintenance.NodeMaintenance) { nm.Spec.DrainPlan = nm.Spec.DrainPlan[1:] }), old: shutdown(),
			field: "spec.drainPlan",
		},
		"another reason":          {by: blue1, nm: shutdown(because("node shutdown")), old: shutdown(), field: "spec.reason"},
		"an owner":                {by: blue1, nm: shutdown(ownedBy("red-1")), old: shutdown(), field: "metadata.ownerReferences"},
		"a finalizer":             {by: blue1, nm: shutdown(finalizers("a.example.com/b")), old: shutdown(), field: "metadata.finalizers"},
		"no finalizer":            {by: blue1, nm: shutdown(finalizers()), old: shutdown(), field: "metadata.finalizers"},
		"a label":                 {by: blue1, nm: shutdown(label), old: shutdown(), field: "metadata.labels"},
		"another boot ID":         {by: blue1, nm: shutdown(annotation(v1alpha1.AnnotationBootID, "x")), old: shutdown(), field: "metadata.annotations"},
		"another annotation":      {by: blue1, nm: shutdown(annotation("a", "b")), old: shutdown(), field: "metadata.annotations"},
		"complete with a label":   {by: blue1, nm: shutdown(complete, label), old: shutdown(), field: "metadata.labels"},
		"complete with an owner":  {by: blue1, nm: shutdown(complete, ownedBy("red-1")), old: shutdown(), field: "metadata.ownerReferences"},
		"complete with a reason":  {by: blue1, nm: shutdown(complete, because("x")), old: shutdown(), field: "spec.reason"},
		"another node's complete": {by: agentOf("red-1"), nm: shutdown(complete), old: shutdown(), field: "spec.requestedBy"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may("", "blue-1", "red-1"), twoPools)
			f.expect(request{by: test.by, nm: test.nm, old: test.old}, test.field)
			f.asksNothing()
		})
	}
}

// TestNodesMayOnlyChangeTheStage changes each field of the spec, so that a node gets no right to a
// field that is added later.
func TestNodesMayOnlyChangeTheStage(t *testing.T) {
	fields := reflect.TypeFor[maintenance.NodeMaintenanceSpec]()
	for i := range fields.NumField() {
		old, name := shutdown(), fields.Field(i).Name
		nm := old.DeepCopy()
		changed := reflect.ValueOf(&nm.Spec).Elem().Field(i)
		switch {
		case !changed.IsZero():
			changed.SetZero()
		case changed.Kind() == reflect.Bool:
			changed.SetBool(true)
		case changed.Kind() == reflect.Pointer:
			changed.Set(reflect.New(changed.Type().Elem()))
		default:
			t.Fatalf("shutdown() must set the field %s, so that this test can clear it", name)
		}
		got := validation.ChangedFields(&nm.Spec, &old.Spec)
		if len(got) != 1 || !strings.EqualFold(got[0], name) {
			t.Errorf("field %s: got the changes %q", name, got)
		}
		errs := validateEndOfShutdown("blue-1", nm, old)
		if name == "RequestedBy" {
			// The registry sets it. validateEndOfShutdown reads the stored requester only.
			continue
		}
		is.True(t, len(errs) > 0, "a node may change the field %s", name)
	}
}

// TestOthersEndAShutdown has users who are not nodes: they need the right to delete the node.
func TestOthersEndAShutdown(t *testing.T) {
	f := newFixture(t, may("blue-1"), twoPools)
	f.expect(request{by: bob, nm: shutdown(atStage(maintenance.NodeMaintenanceStageComplete)), old: shutdown()}, "")
	f.expect(request{by: bob, old: shutdown()}, "")
	f = newFixture(t, may(), twoPools)
	for _, r := range []request{
		{by: bob, nm: shutdown(atStage(maintenance.NodeMaintenanceStageComplete)), old: shutdown()},
		{by: bob, old: shutdown()},
	} {
		ctx, _ := f.context(r)
		if err := f.validate(ctx, r); !apierrors.IsForbidden(err) {
			t.Errorf("without the right: got %v, want a Forbidden error", err)
		}
	}
}

// TestShutdownThroughTheRegistry passes the requests of an agent, which omits all fields with
// defaults, through the registry before admission.
func TestShutdownThroughTheRegistry(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	strategy := registry.NewStrategy(scheme, func(user.Info) bool { return false }, func() string { return "" },
		func() (*metav1.Time, bool) { return nil, true }, testingclock.NewFakePassiveClock(time.Unix(1000, 0)))
	sent := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "shutdown-blue-1-1b4e28ba", Annotations: map[string]string{v1alpha1.AnnotationBootID: bootID}},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: byName("blue-1"), Stage: v1alpha1.NodeMaintenanceStageDrain, Reason: v1alpha1.ShutdownReason,
			DrainPlan: []v1alpha1.DrainPlanEntry{{PodPriority: 999}, {PodPriority: 999, PodType: v1alpha1.PodTypeStatic}},
		},
	}
	scheme.Default(sent)
	created := &maintenance.NodeMaintenance{}
	must.Do(t, scheme.Convert(sent, created, nil))
	f := newFixture(t, may(), twoPools)
	r := request{by: blue1, nm: created}
	ctx, _ := f.context(r)
	strategy.PrepareForCreate(ctx, created)
	if errs := strategy.Validate(ctx, created); len(errs) > 0 {
		t.Fatal(errs)
	}
	f.expect(r, "")

	completed := created.DeepCopy()
	completed.Spec.Stage = maintenance.NodeMaintenanceStageComplete
	// A client may omit the fields that only the server sets.
	completed.Finalizers, completed.Spec.RequestedBy = nil, nil
	strategy.PrepareForUpdate(ctx, completed, created)
	if errs := strategy.ValidateUpdate(ctx, completed, created); len(errs) > 0 {
		t.Fatal(errs)
	}
	f.expect(request{by: blue1, nm: completed, old: created}, "")
	f.expect(request{by: blue1, old: completed}, "")
}

func TestNodesMayNotWriteTheStatus(t *testing.T) {
	f := newFixture(t, may(), twoPools)
	r := request{by: blue1, nm: shutdown(), old: shutdown(), subresource: "status"}
	ctx, _ := f.context(r)
	if err := f.validate(ctx, r); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want a Forbidden error", err)
	}
}
