// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	testingframework "k8s.io/kubernetes/pkg/scheduler/testing/framework"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// The priorities of the cases.
const (
	neg  = -100
	low  = 0
	mid  = 100
	high = 1000
	top  = 10000
)

var priorityNames = map[string]int32{"neg": neg, "low": low, "mid": mid, "high": high, "top": top}

// placed matches a pod: name/priority/CPUs. Its optional parts are @ and the second of its start, #
// and its app, + and its group.
var placed = regexp.MustCompile(`^([^/]+)/(neg|low|mid|high|top)/(\d+)(?:@(\d+))?(?:#(\w+))?(?:\+(\w+))?$`)

// place parses the pods of nodes, each in the form "node: pod pod". A pod without an app has no
// budget.
func place(nodes ...string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, line := range nodes {
		node, list, _ := strings.Cut(line, ":")
		for _, text := range strings.Fields(list) {
			parts := placed.FindStringSubmatch(text)
			if parts == nil {
				panic("malformed pod " + text)
			}
			number := func(s string) int {
				n, _ := strconv.Atoi(s)
				return n
			}
			pod := runningPod(parts[1], priorityNames[parts[2]], onNode(node), cpus(number(parts[3])), startedAfter(number(parts[4])), ofApp(parts[5]))
			if parts[6] != "" {
				ofGroup(parts[6])(pod)
			}
			pods = append(pods, pod)
		}
	}
	return pods
}

func cpus(n int) podOption {
	return func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = *quantity(n) }
}

// wanting returns a pending pod.
func wanting(priority int32, cpu int, options ...podOption) *corev1.Pod {
	pod := runningPod("pending", priority, append([]podOption{onNode(""), ofApp(""), cpus(cpu)}, options...)...)
	pod.Status.Phase, pod.Status.StartTime = corev1.PodPending, nil
	return pod
}

// zoned returns a node of five CPUs in a zone.
func zoned(name, zone string) *corev1.Node {
	n := node(name, 5)
	n.Labels = map[string]string{"hostname": name, "zone": zone}
	return n
}

// five returns nodes of five CPUs.
func five(names ...string) []*corev1.Node {
	var nodes []*corev1.Node
	for _, name := range names {
		nodes = append(nodes, zoned(name, "z1"))
	}
	return nodes
}

// upstreamCase is a case of upstream's tests of DefaultPreemption. No class has a threshold.
type upstreamCase struct {
	cluster
	pending   *corev1.Pod
	gates     []featuregate.Feature
	plugins   []testingframework.RegisterPluginFunc
	extenders []testingframework.FakeExtender
	// change replaces upstream's functions that order victims and choose a node.
	change func(*defaultpreemption.DefaultPreemption)
	// helpless has the nodes on which preemption cannot help, and unknown the nodes without a
	// status.
	helpless, unknown []string

	// node and victims are the expected choice. If no node is expected, message is the whole
	// status.
	node, victims, message string
	// on has the expected victims on each node, and how many of them exceed their budget. All other
	// nodes have no victims.
	on map[string]string
}

// choice is the result of a plugin.
type choice struct {
	node, message string
	code          fwk.Code
	// deleted has the deleted pods, and marked the pods whose condition DisruptionTarget was set.
	deleted, marked string
}

// preemptionPlugin is our plugin or DefaultPreemption.
type preemptionPlugin interface {
	fwk.PreEnqueuePlugin
	fwk.PostFilterPlugin
	fwk.PodGroupPostFilterPlugin
	PodEligibleToPreemptOthers(context.Context, *corev1.Pod, *fwk.Status) (bool, string)
}

// newPreemption returns our plugin or DefaultPreemption, and the DefaultPreemption inside it.
func newPreemption(t testing.TB, f framework.Framework, ours bool) (preemptionPlugin, *defaultpreemption.DefaultPreemption) {
	t.Helper()
	if ours {
		p := pluginOf(t, t.Context(), f)
		return p, p.DefaultPreemption
	}
	args := must.Get(decodeArgs(nil))(t)
	p := newDefaultPreemption(t, f, args.upstream())
	return p, p
}

func newDefaultPreemption(t testing.TB, f framework.Framework, args *config.DefaultPreemptionArgs) *defaultpreemption.DefaultPreemption {
	t.Helper()
	p := must.Get(defaultpreemption.New(t.Context(), args, f, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)))(t)
	startInformers(t, t.Context(), f)
	return p
}

// withGates enables feature gates; preemption is synchronous unless async is set.
func withGates(t *testing.T, async bool, gates ...featuregate.Feature) {
	t.Helper()
	overrides := featuregatetesting.FeatureOverrides{features.SchedulerAsyncPreemption: async}
	for _, gate := range gates {
		overrides[gate] = true
	}
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, overrides)
}

// setup returns a framework and its client.
func (c *upstreamCase) setup(t *testing.T) (framework.Framework, *fake.Clientset) {
	t.Helper()
	informed := c.cluster
	informed.pods = slices.DeleteFunc(slices.Clone(c.pods), func(pod *corev1.Pod) bool { return pod.UID == c.pending.UID })
	informed.pods = append(informed.pods, c.pending)
	client := informed.client(true)
	known := map[string]*framework.NodeInfo{}
	for _, each := range c.nodes {
		known[each.Name] = framework.NewNodeInfo()
		known[each.Name].SetNode(each)
	}
	var extenders []fwk.Extender
	for _, extender := range c.extenders {
		extender.CachedNodeNameToInfo = known
		extenders = append(extenders, &extender)
	}
	return c.frameworkWith(t, t.Context(), client, c.plugins, frameworkruntime.WithExtenders(extenders)), client
}

// choose runs a plugin with all nodes.
func (c *upstreamCase) choose(t *testing.T, ours bool) choice {
	t.Helper()
	f, client := c.setup(t)
	p, inner := newPreemption(t, f, ours)
	if c.change != nil {
		c.change(inner)
	}
	statuses := framework.NewDefaultNodeToStatus()
	for _, each := range c.nodes {
		switch {
		case slices.Contains(c.unknown, each.Name):
		case slices.Contains(c.helpless, each.Name):
			statuses.Set(each.Name, fwk.NewStatus(fwk.UnschedulableAndUnresolvable))
		default:
			statuses.Set(each.Name, fwk.NewStatus(fwk.Unschedulable))
		}
	}
	state := framework.NewCycleState()
	if _, status, _ := f.RunPreFilterPlugins(t.Context(), state, c.pending); !status.IsSuccess() {
		t.Fatal(status.AsError())
	}
	result, status := p.PostFilter(t.Context(), state, c.pending, statuses)
	done := choice{message: status.Message(), code: status.Code()}
	if result != nil && result.NominatingInfo != nil {
		done.node = result.NominatedNodeName
	}
	if status.IsSuccess() {
		waitFor(t, "the preemption ends", func() bool {
			return !inner.Executor.IsPodRunningPreemption(c.pending.UID) && p.PreEnqueue(t.Context(), c.pending) == nil
		})
	}
	done.deleted, done.marked = removed(client)
	return done
}

// removed returns the pods that a client has deleted, and the pods whose condition it has set.
func removed(client *fake.Clientset) (deleted, marked string) {
	var names, conditions []string
	for _, action := range client.Actions() {
		switch a := action.(type) {
		case clienttesting.DeleteAction:
			names = append(names, a.GetName())
		case clienttesting.PatchAction:
			if strings.Contains(string(a.GetPatch()), corev1.PodReasonPreemptionByScheduler) {
				conditions = append(conditions, a.GetName())
			}
		}
	}
	slices.Sort(names)
	slices.Sort(conditions)
	return strings.Join(names, " "), strings.Join(conditions, " ")
}

// eachNode returns the victims and the status of a plugin for each node.
func (c *upstreamCase) eachNode(t *testing.T, ours bool) (victims, statuses map[string]string) {
	t.Helper()
	f, _ := c.setup(t)
	p, inner := newPreemption(t, f, ours)
	if c.change != nil {
		c.change(inner)
	}
	ctx := t.Context()
	if our, ok := p.(*Plugin); ok {
		r := must.Get(our.rules(*c.pending.Spec.Priority))(t)
		must.True(t, !r.restrict(), "a class has a threshold")
		ctx = context.WithValue(ctx, attemptKey{}, &attempt{rules: r})
	}
	victims, statuses = dryRun(t, ctx, inner.Evaluator, c.pending, c.cluster)
	for name, text := range victims {
		// The order of the members of a group is random.
		list, count, _ := strings.Cut(strings.TrimPrefix(text, "["), "]")
		names := strings.Fields(list)
		slices.Sort(names)
		victims[name] = fmt.Sprint(names) + count
	}
	return victims, statuses
}

// TestUpstreamCases runs DefaultPreemption and our plugin in the cases of upstream's tests. Both
// must choose what the cases expect.
func TestUpstreamCases(t *testing.T) {
	for _, table := range []map[string]upstreamCase{choiceCases, refusedCases, extenderCases, victimCases, budgetCases, groupVictimCases, featureCases} {
		for name, test := range table {
			for _, async := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, async %v", name, async), func(t *testing.T) {
					withGates(t, async, test.gates...)
					test.run(t)
				})
			}
		}
	}
}

func (c *upstreamCase) run(t *testing.T) {
	t.Helper()
	if c.on == nil {
		theirs, our := c.choose(t, false), c.choose(t, true)
		is.True(t, our == theirs, "got %+v, upstream %+v", our, theirs)
		if our.node != c.node || our.deleted != c.victims || our.marked != c.victims {
			t.Errorf("got %+v, want node %q and the victims %q", our, c.node, c.victims)
		}
		if c.message != "" && our.message != c.message {
			t.Errorf("got the message %q, want %q", our.message, c.message)
		}
		return
	}
	victims, statuses := c.eachNode(t, true)
	theirs, theirStatuses := c.eachNode(t, false)
	if fmt.Sprint(victims, statuses) != fmt.Sprint(theirs, theirStatuses) {
		t.Errorf("got %v, %v, upstream %v, %v", victims, statuses, theirs, theirStatuses)
	}
	if fmt.Sprint(victims) != fmt.Sprint(c.on) {
		t.Errorf("got the victims %v, want %v: %v", victims, c.on, statuses)
	}
}

// TestUpstreamNumberOfCandidates limits the number of nodes. The offset, which is random in
// DefaultPreemption, is constant here.
func TestUpstreamNumberOfCandidates(t *testing.T) {
	withGates(t, false)
	nodes := five("n1", "n2", "n3", "n4", "n5")
	for name, test := range map[string]struct {
		cluster
		offset, number int32
		want           string
	}{
		"two of five": {cluster{nodes: nodes, pods: place("n1: a/mid/3", "n2: b/mid/3", "n3: c/mid/3", "n4: d/mid/3", "n5: e/mid/3")}, 4, 2, "n1 n5"},
		"the next":    {cluster{nodes: nodes, pods: place("n1: a/mid/3", "n2: b/mid/3", "n3: c/mid/3", "n4: d/mid/3", "n5: e/mid/3")}, 1, 2, "n2 n3"},
		"the last":    {cluster{nodes: nodes, pods: place("n1: a/mid/3", "n2: b/mid/3", "n3: c/mid/3", "n4: d/mid/3", "n5: e/mid/3")}, 3, 2, "n4 n5"},
		"some are full of more important pods": {
			cluster{nodes: nodes, pods: place("n1: a/mid/3", "n2: b/top/3", "n3: c/mid/3", "n4: d/mid/3", "n5: e/top/3")}, 4, 2, "n1 n3",
		},
		"until one exceeds no budget": {
			cluster{
				nodes: nodes, budgets: closedWeb,
				pods: place("n1: a/mid/3#web", "n2: b/mid/3#web", "n3: c/mid/3", "n4: d/mid/3", "n5: e/mid/3#web"),
			}, 4, 2, "n1 n3 n5",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := upstreamCase{cluster: test.cluster, pending: wanting(high, 3)}
			for _, ours := range []bool{false, true} {
				f := c.frameworkWith(t, t.Context(), c.client(true), nil, frameworkruntime.WithParallelism(1))
				p, inner := newPreemption(t, f, ours)
				ctx := t.Context()
				if our, ok := p.(*Plugin); ok {
					r := must.Get(our.rules(high))(t)
					ctx = context.WithValue(ctx, attemptKey{}, &attempt{rules: r})
				}
				state := framework.NewCycleState()
				f.RunPreFilterPlugins(ctx, state, c.pending)
				infos := must.Get(f.SnapshotSharedLister().NodeInfos().List())(t)
				slices.SortFunc(infos, func(x, y fwk.NodeInfo) int { return strings.Compare(x.Node().Name, y.Node().Name) })
				candidates, _, err := inner.Evaluator.DryRunPreemption(ctx, state, c.pending, infos, c.budgets, test.offset, test.number)
				if err != nil {
					t.Fatal(err)
				}
				var names []string
				for _, candidate := range candidates {
					names = append(names, candidate.Name())
				}
				slices.Sort(names)
				if got := strings.Join(names, " "); got != test.want {
					t.Errorf("ours %v: got the nodes %q, want %q", ours, got, test.want)
				}
			}
		})
	}
}

// TestUpstreamEligibility checks whether a pod may preempt.
func TestUpstreamEligibility(t *testing.T) {
	leaving := func(line string, reason string) []*corev1.Pod {
		pods := place(line)
		for _, pod := range pods {
			terminating(pod)
			if reason != "" {
				pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason})
			}
		}
		return pods
	}
	nominated := func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "n1" }
	never := func(pod *corev1.Pod) { pod.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }
	for name, test := range map[string]struct {
		upstreamCase
		status fwk.Code
		want   bool
	}{
		"its node can no longer run it": {
			upstreamCase{cluster: cluster{pods: leaving("n1: a/low/1", ""), nodes: five("n1")}, pending: wanting(high, 1, nominated)},
			fwk.UnschedulableAndUnresolvable, true,
		},
		"it has no nominated node": {upstreamCase{cluster: cluster{nodes: five("n1")}, pending: wanting(high, 1)}, fwk.Success, true},
		"it never preempts":        {upstreamCase{cluster: cluster{nodes: five("n1")}, pending: wanting(high, 1, never)}, fwk.Success, false},
		"its victim is leaving": {
			upstreamCase{cluster: cluster{pods: leaving("n1: a/low/1", corev1.PodReasonPreemptionByScheduler), nodes: five("n1")}, pending: wanting(high, 1, nominated)},
			fwk.Unschedulable, false,
		},
		"another pod is leaving": {
			upstreamCase{cluster: cluster{pods: leaving("n1: a/low/1", ""), nodes: five("n1")}, pending: wanting(high, 1, nominated)},
			fwk.Unschedulable, true,
		},
		"its victim belongs to a group of lower priority": {
			upstreamCase{
				cluster: cluster{
					pods: leaving("n1: a/top/1+g", corev1.PodReasonPreemptionByScheduler), nodes: five("n1"),
					groups: groupsOf(podGroup("g", low)),
				},
				pending: wanting(high, 1, nominated), gates: []featuregate.Feature{features.GenericWorkload},
			}, fwk.Unschedulable, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			withGates(t, false, test.gates...)
			f, _ := test.setup(t)
			for _, ours := range []bool{false, true} {
				p, _ := newPreemption(t, f, ours)
				if got, why := p.PodEligibleToPreemptOthers(t.Context(), test.pending, fwk.NewStatus(test.status)); got != test.want {
					t.Errorf("ours %v: got %v %s, want %v", ours, got, why, test.want)
				}
			}
		})
	}
}

// TestUpstreamPreEnqueue checks that a pod is not enqueued while its victims are removed.
func TestUpstreamPreEnqueue(t *testing.T) {
	for _, ours := range []bool{false, true} {
		t.Run(fmt.Sprintf("ours %v", ours), func(t *testing.T) {
			withGates(t, true)
			c := upstreamCase{cluster: cluster{nodes: five("n1"), pods: place("n1: a/low/3")}, pending: wanting(high, 3)}
			f, client := c.setup(t)
			release := make(chan struct{})
			client.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				<-release
				return false, nil, nil
			})
			p, _ := newPreemption(t, f, ours)
			statuses := framework.NewDefaultNodeToStatus()
			statuses.Set("n1", fwk.NewStatus(fwk.Unschedulable))
			state := framework.NewCycleState()
			f.RunPreFilterPlugins(t.Context(), state, c.pending)
			if _, status := p.PostFilter(t.Context(), state, c.pending, statuses); !status.IsSuccess() {
				t.Fatal(status.AsError())
			}
			status := p.PreEnqueue(t.Context(), c.pending)
			if want := "waiting for the preemption for this pod to be finished"; status.Code() != fwk.UnschedulableAndUnresolvable || status.Message() != want {
				t.Errorf("got %v, want %q", status, want)
			}
			other := wanting(high, 3, func(pod *corev1.Pod) {
				pod.ObjectMeta = metav1.ObjectMeta{Name: "other", Namespace: "shop", UID: "other"}
			})
			if status := p.PreEnqueue(t.Context(), other); status != nil {
				t.Errorf("another pod: %v", status)
			}
			close(release)
			waitFor(t, "the pod can be enqueued", func() bool { return p.PreEnqueue(t.Context(), c.pending) == nil })
			if deleted, _ := removed(client); deleted != "a" {
				t.Errorf("deleted %q, want a", deleted)
			}
		})
	}
}
