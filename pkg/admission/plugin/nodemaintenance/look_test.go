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
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/preflight"
	"haulout.dev/haulout/pkg/survey"
)

// hostPods answers lists of pods as a host cluster would: by field selector, and in pages.
type hostPods struct {
	pods []corev1.Pod

	mu    sync.Mutex
	lists []metav1.ListOptions
	err   error
}

func (h *hostPods) list(action k8stesting.Action) (bool, runtime.Object, error) {
	options := action.(k8stesting.ListActionImpl).ListOptions
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lists = append(h.lists, options)
	if h.err != nil {
		return true, nil, h.err
	}
	selector, err := fields.ParseSelector(options.FieldSelector)
	if err != nil {
		return true, nil, err
	}
	var matching []corev1.Pod
	for _, pod := range h.pods {
		if selector.Matches(fields.Set{"spec.nodeName": pod.Spec.NodeName, "status.phase": string(pod.Status.Phase)}) {
			matching = append(matching, pod)
		}
	}
	list := &corev1.PodList{}
	from, _ := strconv.Atoi(options.Continue)
	list.Items = matching[from:]
	if limit := int(options.Limit); limit > 0 && len(list.Items) > limit {
		list.Items, list.Continue = list.Items[:limit], strconv.Itoa(from+limit)
	}
	return true, list, nil
}

// run puts pods and budgets into the host cluster of a fixture.
func (f *fixture) run(pods []corev1.Pod, budgets ...*policyv1.PodDisruptionBudget) *hostPods {
	f.t.Helper()
	h := &hostPods{pods: pods}
	f.kube.PrependReactor("list", "pods", h.list)
	for _, b := range budgets {
		if err := f.kube.Tracker().Add(b); err != nil {
			f.t.Fatal(err)
		}
	}
	return h
}

func (h *hostPods) asked() []metav1.ListOptions {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.lists)
}

// podsOn returns pods on a node, like those of a ReplicaSet with the label app.
func podsOn(count int, node, app string, modifiers ...func(*corev1.Pod)) []corev1.Pod {
	var pods []corev1.Pod
	for i := range count {
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: fmt.Sprintf("%s-%s-%d", app, node, i), Labels: map[string]string{"app": app},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app, Controller: ptr.To(true)}},
			},
			Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{
				Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		}
		for _, modify := range modifiers {
			modify(&p)
		}
		pods = append(pods, p)
	}
	return pods
}

func bare(p *corev1.Pod) { p.OwnerReferences = nil }

func finished(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }

func ofDaemonSet(p *corev1.Pod) { p.OwnerReferences[0].Kind = "DaemonSet" }

func static(uid types.UID) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", UID: uid, Controller: ptr.To(true)}}
	}
}

func in(namespace string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Namespace = namespace }
}

func budget(namespace, name, app, maxUnavailable string) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, MaxUnavailable: ptr.To(intstr.Parse(maxUnavailable)),
		},
	}
}

func TestWarningsOfPods(t *testing.T) {
	long := strings.Repeat("x", 100)
	const (
		fixed     = "pods that cannot be evicted: "
		noOwner   = "pods that have no controller and will not come back once evicted: "
		staticPod = "static pods that are left running, as no agent on their nodes can stop them: "
		daemon    = "DaemonSet pods that are left running, as no evacuator for them is on: "
	)
	for name, test := range map[string]struct {
		pods    [][]corev1.Pod
		budgets []*policyv1.PodDisruptionBudget
		request request
		want    []string
	}{
		"pods that move": {
			[][]corev1.Pod{podsOn(3, "blue-1", "web")}, []*policyv1.PodDisruptionBudget{budget("shop", "web", "web", "1")},
			request{nm: maintain(pools("blue"))}, nil,
		},
		"all kinds, the worst first": {
			[][]corev1.Pod{
				podsOn(2, "blue-1", "web"), podsOn(1, "blue-2", "web"), podsOn(1, "blue-2", "db"), podsOn(2, "blue-2", "both"),
				podsOn(2, "blue-1", "bare", bare), podsOn(1, "blue-1", "ds", ofDaemonSet), podsOn(1, "blue-2", "ds", ofDaemonSet),
				podsOn(1, "blue-1", "static", static("uid-blue-1")),
			},
			[]*policyv1.PodDisruptionBudget{
				budget("shop", "web", "web", "0"), budget("shop", "db", "db", "0%"), budget("shop", "a", "both", "1"), budget("shop", "b", "both", "1"),
				budget("other", "web", "web", "1"),
			},
			request{nm: maintain(pools("blue"))}, []string{
				fixed + "4; never allowed by 2 PodDisruptionBudgets, above all shop/web (3, maxUnavailable 0)",
				fixed + "2; more than one PodDisruptionBudget selects each, above all shop/a, shop/b",
				noOwner + "2",
				staticPod + "1",
				daemon + "2",
			},
		},
		"pods of other nodes are no concern": {
			[][]corev1.Pod{podsOn(3, "red-1", "web", bare), podsOn(1, "", "web", bare)}, []*policyv1.PodDisruptionBudget{budget("shop", "web", "web", "0")},
			request{nm: maintain(pools("blue"))}, nil,
		},
		"finished pods are none": {
			[][]corev1.Pod{podsOn(3, "blue-1", "web", bare, finished)}, []*policyv1.PodDisruptionBudget{budget("shop", "web", "web", "0")},
			request{nm: maintain(pools("blue"))}, nil,
		},
		"the mirror annotation of a pod that no node owns": {
			[][]corev1.Pod{podsOn(1, "blue-1", "static", static("uid-of-another"))}, nil, request{nm: maintain(pools("blue"))}, nil,
		},
		"one budget": {
			[][]corev1.Pod{podsOn(3, "blue-1", "web")}, []*policyv1.PodDisruptionBudget{budget("shop", "web", "web", "0%")},
			request{nm: maintain(pools("blue"))}, []string{fixed + "3; never allowed by PodDisruptionBudget shop/web (maxUnavailable 0%)"},
		},
		"a budget with a name for which there is no room": {
			[][]corev1.Pod{podsOn(3, "blue-1", "web")}, []*policyv1.PodDisruptionBudget{budget("shop", long, "web", "0")},
			request{nm: maintain(pools("blue"))}, []string{fixed + "3; never allowed by PodDisruptionBudget shop/" + strings.Repeat("x", 45) + "…"},
		},
		"budgets in many namespaces": {
			func() (pods [][]corev1.Pod) {
				for i := range 20 {
					pods = append(pods, podsOn(1, "blue-1", "web", in(fmt.Sprintf("ns-%02d", i))))
				}
				return pods
			}(),
			[]*policyv1.PodDisruptionBudget{budget("ns-03", "web", "web", "0"), budget("ns-19", "web", "web", "0")},
			request{nm: maintain(pools("blue"))}, []string{fixed + "2; never allowed by 2 PodDisruptionBudgets, above all ns-03/web (1, maxUnavailable 0)"},
		},
		"in stage Idle, too": {
			[][]corev1.Pod{podsOn(1, "blue-1", "web", bare)}, nil, request{nm: maintain(pools("blue"), atStage("Idle"))}, []string{noOwner + "1"},
		},
		"another stage warns again": {
			[][]corev1.Pod{podsOn(1, "blue-1", "web", bare)}, nil,
			request{nm: maintain(pools("blue")), old: maintain(pools("blue"), atStage("Cordon"))}, []string{noOwner + "1"},
		},
		"another selector warns of its nodes": {
			[][]corev1.Pod{podsOn(1, "blue-1", "web", bare), podsOn(2, "red-1", "web", bare)}, nil,
			request{nm: maintain(pools("red")), old: maintain(pools("blue"))},
			[]string{noOwner + "2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.request.by = bob
			f := newFixture(t, may("", "blue-1", "blue-2", "red-1"), withUIDs(twoPools))
			f.run(slices.Concat(test.pods...), test.budgets...)
			ctx, warnings := f.context(test.request)
			if err := f.validate(ctx, test.request); err != nil {
				t.Fatal(err)
			}
			if got := warnings.Texts(); !slices.Equal(got, test.want) {
				t.Errorf("warnings are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// ofDeployment gives a fixture the ReplicaSet and the Deployment of the pods with the label app.
func (f *fixture) ofDeployment(app string, modify func(*appsv1.Deployment)) {
	f.t.Helper()
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app, UID: types.UID("d-" + app)}, Spec: appsv1.DeploymentSpec{Selector: selector},
	}
	modify(d)
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: app, OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: app, UID: d.UID, Controller: ptr.To(true)}},
	}, Spec: appsv1.ReplicaSetSpec{Selector: selector}}
	for _, object := range []runtime.Object{d, rs} {
		if err := f.kube.Tracker().Add(object); err != nil {
			f.t.Fatal(err)
		}
	}
}

func TestWarningsOfPodsThatAreReplacedFirst(t *testing.T) {
	anyway := func(*appsv1.Deployment) {}
	recreating := func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType }
	unscaled := func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
	}
	const fixed = "pods that cannot be evicted: "
	long := strings.Repeat("x", 30)
	for name, test := range map[string]struct {
		off         bool
		deployments map[string]func(*appsv1.Deployment)
		budgets     []*policyv1.PodDisruptionBudget
		want        []string
	}{
		"a Deployment that is scaled up": {
			deployments: map[string]func(*appsv1.Deployment){"web": anyway}, budgets: []*policyv1.PodDisruptionBudget{budget("shop", "web", "web", "0")},
		},
		"while nobody does it": {
			off: true, deployments: map[string]func(*appsv1.Deployment){"web": anyway}, budgets: []*policyv1.PodDisruptionBudget{budget("shop", "web", "web", "0")},
			want: []string{fixed + "2; never allowed by PodDisruptionBudget shop/web (maxUnavailable 0)"},
		},
		"one that is not": {
			deployments: map[string]func(*appsv1.Deployment){"web": recreating}, budgets: []*policyv1.PodDisruptionBudget{budget("shop", "w", "web", "0")},
			want: []string{fixed + "2; never allowed by PodDisruptionBudget shop/w (maxUnavailable 0)", "nor are they replaced before they leave: their Deployment has the strategy Recreate"},
		},
		"one that does not want to be": {
			deployments: map[string]func(*appsv1.Deployment){"web": unscaled}, budgets: []*policyv1.PodDisruptionBudget{budget("shop", "w", "web", "0")},
			want: []string{
				fixed + "2; never allowed by PodDisruptionBudget shop/w (maxUnavailable 0)",
				"nor are they replaced before they leave: their Deployment has the annotation maintenance.haulout.dev/surge: Disabled",
			},
		},
		"several budgets": {
			deployments: map[string]func(*appsv1.Deployment){"web": recreating, "db": anyway}, budgets: []*policyv1.PodDisruptionBudget{
				budget("shop", "web", "web", "0"), budget("shop", "db", "db", "0"), budget("shop", "other", "other", "0"),
			},
			want: []string{
				fixed + "3; never allowed by 2 PodDisruptionBudgets, above all shop/web (2, maxUnavailable 0)",
				"nor are they replaced before they leave under shop/web: their Deployment has the strategy Recreate",
			},
		},
		"a budget with a name for which there is no room": {
			deployments: map[string]func(*appsv1.Deployment){"web": recreating}, budgets: []*policyv1.PodDisruptionBudget{budget("shop", long, "web", "0")},
			want: []string{
				fixed + "2; never allowed by PodDisruptionBudget shop/" + long,
				"nor are they replaced before they leave: their Deployment has the strategy Recreate",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may("", "blue-1", "blue-2", "red-1"), withUIDs(twoPools))
			if !test.off {
				f.plugin.looker.evacuators = sets.New(v1alpha1.EvacuatorClassDeployment)
			}
			f.run(slices.Concat(podsOn(2, "blue-1", "web"), podsOn(2, "blue-1", "db"), podsOn(1, "blue-1", "other")), test.budgets...)
			for app, modify := range test.deployments {
				f.ofDeployment(app, modify)
			}
			r := request{by: bob, nm: maintain(pools("blue"))}
			ctx, warnings := f.context(r)
			if err := f.validate(ctx, r); err != nil {
				t.Fatal(err)
			}
			if got := warnings.Texts(); !slices.Equal(got, test.want) {
				t.Errorf("warnings are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func withUIDs(nodes []*corev1.Node) []*corev1.Node {
	var out []*corev1.Node
	for _, node := range nodes {
		node = node.DeepCopy()
		node.UID = types.UID("uid-" + node.Name)
		out = append(out, node)
	}
	return out
}

func TestWhatDoesNotLookAtPods(t *testing.T) {
	for name, r := range map[string]request{
		"the server's own requests":  {by: self, nm: maintain(pools("blue"))},
		"a change of the reason":     {by: bob, nm: maintain(pools("blue"), because("x")), old: maintain(pools("blue"))},
		"completion":                 {by: bob, nm: maintain(pools("blue"), atStage("Complete")), old: maintain(pools("blue"))},
		"deletion":                   {by: bob, old: maintain(pools("blue"))},
		"a selector of no node":      {by: bob, nm: maintain(pools("green"))},
		"somebody who may not do it": {by: bob, nm: maintain(pools("red"))},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may("blue-1", "blue-2"), twoPools)
			pods := f.run(podsOn(1, "blue-1", "web", bare))
			ctx, _ := f.context(r)
			if err := f.validate(ctx, r); (err != nil) != (name == "somebody who may not do it") {
				t.Fatal(err)
			}
			if asked := pods.asked(); len(asked) > 0 {
				t.Errorf("pods were listed: %+v", asked)
			}
		})
	}
}

func TestRepeatedAdmissionLooksOnce(t *testing.T) {
	f := newFixture(t, may("", "blue-1", "blue-2", "red-1"), twoPools)
	pods := f.run(podsOn(1, "blue-1", "web", bare))
	r := request{by: bob, nm: maintain(pools("blue"))}
	ctx, warnings := f.context(r)
	for range 3 {
		if err := f.validate(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(pods.asked()); n != 2 {
		t.Errorf("%d lists, want one for each of two nodes", n)
	}
	if texts := warnings.Texts(); len(texts) != 3 || texts[2] != texts[0] {
		t.Errorf("each run is to warn of the same; got %q", texts)
	}
	// A patch that meets another selector after a conflict is about other nodes.
	r.nm = maintain(pools("red"))
	if err := f.validate(ctx, r); err != nil {
		t.Fatal(err)
	}
	if asked := pods.asked(); len(asked) != 3 || !strings.Contains(asked[2].FieldSelector, "spec.nodeName=red-1,") {
		t.Errorf("lists %+v, want a third for the other node", asked)
	}
	// Another request looks for itself.
	ctx, _ = f.context(r)
	if err := f.validate(ctx, r); err != nil {
		t.Fatal(err)
	}
	if n := len(pods.asked()); n != 4 {
		t.Errorf("%d lists after another request, want 4", n)
	}
}

func TestListsOfPods(t *testing.T) {
	for name, test := range map[string]struct {
		nodes, pods, limit int
		lists              int
		want               []string
	}{
		"few nodes are asked for one by one": {64, 2, podsAtMost, 64, []string{"pods that have no controller and will not come back once evicted: 128"}},
		"many are read in pages":             {65, 40, podsAtMost, 3, []string{"pods that have no controller and will not come back once evicted: 2600"}},
		"up to a limit": {65, 40, 2000, 2, []string{
			"pods that have no controller and will not come back once evicted: 2000",
			"only the first 2000 pods were checked, so that these numbers may be too low",
		}},
		"that is not one if it is just enough": {100, 20, 2000, 2, []string{"pods that have no controller and will not come back once evicted: 2000"}},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := []*corev1.Node{node("red-1", "red")}
			var running []corev1.Pod
			for i := range test.nodes {
				name := fmt.Sprintf("blue-%03d", i)
				nodes = append(nodes, node(name, "blue"))
				running = append(running, podsOn(test.pods, name, "web", bare)...)
			}
			f := newFixture(t, may(append(allOf(nodes), "")...), nodes)
			f.plugin.looker.podLimit = test.limit
			pods := f.run(running)
			r := request{by: bob, nm: maintain(pools("blue"))}
			ctx, warnings := f.context(r)
			if err := f.validate(ctx, r); err != nil {
				t.Fatal(err)
			}
			if got := warnings.Texts(); !slices.Equal(got, test.want) {
				t.Errorf("warnings are %q, want %q", got, test.want)
			}
			asked := pods.asked()
			if len(asked) != test.lists {
				t.Errorf("%d lists, want %d", len(asked), test.lists)
			}
			for _, options := range asked {
				// A list without a limit must come from the watch cache, and only lists without a resource version are cut into pages.
				if (options.Limit == 0) != (options.ResourceVersion == "0") || !strings.HasSuffix(options.FieldSelector, survey.Unfinished) {
					t.Errorf("asked with %+v", options)
				}
			}
		})
	}
}

func TestFewNodesWithTooManyPods(t *testing.T) {
	f := newFixture(t, may(), nil)
	f.plugin.looker.podLimit = 10
	var nodes []*corev1.Node
	var running []corev1.Pod
	for i := range 40 {
		name := fmt.Sprintf("blue-%d", i)
		nodes = append(nodes, node(name, "blue"))
		running = append(running, podsOn(10, name, "web", bare)...)
	}
	pods := f.run(running)
	out := f.plugin.looker.look(t.Context(), nodes)
	// Those under way when the limit is reached are counted, but no more are asked for.
	if n := len(pods.asked()); n > survey.AtOnce || out.read != 10*n || out.tally.Summary(preflight.NoController).Pods != out.read {
		t.Errorf("%d lists, %d pods read, %+v", n, out.read, out.tally.Summary(preflight.NoController))
	}
}

func TestWarningsWithoutAnAnswerOfTheCluster(t *testing.T) {
	const (
		late   = "the pods on these nodes were not checked: the cluster did not list them in time"
		failed = "the pods on these nodes were not checked: the cluster did not list them; the log of the Haulout server says why"
	)
	for name, test := range map[string]struct {
		pools []string
		fault func(*fixture, *hostPods)
		want  string
	}{
		"pods of few nodes are refused": {[]string{"blue"}, func(_ *fixture, h *hostPods) { h.err = errors.New("no") }, failed},
		"pods of many are":              {[]string{"many"}, func(_ *fixture, h *hostPods) { h.err = errors.New("no") }, failed},
		"budgets are": {[]string{"blue"}, func(f *fixture, _ *hostPods) {
			f.kube.PrependReactor("list", "poddisruptionbudgets", func(k8stesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no") })
		}, failed},
		"the time is over": {[]string{"blue"}, func(f *fixture, _ *hostPods) { f.plugin.looker.timeLimit = -1 }, late},
		"too many look": {[]string{"blue"}, func(f *fixture, _ *hostPods) {
			f.plugin.looker.slots = nil
			f.plugin.looker.timeLimit = time.Millisecond
		}, late},
		"the cluster hangs": {[]string{"blue"}, func(f *fixture, _ *hostPods) {
			f.plugin.SetExternalKubeClientSet(hanging(f.t))
			f.plugin.looker.timeLimit = 20 * time.Millisecond
		}, late},
		"the cluster hangs with the pages": {[]string{"many"}, func(f *fixture, _ *hostPods) {
			f.plugin.SetExternalKubeClientSet(hanging(f.t))
			f.plugin.looker.timeLimit = 20 * time.Millisecond
		}, late},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := slices.Clone(twoPools)
			for i := range 70 {
				nodes = append(nodes, node(fmt.Sprintf("many-%d", i), "many"))
			}
			f := newFixture(t, may(append(allOf(nodes), "")...), nodes)
			test.fault(f, f.run(podsOn(1, "blue-1", "web", bare)))
			r := request{by: bob, nm: maintain(pools(test.pools...))}
			ctx, warnings := f.context(r)
			if err := f.validate(ctx, r); err != nil {
				t.Fatal(err)
			}
			if got := warnings.Texts(); !slices.Equal(got, []string{test.want}) {
				t.Errorf("warnings are %q, want %q", got, test.want)
			}
		})
	}
}

// hanging returns a client of a cluster that takes requests and never answers.
func hanging(t *testing.T) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(server.Close)
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, QPS: -1})
}

func TestTheWriteKeepsHalfOfItsTime(t *testing.T) {
	l := newLooker(nil)
	if got := l.timeFor(t.Context()); got != lookFor {
		t.Errorf("a request without a limit waits %v, want %v", got, lookFor)
	}
	for name, test := range map[string]struct{ left, want time.Duration }{
		"a short request": {lookFor, lookFor / 2},
		"a long request":  {time.Hour, lookFor},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), test.left)
			defer cancel()
			if got := l.timeFor(ctx); got > test.want {
				t.Errorf("waits %v, want at most %v", got, test.want)
			}
		})
	}
}

func TestTheMostImportantWarningsComeFirst(t *testing.T) {
	nodes := []*corev1.Node{node("home", "home", "control-plane")}
	for i := range 600 {
		nodes = append(nodes, node(fmt.Sprintf("blue-%d", i), "blue"))
	}
	f := newFixture(t, may(append(allOf(nodes), "")...), nodes, another("other", "Drain", pools("blue")))
	f.run(slices.Concat(podsOn(1, "home", "web", bare), podsOn(1, "home", "both"), podsOn(1, "home", "ds", ofDaemonSet)),
		budget("shop", "web", "web", "0"), budget("shop", "a", "both", "1"), budget("shop", "b", "both", "1"))
	r := request{by: bob, nm: maintain(pools("blue", "home"))}
	ctx, warnings := f.context(r)
	if err := f.validate(ctx, r); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"spec.nodeSelector: the Haulout server itself runs on node home",
		"pods that cannot be evicted: 1; never allowed by PodDisruptionBudget shop/web (maxUnavailable 0)",
		"pods that cannot be evicted: 1; more than one PodDisruptionBudget selects each, above all shop/a, shop/b",
		"pods that have no controller and will not come back once evicted: 1",
		"spec.nodeSelector: all nodes of the cluster match (601)",
		"spec.nodeSelector: all control-plane nodes match (1)",
		"spec.nodeSelector: 601 nodes; whether you may delete each is looked at when its turn comes",
		"spec.nodeSelector: under maintenance already by other",
	}
	if got := warnings.Texts(); !slices.Equal(got, want) {
		t.Errorf("warnings are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
