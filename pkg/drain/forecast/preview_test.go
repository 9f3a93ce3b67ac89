// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

const (
	idle     = v1alpha1.NodeMaintenanceStageIdle
	drain    = v1alpha1.NodeMaintenanceStageDrain
	complete = v1alpha1.NodeMaintenanceStageComplete

	ordinary  = v1alpha1.PodTypeDefault
	daemonSet = v1alpha1.PodTypeDaemonSet

	deploymentClass = v1alpha1.EvacuatorClassDeployment
	daemonSetClass  = v1alpha1.EvacuatorClassDaemonSet
	evictionClass   = v1alpha1.EvacuatorClassEviction
)

func TestWaves(t *testing.T) {
	for name, test := range map[string]struct {
		scene scene
		want  []string
	}{
		"nothing to do": {scene: scene{}},
		"pods by node, namespace and name; empty entries are left out": {
			scene: scene{pods: podList{
				pod("b", "web", "n2"), pod("a", "web", "n2"), pod("z", "web", "n2", in("bank")), pod("c", "web", "n1"),
				pod("important", "dns", "n1", withPriority(2000000000)),
			}},
			want: list{
				"0: Default<=1000000000: 4 pods on 2 nodes, 4 asked", "  n1(1) shop/c", "  n2(3) bank/z shop/a,b",
				"1: Default<=2000000000: 1 pods on 1 nodes, 0 asked", "  n1(1) shop/important",
			},
		},
		"a custom plan: a pod belongs to the first entry that covers it": {
			scene: scene{
				subject: maintenance("subject",
					planned(entry(ordinary, 100, "web"), entry(ordinary, 100, ""), entry(ordinary, 200, ""))),
				pods: podList{
					pod("web", "web", "n1", withPriority(100)), pod("db", "db", "n1"),
					pod("late", "web", "n2", withPriority(101)),
				},
			},
			want: list{
				"0: Default<=100 app=web: 1 pods on 1 nodes, 1 asked", "  n1(1) shop/web",
				"1: Default<=100: 1 pods on 1 nodes, 0 asked", "  n1(1) shop/db",
				"2: Default<=200: 1 pods on 1 nodes, 0 asked", "  n2(1) shop/late",
			},
		},
		"pods of other nodes and finished ones do not count, terminating and nominated ones do": {
			scene: scene{pods: podList{
				pod("elsewhere", "web", "n3"), pod("done", "web", "n1", inPhase(corev1.PodSucceeded)),
				pod("broken", "web", "n1", inPhase(corev1.PodFailed)), pod("going", "web", "n1", goneBy(-time.Minute)),
				pod("coming", "web", "n2", nominated), pod("pending", "web", "", inPhase(corev1.PodPending)),
			}},
			want: list{
				"0: Default<=1000000000: 2 pods on 2 nodes, 2 asked, 1 terminating", "  n1(1) shop/going",
				"  n2(1) shop/coming",
			},
		},
		"a pod that was read twice counts once": {
			scene: scene{pods: podList{pod("a", "web", "n1"), pod("a", "web", "n1")}},
			want:  list{"0: Default<=1000000000: 1 pods on 1 nodes, 1 asked", "  n1(1) shop/a"},
		},
		"refused nodes are not drained": {
			scene: scene{refused: list{"n1"}, pods: podList{pod("a", "web", "n1"), pod("b", "web", "n2")}},
			want:  list{"0: Default<=1000000000: 1 pods on 1 nodes, 1 asked", "  n2(1) shop/b"},
		},
		"DaemonSet pods without an evacuator are in no wave": {
			scene: scene{pods: podList{pod("agent", "web", "n1", ownedBy("apps/v1", "DaemonSet", "agent"))}},
		},
		"DaemonSet pods with an evacuator come after all others": {
			scene: scene{evacuators: list{daemonSetClass}, owners: owners{agent: true}, pods: podList{
				pod("agent", "web", "n1", ownedBy("apps/v1", "DaemonSet", "agent")),
				pod("important", "dns", "n2", withPriority(2000001000)),
			}},
			want: list{
				"2: Default<=2000001000: 1 pods on 1 nodes, 1 asked", "  n2(1) shop/important",
				"4: DaemonSet<=1000000000: 1 pods on 1 nodes, 0 asked", "  n1(1) shop/agent",
			},
		},
		"a drain in progress: the remaining pods, and the pods that were asked before": {
			scene: scene{
				subject: maintenance("subject", atStage(drain), reached("n1", entry(ordinary, 2000000000, "")),
					reached("n2", entry(ordinary, 2000000000, ""))),
				nodes: []*corev1.Node{node("n1", cordoned), node("n2", cordoned)},
				pods: podList{
					pod("late", "web", "n1"), pod("important", "dns", "n2", withPriority(2000000000)),
					pod("vital", "cni", "n2", withPriority(2000001000)),
				},
			},
			want: list{
				"0: Default<=1000000000: 1 pods on 1 nodes, 1 asked", "  n1(1) shop/late",
				"1: Default<=2000000000: 1 pods on 1 nodes, 1 asked", "  n2(1) shop/important",
				"2: Default<=2000001000: 1 pods on 1 nodes, 0 asked", "  n2(1) shop/vital",
			},
		},
		"a drain whose nodes are not cordoned yet asks no pod": {
			scene: scene{subject: maintenance("subject", atStage(drain)), pods: pods(1, "web", "n1")},
			want:  list{"0: Default<=1000000000: 1 pods on 1 nodes, 0 asked", "  n1(1) shop/web-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := test.scene.preview(t)
			if got := outline(out); !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			var sum int32
			for i := range out.Waves {
				sum += out.Waves[i].PodCount
			}
			is.True(t, out.PodCount == sum, "%d pods in all, %d in the waves", out.PodCount, sum)
		})
	}
}

func TestEvacuatorClasses(t *testing.T) {
	custom := v1alpha1.AnnotationEvacuatorPrefix + "move.example.com"
	for name, test := range map[string]struct {
		evacuators []string
		owners     owners
		nodes      []*corev1.Node
		pod        *corev1.Pod
		want       []string
	}{
		"no evacuator but eviction": {owners: owners{rs: true}, pod: pod("a", "web", "n1"), want: list{evictionClass}},
		"an annotation": {
			owners: owners{}, pod: pod("a", "web", "n1", annotated(custom, "7")),
			want: list{"move.example.com", evictionClass},
		},
		"an annotation that cannot be read": {
			owners: owners{}, pod: pod("a", "web", "n1", annotated(custom, "high")), want: list{evictionClass},
		},
		"the Deployment of its ReplicaSet": {
			evacuators: list{deploymentClass}, owners: owners{rs: true}, pod: pod("a", "web", "n1"),
			want: list{deploymentClass, evictionClass},
		},
		"a ReplicaSet that does not select it": {
			evacuators: list{deploymentClass}, owners: owners{rs: true}, pod: pod("a", "db", "n1"),
			want: list{evictionClass},
		},
		"a ReplicaSet that does not exist": {
			evacuators: list{deploymentClass}, owners: owners{}, pod: pod("a", "web", "n1"), want: list{evictionClass},
		},
		"the evacuator of the Deployment after that of an annotation": {
			evacuators: list{deploymentClass}, owners: owners{rs: true},
			pod:  pod("a", "web", "n1", annotated(custom, "20000")),
			want: list{"move.example.com", deploymentClass, evictionClass},
		},
		"a pod of a DaemonSet is never evicted": {
			evacuators: list{daemonSetClass}, owners: owners{agent: true},
			pod: pod("a", "web", "n1", ownedBy("apps/v1", "DaemonSet", "agent")), want: list{daemonSetClass},
		},
		"a static pod": {
			evacuators: list{v1alpha1.EvacuatorClassKubelet},
			nodes:      []*corev1.Node{node("n1", withAgent)},
			pod:        pod("a", "web", "n1", annotated(corev1.MirrorPodAnnotationKey, "hash"), ownedBy("v1", "Node", "n1")),
			want:       list{v1alpha1.EvacuatorClassKubelet},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := scene{evacuators: test.evacuators, owners: test.owners, nodes: test.nodes, pods: podList{test.pod}}.preview(t)
			w := out.Waves[0]
			is.Slices(t, w.Nodes[0].Namespaces[0].Pods[0].EvacuatorClasses, test.want)
			if len(w.Evacuators) != 1 ||
				w.Evacuators[0] != (v1alpha1.PreviewEvacuator{EvacuatorClass: test.want[0], PodCount: 1}) {
				t.Errorf("counted %+v, want one pod of %s", w.Evacuators, test.want[0])
			}
		})
	}
}

func TestMessagesNameAFew(t *testing.T) {
	var all []*corev1.Pod
	for i := range 5 {
		all = append(all, pod("a", "web", "n1", in(fmt.Sprintf("ns-%d", i))))
	}
	out := scene{pods: all, namespaces: list{"ns-0", "ns-1", "ns-2", "ns-3", "ns-4"}}.preview(t)
	if got, want := out.Blockers[0].Message, "No Evacuation can be created in a namespace that is being deleted: "+
		"ns-0, ns-1, ns-2 and others. The pods leave with their namespace."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPodsKept(t *testing.T) {
	out := scene{pods: slices.Concat(pods(2, "agent", "n1", ownedBy("apps/v1", "DaemonSet", "agent")),
		pods(1, "proxy", "n2", annotated(corev1.MirrorPodAnnotationKey, "hash"), ownedBy("v1", "Node", "n2")),
		pods(1, "web", "n2"))}.preview(t)
	if out.PodsKeptCount != 3 || len(out.PodsKept) != 2 || out.PodCount != 1 {
		t.Fatalf("%d left: %+v, %d leave", out.PodsKeptCount, out.PodsKept, out.PodCount)
	}
	if l := out.PodsKept[0]; l.Reason != "DaemonSet pod" || l.PodCount != 2 ||
		l.Pods[1] != (v1alpha1.PreviewPodReference{Namespace: "shop", Name: "agent-2", Node: "n1"}) {
		t.Errorf("got %+v", l)
	}
	if l := out.PodsKept[1]; l.Reason != "static pod" || l.PodCount != 1 {
		t.Errorf("got %+v", l)
	}
	if n := out.Nodes; n[0].PodsKept != 2 || n[0].PodCount != 0 || n[1].PodsKept != 1 || n[1].PodCount != 1 {
		t.Errorf("nodes are %+v", n)
	}
}

func TestStaticPodsLeaveNodesWithAnAgent(t *testing.T) {
	static := func(node string) []*corev1.Pod {
		return pods(1, "proxy-"+node, node, annotated(corev1.MirrorPodAnnotationKey, "hash"), ownedBy("v1", "Node", node))
	}
	out := scene{
		evacuators: list{v1alpha1.EvacuatorClassKubelet}, nodes: []*corev1.Node{node("n1", withAgent), node("n2")},
		pods: slices.Concat(static("n1"), static("n2")),
	}.preview(t)
	if out.PodCount != 1 || len(out.Waves) != 1 || out.Waves[0].PodType != v1alpha1.PodTypeStatic ||
		out.Waves[0].Nodes[0].Name != "n1" {
		t.Errorf("%d pods leave in waves %+v, want the one of n1", out.PodCount, out.Waves)
	}
	if len(out.PodsKept) != 1 || out.PodsKept[0].Reason != "static pod" || out.PodsKept[0].Pods[0].Node != "n2" {
		t.Errorf("kept are %+v, want the pod of n2", out.PodsKept)
	}
}

func TestStaticPodsOfAControlPlaneStay(t *testing.T) {
	controlPlane := func(n *corev1.Node) { n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""} }
	out := scene{
		evacuators: list{v1alpha1.EvacuatorClassKubelet}, nodes: []*corev1.Node{node("n1", withAgent, controlPlane)},
		pods: pods(1, "etcd-n1", "n1", annotated(corev1.MirrorPodAnnotationKey, "hash"), ownedBy("v1", "Node", "n1")),
	}.preview(t)
	if out.PodCount != 0 || len(out.PodsKept) != 1 || out.PodsKept[0].Reason != "static pod (ControlPlaneNode)" {
		t.Errorf("%d pods leave, kept are %+v, want the pod of the control plane", out.PodCount, out.PodsKept)
	}
}

func TestHead(t *testing.T) {
	out := scene{refused: list{"n2"}, pods: pods(1, "web", "n1")}.preview(t)
	if out.Name != "subject" || out.UID != "uid-subject" || out.Generation != 3 || !out.Timestamp.Time.Equal(now) ||
		out.Stage != idle {
		t.Errorf("head is %+v", out)
	}
	is.True(t, out.NodeCount == 2 && out.NodesRefused == 1, "%d nodes, %d refused", out.NodeCount, out.NodesRefused)
	want := []v1alpha1.PreviewNode{
		{Name: "n1", UID: "uid-n1", PodCount: 1, Message: "Evacuating"},
		{Name: "n2", UID: "uid-n2", Refused: true, Message: `Not drained: user "ann" may not maintain this node.`},
	}
	is.Slices(t, out.Nodes, want, "nodes")
}

func TestWavesOfAPreviewWaitForARefusedNode(t *testing.T) {
	for policy, want := range map[v1alpha1.ExcludedNodePolicy]string{
		"": "Evacuating", v1alpha1.ExcludedNodeContinue: "Evacuating", v1alpha1.ExcludedNodeWait: "Waiting for node n2.",
	} {
		waiting := maintenance("subject", func(nm *v1alpha1.NodeMaintenance) { nm.Spec.OnExcludedNode = policy })
		all := append(pods(1, "critical", "n1", withPriority(2000000000)), pods(1, "web", "n2")...)
		out := scene{subject: waiting, refused: list{"n2"}, pods: all}.preview(t)
		is.Equal(t, out.Nodes[0].Message, want, "message with "+string(policy))
		is.Equal(t, out.PodCount, 1, "pods of the drain")
	}
}

func TestNothingIsToComeAfterComplete(t *testing.T) {
	other := maintenance("other", atStage(drain))
	out := scene{
		subject: maintenance("subject", atStage(complete)), pods: pods(1, "web", "n1", bare),
		sharing: []Member{{NodeMaintenance: other, Nodes: []*corev1.Node{node("n1")}}},
	}.preview(t)
	if out.PodCount != 0 || out.Waves != nil || out.Blockers != nil || len(out.Nodes) != 2 ||
		out.Nodes[0].Message != "" {
		t.Errorf("got %+v", out)
	}
	is.True(t, len(out.Maintenances) == 1 && out.Maintenances[0].NodeCount == 1, "others are %+v", out.Maintenances)
}

func TestOtherMaintenances(t *testing.T) {
	n1, n2, n3 := node("n1", cordoned), node("n2"), node("n3", cordoned)
	vital := entry(ordinary, 2000001000, "")
	for name, test := range map[string]struct {
		scene scene
		// waves are the expected waves, without the lines of their nodes.
		waves    []string
		others   []v1alpha1.PreviewMaintenance
		messages []string
	}{
		"a maintenance at an earlier wave limits the node": {
			// The other maintenance still has an ordinary pod on n3, so the vital pod on n1 must
			// wait, but n2 need not wait.
			scene: scene{
				nodes: []*corev1.Node{n1, n2},
				draining: []Member{
					{
						NodeMaintenance: maintenance("older", atStage(drain), created(2*time.Hour),
							reached("n1", entry(ordinary, 1000000000, "")),
							reached("n3", entry(ordinary, 1000000000, ""))),
						Nodes: []*corev1.Node{n1, n3},
					},
				},
				sharing: []Member{
					{NodeMaintenance: maintenance("older", atStage(drain)), Nodes: []*corev1.Node{n1, n3}},
				},
				pods: podList{
					pod("a", "a", "n1", withPriority(2000000000)), pod("b", "b", "n2", withPriority(2000000000)),
					pod("c", "c", "n3"),
				},
			},
			waves:    list{"1: Default<=2000000000: 2 pods on 2 nodes, 1 asked"},
			others:   []v1alpha1.PreviewMaintenance{{Name: "older", Stage: drain, NodeCount: 1}},
			messages: list{"Waiting for node n2.", "Evacuating"},
		},
		"a maintenance at a later wave fast-forwards the node": {
			scene: scene{
				nodes: []*corev1.Node{n1, n2},
				draining: []Member{
					{
						NodeMaintenance: maintenance("older", atStage(drain), created(2*time.Hour),
							reached("n1", vital)),
						Nodes: []*corev1.Node{n1},
					},
				},
				sharing: []Member{{NodeMaintenance: maintenance("older", atStage(drain)), Nodes: []*corev1.Node{n1}}},
				pods: podList{
					pod("a", "a", "n1", withPriority(2000001000)), pod("b", "b", "n2"),
					pod("c", "c", "n2", withPriority(2000001000)),
				},
			},
			waves: list{
				"0: Default<=1000000000: 1 pods on 1 nodes, 1 asked",
				"2: Default<=2000001000: 2 pods on 2 nodes, 1 asked",
			},
			others: []v1alpha1.PreviewMaintenance{
				{Name: "older", Stage: drain, NodeCount: 1, NodesFastForwarded: 1},
			},
			messages: list{"Evacuating (fast-forwarded by older older)", "Evacuating"},
		},
		"maintenances that do not drain are named, too": {
			scene: scene{
				nodes: []*corev1.Node{n1, n2},
				sharing: []Member{
					{NodeMaintenance: maintenance("z"), Nodes: []*corev1.Node{n1, n2, n3}},
					{
						NodeMaintenance: maintenance("b", atStage(v1alpha1.NodeMaintenanceStageCordon)),
						Nodes:           []*corev1.Node{n2},
					},
				},
			},
			others: []v1alpha1.PreviewMaintenance{
				{Name: "b", Stage: v1alpha1.NodeMaintenanceStageCordon, NodeCount: 1},
				{Name: "z", Stage: idle, NodeCount: 2},
			},
			messages: list{"Drained", "Drained"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := test.scene.preview(t)
			waves := slices.DeleteFunc(outline(out), func(line string) bool { return strings.HasPrefix(line, " ") })
			is.Slices(t, waves, test.waves, "waves")
			is.Slices(t, out.Maintenances, test.others, "others")
			var messages []string
			for _, n := range out.Nodes {
				messages = append(messages, n.Message)
			}
			is.Slices(t, messages, test.messages, "messages")
		})
	}
}

func TestLimits(t *testing.T) {
	var s scene
	for i := range MaxNodes + 1 {
		s.nodes = append(s.nodes, node(fmt.Sprintf("n%05d", i)))
	}
	var plan []v1alpha1.DrainPlanEntry
	for w := range 7 {
		plan = append(plan, entry(ordinary, int32(w), ""))
		s.pods = append(s.pods, pods(MaxPodsOfWave+1, fmt.Sprintf("w%d", w), "n00001", withPriority(int32(w)), bare)...)
	}
	s.subject = maintenance("subject", planned(plan...))
	for i := range MaxBlockers + 2 {
		app := fmt.Sprintf("app%03d", i)
		s.pods = append(s.pods, pod(app, app, "n00002"))
		s.budgets = append(s.budgets, budget(app, app, 0, closed))
		s.sharing = append(s.sharing, Member{NodeMaintenance: maintenance(app), Nodes: s.nodes[:1]})
	}
	out := s.preview(t)
	if len(out.Nodes) != MaxNodes || out.NodesOmitted != 1 || out.NodeCount != MaxNodes+1 {
		t.Errorf("%d nodes, %d omitted of %d", len(out.Nodes), out.NodesOmitted, out.NodeCount)
	}
	listed := 0
	for i := range out.Waves {
		w := &out.Waves[i]
		shown := 0
		for _, n := range w.Nodes {
			for _, namespace := range n.Namespaces {
				shown += len(namespace.Pods)
			}
		}
		if int(w.PodsOmitted)+shown != int(w.PodCount) || shown > MaxPodsOfWave {
			t.Errorf("wave %d: %d pods listed and %d omitted of %d", w.Index, shown, w.PodsOmitted, w.PodCount)
		}
		listed += shown
	}
	if listed != MaxPods || len(out.Waves) != 7 {
		t.Errorf("%d pods are listed in %d waves, want %d in 7", listed, len(out.Waves), MaxPods)
	}
	// Pods without a controller also cause a blocker.
	if len(out.Blockers) != MaxBlockers || out.BlockersOmitted != 3 {
		t.Errorf("%d blockers, %d omitted", len(out.Blockers), out.BlockersOmitted)
	}
	is.True(t, len(out.Maintenances) == MaxMaintenances, "%d other maintenances", len(out.Maintenances))
	out = scene{pods: pods(MaxPodsOfGroup+2, "web", "n1", bare)}.preview(t)
	if b := out.Blockers[0]; len(b.Pods) != MaxPodsOfGroup || b.PodsOmitted != 2 {
		t.Errorf("%d pods of the blocker are listed, %d omitted", len(b.Pods), b.PodsOmitted)
	}
}

func TestDecideEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n := node("n1")
	collected := NewPods([]*corev1.Node{n}, nil, nodeOf)
	for _, p := range pods(2*checkEvery, "web", "n1") {
		collected.Add(p)
	}
	_, err := Decide(ctx, &Situation{
		Subject: Member{NodeMaintenance: maintenance("a"), Nodes: []*corev1.Node{n}, Refused: sets.New[string]()},
		Pods:    collected,
	})
	is.True(t, errors.Is(err, context.Canceled), "got %v", err)
}
