// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/events"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func ofGroup(name string) podOption {
	return func(pod *corev1.Pod) {
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(name)}
	}
}

type groupOption func(*schedulingv1beta1.PodGroup)

func wholeOnly(group *schedulingv1beta1.PodGroup) {
	group.Spec.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
}

func podGroup(name string, priority int32, options ...groupOption) *schedulingv1beta1.PodGroup {
	group := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}}
	group.Spec.Priority = ptr.To(priority)
	for _, option := range options {
		option(group)
	}
	return group
}

type assignment struct {
	pod   *corev1.Pod
	info  fwk.PodInfo
	node  string
	state fwk.CycleState
}

func (a assignment) GetPod() *corev1.Pod           { return a.pod }
func (a assignment) GetPodInfo() fwk.PodInfo       { return a.info }
func (a assignment) GetNodeName() string           { return a.node }
func (a assignment) GetCycleState() fwk.CycleState { return a.state }

// gang is a cluster with a pending PodGroup of priority 100.
type gang struct {
	t        *testing.T
	f        framework.Framework
	p        *Plugin
	info     *framework.PodGroupInfo
	preempts chan string
	// min is the number of members that have to be scheduled; 0 means all.
	min int
}

func newGang(t *testing.T, c cluster, members int, options ...podOption) *gang {
	t.Helper()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.GenericWorkload, true)
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.SchedulerAsyncPreemption, false)
	c.classes = []*schedulingv1.PriorityClass{class("guarded", "1000")}
	pending := podGroup("pending", 100)
	info := &framework.PodGroupInfo{Namespace: "shop", Name: "pending", Type: fwk.PodGroupKeyType, PodGroup: pending}
	for i := range members {
		pod := runningPod(fmt.Sprintf("m%d", i), 100, append([]podOption{onNode(""), ofApp("gang"), ofGroup("pending")}, options...)...)
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
		info.UnscheduledPods = append(info.UnscheduledPods, pod)
	}
	informed := c
	informed.pods = append(slices.Clone(c.pods), info.UnscheduledPods...)
	g := &gang{t: t, f: c.framework(t, t.Context(), informed.client(true)), info: info, preempts: make(chan string, 100)}
	g.p = pluginOf(t, t.Context(), g.f)
	g.p.gate.evictPod = func(_ context.Context, eviction *policyv1.Eviction) error {
		if len(eviction.DeleteOptions.DryRun) == 0 {
			g.preempts <- "evict " + eviction.Name
		}
		return nil
	}
	g.p.gate.upstream = func(_ context.Context, _ upstream.Candidate, _ upstream.ExecutorPreemptor, victim *corev1.Pod, _ string) (bool, error) {
		g.preempts <- "delete " + victim.Name
		return false, nil
	}
	return g
}

// schedule is a simple scheduling algorithm: each member gets one CPU of the first node with a free
// CPU.
func (g *gang) schedule(ctx context.Context) (*fwk.PodGroupAssignments, *fwk.Status) {
	nodes, err := g.f.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	slices.SortFunc(nodes, func(x, y fwk.NodeInfo) int { return strings.Compare(x.Node().Name, y.Node().Name) })
	all := &fwk.PodGroupAssignments{}
	taken := map[string]int64{}
	for _, pod := range g.info.UnscheduledPods {
		for _, node := range nodes {
			name := node.Node().Name
			if node.GetAllocatable().GetMilliCPU()-node.GetRequested().GetMilliCPU()-taken[name] < 1000 {
				continue
			}
			taken[name] += 1000
			state := framework.NewCycleState()
			g.f.RunPreFilterPlugins(ctx, state, pod)
			info, err := framework.NewPodInfo(pod)
			if err != nil {
				return nil, fwk.AsStatus(err)
			}
			all.ProposedAssignments = append(all.ProposedAssignments, assignment{pod, info, name, state})
			break
		}
	}
	if found := len(all.ProposedAssignments); found < g.min || g.min == 0 && found < len(g.info.UnscheduledPods) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "Insufficient cpu")
	}
	return all, fwk.NewStatus(fwk.Success)
}

func (g *gang) try() (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	return g.p.PodGroupPostFilter(g.t.Context(), nil, g.info, g.schedule)
}

func (g *gang) victims() []string {
	var names []string
	for len(g.preempts) > 0 {
		names = append(names, <-g.preempts)
	}
	slices.Sort(names)
	return names
}

// heldBack returns the events with the reason EventHeldBack.
func (g *gang) heldBack() []string {
	var texts []string
	recorder := g.f.EventRecorder().(*events.FakeRecorder)
	for len(recorder.Events) > 0 {
		if text := <-recorder.Events; strings.Contains(text, EventHeldBack) {
			texts = append(texts, text)
		}
	}
	return texts
}

// TestGang searches for victims of a group of pods.
func TestGang(t *testing.T) {
	guarded := func(name, node string, options ...podOption) *corev1.Pod {
		return runningPod(name, 10, append([]podOption{ofClass("guarded"), onNode(node)}, options...)...)
	}
	two := []*corev1.Node{node("n1", 1), node("n2", 1)}
	never := func(pod *corev1.Pod) { pod.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever) }
	for name, test := range map[string]struct {
		cluster cluster
		members int
		options []podOption
		want    []string
		// held is a part of the event; "" if budgets do not change the result.
		held string
	}{
		"no budget":          {cluster: cluster{pods: []*corev1.Pod{guarded("a", "n1"), guarded("b", "n2")}, nodes: two}, members: 2, want: []string{"delete a", "delete b"}},
		"a budget with room": {cluster: cluster{pods: []*corev1.Pod{guarded("a", "n1"), guarded("b", "n2")}, nodes: two, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 2)}}, members: 2, want: []string{"evict a", "evict b"}},
		"a budget with too little room": {cluster: cluster{pods: []*corev1.Pod{guarded("a", "n1"), guarded("b", "n2")}, nodes: two, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}}, members: 2,
			held: "1 pods were not considered as victims, because PodDisruptionBudgets protect them; preempting them needs priority 1000"},
		"a smaller group takes the least important": {cluster: cluster{pods: []*corev1.Pod{guarded("a", "n1"), guarded("b", "n2", startedAfter(1))}, nodes: two, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}}, members: 1, want: []string{"evict b"}},
		"unguarded pods leave room in the budget": {cluster: cluster{
			pods:  []*corev1.Pod{guarded("a", "n1"), runningPod("b", 10, onNode("n2"))},
			nodes: two, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 2)},
		}, members: 2, want: []string{"delete b", "evict a"}},
		"one pod of a group that can be disrupted one by one": {cluster: cluster{
			pods:  []*corev1.Pod{guarded("g0", "n1", ofGroup("g")), guarded("g1", "n2", ofGroup("g"), startedAfter(1))},
			nodes: two, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}, groups: []*schedulingv1beta1.PodGroup{podGroup("g", 10)},
		}, members: 1, want: []string{"evict g1"}},
		"a group that is disrupted as a whole": {cluster: cluster{
			pods:  []*corev1.Pod{guarded("g0", "n1", ofGroup("g")), guarded("g1", "n2", ofGroup("g"))},
			nodes: two, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 2)}, groups: []*schedulingv1beta1.PodGroup{podGroup("g", 10, wholeOnly)},
		}, members: 1, want: []string{"evict g0", "evict g1"}},
		"a group that is disrupted as a whole, without room": {cluster: cluster{
			pods:  []*corev1.Pod{guarded("g0", "n1", ofGroup("g")), guarded("g1", "n2", ofGroup("g"))},
			nodes: two, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 1)}, groups: []*schedulingv1beta1.PodGroup{podGroup("g", 10, wholeOnly)},
		}, members: 1, held: "2 pods were not considered"},
		"a group that fits nowhere":   {cluster: cluster{pods: []*corev1.Pod{guarded("a", "n1")}, nodes: two, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)}}, members: 3},
		"a group that never preempts": {cluster: cluster{pods: []*corev1.Pod{guarded("a", "n1"), guarded("b", "n2")}, nodes: two, budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)}}, members: 1, options: []podOption{never}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGang(t, test.cluster, test.members, test.options...)
			_, status := g.try()
			if got := g.victims(); !slices.Equal(got, test.want) || status.IsSuccess() != (test.want != nil) {
				t.Errorf("got the victims %q, want %q: %v", got, test.want, status)
			}
			events := g.heldBack()
			if test.held == "" && len(events) > 0 || test.held != "" && (len(events) != 1 || !strings.Contains(events[0], test.held)) {
				t.Errorf("got the events %q, want one with %q", events, test.held)
			}
			if waits := len(g.p.waiting.waiting()) == 1; waits != (test.held != "") {
				t.Errorf("the group waits: %v", waits)
			}
		})
	}
}

// TestGangWaitsForItsVictims retries a group while its victim is terminating. In the first case
// only the gate has recorded the eviction. In the second case the victim has the condition by which
// upstream recognizes victims. The other pods of the victim's group must not become victims.
func TestGangWaitsForItsVictims(t *testing.T) {
	victim := func(name, node string, options ...podOption) *corev1.Pod {
		return runningPod(name, 10, append([]podOption{ofClass("guarded"), onNode(node), ofGroup("g")}, options...)...)
	}
	marked := func(pod *corev1.Pod) {
		terminating(pod)
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		})
	}
	for name, test := range map[string]struct {
		first podOption
		// remembers is true if the gate evicts the victim.
		remembers bool
		// nominated is the nominated node of the pending pod in the scheduler.
		nominated string
		ongoing   bool
	}{
		"the condition of the victim is not set yet": {func(*corev1.Pod) {}, true, "n1", true},
		"the condition of the victim is set":         {marked, false, "n1", true},
		"nominated for another node":                 {func(*corev1.Pod) {}, true, "n2", false},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster{
				pods:    []*corev1.Pod{victim("g0", "n1", test.first), victim("g1", "n2"), runningPod("other", 10, ofApp("other"), onNode("n3"))},
				nodes:   []*corev1.Node{node("n1", 1), node("n2", 1), node("n3", 1)},
				budgets: []*policyv1.PodDisruptionBudget{budgetOf("web", 0)},
				groups:  []*schedulingv1beta1.PodGroup{podGroup("g", 10)},
			}
			g := newGang(t, c, 1, func(pod *corev1.Pod) { pod.Status.NominatedNodeName = test.nominated })
			member := g.info.UnscheduledPods[0]
			member.Status.NominatedNodeName = test.nominated
			if test.remembers {
				g.p.gate.addLeaving(g.info.PodGroup.UID, c.pods[0])
			}
			info := must.Get(framework.NewPodInfo(member))(t)
			g.f.AddNominatedPod(klog.Background(), info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: test.nominated})
			result, status := g.try()
			if victims := g.victims(); (len(victims) == 0) != test.ongoing || !status.IsSuccess() {
				t.Errorf("got the victims %q, %v", victims, status)
			}
			if _, known := result.NominatingInfos[types.NamespacedName{Namespace: "shop", Name: "m0"}]; !known {
				t.Error("the nomination was removed")
			}
			if waits := len(g.p.waiting.waiting()); waits != 0 {
				t.Errorf("%d groups wait for a budget", waits)
			}
		})
	}
}

// TestGangPauses retries a group immediately after the eviction of its victims was refused.
func TestGangPauses(t *testing.T) {
	g := newGang(t, cluster{pods: []*corev1.Pod{runningPod("a", 10)}, nodes: []*corev1.Node{node("n1", 1)}}, 1)
	g.p.gate.leaveOut(g.info.PodGroup.UID, "cluster", nil)
	if _, status := g.try(); status.IsSuccess() || len(g.victims()) > 0 {
		t.Errorf("got %v", status)
	}
}

// TestMasks compares the masked lister, and the copies that filters get, with the original.
func TestMasks(t *testing.T) {
	antiAffine := func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, TopologyKey: "zone",
		}}}}
	}
	c := cluster{
		pods:   []*corev1.Pod{runningPod("held", 10, ofGroup("g"), antiAffine), runningPod("free", 20, ofGroup("g")), runningPod("far", 30, onNode("n2"))},
		nodes:  []*corev1.Node{node("n1", 2), node("n2", 1)},
		groups: []*schedulingv1beta1.PodGroup{podGroup("g", 10)},
	}
	g := newGang(t, c, 1)
	handle := maskedHandle{g.f, sets.New[types.UID]("uid-held")}
	lister := handle.MutableSnapshotSharedLister()
	n1 := must.Get(lister.NodeInfos().Get("n1"))(t)
	views := map[string][]fwk.PodInfo{"the node": n1.GetPods(), "its copy": n1.Snapshot().GetPods(), "the copy's copy": n1.Snapshot().Snapshot().GetPods()}
	for what, list := range map[string]func() ([]fwk.NodeInfo, error){
		"the list of the other lister":          handle.SnapshotSharedLister().NodeInfos().List,
		"the list":                              lister.NodeInfos().List,
		"nodes with affinity":                   lister.NodeInfos().HavePodsWithAffinityList,
		"nodes with anti-affinity":              lister.NodeInfos().HavePodsWithRequiredAntiAffinityList,
		"nodes with anti-affinity across nodes": lister.NodeInfos().HavePodsWithRequiredNonHostScopedAntiAffinityList,
	} {
		nodes := must.Get(list())(t)
		for _, each := range nodes {
			if each.Node().Name == "n1" {
				views[what] = each.GetPods()
			}
		}
	}
	for what, pods := range views {
		if got := describePods(pods); got != fmt.Sprintf("held %d, free 20 g", math.MaxInt32) {
			t.Errorf("%s shows %s", what, got)
		}
	}
	if len(views) < 6 {
		t.Errorf("got the views %q", slices.Collect(maps.Keys(views)))
	}
	for what, pods := range map[string][]fwk.PodInfo{
		"affinity": n1.GetPodsWithAffinity(), "anti-affinity": n1.GetPodsWithRequiredAntiAffinity(), "wide": n1.GetPodsWithRequiredNonHostScopedAntiAffinity(),
	} {
		if got := describePods(pods); len(pods) > 0 && got != fmt.Sprintf("held %d", math.MaxInt32) {
			t.Errorf("%s shows %s", what, got)
		}
		for _, pod := range pods {
			is.True(t, len(pod.GetRequiredAntiAffinityTerms()) == 1, "%s: the terms are missing", what)
		}
	}
	// The other fields of the pod must be the same, and the pod in the cache must not change.
	want := c.pods[0].DeepCopy()
	want.Spec.Priority, want.Spec.SchedulingGroup = ptr.To[int32](math.MaxInt32), nil
	if got := n1.GetPods()[0].GetPod(); !reflect.DeepEqual(got, want) {
		t.Errorf("got the copy %+v", got)
	}
	if *c.pods[0].Spec.Priority != 10 || c.pods[0].Spec.SchedulingGroup == nil {
		t.Error("the pod itself was changed")
	}
	if n1.GetRequested().GetMilliCPU() != 2000 {
		t.Errorf("the node requests %d mCPU: the masked pod is not included", n1.GetRequested().GetMilliCPU())
	}
}

func describePods(pods []fwk.PodInfo) string {
	var texts []string
	for _, info := range pods {
		pod := info.GetPod()
		text := fmt.Sprintf("%s %d", pod.Name, *pod.Spec.Priority)
		if group := pod.Spec.SchedulingGroup; group != nil {
			text += " " + *group.PodGroupName
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

// TestMaskedInterfaces fails when upstream adds a method to an interface that the masks wrap. The
// new method would not be masked. After an upgrade of Kubernetes, check whether it returns pods.
func TestMaskedInterfaces(t *testing.T) {
	for what, test := range map[string]struct {
		of   reflect.Type
		want string
	}{
		"Handle": {reflect.TypeFor[fwk.Handle](), "APICacher APIDispatcher Activate AddNominatedPod AddPodInPreBind ClientSet " +
			"DeleteNominatedPodIfExists EventRecorder Extenders GetPodInPreBind GetWaitingPod IterateOverWaitingPods KubeConfig " +
			"MutableSnapshotSharedLister NominatedPodsForNode Parallelizer PodGroupManager ProfileName RejectWaitingPod RemovePodInPreBind " +
			"RunFilterPlugins RunFilterPluginsWithNominatedPods RunPreFilterExtensionAddPod RunPreFilterExtensionRemovePod RunPreScorePlugins " +
			"RunReservePluginsReserve RunReservePluginsUnreserve RunScorePlugins SharedCSIManager SharedDRAManager SharedInformerFactory " +
			"SignPod SnapshotSharedLister UpdateNominatedPod"},
		"MutableSnapshotSharedLister": {
			reflect.TypeFor[fwk.MutableSnapshotSharedLister](),
			"AddPod CompositePodGroupStates CompositePodGroups EndMutations NodeInfos PodGroupStates PodGroups RemovePod StartMutations StorageInfos",
		},
		"NodeInfoLister": {
			reflect.TypeFor[fwk.NodeInfoLister](),
			"Get HavePodsWithAffinityList HavePodsWithRequiredAntiAffinityList HavePodsWithRequiredNonHostScopedAntiAffinityList List",
		},
		"NodeInfo": {
			reflect.TypeFor[fwk.NodeInfo](),
			"AddPodInfo GetAllocatable GetGeneration GetImageStates GetNodeDeclaredFeatures GetNonZeroRequested GetPVCRefCounts GetPods GetPodsWithAffinity " +
				"GetPodsWithRequiredAntiAffinity GetPodsWithRequiredNonHostScopedAntiAffinity GetRequested GetUsedPorts Node RemovePod SetNode Snapshot String",
		},
		"PodInfo": {
			reflect.TypeFor[fwk.PodInfo](),
			"CalculateResource GetPod GetPreferredAffinityTerms GetPreferredAntiAffinityTerms GetRequiredAffinityTerms GetRequiredAntiAffinityTerms",
		},
	} {
		var got []string
		for i := range test.of.NumMethod() {
			got = append(got, test.of.Method(i).Name)
		}
		slices.Sort(got)
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s has the methods\n%s, want\n%s", what, text, test.want)
		}
	}
}
