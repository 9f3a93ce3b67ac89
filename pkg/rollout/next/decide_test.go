// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// case is a cluster and a rollout; changes describe how it differs from nodes that are all in
// service.
type scene struct {
	nodes    []*corev1.Node
	holders  map[string][]*v1alpha1.NodeMaintenance
	pods     map[string]int
	goals    map[string]Goal
	facts    Facts
	rollout  *v1alpha1.NodeMaintenanceRollout
	attempts []*v1alpha1.NodeMaintenance
	// unmatched are the nodes that the rollout does not select.
	unmatched map[string]bool
	ready     Rollout
}

type change func(*scene)

// now is the time of the decisions.
var now = epoch.Add(24 * time.Hour)

// ago returns a time before now.
func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func aNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{}, Annotations: map[string]string{}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: ago(time.Hour)},
		}},
	}
}

// decide makes the decision for a rollout over nodes n0, n1 and so on, in stage Roll, of which one
// may be out.
func decide(n int, changes ...change) Decision {
	s := &scene{holders: map[string][]*v1alpha1.NodeMaintenance{}, pods: map[string]int{}, goals: map[string]Goal{}, unmatched: map[string]bool{}, rollout: &v1alpha1.NodeMaintenanceRollout{}}
	s.rollout.Name = "kernel"
	s.rollout.Spec.Stage = v1alpha1.RolloutStageRoll
	s.rollout.Spec.Limits = []v1alpha1.RolloutLimit{maxUnavailable(1, "")}
	s.facts = Facts{Now: now, MaxUnavailablePercent: 100}
	for i := range n {
		s.nodes = append(s.nodes, aNode(fmt.Sprintf("n%d", i)))
	}
	for _, c := range changes {
		c(s)
	}
	exists := map[string]bool{}
	for _, nm := range s.attempts {
		exists[nm.Name] = true
	}
	s.facts.Exists = func(name string) bool { return exists[name] }
	s.facts.Rollouts = append(s.facts.Rollouts, s.rollout)
	s.ready.Object, s.ready.Attempts = s.rollout, s.attempts
	var all []Node
	worked := DoneBy(s.attempts)
	for _, node := range s.nodes {
		_, isDone := worked[node.UID]
		all = append(all, NewNode(node, s.holders[node.Name], now))
		if !s.unmatched[node.Name] {
			s.ready.Members = append(s.ready.Members, Member{node.Name, s.goals[node.Name], isDone})
		}
	}
	s.facts.Nodes, s.facts.Pods = NewNodes(all), func(node string) int { return s.pods[node] }
	return Decide(NewCluster(s.facts), &s.ready)
}

func limits(all ...v1alpha1.RolloutLimit) change {
	return func(s *scene) { s.rollout.Spec.Limits = all }
}

func percent(text, key string) v1alpha1.RolloutLimit {
	return v1alpha1.RolloutLimit{MaxUnavailable: ptr.To(intstr.FromString(text)), TopologyKey: key}
}

// wide lets the rollout start many units: it has been done with many.
func wide(s *scene) {
	for i := range 50 {
		s.attempts = append(s.attempts, attempt(fmt.Sprintf("gone%d", i), "Done"))
	}
}

// attempt is a maintenance for a unit of one node. how is Done, Released, a reason of a withdrawal,
// or "" for one that has not ended.
func attempt(unit, how string) *v1alpha1.NodeMaintenance {
	m := &simMaintenance{name: "kernel-" + unit, owner: "kernel", unit: unit, task: true, nodes: []string{unit}, complete: 0, ended: 0}
	switch how {
	case "":
		m.complete, m.ended = -1, -1
	case "Done":
		m.records = map[string]record{unit: {state: v1alpha1.NodeTaskDone, uid: "uid-" + unit}}
	case "Released":
		m.person = true
	default:
		m.withdrawn = how
	}
	return m.object()
}

// ended sets the time at which an attempt ended.
func ended(nm *v1alpha1.NodeMaintenance, d time.Duration) *v1alpha1.NodeMaintenance {
	for i := range nm.Status.StageStatuses {
		nm.Status.StageStatuses[i].StartTimestamp = ptr.To(ago(d))
	}
	return nm
}

func attempts(all ...*v1alpha1.NodeMaintenance) change {
	return func(s *scene) { s.attempts = append(s.attempts, all...) }
}

// runs adds units with one node to the status. Their maintenances may be among the attempts.
func runs(phase v1alpha1.RolloutPhase, units ...string) change {
	return func(s *scene) {
		for _, unit := range units {
			s.rollout.Status.Current = append(s.rollout.Status.Current, v1alpha1.RolloutUnit{
				Unit: unit, Maintenance: "kernel-" + unit, Phase: phase, Nodes: []v1alpha1.NodeReference{{Name: unit, UID: types.UID("uid-" + unit)}},
			})
		}
	}
}

// otherRuns adds a rollout with one unit, of a node that needs no work of ours.
func otherRuns(phase v1alpha1.RolloutPhase, node string, deleted bool) change {
	return func(s *scene) {
		r := &v1alpha1.NodeMaintenanceRollout{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
		r.Status.Current = []v1alpha1.RolloutUnit{{Unit: node, Maintenance: "other-1", Phase: phase, Nodes: []v1alpha1.NodeReference{{Name: node}}}}
		if deleted {
			r.DeletionTimestamp = ptr.To(ago(time.Minute))
		}
		s.facts.Rollouts = append(s.facts.Rollouts, r)
		s.goals[node] = GoalMet
	}
}

func node(name string, all ...func(*corev1.Node)) change {
	return func(s *scene) {
		i := slices.IndexFunc(s.nodes, func(n *corev1.Node) bool { return n.Name == name })
		for _, f := range all {
			f(s.nodes[i])
		}
	}
}

// labelled gives nodes n0, n1 and so on the values of a label; "" means none.
func labelled(key string, values ...string) change {
	return func(s *scene) {
		for i, value := range values {
			if value != "" {
				s.nodes[i].Labels[key] = value
			}
		}
	}
}

func notReady(d time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions[0].Status, n.Status.Conditions[0].LastTransitionTime = corev1.ConditionUnknown, ago(d)
	}
}

// atWork lets a worker have a node.
func atWork(name string) change {
	return func(s *scene) {
		for _, c := range []change{runs("Claimed", name), attempts(attempt(name, "")), tasked(name, v1alpha1.NodeTaskClaimed, "kernel-"+name)} {
			c(s)
		}
	}
}

// failedOn makes the work on a node fail.
func failedOn(name string) []change {
	return slices.Clip([]change{attempts(attempt(name, "")), runs("Failed", name), tasked(name, v1alpha1.NodeTaskFailed, "kernel-"+name)})
}

func goals(goals map[string]Goal) change { return func(s *scene) { s.goals = goals } }

func unmatched(name string) change { return func(s *scene) { s.unmatched[name] = true } }

// installedAgain gives a Node the UID of a new one.
func installedAgain(n *corev1.Node) { n.UID = "new" }

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func cordonedByOther(n *corev1.Node) {
	n.Spec.Unschedulable = true
	n.Annotations[v1alpha1.AnnotationCordonedBy] = `{"maintenances":{"other":"uid"}}`
}

func readinessTaint(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: "readiness.k8s.io/network"}}
}

func removal(taint string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: taint}} }
}

func held(name string, task bool) change {
	return func(s *scene) {
		nm := (&simMaintenance{name: "other", task: task, complete: -1, ended: -1}).object()
		s.holders[name] = append(s.holders[name], nm)
	}
}

func tasked(name string, state v1alpha1.NodeTaskState, maintenance string) change {
	return func(s *scene) {
		s.facts.Tasks = append(s.facts.Tasks, (&simTask{name: name, uid: "uid-" + name, state: state, maintenance: maintenance, since: 60}).object())
	}
}

func spec(f func(*v1alpha1.NodeMaintenanceRolloutSpec)) change {
	return func(s *scene) { f(&s.rollout.Spec) }
}

func unitKey(spec *v1alpha1.NodeMaintenanceRolloutSpec) { spec.UnitKey = "rack" }

// TestStart has which units start.
func TestStart(t *testing.T) {
	controlPlane := func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" }
	runsEtcd := func(n *corev1.Node) {
		n.Annotations[v1alpha1.AnnotationKeptStaticPods] = protocol.EncodeKeptStaticPods("boot-1", true, nil)
	}
	for name, c := range map[string]struct {
		nodes   int
		changes []change
		want    string
	}{
		"the first is alone":         {5, []change{limits(maxUnavailable(5, ""))}, "n0"},
		"two after one was done":     {5, []change{limits(maxUnavailable(5, "")), attempts(attempt("n0", "Done"))}, "n1 n2"},
		"four after three were done": {9, []change{limits(maxUnavailable(9, "")), attempts(attempt("n0", "Done"), attempt("n1", "Done"), attempt("n2", "Done"))}, "n3 n4 n5 n6"},
		"running units count":        {5, []change{limits(maxUnavailable(5, "")), attempts(attempt("n0", "Done")), runs("Draining", "n1")}, "n2"},
		"a unit that soaks runs":     {5, []change{limits(maxUnavailable(5, "")), attempts(attempt("n0", "Done")), runs("Soaking", "n0")}, ""},
		"alone again after a failure": {5, []change{
			limits(maxUnavailable(5, "")), attempts(ended(attempt("n0", "Done"), 24*time.Hour), attempt("n1", "")), runs("Failed", "n1"),
			tasked("n1", v1alpha1.NodeTaskFailed, "kernel-n1"), spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.MaxFailed = 1 }),
		}, "n2"},
		"up to the limit":                    {5, []change{wide, limits(maxUnavailable(3, ""))}, "n0 n1 n2"},
		"percent, rounded down":              {7, []change{wide, limits(percent("30%", ""))}, "n0 n1"},
		"percent, at least one":              {7, []change{wide, limits(percent("1%", ""))}, "n0"},
		"all limits hold":                    {5, []change{wide, limits(maxUnavailable(4, ""), maxUnavailable(2, ""))}, "n0 n1"},
		"per domain":                         {5, []change{wide, limits(maxUnavailable(1, "zone")), labelled("zone", "a", "a", "b", "b")}, "n0 n2 n4"},
		"percent per domain":                 {6, []change{wide, limits(percent("50%", "zone")), labelled("zone", "a", "a", "a", "a", "b", "b")}, "n0 n1 n4"},
		"one domain":                         {5, []change{wide, limits(maxUnavailable(9, ""), maxDomains(1, "zone")), labelled("zone", "a", "b", "a", "b")}, "n0 n2"},
		"nodes without a label are a domain": {4, []change{wide, limits(maxUnavailable(9, ""), maxDomains(1, "zone")), labelled("zone", "", "a")}, "n0 n2 n3"},
		"the open domain first": {4, []change{
			wide, limits(maxUnavailable(9, ""), maxDomains(1, "zone")), labelled("zone", "a", "b", "a", "b"), runs("Draining", "n1"),
		}, "n3"},
		"a domain where it soaks is open": {4, []change{
			wide, limits(maxUnavailable(9, ""), maxDomains(1, "zone")), labelled("zone", "a", "b", "a", "b"), runs("Soaking", "n1"), attempts(attempt("n1", "Done")),
		}, "n3"},
		"the domain that has begun first": {4, []change{
			limits(maxUnavailable(9, ""), maxDomains(1, "zone")), labelled("zone", "a", "b", "a", "b"), attempts(attempt("n1", "Done")),
		}, "n3"},
		"a label that changed does not stop its domain": {4, []change{
			wide, limits(maxUnavailable(9, ""), maxDomains(1, "zone")), labelled("zone", "a", "b", "b", "a"), runs("Draining", "n0", "n1"),
		}, ""},
		"none while a late result is verified": {5, []change{
			wide, limits(maxUnavailable(5, "")), attempts(attempt("n1", "")), runs("Failed", "n1"), tasked("n1", v1alpha1.NodeTaskVerifying, "kernel-n1"),
			func(s *scene) { s.facts.Tasks[0].Status.Reason = v1alpha1.NodeTaskLost },
		}, ""},
		"a missing node may return in another domain": {2, []change{
			wide, limits(maxUnavailable(9, ""), maxDomains(1, "zone")), labelled("zone", "b", "b"), atWork("gone"),
		}, ""},
		"a missing node does not stop a domain that is open": {3, []change{
			wide, limits(maxUnavailable(9, ""), maxDomains(1, "zone")), labelled("zone", "a", "a", "b"), runs("Draining", "n0"), atWork("gone"),
		}, "n1"},
		"a node at work that does not match any more takes a place": {4, []change{
			wide, limits(maxUnavailable(2, "")), atWork("n3"), unmatched("n3"),
		}, "n0"},
		"and one in every domain": {4, []change{
			wide, limits(maxUnavailable(1, "zone")), labelled("zone", "a", "b"), atWork("n3"), unmatched("n3"),
		}, ""},
		"a node that was installed again takes one place": {4, []change{
			wide, limits(maxUnavailable(2, "")), atWork("n3"), node("n3", installedAgain),
		}, "n0"},
		"and one in every domain, since labels may follow": {4, []change{
			wide, limits(maxUnavailable(1, "zone")), labelled("zone", "a", "b"), atWork("n3"), node("n3", installedAgain),
		}, ""},
		"it may become a control-plane node": {4, []change{
			wide, limits(maxUnavailable(4, "")), node("n0", controlPlane), atWork("n3"), node("n3", installedAgain), unmatched("n3"),
		}, "n1 n2"},
		"not one whose work is done for another maintenance that holds it": {2, []change{func(s *scene) {
			nm := (&simMaintenance{name: "other", task: true, nodes: []string{"n0"}, complete: -1, ended: -1, records: map[string]record{"n0": {state: v1alpha1.NodeTaskDone, uid: "uid-n0"}}}).object()
			s.holders["n0"] = append(s.holders["n0"], nm)
		}, limits(maxUnavailable(2, ""))}, "n1"},
		"one that another maintenance selects, and does not get": {1, []change{func(s *scene) {
			nm := (&simMaintenance{name: "other", complete: -1, ended: -1}).object()
			nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{{NodeRef: v1alpha1.NodeReference{Name: "n0", UID: "uid-n0"}, Reason: v1alpha1.NodeStatusNotAuthorized}}
			s.holders["n0"] = append(s.holders["n0"], nm)
		}}, "n0"},
		"not one that an autoscaler removes, which takes a place": {4, []change{
			wide, limits(maxUnavailable(3, "")), node("n0", removal("ToBeDeletedByClusterAutoscaler")), node("n1", removal("karpenter.sh/disrupted")),
		}, "n2"},
		"not one that is being deleted, which takes a place": {2, []change{
			wide, limits(maxUnavailable(1, "")), node("n0", func(n *corev1.Node) { n.DeletionTimestamp = ptr.To(ago(time.Minute)) }),
		}, ""},
		"a failed node that does not exist takes a place": {2, append(failedOn("gone"), limits(maxUnavailable(1, "")), spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.MaxFailed = 1 })), ""},
		"nodes that are not Ready take places":            {4, []change{wide, limits(maxUnavailable(2, "")), node("n0", notReady(time.Minute))}, "n1"},
		"nodes that just became not Ready do not":         {4, []change{wide, limits(maxUnavailable(2, "")), node("n0", notReady(29*time.Second))}, "n1 n2"},
		"unless users cordoned them before":               {4, []change{wide, limits(maxUnavailable(2, "")), node("n0", cordoned, notReady(10*time.Second))}, "n1"},
		"or a readiness taint was on them":                {4, []change{wide, limits(maxUnavailable(2, "")), node("n0", readinessTaint, notReady(10*time.Second))}, "n1"},
		"a clock ahead gives no grace":                    {4, []change{wide, limits(maxUnavailable(2, "")), node("n0", notReady(-5*time.Minute))}, "n1"},
		"nodes that users cordoned take places":           {4, []change{wide, limits(maxUnavailable(2, "")), node("n0", cordoned)}, "n1"},
		"nodes under other maintenances take places":      {4, []change{wide, limits(maxUnavailable(2, "")), held("n0", false)}, "n1"},
		"tasks without a node take places":                {4, []change{wide, limits(maxUnavailable(2, "")), tasked("re-imaged", v1alpha1.NodeTaskClaimed, "x")}, "n0"},
		"tasks that are done do not":                      {4, []change{wide, limits(maxUnavailable(2, "")), tasked("re-imaged", v1alpha1.NodeTaskDone, "x")}, "n0 n1"},
		"readiness taints take places":                    {4, []change{wide, limits(maxUnavailable(2, "")), node("n0", readinessTaint)}, "n1"},
		"units of others take places":                     {4, []change{wide, limits(maxUnavailable(2, "")), otherRuns("Draining", "n0", false)}, "n1"},
		"unless the other rollout is deleted":             {4, []change{wide, limits(maxUnavailable(2, "")), otherRuns("Draining", "n0", true)}, "n1 n2"},
		"and its unit does not just start":                {4, []change{wide, limits(maxUnavailable(2, "")), otherRuns("Starting", "n0", true)}, "n1"},
		"announced nodes take places":                     {4, []change{wide, limits(maxUnavailable(2, "")), runs("Starting", "n0")}, "n1"},
		"a vanished node of an announcement, too":         {4, []change{wide, limits(maxUnavailable(2, "")), runs("Starting", "vanished")}, "n0"},
		"a node that another rollout drains costs no place": {3, []change{
			wide, held("n0", true), node("n0", cordonedByOther),
		}, "n0"},
		"unless another one is out, too": {3, []change{
			wide, held("n0", true), node("n0", cordonedByOther), node("n1", notReady(time.Minute)),
		}, ""},
		"a control-plane node that another rollout drains, while one is out": {3, []change{
			wide, limits(maxUnavailable(9, "")), held("n0", true), node("n0", controlPlane, cordonedByOther), node("n1", controlPlane, notReady(time.Minute)),
		}, "n2"},
		"nor one that it is about to cordon":    {3, []change{wide, held("n0", true)}, "n0"},
		"unless the places are taken by others": {3, []change{wide, held("n0", true), node("n1", cordoned)}, ""},
		"a node that a worker has, waits":       {3, []change{wide, limits(maxUnavailable(9, "")), held("n0", true), tasked("n0", v1alpha1.NodeTaskClaimed, "other")}, "n1 n2"},
		"the cluster's limit":                   {20, []change{wide, limits(maxUnavailable(9, "")), func(s *scene) { s.facts.MaxUnavailablePercent = 10 }}, "n0 n1"},
		"the cluster's limit is at least one":   {3, []change{wide, limits(maxUnavailable(9, "")), func(s *scene) { s.facts.MaxUnavailablePercent = 20 }}, "n0"},
		"one of two nodes on which etcd runs": {3, []change{
			wide, limits(maxUnavailable(9, "")), node("n0", runsEtcd), node("n1", runsEtcd),
		}, "n0 n2"},
		"one control-plane node":              {4, []change{wide, limits(maxUnavailable(9, "")), node("n0", controlPlane), node("n1", controlPlane)}, "n0 n2 n3"},
		"no control-plane node if one is out": {3, []change{wide, limits(maxUnavailable(9, "")), node("n0", controlPlane), node("n1", controlPlane), node("n1", cordoned)}, "n2"},
		"nor if the one that is out has just begun to reboot": {3, []change{
			wide, limits(maxUnavailable(9, "")), node("n0", controlPlane), node("n1", controlPlane, cordoned, notReady(10*time.Second)),
		}, "n2"},
		"fewest pods first":    {3, []change{func(s *scene) { s.pods = map[string]int{"n0": 2, "n1": 1, "n2": 3} }}, "n1"},
		"fewer attempts first": {2, []change{attempts(attempt("n0", WithdrawnClosed)), func(s *scene) { s.pods["n1"] = 9 }}, "n1"},
		"a unit that may have started first": {2, []change{func(s *scene) {
			s.ready.FailedStarts, s.ready.Unsettled = map[string]time.Time{"n1": now}, map[string]v1alpha1.RolloutUnit{"n1": {}}
		}}, "n1"},
		"a unit that did not start last": {2, []change{func(s *scene) { s.ready.FailedStarts = map[string]time.Time{"n0": now} }}, "n1"},
		"the unit that failed to start long ago first": {2, []change{func(s *scene) {
			s.ready.FailedStarts = map[string]time.Time{"n0": now, "n1": now.Add(-time.Minute)}
		}}, "n1"},
		"the node of the server last": {2, []change{func(s *scene) { s.facts.ServerNode = "n0"; s.pods["n1"] = 9 }}, "n1"},
		"after a unit that did not start": {2, []change{func(s *scene) {
			s.facts.ServerNode, s.ready.FailedStarts = "n0", map[string]time.Time{"n1": now}
		}}, "n1"},
		"new nodes only take places": {3, []change{
			limits(maxUnavailable(2, "")), func(s *scene) { s.goals = map[string]Goal{"n0": TooNew, "n1": TooNew} }, node("n1", cordoned),
		}, "n2"},
		"goals are met":                         {3, []change{func(s *scene) { s.goals = map[string]Goal{"n0": GoalMet, "n1": GoalUnmet} }}, "n1"},
		"a blocked unit waits ten minutes":      {1, []change{attempts(ended(attempt("n0", WithdrawnBlocked), 9*time.Minute))}, ""},
		"a blocked unit is tried again":         {1, []change{attempts(ended(attempt("n0", WithdrawnBlocked), 10*time.Minute))}, "n0"},
		"after its nodes left, it waits, too":   {1, []change{attempts(ended(attempt("n0", WithdrawnGone), 9*time.Minute))}, ""},
		"and is tried again":                    {1, []change{attempts(ended(attempt("n0", WithdrawnGone), 10*time.Minute))}, "n0"},
		"blocked twice, it waits twice as long": {1, []change{attempts(ended(attempt("n0", WithdrawnBlocked), time.Hour), ended(attempt("n0", WithdrawnBlocked), 19*time.Minute))}, ""},
		"released by a user":                    {2, []change{attempts(attempt("n0", "Released"))}, "n1"},
		"no longer, when the object is deleted": {1, []change{attempts(deleted(attempt("n0", "Released")))}, "n0"},
		"no longer, when the unit is retried":   {1, []change{attempts(retried(attempt("n0", "Released")))}, "n0"},
		"retried, it does not wait":             {1, []change{attempts(retried(ended(attempt("n0", WithdrawnBlocked), time.Minute)))}, "n0"},
		"retried without a worker":              {2, []change{attempts(retried(attempt("n1", WithdrawnNoWorker))), func(s *scene) { s.pods["n0"] = 9 }}, "n1"},
		"retried, but its work was done":        {2, []change{attempts(retried(attempt("n0", "Done")))}, "n1"},
		"withdrawn as the window closed":        {1, []change{attempts(attempt("n0", WithdrawnClosed))}, "n0"},
		"a rack leaves as a whole":              {5, []change{spec(unitKey), limits(maxUnavailable(4, "")), labelled("rack", "a", "b", "a", "a")}, "a"},
		"a rack that is half done":              {3, []change{spec(unitKey), limits(maxUnavailable(2, "")), labelled("rack", "a", "a", "a"), func(s *scene) { s.goals["n1"] = GoalMet }}, "a"},
		"a node that left with another rack": {2, []change{
			wide, spec(unitKey), limits(maxUnavailable(9, "")), labelled("rack", "b", "b"), held("n0", true), runs("Draining", "a"), func(s *scene) {
				s.rollout.Status.Current[0].Nodes[0].Name = "n0"
			},
		}, "b"},
		"a rack that does not fit beside others": {5, []change{wide, spec(unitKey), limits(maxUnavailable(3, "")), labelled("rack", "a", "a", "b", "b", "c")}, "a c"},
		"a rack larger than the limit":           {3, []change{spec(unitKey), limits(maxUnavailable(1, "")), labelled("rack", "a", "a")}, "n2"},
		"64 nodes in a unit":                     {65, []change{spec(unitKey), limits(maxUnavailable(99, "")), labelled("rack", slices.Repeat([]string{"a"}, 64)...), func(s *scene) { s.pods["n64"] = 99 }}, "a"},
		"65 nodes in a unit":                     {65, []change{spec(unitKey), limits(maxUnavailable(99, "")), labelled("rack", slices.Repeat([]string{"a"}, 65)...)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(c.nodes, c.changes...)
			var units []string
			for _, u := range got.Start {
				units = append(units, u.Name)
			}
			is.Equal(t, strings.Join(units, " "), c.want)
		})
	}
}

func deleted(nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	nm.DeletionTimestamp = ptr.To(ago(0))
	return nm
}

func retried(nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	nm.Annotations[v1alpha1.AnnotationRetried] = "true"
	return nm
}

// TestProgressing has the condition, and how the nodes are counted.
func TestProgressing(t *testing.T) {
	hold := v1alpha1.RolloutHold{Name: "ceph", Reason: "rebuild", Stops: v1alpha1.RolloutHoldStarts, By: "ann"}
	held24 := spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.Holds = []v1alpha1.RolloutHold{hold} })
	closed := spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) {
		s.Windows = []v1alpha1.RolloutWindow{{Schedule: "0 22 * * *", Duration: metav1.Duration{Duration: time.Hour}}}
	})
	stage := func(stage v1alpha1.RolloutStage) change {
		return spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.Stage = stage })
	}
	refused := func(s *scene) { s.ready.NotAuthorized = "user bob may not maintain n0" }
	contradicted := func(s *scene) { s.ready.Contradiction = func() string { return "rollout x wants the opposite" } }
	unasked := func(s *scene) {
		s.ready.Contradiction = func() string { panic("a contradiction is computed although no unit may start") }
	}
	failed := failedOn("n0")
	paused := func(by string) change {
		return func(s *scene) {
			nm := s.attempts[0]
			nm.Spec.Paused, nm.Status.Pause = true, &v1alpha1.NodeMaintenancePause{By: by}
		}
	}
	failedAndRuns := slices.Concat(failed, []change{spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.MaxFailed = 1 }), attempts(attempt("n1", "")), runs("Draining", "n1")})
	for name, c := range map[string]struct {
		nodes   int
		changes []change
		reason  string
		message string
		counts  v1alpha1.RolloutNodes
	}{
		"idle":                      {2, []change{stage("Idle"), held24}, "Idle", "stage Idle", v1alpha1.RolloutNodes{Total: 2, Waiting: 2}},
		"all done":                  {1, []change{attempts(attempt("n0", "Done"))}, "Complete", "Every matching node is done", v1alpha1.RolloutNodes{Total: 1, Done: 1}},
		"no node":                   {0, nil, "NoNodesSelected", "The selector matches no node", v1alpha1.RolloutNodes{}},
		"no node, idle":             {0, []change{stage("Idle")}, "NoNodesSelected", "", v1alpha1.RolloutNodes{}},
		"no node, stopped":          {0, []change{stage("Complete")}, "Complete", "", v1alpha1.RolloutNodes{}},
		"no node is left, one runs": {0, []change{runs("Draining", "n0")}, "Rolling", "", v1alpha1.RolloutNodes{}},
		"done, stopped":             {1, []change{stage("Complete"), attempts(attempt("n0", "Done"))}, "Complete", "", v1alpha1.RolloutNodes{Total: 1, Done: 1}},
		"done, soaks":               {1, []change{attempts(attempt("n0", "Done")), runs("Soaking", "n0")}, "Rolling", "1 unit in progress", v1alpha1.RolloutNodes{Total: 1, Running: 1}},
		"stopped":                   {2, []change{stage("Complete"), held24, attempts(attempt("n0", "Done"))}, "Stopped", "", v1alpha1.RolloutNodes{Total: 2, Done: 1, Waiting: 1}},
		"a newer stage":             {1, []change{stage("Rewind")}, "Stopped", "", v1alpha1.RolloutNodes{Total: 1, Waiting: 1}},
		"halted":                    {2, append(failed, held24, unasked), "Halted", "1 unit failed, and maxFailed is 0: n0;", v1alpha1.RolloutNodes{Total: 2, Waiting: 1, Failed: 1}},
		"no worker":                 {2, []change{attempts(attempt("n0", WithdrawnNoWorker))}, "Halted", "n0", v1alpha1.RolloutNodes{Total: 2, Waiting: 1, Failed: 1}},
		"held":                      {1, []change{held24, closed, unasked}, "Held", `Hold ceph by user "ann": rebuild`, v1alpha1.RolloutNodes{Total: 1, Waiting: 1}},
		"contradiction":             {1, []change{contradicted}, "Held", "Rollout x", v1alpha1.RolloutNodes{Total: 1, Waiting: 1}},
		"closed":                    {1, []change{closed, refused}, "OutsideWindow", "opens at 2026-11-28T22:00:00Z", v1alpha1.RolloutNodes{Total: 1, Waiting: 1}},
		"closed, blocked": {
			1, []change{closed, refused, attempts(ended(attempt("n0", WithdrawnBlocked), time.Minute))}, "NodesBlocked", "No unit can start: n0", v1alpha1.RolloutNodes{Total: 1, Blocked: 1},
		},
		"all done, a contradiction is not asked for": {
			1, []change{unasked, attempts(attempt("n0", "Done"))}, "Complete", "Every matching node is done", v1alpha1.RolloutNodes{Total: 1, Done: 1},
		},
		"closed, skipped": {1, []change{closed, refused, node("n0", cordoned)}, "NodesSkipped", "Only skipped units are left", v1alpha1.RolloutNodes{Total: 1, Skipped: 1}},
		"closed, blocked and waiting": {
			2, []change{closed, attempts(ended(attempt("n0", WithdrawnBlocked), time.Minute))}, "OutsideWindow", "opens at", v1alpha1.RolloutNodes{Total: 2, Waiting: 1, Blocked: 1},
		},
		"closed, runs": {1, []change{closed, attempts(attempt("n0", "")), runs("Draining", "n0")}, "OutsideWindow", "", v1alpha1.RolloutNodes{Total: 1, Running: 1}},
		"never opens": {1, []change{spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) {
			s.Windows = []v1alpha1.RolloutWindow{{Schedule: "0 0 30 2 *", Duration: metav1.Duration{Duration: time.Hour}}}
		})}, "OutsideWindow", "No window opens any more", v1alpha1.RolloutNodes{Total: 1, Waiting: 1}},
		"unreadable window": {1, []change{spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) {
			s.Windows = []v1alpha1.RolloutWindow{{Schedule: "0 0 * * *", TimeZone: "Mars/Olympus"}}
		})}, "OutsideWindow", `windows[0]: timeZone: unknown time zone "Mars/Olympus"`, v1alpha1.RolloutNodes{Total: 1, Waiting: 1}},
		"not authorized": {1, []change{refused}, "NotAuthorized", "User bob", v1alpha1.RolloutNodes{Total: 1, Waiting: 1}},
		"starts":         {2, nil, "Rolling", "1 unit in progress; no further unit starts before one of these is done", v1alpha1.RolloutNodes{Total: 2, Running: 1, Waiting: 1}},
		"runs":           {2, []change{attempts(attempt("n0", "")), runs("Draining", "n0")}, "Rolling", "", v1alpha1.RolloutNodes{Total: 2, Running: 1, Waiting: 1}},
		"names who takes the places": {
			4, []change{wide, limits(maxUnavailable(2, "")), held("n0", true), node("n3", cordoned)}, "Rolling",
			"1 unit in progress; unit n1 waits: limits[0] allows 2 nodes out of service: n0 is held by NodeMaintenance other, n3 is unschedulable; " +
				"skipped: node n3 is unschedulable, and not by Haulout", v1alpha1.RolloutNodes{Total: 4, Running: 1, Waiting: 2, Skipped: 1},
		},
		"the unit that starts takes it": {
			2, []change{wide}, "Rolling", "1 unit in progress; unit n1 waits: limits[0] allows 1 node out of service: n0 starts now",
			v1alpha1.RolloutNodes{Total: 2, Running: 1, Waiting: 1},
		},
		"runs unlisted":   {2, []change{attempts(attempt("n0", ""))}, "Rolling", "", v1alpha1.RolloutNodes{Total: 2, Running: 1, Waiting: 1}},
		"paused by users": {2, []change{attempts(attempt("n0", "")), paused("ann"), runs("Draining", "n0")}, "Held", `NodeMaintenance kernel-n0 is paused by user "ann"`, v1alpha1.RolloutNodes{Total: 2, Running: 1, Waiting: 1}},
		"paused in stage Cordon": {1, []change{attempts(attempt("n0", "")), paused("ann"), runs("Offered", "n0"), func(s *scene) { s.attempts[0].Spec.Stage = v1alpha1.NodeMaintenanceStageCordon }},
			"Held", "is paused by user", v1alpha1.RolloutNodes{Total: 1, Running: 1}},
		"a failed one is paused, another one runs": {2, append(failedAndRuns, paused("ann")), "Rolling", "1 unit in progress", v1alpha1.RolloutNodes{Total: 2, Failed: 1, Running: 1}},
		"paused by us": {2, []change{attempts(attempt("n0", "")), paused(protocol.ServerUser), runs("Draining", "n0")}, "Rolling", "", v1alpha1.RolloutNodes{Total: 2, Running: 1, Waiting: 1}},
		"at a limit": {
			3, []change{node("n2", cordoned)}, "AtLimit", "Unit n0 waits: limits[0] allows 1 node out of service: n2 is unschedulable; skipped: node n2 is unschedulable",
			v1alpha1.RolloutNodes{Total: 3, Waiting: 2, Skipped: 1},
		},
		"at the limit of a domain": {
			2, []change{limits(maxUnavailable(1, "zone")), labelled("zone", "a", "a"), held("n1", false)}, "AtLimit",
			"limits[0] allows 1 node out of service with zone=a: n1 is held by NodeMaintenance other", v1alpha1.RolloutNodes{Total: 2, Waiting: 1, Skipped: 1},
		},
		"at the limit of the cluster": {
			5, []change{func(s *scene) { s.facts.MaxUnavailablePercent = 20 }, limits(maxUnavailable(2, "")), node("n4", notReady(time.Hour))}, "AtLimit",
			"--max-unavailable-nodes of the server allows 1 node out of service: n4 is not Ready", v1alpha1.RolloutNodes{Total: 5, Waiting: 4, Skipped: 1},
		},
		"a worker of another rollout": {
			1, []change{held("n0", true), tasked("n0", v1alpha1.NodeTaskClaimed, "other")}, "AtLimit",
			"Unit n0 waits: node n0 has a NodeTask of NodeMaintenance other in state Claimed", v1alpha1.RolloutNodes{Total: 1, Waiting: 1},
		},
		"a node that may return": {
			1, []change{tasked("gone", v1alpha1.NodeTaskClaimed, "x")}, "AtLimit", "gone does not exist, but may return", v1alpha1.RolloutNodes{Total: 1, Waiting: 1},
		},
		"blocked": {
			2, []change{attempts(ended(attempt("n0", WithdrawnBlocked), time.Minute), attempt("n1", "Done"))}, "NodesBlocked",
			"No unit can start: n0: it was withdrawn; it is tried again at 2026-11-28T00:09:00Z", v1alpha1.RolloutNodes{Total: 2, Blocked: 1, Done: 1},
		},
		"a failure that is allowed, and a blocked unit": {
			2, append(failed, attempts(ended(attempt("n1", WithdrawnBlocked), time.Minute)), spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.MaxFailed = 1 })),
			"NodesBlocked", "No unit can start: n1: it was withdrawn;", v1alpha1.RolloutNodes{Total: 2, Failed: 1, Blocked: 1},
		},
		"a failure that is allowed": {
			1, append(failed, spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.MaxFailed = 1 })), "Halted",
			"Only failed units are left: n0: the work has failed (NodeMaintenance kernel-n0)", v1alpha1.RolloutNodes{Total: 1, Failed: 1},
		},
		"a failure whose node does not match any more": {
			2, append(failed, unmatched("n0"), goals(map[string]Goal{"n1": GoalMet})), "Halted", "1 unit failed, and maxFailed is 0: n0",
			v1alpha1.RolloutNodes{Total: 1, Done: 1},
		},
		"an allowed one": {
			2, append(failed, unmatched("n0"), goals(map[string]Goal{"n1": GoalMet}), spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.MaxFailed = 1 })),
			"Halted", "Only failed units are left: n0: the work has failed (NodeMaintenance kernel-n0), and none of its nodes matches", v1alpha1.RolloutNodes{Total: 1, Done: 1},
		},
		"a failure whose node is deleted": {
			1, append(failedOn("gone"), goals(map[string]Goal{"n0": GoalMet})), "Halted", "1 unit failed, and maxFailed is 0: gone", v1alpha1.RolloutNodes{Total: 1, Done: 1},
		},
		"a failure whose node does not match any more, after a stop": {
			2, append(failed, unmatched("n0"), goals(map[string]Goal{"n1": GoalMet}), spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.Stage = v1alpha1.RolloutStageComplete })),
			"Stopped", "not all nodes are done; failed: n0", v1alpha1.RolloutNodes{Total: 1, Done: 1},
		},
		"skipped": {
			4, []change{
				node("n0", cordoned), node("n1", notReady(time.Hour)), attempts(attempt("n2", "Released")),
				node("n3", func(n *corev1.Node) { n.Annotations[v1alpha1.AnnotationSkipRollouts] = "" }),
			}, "NodesSkipped", "Only skipped units are left: n2: a user has completed NodeMaintenance kernel-n2 before the work was done, " +
				"node n0 is unschedulable, and not by Haulout, node n1 is not Ready and 1 more", v1alpha1.RolloutNodes{Total: 4, Skipped: 4},
		},
		"control plane in one unit": {
			2, []change{spec(unitKey), limits(maxUnavailable(9, "")), labelled("rack", "a", "a"), labelled("node-role.kubernetes.io/control-plane", "x", "x")},
			"NodesSkipped", "a: it has 2 nodes; the limit of control-plane nodes allows 1", v1alpha1.RolloutNodes{Total: 2, Skipped: 2},
		},
		"a unit in two domains": {
			2, []change{spec(unitKey), limits(maxUnavailable(9, ""), maxDomains(1, "zone")), labelled("rack", "a", "a"), labelled("zone", "a", "b")},
			"NodesSkipped", "a: it has nodes in 2 domains of zone; limits[1] allows 1", v1alpha1.RolloutNodes{Total: 2, Skipped: 2},
		},
		"a node that left with another rack": {
			2, []change{spec(unitKey), labelled("rack", "b", "b"), runs("Draining", "a"), func(s *scene) { s.rollout.Status.Current[0].Nodes[0].Name = "n0" }},
			"Rolling", "", v1alpha1.RolloutNodes{Total: 2, Running: 1, Waiting: 1},
		},
		"a node joins a unit that has failed": {
			2, append(failed, spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.MaxFailed, s.UnitKey = 1, "rack" }), labelled("rack", "n0", "n0")),
			"Halted", "n0: the work has failed", v1alpha1.RolloutNodes{Total: 2, Failed: 1, Waiting: 1},
		},
		"only new nodes match": {
			2, []change{goals(map[string]Goal{"n0": TooNew, "n1": TooNew})}, "NoNodesSelected", "newer than the start of the rollout", v1alpha1.RolloutNodes{},
		},
		"only new nodes are left": {
			1, []change{goals(map[string]Goal{"n0": TooNew}), attempts(attempt("gone", "Done"))}, "Complete", "", v1alpha1.RolloutNodes{},
		},
		"new nodes are not counted": {
			3, []change{func(s *scene) { s.goals = map[string]Goal{"n0": TooNew, "n1": GoalMet, "n2": GoalMet} }}, "Complete", "",
			v1alpha1.RolloutNodes{Total: 2, Done: 2},
		},
		"a node joins a unit that runs": {
			3, []change{spec(unitKey), labelled("rack", "n0", "n0", "n0"), runs("Draining", "n0")}, "Rolling", "", v1alpha1.RolloutNodes{Total: 3, Running: 1, Waiting: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(c.nodes, c.changes...)
			is.Equal(t, got.Reason, c.reason)
			is.True(t, strings.Contains(got.Message, c.message), "got message %q, want %q", got.Message, c.message)
			is.Equal(t, got.Nodes, c.counts)
		})
	}
}
