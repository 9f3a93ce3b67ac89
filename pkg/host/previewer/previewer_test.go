// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package previewer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	kubeinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/forecast"
	maintenancefake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

var now = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

const (
	idle     = v1alpha1.NodeMaintenanceStageIdle
	cordon   = v1alpha1.NodeMaintenanceStageCordon
	drain    = v1alpha1.NodeMaintenanceStageDrain
	complete = v1alpha1.NodeMaintenanceStageComplete
)

// authority is an authorizer. It allows a user to delete the nodes that it has for the name of the
// user. An empty node name stands for all nodes that are not refused.
type authority struct {
	mu      sync.Mutex
	allowed map[string][]string
	refused []string
	asked   int
	err     error
}

func (h *authority) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.GetVerb() == "maintain" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	h.asked++
	if h.err != nil {
		return authorizer.DecisionNoOpinion, "", h.err
	}
	allowed := h.allowed[a.GetUser().GetName()]
	named := slices.Contains(allowed, a.GetName()) ||
		slices.Contains(allowed, "") && !slices.Contains(h.refused, a.GetName())
	if named && a.GetVerb() == "delete" && a.GetResource() == "nodes" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// fixture is a Previewer for a fake cluster.
type fixture struct {
	kube       *kubefake.Clientset
	host       *authority
	evacuators []string
	everyNode  bool
	others     []*v1alpha1.NodeMaintenance
	caches     *host.Caches
}

// newFixture returns a fixture with a cluster of these objects, in which ann may delete all nodes.
// Its caches are synced, and its client has recorded no requests.
func newFixture(tb testing.TB, objects ...runtime.Object) *fixture {
	tb.Helper()
	f := &fixture{kube: kubefake.NewClientset(objects...), host: &authority{allowed: map[string][]string{"ann": {""}}}}
	f.caches = cachesOf(tb, f.kube, podcache.NewTransform())
	f.kube.ClearActions()
	return f
}

// cachesOf returns synced caches of a cluster, which have what transform returns.
func cachesOf(tb testing.TB, kube kubernetes.Interface, transform cache.TransformFunc) *host.Caches {
	tb.Helper()
	caches := must.Get(host.NewCaches(kube, 0, transform))(tb)
	caches.Start(tb.Context())
	must.True(tb, caches.WaitForSync(tb.Context()), "the caches did not sync")
	return caches
}

func (f *fixture) previewer() *Previewer {
	return New(Config{
		Host: f.kube, Nodes: f.nodes, Caches: func() *host.Caches { return f.caches },
		Authorizer: f.host, Evacuators: f.evacuators, Rules: rights.Rules{EveryByName: f.everyNode},
		Maintenances: f.all, Clock: testclock.NewFakePassiveClock(now),
	})
}

func (f *fixture) preview(
	ctx context.Context, nm *v1alpha1.NodeMaintenance,
) (*v1alpha1.NodeMaintenancePreview, error) {
	return f.previewer().Preview(ctx, nm)
}

func (f *fixture) all(context.Context) ([]*v1alpha1.NodeMaintenance, error) {
	return f.others, nil
}

func (f *fixture) nodes(ctx context.Context) ([]*corev1.Node, error) {
	list, err := f.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	nodes := make([]*corev1.Node, 0, len(list.Items))
	for i := range list.Items {
		nodes = append(nodes, &list.Items[i])
	}
	return nodes, nil
}

func (f *fixture) mustPreview(
	t *testing.T, nm *v1alpha1.NodeMaintenance,
) *v1alpha1.NodeMaintenancePreview {
	t.Helper()
	return must.Get(f.preview(t.Context(), nm))(t)
}

// asked returns the resources that were read. The caches may begin to watch after their sync.
func (f *fixture) asked() []string {
	var out []string
	for _, action := range f.kube.Actions() {
		if action.GetVerb() != "watch" {
			out = append(out, action.GetVerb()+" "+action.GetResource().Resource)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func maintenance(
	name string, stage v1alpha1.NodeMaintenanceStage, pools ...string,
) *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now)},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: stage, RequestedBy: &authenticationv1.UserInfo{Username: "ann"},
			NodeSelector: build.Labelled("pool", pools...),
		},
	}
	v1alpha1.SetDefaults_NodeMaintenanceSpec(&nm.Spec)
	return nm
}

func node(name, pool string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"pool": pool},
		},
	}
}

// pod returns a pod of the ReplicaSet web.
func pod(name, on string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, Labels: map[string]string{"app": "web"},
			OwnerReferences: build.Owner("apps/v1", "ReplicaSet", "web", "uid-rs"),
		},
		Spec:   corev1.PodSpec{NodeName: on},
		Status: build.Ready(),
	}
}

func nominated(name, on string) *corev1.Pod {
	p := pod(name, "")
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, NominatedNodeName: on}
	return p
}

func finished(p *corev1.Pod) *corev1.Pod {
	p.Status.Phase = corev1.PodSucceeded
	return p
}

func closedBudget() *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			MaxUnavailable: ptr.To(intstr.FromInt32(0)),
		},
	}
}

// names returns the names of the pods of all waves.
func names(out *v1alpha1.NodeMaintenancePreview) []string {
	var names []string
	for i := range out.Waves {
		for _, n := range out.Waves[i].Nodes {
			for _, namespace := range n.Namespaces {
				for _, p := range namespace.Pods {
					names = append(names, n.Name+"/"+p.Name)
				}
			}
		}
	}
	return names
}

func TestPreview(t *testing.T) {
	f := newFixture(t, node("blue-2", "blue"), node("blue-1", "blue"), node("red-1", "red"), closedBudget(),
		pod("a", "blue-1"), pod("b", "blue-2"), nominated("c", "blue-2"), pod("d", "red-1"),
		finished(pod("e", "blue-1")), pod("f", ""), nominated("g", "red-1"))
	out := f.mustPreview(t, maintenance("nm", idle, "blue"))
	if got, want := names(out), []string{"blue-1/a", "blue-2/b", "blue-2/c"}; !slices.Equal(got, want) {
		t.Errorf("pods are %q, want %q", got, want)
	}
	if len(out.Blockers) != 2 || out.Blockers[0].PodCount != 2 || out.Blockers[1].Reason != v1alpha1.ReasonPodNominated || !out.Timestamp.Time.Equal(now) || out.NodeCount != 2 {
		t.Errorf("got %+v", out)
	}
	want := []string{"list namespaces", "list nodes"}
	if got := f.asked(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q: owners decide nothing while no evacuator is on, and nothing is written", got, want)
	}
}

// TestPodsOfARefusedNodeAreRead has a pod of the second wave on one node, and one of the first wave
// on a node that the requester may not maintain.
func TestPodsOfARefusedNodeAreRead(t *testing.T) {
	late := pod("late", "blue-0")
	late.Spec.Priority = ptr.To[int32](2000000000)
	f := newFixture(t, node("blue-0", "blue"), node("blue-1", "blue"), late, pod("early", "blue-1"))
	f.host.allowed["ann"] = []string{"blue-0"}
	nm := maintenance("nm", idle, "blue")
	nm.Spec.RequestedBy = &authenticationv1.UserInfo{Username: "ann"}
	is.Equal(t, f.mustPreview(t, nm).Nodes[0].Message, "Evacuating", "without onExcludedNode")
	nm.Spec.OnExcludedNode = v1alpha1.ExcludedNodeWait
	out := f.mustPreview(t, nm)
	is.Equal(t, out.Nodes[0].Message, "Waiting for node blue-1.", "with Wait")
	is.Equal(t, out.PodCount, 1, "pods of the drain")
}

func TestWhoseNodesAreRefused(t *testing.T) {
	var objects []runtime.Object
	for i := range 3 {
		name := fmt.Sprintf("blue-%d", i)
		objects = append(objects, node(name, "blue"), pod("pod-"+name, name))
	}
	for name, test := range map[string]struct {
		allowed, refused []string
		everyNode        bool
		requester        *authenticationv1.UserInfo
		want             []string
	}{
		"all are allowed": {allowed: []string{""}, requester: &authenticationv1.UserInfo{Username: "ann"}},
		"some are": {
			allowed: []string{"blue-1"}, requester: &authenticationv1.UserInfo{Username: "ann"},
			want: []string{"blue-0", "blue-2"},
		},
		"one is denied by name": {
			allowed: []string{""}, refused: []string{"blue-2"}, requester: &authenticationv1.UserInfo{Username: "ann"},
			want: []string{"blue-2"},
		},
		"one is denied, all are asked": {
			allowed: []string{""}, refused: []string{"blue-2"}, everyNode: true,
			requester: &authenticationv1.UserInfo{Username: "ann"}, want: []string{"blue-2"},
		},
		"no requester": {allowed: []string{""}, want: []string{"blue-0", "blue-1", "blue-2"}},
		"a requester without a name": {
			allowed: []string{""}, requester: &authenticationv1.UserInfo{},
			want: []string{"blue-0", "blue-1", "blue-2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, objects...)
			f.host.allowed["ann"], f.host.refused, f.everyNode = test.allowed, test.refused, test.everyNode
			nm := maintenance("nm", idle, "blue")
			nm.Spec.RequestedBy = test.requester
			out := f.mustPreview(t, nm)
			var got []string
			for i := range out.Nodes {
				if out.Nodes[i].Refused {
					got = append(got, out.Nodes[i].Name)
				}
			}
			if !slices.Equal(got, test.want) || int(out.NodesRefused) != len(test.want) ||
				int(out.PodCount) != 3-len(test.want) || out.NodesUnchecked != 0 {
				t.Errorf("refused are %q (%d), %d pods, %d nodes unchecked; want %q",
					got, out.NodesRefused, out.PodCount, out.NodesUnchecked, test.want)
			}
		})
	}
}

func TestTooManyNodesToAskAbout(t *testing.T) {
	var objects []runtime.Object
	for i := range askAtMost + 5 {
		objects = append(objects, node(fmt.Sprintf("blue-%04d", i), "blue"))
	}
	f := newFixture(t, objects...)
	f.everyNode = true
	if out := f.mustPreview(t, maintenance("nm", idle, "blue")); out.NodesUnchecked != 5 || f.host.asked != askAtMost {
		t.Errorf("%d nodes unchecked, %d questions", out.NodesUnchecked, f.host.asked)
	}
}

func TestOthers(t *testing.T) {
	f := newFixture(t, node("blue", "blue"), node("green", "green"), node("red", "red"), node("gray", "gray"),
		pod("a", "blue"), pod("b", "green"), pod("c", "red"), pod("d", "gray"))
	gone := maintenance("gone", drain, "blue")
	gone.DeletionTimestamp = ptr.To(metav1.NewTime(now))
	subject := maintenance("subject", idle, "blue")
	f.others = []*v1alpha1.NodeMaintenance{
		subject, maintenance("next", drain, "blue", "green"), maintenance("far", drain, "green", "red"),
		maintenance("stranger", drain, "gray"), maintenance("cordon", cordon, "blue", "gray"),
		maintenance("done", complete, "blue"), gone, maintenance("elsewhere", idle, "red"),
	}
	out := f.mustPreview(t, subject)
	want := []v1alpha1.PreviewMaintenance{
		{Name: "cordon", Stage: cordon, NodeCount: 1}, {Name: "next", Stage: drain, NodeCount: 1},
	}
	is.Slices(t, out.Maintenances, want, "others")
	// The nodes of next and far are not cordoned. So next asks no pod to leave, and no pod leaves
	// the node that next shares with the subject.
	if got, want := out.Waves[0].PodsAsked, int32(0); got != want || out.Waves[0].PodCount != 1 {
		t.Errorf("%d of %d pods are asked, want %d of 1", got, out.Waves[0].PodCount, want)
	}
}

// TestPodsOfConnectedDrainsAreRead has a drain that shares a node with the subject, and one that
// shares a node with that drain.
func TestPodsOfConnectedDrainsAreRead(t *testing.T) {
	f := newFixture(t, node("blue", "blue"), node("green", "green"), node("red", "red"), node("gray", "gray"))
	p, s := f.previewer(), &forecast.Situation{}
	others := []*v1alpha1.NodeMaintenance{
		maintenance("next", drain, "blue", "green"), maintenance("far", drain, "green", "red"), maintenance("stranger", drain, "gray"),
	}
	must.Do(t, p.choose(t.Context(), s, maintenance("subject", idle, "blue"), others, must.Get(f.nodes(t.Context()))(t)))
	_, got := touchedNodes(s)
	is.True(t, got.Equal(sets.New("blue", "green", "red")), "got %v", sets.List(got))
}

func TestAfterCompleteNoPodIsAskedToLeave(t *testing.T) {
	for name, modify := range map[string]func(*v1alpha1.NodeMaintenance){
		"in Complete": func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = complete },
		"in deletion": func(nm *v1alpha1.NodeMaintenance) {
			nm.DeletionTimestamp = ptr.To(metav1.NewTime(now))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, node("blue", "blue"), pod("a", "blue"))
			nm := maintenance("nm", drain, "blue")
			modify(nm)
			out := f.mustPreview(t, nm)
			if out.PodCount != 0 || out.NodeCount != 1 || f.host.asked != 0 ||
				!slices.Equal(f.asked(), []string{"list nodes"}) {
				t.Errorf("got %+v; asked %q", out, f.asked())
			}
		})
	}
}

func TestOwnersAreReadForTheEvacuatorsThatAreOn(t *testing.T) {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	objects := []runtime.Object{
		node("blue", "blue"),
		&appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web"},
			Spec:       appsv1.DeploymentSpec{Selector: selector},
		},
		&appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "web", UID: "uid-rs",
				OwnerReferences: build.Owner("apps/v1", "Deployment", "web", "uid-web"),
			},
			Spec: appsv1.ReplicaSetSpec{Selector: selector},
		},
		pod("a", "blue"),
	}
	f := newFixture(t, objects...)
	f.evacuators = []string{v1alpha1.EvacuatorClassDeployment}
	out := f.mustPreview(t, maintenance("nm", idle, "blue"))
	if got := out.Waves[0].Evacuators[0].EvacuatorClass; got != v1alpha1.EvacuatorClassDeployment {
		t.Errorf("evacuator is %q", got)
	}
}

func TestTimeIsLimited(t *testing.T) {
	bubble.Run(t, "the timeout of a preview", func(t *testing.T) {
		f := newFixture(t)
		p := f.previewer()
		p.config.Maintenances = waiting
		_, err := p.Preview(t.Context(), maintenance("nm", idle, "blue"))
		is.True(t, isFinalTimeout(err), "got %v", err)
	})
	bubble.Run(t, "the rate limiter, shortly before the timeout", func(t *testing.T) {
		p := newFixture(t).previewer()
		limiter := flowcontrol.NewTokenBucketRateLimiter(1, 1)
		p.config.Maintenances = func(ctx context.Context) ([]*v1alpha1.NodeMaintenance, error) {
			deadline, _ := ctx.Deadline()
			<-time.After(time.Until(deadline) - 100*time.Millisecond)
			return nil, errors.Join(limiter.Wait(ctx), limiter.Wait(ctx))
		}
		_, err := p.Preview(t.Context(), maintenance("nm", idle, "blue"))
		is.True(t, isFinalTimeout(err), "got %v", err)
	})
	bubble.Run(t, "the timeout of waiting for a slot", func(t *testing.T) {
		p := newFixture(t).previewer()
		p.config.Maintenances = waiting
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range atOnce {
			wg.Go(func() {
				_, _ = p.Preview(ctx, maintenance("nm", idle, "blue"))
			})
		}
		synctest.Wait()
		if _, err := p.Preview(t.Context(), maintenance("nm", idle, "blue")); !apierrors.IsTooManyRequests(err) {
			t.Errorf("got %v", err)
		}
		// Previews that have ended free their slots for further previews.
		cancel()
		wg.Wait()
		p.config.Maintenances = (&fixture{}).all
		if _, err := p.Preview(t.Context(), maintenance("nm", idle, "blue")); err != nil {
			t.Error(err)
		}
	})
	t.Run("the timeout of the request", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p := newFixture(t).previewer()
		for range atOnce {
			p.slots <- struct{}{}
		}
		if _, err := p.Preview(ctx, maintenance("nm", idle, "blue")); !isFinalTimeout(err) {
			t.Errorf("got %v", err)
		}
	})
}

func TestPreviewsWaitForCaches(t *testing.T) {
	for name, test := range map[string]struct {
		filled, stopping bool
		fails            func(error) bool
	}{
		"that are filled after a while": {filled: true, fails: func(err error) bool { return err == nil }},
		"that are never filled": {fails: func(err error) bool {
			return isFinalTimeout(err) && strings.Contains(err.Error(), "has not read the pods")
		}},
		"of a server that shuts down": {stopping: true, fails: func(err error) bool {
			_, repeats := apierrors.SuggestsClientDelay(err)
			return apierrors.IsServiceUnavailable(err) && repeats
		}},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			f := newFixture(t, node("blue", "blue"), pod("a", "blue"))
			p := f.previewer()
			var caches atomic.Pointer[host.Caches]
			stopping := make(chan struct{})
			p.config.Caches, p.config.Stopping = caches.Load, stopping
			time.AfterFunc(30*time.Second, func() {
				is.True(t, len(p.slots) == 0, "a preview that waits for caches has taken a place")
				if test.filled {
					caches.Store(f.caches)
				}
				if test.stopping {
					close(stopping)
				}
			})
			_, err := p.Preview(t.Context(), maintenance("nm", idle, "blue"))
			is.True(t, test.fails(err), "got %v", err)
		})
	}
}

// isFinalTimeout reports whether an error is a timeout that clients do not repeat by themselves.
func isFinalTimeout(err error) bool {
	_, repeats := apierrors.SuggestsClientDelay(err)
	return apierrors.IsTimeout(err) && !repeats
}

// waiting waits until the context ends, and returns no maintenances.
func waiting(ctx context.Context) ([]*v1alpha1.NodeMaintenance, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestCompletedMaintenancesAreNotRead: there may be many completed maintenances, and each of them
// has all of its nodes in its status.
func TestCompletedMaintenancesAreNotRead(t *testing.T) {
	factory := informers.NewSharedInformerFactory(maintenancefake.NewClientset(), 0)
	informer := factory.Maintenance().V1alpha1().NodeMaintenances()
	read := NotDone(informer)
	t.Run("before the informer has synced", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := read(ctx); err == nil {
			t.Error("got no error: an empty cache passes for a cluster without maintenances")
		}
	})
	factory.StartWithContext(t.Context())
	factory.WaitForCacheSyncWithContext(t.Context())
	deleting := maintenance("deleting", drain, "blue")
	deleting.DeletionTimestamp = &metav1.Time{Time: now}
	for _, nm := range []*v1alpha1.NodeMaintenance{
		maintenance("draining", drain, "blue"), maintenance("idle", idle, "blue"),
		maintenance("done", v1alpha1.NodeMaintenanceStageComplete, "blue"), deleting,
	} {
		must.Do(t, informer.Informer().GetStore().Add(nm))
	}
	all := must.Get(read(t.Context()))(t)
	var names []string
	for _, nm := range all {
		names = append(names, nm.Name)
	}
	slices.Sort(names)
	is.True(t, slices.Equal(names, []string{"draining", "idle"}), "got %q, want draining and idle", names)
}

func TestNodesAreReadFromTheCache(t *testing.T) {
	factory := kubeinformers.NewSharedInformerFactory(kubefake.NewClientset(node("n1", "blue")), 0)
	read := CachedNodes(factory.Core().V1().Nodes())
	t.Run("before the informer has synced", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := read(ctx)
		is.True(t, err != nil, "got no error: an empty cache passes for a cluster without nodes")
	})
	factory.StartWithContext(t.Context())
	nodes := must.Get(read(t.Context()))(t)
	is.True(t, len(nodes) == 1 && nodes[0].Name == "n1", "got %v", nodes)
}

func TestIgnoredNodesAreCounted(t *testing.T) {
	f := newFixture(t, node("n1", "blue"), node("n2", "blue"))
	nm := maintenance("nm", drain, "blue")
	late := node("n3", "blue")
	late.CreationTimestamp = metav1.NewTime(now)
	nm.Status.NewestNodeTimestamp = &metav1.Time{Time: now.Add(-time.Hour)}
	must.Do(t, f.kube.Tracker().Add(late))
	ctx, warnings := registrytest.WithWarnings(t.Context())
	out := must.Get(f.preview(ctx, nm))(t)
	is.True(t, out.NodeCount == 2, "got %d nodes, want the two old ones", out.NodeCount)
	if want := []string{
		"spec.newNodes: matching nodes that are ignored because they were created later: 1",
	}; !slices.Equal(warnings.Texts(), want) {
		t.Errorf("warnings are %q, want %q", warnings.Texts(), want)
	}
}
