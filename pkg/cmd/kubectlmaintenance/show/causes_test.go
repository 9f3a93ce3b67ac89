// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestWorkloadOf(t *testing.T) {
	for name, test := range map[string]struct {
		pod    string
		labels map[string]string
		want   workload
	}{
		"a Deployment": {
			"web-app-658ff459ff-6dg46", map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "658ff459ff"},
			workload{"Deployment", "shop", "web-app"},
		},
		"a StatefulSet": {
			"db-12", map[string]string{appsv1.StatefulSetPodNameLabel: "db-12", appsv1.ControllerRevisionHashLabelKey: "db-5d4f8c7b9"},
			workload{"StatefulSet", "shop", "db"},
		},
		"a DaemonSet":             {"logs-x7k2p", map[string]string{appsv1.ControllerRevisionHashLabelKey: "5d4f8c7b9"}, workload{"DaemonSet", "shop", "logs"}},
		"a Job":                   {"report-x7k2p", map[string]string{batchv1.JobNameLabel: "report"}, workload{"Job", "shop", "report"}},
		"a pod without labels":    {"web-658ff459ff-6dg46", nil, workload{"Pod", "shop", "web-658ff459ff-6dg46"}},
		"labels of another pod":   {"tool", map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "658ff459ff"}, workload{"Pod", "shop", "tool"}},
		"a name that only begins": {"658ff459ff-6dg46", map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "658ff459ff"}, workload{"Pod", "shop", "658ff459ff-6dg46"}},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, workloadOf("shop", test.pod, test.labels), test.want)
		})
	}
}

func TestWorkloadOfPreview(t *testing.T) {
	for name, test := range map[string]struct {
		pod, class string
		want       workload
	}{
		"a Deployment":            {"web-658ff459ff-6dg46", v1alpha1.EvacuatorClassDeployment, workload{"Deployment", "shop", "web"}},
		"a DaemonSet":             {"logs-x7k2p", v1alpha1.EvacuatorClassDaemonSet, workload{"DaemonSet", "shop", "logs"}},
		"numbered pods":           {"db-0", v1alpha1.EvacuatorClassEviction, workload{"Pods", "shop", "db-*"}},
		"pods of another owner":   {"web-6dg46", v1alpha1.EvacuatorClassEviction, workload{"Pods", "shop", "web-*"}},
		"a pod":                   {"tool", v1alpha1.EvacuatorClassEviction, workload{"Pod", "shop", "tool"}},
		"a pod with another name": {"tool", v1alpha1.EvacuatorClassDeployment, workload{"Pod", "shop", "tool"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &v1alpha1.PreviewPod{Name: test.pod, EvacuatorClasses: []string{test.class}}
			is.Equal(t, workloadOfPreview("shop", pod), test.want)
		})
	}
}

// TestWays tells a budget that never opens from one that only delays the pods.
func TestWays(t *testing.T) {
	ref := func(name string) v1alpha1.PreviewPodReference {
		return v1alpha1.PreviewPodReference{Namespace: "shop", Name: name, Node: "n"}
	}
	const budget = v1alpha1.ReasonPodDisruptionBudget
	all := waysOf(&v1alpha1.NodeMaintenancePreview{Blockers: []v1alpha1.PreviewBlocker{
		{Effect: v1alpha1.PreviewEffectNever, Reason: budget, PodCount: 1, Pods: []v1alpha1.PreviewPodReference{ref("never")}},
		{Effect: v1alpha1.PreviewEffectNotNow, Reason: budget, PodCount: 1, Pods: []v1alpha1.PreviewPodReference{ref("later")}},
		{Effect: v1alpha1.PreviewEffectDelayed, Reason: budget, Rounds: 10, PodCount: 60, Pods: []v1alpha1.PreviewPodReference{ref("group")}},
		{Effect: v1alpha1.PreviewEffectDelayed, Reason: "TurnsByOwner", PodCount: 1, Pods: []v1alpha1.PreviewPodReference{ref("turn")}},
		{Effect: v1alpha1.PreviewEffectLost, Reason: "NoController", PodCount: 9},
		{Effect: v1alpha1.PreviewEffectNever, Reason: "NoController", PodCount: 9},
		{Effect: "Unknown", Reason: "New", PodCount: 9},
	}})
	for _, test := range []struct {
		pod, reason, want string
	}{
		{"never", budget, budget + ": never leaves"}, {"later", budget, budget + ": not now"},
		{"group", budget, budget + ": in 10 groups"}, {"not-listed", budget, budget + ": in 10 groups"},
		{"turn", "TurnsByOwner", "TurnsByOwner: in turns"}, {"two-candidates", "NoController", "NoController"},
		{"new", "New", "New: Unknown"}, {"other", "Other", "Other"},
	} {
		is.Equal(t, all.of(ref(test.pod), &v1alpha1.PreviewPod{Name: test.pod, Blockers: []string{test.reason}}), test.want, test.pod)
	}
	is.Equal(t, all.of(ref("free"), &v1alpha1.PreviewPod{Name: "free"}), "-")
	is.Equal(t, all.of(ref("free"), &v1alpha1.PreviewPod{Name: "free", Terminating: true}), "terminating")
}

// manyBlocked returns a drain with blocked pods of many workloads; message returns the message for
// the pods of a workload.
func manyBlocked(pods, workloads int, message func(workload int) string) Facts {
	const nodes = 50
	nm := inStage(drain, "Drained=False DrainInProgress", "Progressing=True Draining")
	for i := range nodes {
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: fmt.Sprintf("node-%03d", i)}, DrainTargets: []v1alpha1.DrainPlanEntry{{PodPriority: 1}},
			PodsEvacuating: int32(pods / nodes), PodsBlocked: int32(pods / nodes), PodsPeak: int32(pods / nodes),
		})
	}
	f := Facts{Maintenance: nm, Departures: &Departures{}, Now: now}
	for i := range pods {
		app := i % workloads
		pod := fmt.Sprintf("app-%03d-658ff459ff-%05d", app, i)
		f.Evacuations = append(f.Evacuations, v1alpha1.Evacuation{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: fmt.Sprintf("team-%d", app%7), Name: pod, Labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "658ff459ff"},
			},
			Spec: v1alpha1.EvacuationSpec{NodeName: fmt.Sprintf("node-%03d", i%nodes), PodRef: v1alpha1.PodReference{
				Name: strings.NewReplacer("0", "b", "1", "c", "3", "d").Replace(pod), UID: types.UID(pod),
			}},
			Status: v1alpha1.EvacuationStatus{Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonPodDisruptionBudget,
				Message: message(app), LastTransitionTime: metav1.NewTime(now.Add(-time.Minute)),
			}}},
		})
	}
	return f
}

// ofBudget is the message of a budget for each workload.
func ofBudget(app int) string {
	return fmt.Sprintf("PodDisruptionBudget app-%03d never allows an eviction. The owner of the app can change the budget.", app)
}

// TestManyBlockedPods has 2,000 blocked pods of 300 workloads: the output is bounded, and the work
// grows with the number of pods and not faster.
func TestManyBlockedPods(t *testing.T) {
	f := manyBlocked(2000, 300, ofBudget)
	for _, o := range []Options{{Columns: 79, Rows: 22}, {Columns: 59, Rows: 18}, {Columns: 39, Rows: 18}, {Columns: 39, Rows: 18, ASCII: true}} {
		text := Text(Status(f, o))
		is.True(t, strings.Count(text, "\n") <= o.Rows, "%d columns: %d lines:\n%s", o.Columns, strings.Count(text, "\n"), text)
		for _, want := range []string{"BLOCKED  2000 pods", "kubectl maintenance blockers nm", "more nodes", "Deployment team-"} {
			is.True(t, strings.Contains(text, want), "%d columns: no %q in\n%s", o.Columns, want, text)
		}
		for line := range strings.Lines(text) {
			is.True(t, screen.Width(strings.TrimSuffix(line, "\n")) <= o.Columns, "%q is too wide", line)
		}
	}
	blockers := f.blockers()
	is.Equal(t, len(causesOf(blockers)), 300, "causes")
	text := Text(Blockers(blockers, nil, nil, now, Options{Columns: 79}))
	is.True(t, strings.Count(text, "\n") < 200, "blockers shows %d lines", strings.Count(text, "\n"))
	is.True(t, strings.Contains(text, "… 280 more causes (-o wide lists all)"), "the cut is not marked:\n%s", text)

	allocations := func(f Facts) float64 {
		return testing.AllocsPerRun(3, func() { Status(f, Options{Columns: 79, Rows: 22}) })
	}
	few, many := allocations(f), allocations(manyBlocked(8000, 1200, ofBudget))
	is.True(t, many < 6*few, "2,000 pods take %.0f allocations and 8,000 take %.0f", few, many)
}

// TestOneCauseOfManyWorkloads has one cause for all of them.
func TestOneCauseOfManyWorkloads(t *testing.T) {
	f := manyBlocked(2000, 300, func(int) string { return "The kubelet does not answer." })
	for i := range f.Evacuations {
		f.Evacuations[i].Status.Conditions[0].Reason, f.Evacuations[i].Spec.NodeName = v1alpha1.ReasonNodeUnreachable, "node-000"
	}
	causes := causesOf(f.blockers())
	is.Equal(t, len(causes), 1, "causes")
	is.Equal(t, len(causes[0].loads), 300, "workloads")
	text := Text(Status(f, Options{Columns: 79, Rows: 22}))
	is.Equal(t, strings.Count(text, "The kubelet does not answer."), 1, "times the cause is told")
	is.True(t, strings.Contains(text, " and 298 more: NodeUnreachable"), "got\n%s", text)
}

// TestMessagesOfOneWorkload has messages that differ in the times or names of single pods.
func TestMessagesOfOneWorkload(t *testing.T) {
	f := manyBlocked(6, 1, ofBudget)
	for i := range f.Evacuations {
		f.Evacuations[i].Status.Conditions[0].Message = fmt.Sprintf("Pod %d should have been gone.", i)
	}
	causes := causesOf(f.blockers())
	is.Equal(t, len(causes), 1, "causes")
	is.Equal(t, causes[0].pods, 6, "pods")
	is.Equal(t, causes[0].subject(), "Deployment team-0/app-bbb (6 pods) on 6 nodes")
}

// TestABlockedNodeSaysSo has a node whose pods are all blocked: the server says that they are being
// evacuated.
func TestABlockedNodeSaysSo(t *testing.T) {
	for name, test := range map[string]struct {
		message             string
		evacuating, blocked int32
		want                string
	}{
		"all blocked":                       {"Evacuating", 2, 2, "Blocked"},
		"one of two blocked":                {"Evacuating", 2, 1, "Evacuating"},
		"none blocked":                      {"Evacuating", 2, 0, "Evacuating"},
		"all blocked, and a remark":         {"Evacuating; 1 static pod kept (X)", 1, 1, "Blocked; 1 static pod kept (X)"},
		"blocked pods of an earlier moment": {"Drained", 0, 1, "Drained"},
	} {
		t.Run(name, func(t *testing.T) {
			f := Facts{Maintenance: inStage(drain)}
			n := v1alpha1.NodeMaintenanceNodeStatus{DrainMessage: test.message, PodsEvacuating: test.evacuating, PodsBlocked: test.blocked}
			is.Equal(t, f.nodeMessage(&n), test.want)
		})
	}
}

// TestManyPodsThatStayAreFewCauses has 300 workloads whose pods stop at different times, and 300
// evacuators with messages of their own.
func TestManyPodsThatStayAreFewCauses(t *testing.T) {
	const many = 300
	stops := func(e *v1alpha1.Evacuation, i int) {
		e.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPodStopping,
			Message: wording.Stopping(now.Add(time.Duration(i) * time.Second)),
		}}
	}
	waits := func(e *v1alpha1.Evacuation, i int) {
		class := fmt.Sprintf("e%d.example.com", i)
		e.Spec.Evacuators = []v1alpha1.Evacuator{{EvacuatorClass: class, Priority: 1}}
		e.Status.ActiveEvacuatorClass, e.Status.ActiveEvacuatorSince = class, new(metav1.NewTime(now.Add(-time.Minute)))
	}
	paused := func(e *v1alpha1.Evacuation, i int) {
		stops(e, i)
		e.Status.Conditions[0].Reason, e.Status.Conditions[0].Message = v1alpha1.ReasonPaused, "The drain is paused."
	}
	for name, test := range map[string]struct {
		set     func(*v1alpha1.Evacuation, int)
		heading string
		causes  int
		has     string
	}{
		"pods that stop":         {stops, "Stopping: ", 1, "the last of which ends at 2026-11-21T10:04:59Z"},
		"pods that wait":         {waits, "Waiting for evacuator ", causesListed, "280 more causes"},
		"pods of a paused drain": {paused, "Paused: ", 1, "300 pods waiting for the end of a pause."},
	} {
		t.Run(name, func(t *testing.T) {
			evacuations := make([]v1alpha1.Evacuation, many)
			for i := range evacuations {
				e := &evacuations[i]
				e.Namespace, e.Spec.PodRef.Name, e.Spec.NodeName = "shop", fmt.Sprintf("app%d", i), "n"
				test.set(e, i)
			}
			text := Text(Blockers(nil, nil, WaitingOf(evacuations, nil, now), now, Options{}))
			is.Equal(t, strings.Count("\n"+text, "\n"+test.heading), test.causes, "causes")
			is.True(t, strings.Contains(text, test.has), "%q is missing in\n%s", test.has, text)
		})
	}
}
