// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	testingframework "k8s.io/kubernetes/pkg/scheduler/testing/framework"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// cluster has the objects of a framework.
type cluster struct {
	pods    []*corev1.Pod
	nodes   []*corev1.Node
	budgets []*policyv1.PodDisruptionBudget
	classes []*schedulingv1.PriorityClass
	groups  []*schedulingv1beta1.PodGroup
}

func quantity(n int) *resource.Quantity { return resource.NewQuantity(int64(n), resource.DecimalSI) }

func node(name string, cpu int) *corev1.Node {
	capacity := corev1.ResourceList{corev1.ResourceCPU: *quantity(cpu), corev1.ResourcePods: resource.MustParse("110")}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity}}
}

// client returns a client. If allowed is set, its user may evict pods.
func (c cluster) client(allowed bool) *fake.Clientset {
	var objects []runtime.Object
	for _, pod := range c.pods {
		objects = append(objects, pod)
	}
	for _, b := range c.budgets {
		objects = append(objects, b)
	}
	for _, class := range c.classes {
		objects = append(objects, class)
	}
	client := fake.NewClientset(objects...)
	client.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		review.Status.Allowed = allowed
		return true, review, nil
	})
	return client
}

// framework returns a framework with the filter plugin for resources and a snapshot of the cluster.
func (c cluster) framework(t testing.TB, ctx context.Context, client *fake.Clientset, more ...testingframework.RegisterPluginFunc) framework.Framework {
	t.Helper()
	return c.frameworkWith(t, ctx, client, more)
}

// frameworkWith returns a framework with other options.
func (c cluster) frameworkWith(t testing.TB, ctx context.Context, client *fake.Clientset,
	more []testingframework.RegisterPluginFunc, options ...frameworkruntime.Option,
) framework.Framework {
	t.Helper()
	metrics.Register()
	factory := informers.NewSharedInformerFactory(client, 0)
	snapshot := internalcache.NewTestSnapshotWithPodGroups(c.pods, c.nodes, c.groups)
	groups := internalcache.New(ctx, nil, utilfeature.DefaultFeatureGate.Enabled(features.GenericWorkload), false)
	for _, group := range c.groups {
		groups.AddPodGroup(group)
	}
	f, err := testingframework.NewFramework(ctx, append([]testingframework.RegisterPluginFunc{
		testingframework.RegisterQueueSortPlugin(queuesort.Name, queuesort.New),
		testingframework.RegisterPluginAsExtensions(noderesources.Name, frameworkruntime.FactoryAdapter(feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate), noderesources.NewFit), "Filter", "PreFilter"),
		testingframework.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New),
	}, more...), "default-scheduler", append([]frameworkruntime.Option{
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithEventRecorder(events.NewFakeRecorder(1000)),
		frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithPodNominator(internalqueue.NewSchedulingQueue(nil, factory)),
		frameworkruntime.WithSnapshotSharedLister(snapshot),
		frameworkruntime.WithMutableSnapshotLister(snapshot),
		frameworkruntime.WithWaitingPods(frameworkruntime.NewWaitingPodsMap()),
		frameworkruntime.WithPodsInPreBind(frameworkruntime.NewPodsInPreBindMap()),
		frameworkruntime.WithPodActivator(noActivator{}),
		frameworkruntime.WithPodGroupManager(groups),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

type noActivator struct{}

func (noActivator) Activate(klog.Logger, map[string]*corev1.Pod) {}

func (c cluster) plugin(t testing.TB, ctx context.Context) *Plugin {
	t.Helper()
	return pluginOf(t, ctx, c.framework(t, ctx, c.client(true)))
}

// pluginOf returns our plugin in a framework, and starts the informers of the framework. All
// evictions succeed.
func pluginOf(t testing.TB, ctx context.Context, f framework.Framework) *Plugin {
	t.Helper()
	made := must.Get(New(ctx, nil, f))(t)
	p := made.(*Plugin)
	p.gate.evictPod = func(context.Context, *policyv1.Eviction) error { return nil }
	startInformers(t, ctx, f)
	return p
}

func startInformers(t testing.TB, ctx context.Context, f framework.Framework) {
	t.Helper()
	factory := f.SharedInformerFactory()
	factory.StartWithContext(ctx)
	factory.WaitForCacheSyncWithContext(ctx)
}

// dryRun returns the victims on each node, and the statuses of the nodes without victims.
func dryRun(t testing.TB, ctx context.Context, ev *upstream.Evaluator, pod *corev1.Pod, c cluster) (victims map[string]string, statuses map[string]string) {
	t.Helper()
	state := framework.NewCycleState()
	f := ev.Handler.(framework.Framework)
	if _, status, _ := f.RunPreFilterPlugins(ctx, state, pod); !status.IsSuccess() {
		t.Fatal(status.AsError())
	}
	infos := must.Get(f.SnapshotSharedLister().NodeInfos().List())(t)
	candidates, reasons, err := ev.DryRunPreemption(ctx, state, pod, infos, c.budgets, 0, int32(len(infos)))
	if err != nil {
		t.Fatal(err)
	}
	victims, statuses = map[string]string{}, map[string]string{}
	for _, candidate := range candidates {
		var names []string
		for _, victim := range candidate.Victims().Pods {
			names = append(names, victim.Name)
		}
		victims[candidate.Name()] = fmt.Sprint(names, candidate.Victims().NumPDBViolations)
	}
	for _, info := range infos {
		if name := info.Node().Name; victims[name] == "" {
			statuses[name] = reasons.Get(name).Message()
		}
	}
	return victims, statuses
}

// randomCluster creates three nodes full of pods, whose classes have no thresholds.
func randomCluster(random *rand.Rand) cluster {
	c := cluster{classes: []*schedulingv1.PriorityClass{class("plain", ""), class("guarded", ""), class("higher", "")}}
	apps := []string{"web", "db", "cache"}
	for _, app := range apps {
		if random.IntN(4) > 0 {
			c.budgets = append(c.budgets, budgetOf(app, random.Int32N(3)))
		}
	}
	for n := range 3 {
		name := fmt.Sprintf("n%d", n)
		pods := 1 + random.IntN(6)
		c.nodes = append(c.nodes, node(name, pods))
		for i := range pods {
			pod := runningPod(fmt.Sprintf("p%d-%d", n, i), random.Int32N(60), onNode(name), ofApp(apps[random.IntN(3)]),
				ofClass(c.classes[random.IntN(3)].Name), startedAfter(n*10+i))
			if random.IntN(6) == 0 {
				notReady(pod)
			}
			c.pods = append(c.pods, pod)
		}
	}
	return c
}

func pendingPod(random *rand.Rand) *corev1.Pod {
	pod := runningPod("pending", []int32{50, 100, 1500}[random.IntN(3)], onNode(""))
	pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *quantity(1 + random.IntN(3))
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	return pod
}

// TestUpstreamWithoutThresholds compares the choice of our plugin with that of DefaultPreemption.
func TestUpstreamWithoutThresholds(t *testing.T) {
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 1))
		c, pod := randomCluster(random), pendingPod(random)
		ctx, cancel := context.WithCancel(t.Context())
		p := c.plugin(t, ctx)
		f := c.framework(t, ctx, c.client(true))
		args := must.Get(decodeArgs(nil))(t)
		theirs := must.Get(defaultpreemption.New(ctx, args.upstream(), f, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)))(t)
		r := must.Get(p.rules(*pod.Spec.Priority))(t)
		got, gotStatuses := dryRun(t, context.WithValue(ctx, attemptKey{}, &attempt{rules: r}), p.Evaluator, pod, c)
		want, wantStatuses := dryRun(t, ctx, theirs.Evaluator, pod, c)
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotStatuses, wantStatuses) {
			t.Errorf("seed %d: got %v and %v, upstream has %v and %v", seed, got, gotStatuses, want, wantStatuses)
		}
		cancel()
	}
}

// TestPostFilter checks the message, and the budgets for which the pod waits.
func TestPostFilter(t *testing.T) {
	guarded := func(name string, options ...podOption) *corev1.Pod {
		return runningPod(name, 10, append([]podOption{ofClass("guarded")}, options...)...)
	}
	never := func(pod *corev1.Pod) {
		policy := corev1.PreemptNever
		pod.Spec.PreemptionPolicy = &policy
	}
	for name, test := range map[string]struct {
		cluster cluster
		pending []podOption
		want    string
		node    string
		waits   bool
		// budgets are the budgets for which the pod waits. The default is web.
		budgets []string
		// leftOut has the nodes that are excluded because evictions there were refused.
		leftOut []string
	}{
		"a node that is excluded": {
			cluster: cluster{
				pods:    []*corev1.Pod{guarded("a"), guarded("b", onNode("n2"), startedAfter(1))},
				nodes:   []*corev1.Node{node("n1", 1), node("n2", 1)},
				budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)},
			},
			leftOut: []string{"n2"},
			node:    "n1",
		},
		"all nodes are excluded": {
			cluster: cluster{pods: []*corev1.Pod{guarded("a")}, nodes: []*corev1.Node{node("n1", 1)}, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}},
			leftOut: []string{"n1"},
			want:    "preemption: 0/1 nodes are available: 1 node(s) with pods whose preemption was refused a moment ago.",
			waits:   true,
		},
		"one of two victims is enough": {
			cluster: cluster{
				pods:    []*corev1.Pod{guarded("a"), guarded("b", ofApp("db"), startedAfter(1))},
				nodes:   []*corev1.Node{node("n1", 2)},
				budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0), budgetOf("db", 0)},
			},
			want: "preemption: 0/1 nodes are available: 1 node(s) with pods that PodDisruptionBudgets protect; " +
				"preempting them needs priority 1000.",
			waits:   true,
			budgets: []string{"db", "web"},
		},
		"held back": {
			cluster: cluster{pods: []*corev1.Pod{guarded("a")}, nodes: []*corev1.Node{node("n1", 1)}, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)}},
			want: "preemption: 0/1 nodes are available: 1 node(s) with pods that PodDisruptionBudgets protect; " +
				"preempting them needs priority 1000.",
			waits: true,
		},
		"room": {
			cluster: cluster{pods: []*corev1.Pod{guarded("a")}, nodes: []*corev1.Node{node("n1", 1)}, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}},
			node:    "n1",
		},
		"another node": {
			cluster: cluster{
				pods:    []*corev1.Pod{guarded("a"), runningPod("b", 99, onNode("n2"))},
				nodes:   []*corev1.Node{node("n1", 1), node("n2", 1)},
				budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
			},
			node: "n2",
		},
		"a node that is too small without pods": {
			cluster: cluster{pods: []*corev1.Pod{guarded("a")}, nodes: []*corev1.Node{node("n1", 1)}, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)}},
			pending: []podOption{func(pod *corev1.Pod) {
				pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("2")
			}},
			want: "preemption: 0/1 nodes are available: 1 Insufficient cpu.",
		},
		"a pod that never preempts": {
			cluster: cluster{pods: []*corev1.Pod{guarded("a")}, nodes: []*corev1.Node{node("n1", 1)}, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)}},
			pending: []podOption{never},
			want:    "preemption: not eligible due to preemptionPolicy=Never.",
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			pending := runningPod("pending", 100, append([]podOption{onNode("")}, test.pending...)...)
			pending.Status = corev1.PodStatus{Phase: corev1.PodPending}
			c := test.cluster
			c.classes = []*schedulingv1.PriorityClass{class("guarded", "1000")}
			informed := c
			informed.pods = append(slices.Clone(c.pods), pending)
			f := c.framework(t, ctx, informed.client(true))
			p := pluginOf(t, ctx, f)
			for _, name := range test.leftOut {
				// After five refusals, the node is excluded for longer than this test takes.
				for range 5 {
					p.gate.leaveOut(pending.UID, name, nil)
				}
			}
			statuses := framework.NewDefaultNodeToStatus()
			for _, each := range c.nodes {
				statuses.Set(each.Name, fwk.NewStatus(fwk.Unschedulable, "Insufficient cpu"))
			}
			state := framework.NewCycleState()
			if _, status, _ := f.RunPreFilterPlugins(ctx, state, pending); !status.IsSuccess() {
				t.Fatal(status.AsError())
			}
			counted := func() (n float64) {
				for _, result := range []string{resultUnrestricted, resultWithinBudgets, resultHeldBack} {
					value := must.Get(testutil.GetCounterMetricValue(attempts.WithLabelValues(result)))(t)
					n += value
				}
				return n
			}
			before := counted()
			result, status := p.PostFilter(ctx, state, pending, statuses)
			// The plugin does not count the attempt of a pod that is not eligible.
			if got, want := counted()-before, float64(1-strings.Count(test.want, "not eligible")); got != want {
				t.Errorf("got %v counted attempts, want %v", got, want)
			}
			if got := status.Message(); test.want != "" && got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if test.node != "" && (!status.IsSuccess() || result.NominatedNodeName != test.node) {
				t.Errorf("got %v, %v, want node %s", result, status, test.node)
			}
			waiting := p.waiting.waiting()
			if got := len(waiting) == 1; got != test.waits {
				t.Fatalf("got %d waiting pods, want %v", len(waiting), test.waits)
			}
			for _, name := range test.budgets {
				if !waiting[pending.UID].Has(types.NamespacedName{Namespace: "shop", Name: name}) {
					t.Errorf("the pod does not wait for %s", name)
				}
			}
		})
	}
}

// TestNewWaitsForTheAPIServer: a scheduler that ended would be started again later and later.
func TestNewWaitsForTheAPIServer(t *testing.T) {
	client := cluster{nodes: []*corev1.Node{node("n1", 1)}}.client(true)
	for _, resource := range []string{"priorityclasses", "selfsubjectaccessreviews"} {
		client.PrependReactor("*", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("connection refused")
		})
	}
	if err := checkRights(t.Context(), cluster{}.framework(t, t.Context(), client)); err != nil {
		t.Errorf("got %v, want that the scheduler waits", err)
	}
}

// TestNewNeedsItsRights checks that the error names the role with the missing permission.
func TestNewNeedsItsRights(t *testing.T) {
	empty := cluster{nodes: []*corev1.Node{node("n1", 1)}}
	for name, test := range map[string]struct {
		evicts, reads bool
		want          string
	}{
		"both":               {true, true, ""},
		"no PriorityClasses": {true, false, "cannot read PriorityClasses"},
		"no evictions":       {false, true, "may not create pods/eviction"},
	} {
		t.Run(name, func(t *testing.T) {
			client := empty.client(test.evicts)
			client.PrependReactor("list", "priorityclasses", func(clienttesting.Action) (bool, runtime.Object, error) {
				if test.reads {
					return false, nil, nil
				}
				return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "priorityclasses"}, "", errors.New("no"))
			})
			_, err := New(t.Context(), nil, empty.framework(t, t.Context(), client))
			if test.want == "" && err != nil {
				t.Fatal(err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "ClusterRole haulout-scheduler")) {
				t.Errorf("got %v, want an error with %q and the role", err, test.want)
			}
		})
	}
}

// TestBothPluginsAreRefused enables both plugins in one profile.
func TestBothPluginsAreRefused(t *testing.T) {
	c := cluster{nodes: []*corev1.Node{node("n1", 1)}}
	theirs := frameworkruntime.FactoryAdapter(feature.Features{}, func(ctx context.Context, args runtime.Object, fh fwk.Handle, fts feature.Features) (fwk.Plugin, error) {
		decoded, err := decodeArgs(nil)
		if err != nil {
			return nil, err
		}
		return defaultpreemption.New(ctx, decoded.upstream(), fh, fts)
	})
	for _, both := range []bool{false, true} {
		plugins := []testingframework.RegisterPluginFunc{testingframework.RegisterPostFilterPlugin(Name, New)}
		if both {
			plugins = append(plugins, testingframework.RegisterPostFilterPlugin(defaultpreemption.Name, theirs))
		}
		f := c.framework(t, t.Context(), c.client(true), plugins...)
		p, err := New(t.Context(), nil, f)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.(*Plugin).EventsToRegister(t.Context())
		if both != (err != nil) || both && !strings.Contains(err.Error(), `profile "default-scheduler" enables both DefaultPreemption and HauloutPreemption`) {
			t.Errorf("both enabled: %v: got %v", both, err)
		}
	}
}

// TestExtensionPoints fails when upstream's plugin has a new extension point. Our plugin embeds
// upstream's and then has the extension point as well. After an upgrade of Kubernetes, check its
// effect on budgets.
func TestExtensionPoints(t *testing.T) {
	var got []string
	for i := range reflect.TypeFor[*Plugin]().NumMethod() {
		got = append(got, reflect.TypeFor[*Plugin]().Method(i).Name)
	}
	want := []string{
		"CandidatesToVictimsMap", "EventsToRegister", "GetOffsetAndNumCandidates", "Name", "OrderedScoreFuncs",
		"PodEligibleToPreemptOthers", "PodGroupPostFilter", "PostFilter", "PreEnqueue", "SelectVictimsOnNode",
	}
	is.True(t, slices.Equal(got, want), "got the methods %q, want %q", got, want)
}

// TestWaitsForItsVictims checks that a pod waits for its evicted victim only while the pod is
// nominated for the victim's node and can run there.
func TestWaitsForItsVictims(t *testing.T) {
	pending := runningPod("pending", 100, onNode(""))
	pending.Status = corev1.PodStatus{Phase: corev1.PodPending}
	for name, test := range map[string]struct {
		// nominated is the nominated node in the scheduler's memory, and status the one in the
		// pod's status.
		nominated, status string
		code              fwk.Code
		waits             bool
	}{
		"nominated":                            {"n1", "n1", fwk.Unschedulable, true},
		"nominated, but not yet in the status": {"n1", "", fwk.UnschedulableAndUnresolvable, true},
		"the node is cordoned":                 {"n1", "n1", fwk.UnschedulableAndUnresolvable, false},
		"the nomination was withdrawn":         {"", "", fwk.UnschedulableAndUnresolvable, false},
		"nominated for another node":           {"n2", "n2", fwk.Unschedulable, false},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			a := runningPod("a", 10, ofClass("guarded"))
			c := cluster{
				pods: []*corev1.Pod{a}, nodes: []*corev1.Node{node("n1", 1), node("n2", 1)},
				budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}, classes: []*schedulingv1.PriorityClass{class("guarded", "1000")},
			}
			informed := c
			informed.pods = append(slices.Clone(c.pods), pending)
			f := c.framework(t, ctx, informed.client(true))
			p := pluginOf(t, ctx, f)
			must.Get(p.gate.preempt(ctx, &fakeCandidate{victims: []*corev1.Pod{a}}, fakePreemptor{Pod: pending}, a, Name))(t)
			now := pending.DeepCopy()
			now.Status.NominatedNodeName = test.status
			info := must.Get(framework.NewPodInfo(now))(t)
			f.AddNominatedPod(klog.FromContext(ctx), info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: test.nominated})
			eligible, why := p.PodEligibleToPreemptOthers(ctx, now, fwk.NewStatus(test.code))
			is.True(t, eligible != test.waits, "eligible: %v %s", eligible, why)
		})
	}
}
