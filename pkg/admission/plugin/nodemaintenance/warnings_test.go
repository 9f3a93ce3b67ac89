// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func another(
	name string, stage v1alpha1.NodeMaintenanceStage, selector *corev1.NodeSelector, holds ...string,
) *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1},
		Spec:       v1alpha1.NodeMaintenanceSpec{Stage: stage, NodeSelector: selector},
	}
	if len(holds) > 0 {
		nm.Status.ObservedGeneration = nm.Generation
	}
	for _, node := range holds {
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: node},
		})
	}
	return nm
}

func forWorker(class, doneWhen string) func(*maintenance.NodeMaintenance) {
	return func(nm *maintenance.NodeMaintenance) {
		nm.Spec.Task = &maintenance.NodeMaintenanceTask{Worker: class, DoneWhen: doneWhen}
	}
}

func TestWarnings(t *testing.T) {
	const (
		itsNode     = "spec.nodeSelector: the Haulout server itself runs on node home"
		allOfThem   = "spec.nodeSelector: all control-plane nodes match (2)"
		moreThanOne = "spec.nodeSelector: drains more than one control-plane node: cp-1, cp-2"
		alsoAdded   = "spec.newNodes: Join also drains nodes that an autoscaler adds to groups of karpenter.sh/nodepool"
	)
	cluster := []*corev1.Node{
		node("blue-1", "blue"), node("blue-2", "blue"), node("red-1", "red"), node("home", "home"),
		node("cp-1", "cp", "control-plane"), node("cp-2", "cp", "control-plane"),
	}
	grouped := node("group-1", "group")
	grouped.Labels["karpenter.sh/nodepool"] = "default"
	for name, test := range map[string]struct {
		// nodes defaults to cluster.
		nodes   []*corev1.Node
		others  []*v1alpha1.NodeMaintenance
		request request
		want    []string
	}{
		"some nodes": {request: request{nm: maintain(pools("blue"))}},
		"no node matches": {
			request: request{nm: maintain(pools("green"))},
			want: []string{
				"spec.nodeSelector: no node matches now; existing nodes that match later join the maintenance",
			},
		},
		"no node matches, and new nodes join": {
			request: request{nm: maintain(pools("green"), joins)},
			want:    []string{"spec.nodeSelector: no node matches now; nodes that match later join the maintenance"},
		},
		"all nodes match": {
			request: request{nm: maintain(pools("blue", "red", "home", "cp"))},
			want:    []string{itsNode, "spec.nodeSelector: all nodes of the cluster match (6)", allOfThem, moreThanOne},
		},
		"all control-plane nodes match": {
			request: request{nm: maintain(pools("cp"))}, want: []string{allOfThem, moreThanOne},
		},
		"all control-plane nodes match in stage Cordon": {
			request: request{nm: maintain(pools("cp"), atStage("Cordon"))}, want: []string{allOfThem},
		},
		"two nodes of etcd alone match": {
			nodes:   append(cluster, node("etcd-1", "store", "etcd"), node("etcd-2", "store", "etcd")),
			request: request{nm: maintain(pools("store"))},
			want:    []string{"spec.nodeSelector: drains more than one control-plane node: etcd-1, etcd-2"},
		},
		"another maintenance drains another control-plane node": {
			nodes: append(cluster, node("etcd-1", "store", "etcd")),
			others: []*v1alpha1.NodeMaintenance{
				another("drains", "Drain", pools("cp"), "cp-1"), another("holds", "Cordon", pools("cp"), "cp-2"), another("workers", "Drain", pools("blue"), "blue-1"),
			},
			request: request{nm: maintain(pools("store"))},
			want:    []string{"spec.nodeSelector: other control-plane nodes are drained by drains"},
		},
		"another maintenance drains the same control-plane node": {
			nodes:   append(cluster, node("etcd-1", "store", "etcd")),
			others:  []*v1alpha1.NodeMaintenance{another("drains", "Drain", pools("store"), "etcd-1")},
			request: request{nm: maintain(pools("store"))},
			want:    []string{"spec.nodeSelector: nodes are already under maintenance by drains"},
		},
		"the node of the server matches": {request: request{nm: maintain(pools("home"))}, want: []string{itsNode}},
		"the node of the server matches in stage Idle": {
			request: request{nm: maintain(pools("home"), atStage("Idle"))}, want: []string{itsNode},
		},
		"stage Complete": {request: request{nm: maintain(pools("home"), atStage("Complete"))}},
		"a deletion":     {request: request{old: maintain(pools("home"))}},
		"the reason changes": {
			request: request{nm: maintain(pools("home"), because("x")), old: maintain(pools("home"))},
		},
		"the stage changes": {

			request: request{nm: maintain(pools("home")), old: maintain(pools("home"), atStage("Cordon"))},
			want:    []string{itsNode},
		},
		"a request of the server": {request: request{by: self, nm: maintain(pools("home"))}},
		"other maintenances hold the same nodes": {

			others: []*v1alpha1.NodeMaintenance{
				another("a", "Drain", pools("blue")), another("by-status", "Cordon", pools("red"), "blue-2"),
				another("by-selector", "Drain", pools("blue", "red")), another("elsewhere", "Drain", pools("red")),
				another("has-left", "Drain", pools("blue"), "red-1"), another("idle", "Idle", pools("blue")),
				another("over", "Complete", pools("blue"), "blue-1"), seenBy([]*v1alpha1.NodeMaintenance{another("has-none", "Drain", pools("blue"))})[0],
			},
			request: request{nm: maintain(pools("blue"))},
			want:    []string{"spec.nodeSelector: nodes are already under maintenance by by-selector, by-status"},
		},
		"the status may be large": {
			nodes: manyNodes(5000), request: request{nm: maintain(pools("blue"))},
			want: []string{
				"spec.nodeSelector: drains more than one control-plane node: z-1, z-2",
				"spec.drainPlan: the status of 5002 nodes may take 1.3 MiB; " +
					"messages of individual nodes may be omitted",
			},
		},
		"an autoscaler may add nodes, and new nodes join": {
			nodes: append(cluster, grouped), request: request{nm: maintain(pools("group"), joins)},
			want: []string{alsoAdded},
		},
		"an autoscaler may add nodes, and new nodes are ignored": {
			nodes: append(cluster, grouped), request: request{nm: maintain(pools("group"))},
		},
		"a class of workers that does not exist": {
			request: request{nm: maintain(pools("blue"), forWorker("reboots.maintenance.haulout.dev", ""))},
			want:    []string{"spec.task.worker: Haulout has no class reboots.maintenance.haulout.dev; it has reboot, person and NAME.job"},
		},
		"doneWhen fails on a node": {
			request: request{nm: maintain(pools("blue"), forWorker(rebooter, "node.status.nodeInfo.kernalVersion == '6.12'"))},
			want:    []string{"spec.task.doneWhen: fails on node blue-1, which counts as false: no such key: kernalVersion"},
		},
		"a node needs no work": {
			request: request{nm: maintain(pools("blue"), forWorker(rebooter, "node.metadata.name == 'blue-2'"))},
			want:    []string{"spec.task.doneWhen: it is true for node blue-2, which is drained all the same"},
		},
		"a task without anything unusual": {
			request: request{nm: maintain(pools("blue"), forWorker(rebooter, "node.status.nodeInfo.bootID != before.bootID"))},
		},
		"newNodes changes to Join": {
			nodes:   append(cluster, grouped),
			request: request{nm: maintain(pools("group"), joins), old: maintain(pools("group"))},
			want:    []string{alsoAdded},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.nodes == nil {
				test.nodes = cluster
			}
			if test.request.by == nil {
				test.request.by = bob
			}
			h := may(append(allOf(test.nodes), "")...)
			if test.request.nm != nil && test.request.nm.Spec.Task != nil {
				h.assigns = []string{test.request.nm.Spec.Task.Worker}
			}
			f := newFixture(t, h, test.nodes, test.others...)
			ctx, warnings := f.context(test.request)
			must.Do(t, f.validate(ctx, test.request))
			if got := warnings.Texts(); !slices.Equal(got, test.want) {
				t.Errorf("got warnings\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

// TestWarningOfUncordon covers the warning that a maintenance uncordons nodes for which other users
// are responsible.
func TestWarningOfUncordon(t *testing.T) {
	cordoned := func(n *corev1.Node, by string) *corev1.Node {
		n.Spec.Unschedulable = true
		if by != "" {
			n.Annotations = map[string]string{
				v1alpha1.AnnotationCordonedBy: `{"storage":"s","maintenances":{"` + by + `":"uid"}}`,
			}
		}
		return n
	}
	nodes := []*corev1.Node{
		node("blue-1", "blue"), cordoned(node("blue-2", "blue"), ""), cordoned(node("blue-3", "blue"), "other"),
		cordoned(node("red-1", "red"), ""),
	}
	ends := maintain(pools("blue"), atStage("Complete"))
	const want = "spec.stage: from Idle to Complete also uncordons nodes that others cordoned: blue-2"
	for name, test := range map[string]struct {
		request request
		want    []string
	}{
		"from Idle to Complete": {request{nm: ends, old: maintain(pools("blue"), atStage("Idle"))}, []string{want}},
		"created in Complete":   {request{nm: ends}, []string{want}},
		"no node is cordoned":   {request{nm: maintain(pools("green"), atStage("Complete"))}, nil},
		"from Cordon to Complete": {
			request{nm: ends, old: maintain(pools("blue"), atStage("Cordon"), holding("blue-2"))}, nil,
		},
		"already complete": {
			request{nm: maintain(pools("blue"), atStage("Complete"), because("x")), old: ends}, nil,
		},
		"an Idle maintenance is deleted": {request{old: maintain(pools("blue"), atStage("Idle"))}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			test.request.by = bob
			f := newFixture(t, may(append(allOf(nodes), "")...), nodes)
			ctx, warnings := f.context(test.request)
			must.Do(t, f.validate(ctx, test.request))
			is.Equal(t, strings.Join(warnings.Texts(), "\n"), strings.Join(test.want, "\n"))
		})
	}
}

func TestWarningsAreLimitedInNumberAndLength(t *testing.T) {
	f := newFixture(t, may(), nil)
	f.plugin.warners = []warner{func(context.Context, *write) []string {
		var texts []string
		for range 9 {
			texts = append(texts, strings.Repeat("ä", 200))
		}
		return texts
	}}
	texts := f.plugin.warnings(t.Context(), &write{nm: maintain(pools("blue")), change: &change{}})
	is.Equal(t, len(texts), warningsAtMost, "warnings")
	for _, text := range texts {
		if n := utf8.RuneCountInString(text); n > warningLength {
			t.Errorf("got a warning of %d characters, want at most %d", n, warningLength)
		}
	}
}

func TestListNames(t *testing.T) {
	var hundred []string
	for i := range 100 {
		hundred = append(hundred, fmt.Sprintf("maintenance-%02d", i))
	}
	long := strings.Repeat("x", 253)
	for name, test := range map[string]struct {
		names []string
		want  string
	}{
		"one name":  {[]string{"a"}, "by a"},
		"two names": {[]string{"a", "b"}, "by a, b"},
		"more names than fit": {
			names: hundred,
			want: "by maintenance-00, maintenance-01, maintenance-02, maintenance-03, maintenance-04, " +
				"maintenance-05 and 94 more",
		},
		"a long name":                 {[]string{long}, "by " + strings.Repeat("x", 116) + "…"},
		"a long name and another one": {[]string{long, "b"}, "by " + strings.Repeat("x", 100) + "… and 1 more"},
	} {
		t.Run(name, func(t *testing.T) {
			got := listNames("by ", test.names)
			is.Equal(t, got, test.want)
			if n := utf8.RuneCountInString(got); n > warningLength {
				t.Errorf("got %d characters, want at most %d", n, warningLength)
			}
		})
	}
}
