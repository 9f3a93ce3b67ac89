// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// holdsNodes waits until the status of a maintenance names exactly the given nodes.
func holdsNodes(t *testing.T, name string, want ...string) {
	t.Helper()
	slices.Sort(want)
	framework.Eventually(t, fmt.Sprintf("the status of %s names %v", name, want),
		func(ctx context.Context) (bool, error) {
			nm, err := cluster.As(t).Maintenances().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			var got []string
			for _, status := range nm.Status.NodeStatuses {
				got = append(got, status.NodeRef.Name)
			}
			if !slices.Equal(got, want) {
				return false, fmt.Errorf("the status names %v", got)
			}
			return true, nil
		})
}

// nodesAreNew waits until a node that is created now is newer than all nodes of a maintenance:
// creation times have a resolution of seconds.
func nodesAreNew(t *testing.T, name string) {
	t.Helper()
	framework.Eventually(t, "a node created now is new for the maintenance", func(ctx context.Context) (bool, error) {
		nm, err := cluster.As(t).Maintenances().Get(ctx, name, metav1.GetOptions{})
		if err != nil || nm.Status.NewestNodeTimestamp == nil {
			return false, err
		}
		return time.Since(nm.Status.NewestNodeTimestamp.Time) > 2*time.Second, nil
	})
}

// TestNewNodes creates nodes that match the selector during a drain. The maintenance names them but
// does not drain them until newNodes is Join. A node that is older than the maintenance and gets
// the label later joins in both cases.
func TestNewNodes(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	_, before := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	stays := cluster.PodOn(t, namespace, "stays", pool, nodes[0], movable)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	if nm.Spec.NewNodes != v1alpha1.NewNodesPolicyIgnore {
		t.Errorf("newNodes is %q, want %q by default", nm.Spec.NewNodes, v1alpha1.NewNodesPolicyIgnore)
	}
	evacuationFor(t, stays, "is created", isOurs)
	nodesAreNew(t, nm.Name)

	created := pool + "-created"
	cluster.NewNodes(t, pool, true, created)
	progressing(t, nm.Name, metav1.ConditionTrue, v1alpha1.ReasonProgressDraining, created)
	merge(t, "", "node", before[0], fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, framework.Pool, pool))
	unschedulable(t, true, before[0])
	holdsNodes(t, nm.Name, before[0], nodes[0])
	framework.Accept(t, oracle.LeftOn(theNode(t, created), false), nil)

	must.Get(cluster.As(t).Maintenances().Patch(t.Context(), nm.Name,
		types.MergePatchType, fmt.Appendf(nil, `{"spec":{"newNodes":%q}}`, v1alpha1.NewNodesPolicyJoin),
		metav1.PatchOptions{}))(t)
	unschedulable(t, true, created)
	holdsNodes(t, nm.Name, before[0], nodes[0], created)

	joins := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon,
		func(nm *v1alpha1.NodeMaintenance) { nm.Spec.NewNodes = v1alpha1.NewNodesPolicyJoin }))
	nodesAreNew(t, joins.Name)
	late := pool + "-late"
	cluster.NewNodes(t, pool, true, late)
	unschedulable(t, true, late)
	holdsNodes(t, joins.Name, before[0], nodes[0], created, late)
}

// These are conditions of a node about maintenances, in the format of shownOn.
var (
	showsNothing  = []string{}
	showsDraining = []string{
		"DrainInProgress=True HauloutPodsLeaving", "Drained=False HauloutPodsLeaving",
		"MaintenanceInProgress=True HauloutDrain",
	}
	showsDrained = []string{
		"DrainInProgress=False HauloutNoPodsLeft", "Drained=True HauloutNoPodsLeft",
		"MaintenanceInProgress=True HauloutDrain",
	}
)

// shownOn returns the conditions of a node about maintenances, sorted.
func shownOn(node *corev1.Node) []string {
	shown := []string{}
	for _, c := range node.Status.Conditions {
		switch c.Type {
		case v1alpha1.NodeConditionMaintenancePlanned, v1alpha1.NodeConditionMaintenanceInProgress,
			v1alpha1.NodeConditionDrainInProgress, v1alpha1.NodeConditionDrained:
			shown = append(shown, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}
	}
	slices.Sort(shown)
	return shown
}

// nodeShows waits until a node has exactly these conditions about maintenances. The node must have
// Haulout's annotation if and only if Haulout has set some of them.
func nodeShows(t *testing.T, name string, want []string) *corev1.Node {
	t.Helper()
	annotated := slices.ContainsFunc(want, func(s string) bool {
		return strings.Contains(s, " "+v1alpha1.NodeReasonPrefix)
	})
	var node *corev1.Node
	framework.Eventually(t, fmt.Sprintf("node %s shows %q", name, want), func(ctx context.Context) (bool, error) {
		var err error
		if node, err = cluster.As(t).Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		_, there := node.Annotations[v1alpha1.AnnotationConditionsBy]
		if shown := shownOn(node); !slices.Equal(shown, want) || there != annotated {
			return false, fmt.Errorf("it shows %q and has the annotations %q", shown, node.Annotations)
		}
		return true, nil
	})
	return node
}

// messageOf returns the message of a node's condition.
func messageOf(node *corev1.Node, conditionType corev1.NodeConditionType) string {
	for _, c := range node.Status.Conditions {
		if c.Type == conditionType {
			return c.Message
		}
	}
	return ""
}

// setCondition sets a condition of a node as another client would. If key is not "", it also sets
// an annotation.
func setCondition(t *testing.T, node string, condition corev1.NodeCondition, key, value string) {
	t.Helper()
	metadata := map[string]any{}
	if key != "" {
		metadata["annotations"] = map[string]string{key: value}
	}
	patch := must.Get(json.Marshal(map[string]any{
		"metadata": metadata, "status": map[string]any{"conditions": []corev1.NodeCondition{condition}},
	}))(t)
	must.Get(cluster.As(t).Nodes().Patch(t.Context(), node, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status"))(t)
}

// eventsOn returns the number of events of an object by reason. Events about nodes may be in any
// namespace: pass "" for them.
func eventsOn(ctx context.Context, t *testing.T, namespace, name string) (map[string]int, error) {
	t.Helper()
	list, err := cluster.As(t).Kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "regarding.name=" + name,
	})
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for i := range list.Items {
		counts[list.Items[i].Reason]++
		if series := list.Items[i].Series; series != nil {
			counts[list.Items[i].Reason] += int(series.Count) - 1
		}
	}
	return counts, nil
}

// eventsReach waits until an object has a minimum number of events of each reason.
func eventsReach(t *testing.T, namespace, name string, atLeast map[string]int) {
	t.Helper()
	framework.Eventually(
		t, fmt.Sprintf("the events of %s reach %v", name, atLeast),
		func(ctx context.Context) (bool, error) {
			got, err := eventsOn(ctx, t, namespace, name)
			for reason, n := range atLeast {
				if err == nil && got[reason] < n {
					err = fmt.Errorf("%d times %s", got[reason], reason)
				}
			}
			return err == nil, err
		},
	)
}

// stuckOn creates a pod on a node with a budget that allows no eviction. The value of its label app
// is its name.
func stuckOn(t *testing.T, namespace, name, pool, node string) {
	t.Helper()
	cluster.Deployment(t, namespace, name, pool, 1, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector[corev1.LabelHostname] = node
	})
	cluster.Budget(t, namespace, name, 0)
}

func onNodes(nodes ...string) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes...)
	}
}

func TestNodeConditionsOfOverlappingMaintenances(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 3, true)
	namespace := cluster.NewNamespace(t)
	// Until the test deletes the pod, its budget keeps it on the node that both maintenances
	// select.
	stuckOn(t, namespace, "held", pool, nodes[1])
	setCondition(
		t, nodes[2],
		corev1.NodeCondition{
			Type: v1alpha1.NodeConditionDrained, Status: corev1.ConditionTrue, Reason: "Manual", Message: "by hand",
		},
		"", "",
	)
	const foreign = "Drained=True Manual"
	nodeShows(t, nodes[2], []string{foreign})

	a := cluster.Create(t, framework.Maintenance(
		pool, v1alpha1.NodeMaintenanceStageDrain, onNodes(nodes[:2]...),
		func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Reason = "kernel update"
		},
	))
	b := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon, onNodes(nodes[1:]...)))
	nodeShows(t, nodes[0], showsDrained)
	nodeShows(t, nodes[1], showsDraining)
	nodeShows(t, nodes[2], []string{foreign, "MaintenanceInProgress=True HauloutCordon"})
	setStage(t, b.Name, v1alpha1.NodeMaintenanceStageDrain)
	nodeShows(t, nodes[2], []string{
		"DrainInProgress=False HauloutNoPodsLeft", foreign, "MaintenanceInProgress=True HauloutDrain",
	})
	both := nodeShows(t, nodes[1], showsDraining)
	for _, want := range []string{a.Name + " (kernel update)", b.Name} {
		if message := messageOf(both, v1alpha1.NodeConditionMaintenanceInProgress); !strings.Contains(message, want) {
			t.Errorf("the message %q does not name %s", message, want)
		}
	}

	// Complete one maintenance: the node that both select keeps the conditions of the other one.
	setStage(t, a.Name, v1alpha1.NodeMaintenanceStageComplete)
	nodeShows(t, nodes[0], showsNothing)
	framework.Until(t, "the condition names only the second maintenance",
		cluster.As(t).Nodes(), nodes[1], func(node *corev1.Node) bool {
			return messageOf(node, v1alpha1.NodeConditionMaintenanceInProgress) == "Held by NodeMaintenance "+b.Name
		})
	nodeShows(t, nodes[1], showsDraining)
	cluster.MustKubectl(t, "", "delete", "pods", "-n", namespace, "-l", "app=held")
	nodeShows(t, nodes[1], showsDrained)

	// Create a late pod with the same budget, and bind it without the scheduler. Then delete the
	// last maintenance while the pod is being evacuated.
	cluster.PodOn(t, namespace, "late", pool, nodes[1], func(p *corev1.Pod) { p.Labels["app"] = "held" })
	nodeShows(t, nodes[1], []string{
		"DrainInProgress=True HauloutPodsLeaving", "Drained=False HauloutPodsReturned",
		"MaintenanceInProgress=True HauloutDrain",
	})
	cluster.MustKubectl(t, "", "delete", "nodemaintenance", b.Name, "--timeout=60s")
	// The deletion has waited until the nodes were released.
	for name, want := range map[string][]string{nodes[1]: showsNothing, nodes[2]: {foreign}} {
		node := must.Get(cluster.As(t).Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
		if shown := shownOn(node); !slices.Equal(shown, want) ||
			node.Annotations[v1alpha1.AnnotationConditionsBy] != "" || node.Spec.Unschedulable {
			t.Errorf("node %s shows %q and has the annotations %q, want %q and none; unschedulable: %t",
				name, shown, node.Annotations, want, node.Spec.Unschedulable)
		}
	}
	want := map[string]int{
		"NodeMaintenanceStarted":    1,
		"NodeDrainStarted":          2,
		"NodeDrained":               1,
		"NodeDrainResumed":          1,
		"NodeMaintenanceReleased":   1,
		"NodeMaintenanceUncordoned": 1,
	}
	framework.Eventually(
		t, fmt.Sprintf("the node has the events %v", want),
		func(ctx context.Context) (bool, error) {
			got, err := eventsOn(ctx, t, "", nodes[1])
			for reason, n := range want {
				if err == nil && got[reason] != n {
					err = fmt.Errorf("%d times %s", got[reason], reason)
				}
			}
			return err == nil, err
		},
	)
}

// TestNodeConditionsAfterTheServerWasKilled starts a new server, which must correct the conditions
// that a killed server has left, and the conditions that have changed since.
func TestNodeConditionsAfterTheServerWasKilled(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 4, true)
	namespace := cluster.NewNamespace(t)
	stuckOn(t, namespace, "one", pool, nodes[0])
	stuckOn(t, namespace, "two", pool, nodes[1])
	kept := cluster.Create(t,
		framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, onNodes(nodes[0], nodes[2])))
	deleted := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, onNodes(nodes[1])))
	before := nodeShows(t, nodes[0], showsDraining)
	nodeShows(t, nodes[1], showsDraining)
	nodeShows(t, nodes[2], showsDrained)
	drained := func(node *corev1.Node) metav1.Time {
		i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == v1alpha1.NodeConditionDrained
		})
		return node.Status.Conditions[i].LastTransitionTime
	}

	must.Do(t, cluster.As(t).Maintenances().Delete(t.Context(), deleted.Name, metav1.DeleteOptions{}))
	cluster.KillServer(t)
	// Set conditions of a maintenance that no longer exists on one node. Later, other nodes are no
	// longer selected. The annotation of the first node has the identity of the storage, because
	// the server removes conditions only with it.
	gone := strings.NewReplacer(kept.Name, "gone", string(kept.UID),
		"0d4a2b52-6c1c-4d0a-9a3f-2f7f0a4f5c11").Replace(before.Annotations[v1alpha1.AnnotationConditionsBy])
	setCondition(
		t, nodes[3],
		corev1.NodeCondition{
			Type: v1alpha1.NodeConditionMaintenanceInProgress, Status: corev1.ConditionTrue,
			Reason: v1alpha1.NodeReasonCordon,
		},
		v1alpha1.AnnotationConditionsBy, gone,
	)
	must.Do(t, cluster.Up())
	merge(t, "", "nodemaintenance", kept.Name, fmt.Sprintf(
		`{"spec":{"nodeSelector":{"nodeSelectorTerms":[`+
			`{"matchExpressions":[{"key":%q,"operator":"In","values":[%q]}]}]}}}`,
		corev1.LabelHostname, nodes[0]))
	for _, released := range nodes[1:] {
		nodeShows(t, released, showsNothing)
	}
	unschedulable(t, false, nodes[1:]...)
	after := nodeShows(t, nodes[0], showsDraining)
	if was, is := drained(before), drained(after); !was.Equal(&is) {
		t.Errorf("Drained is False since %v, not since %v", is, was)
	}
	setStage(t, kept.Name, v1alpha1.NodeMaintenanceStageComplete)
	nodeShows(t, nodes[0], showsNothing)
}
