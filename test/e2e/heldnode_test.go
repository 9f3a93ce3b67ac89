// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// warningOf runs kubectl and returns the warnings that it prints.
func warningOf(t *testing.T, args ...string) string {
	t.Helper()
	_, stderr, err := cluster.Kubectl(t, "", args...)
	must.True(t, err == nil, "kubectl %q: %v: %s", args, err, stderr)
	var warnings []string
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "Warning:") {
			warnings = append(warnings, line)
		}
	}
	return strings.Join(warnings, "")
}

// TestUncordonOfAHeldNodeWarns uncordons a node and removes its taint with kubectl, while a
// maintenance holds the node and afterwards.
func TestUncordonOfAHeldNodeWarns(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	held, free := nodes[0], nodes[1]
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon, onNodes(held)))
	unschedulable(t, true, held)

	want := fmt.Sprintf("node %s is held by NodeMaintenance %s and stays unschedulable", held, nm.Name)
	if got := warningOf(t, "uncordon", held); !strings.Contains(got, want) {
		t.Errorf("kubectl uncordon warns %q, want %q", got, want)
	}
	unschedulable(t, true, held)
	taint := v1alpha1.TaintHeld
	if got, want := warningOf(t, "taint", "node", held, taint+"-"), "keeps the taint "+taint; !strings.Contains(got, want) {
		t.Errorf("kubectl taint warns %q, want %q", got, want)
	}
	framework.Until(t, "the taint is restored", cluster.As(t).Nodes(), held, isHeld)
	for _, args := range [][]string{
		{"label", "node", held, "rack=7"}, {"cordon", held}, {"cordon", free}, {"uncordon", free},
	} {
		if got := warningOf(t, args...); got != "" {
			t.Errorf("kubectl %q warns %q", args, got)
		}
	}

	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, held)
	cluster.MustKubectl(t, "", "cordon", held)
	if got := warningOf(t, "uncordon", held); got != "" {
		t.Errorf("kubectl uncordon warns %q after the maintenance", got)
	}
}

// TestUncordonOfAHeldNodeIsRefused binds the policy as artifacts/overlays/deny-uncordon does, for
// the nodes of one pool. The server itself releases the nodes afterwards.
func TestUncordonOfAHeldNodeIsRefused(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	held, idle := nodes[0], nodes[1]
	bindings := cluster.As(t).Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	must.Get(bindings.Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: pool},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "haulout-node-held", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			MatchResources: &admissionregistrationv1.MatchResources{ObjectSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{framework.Pool: pool},
			}},
		},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		must.Do(t, bindings.Delete(context.WithoutCancel(t.Context()), pool, metav1.DeleteOptions{}))
	})
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon, onNodes(held)))
	cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle, onNodes(idle)))
	unschedulable(t, true, held)

	framework.Eventually(t, "kube-apiserver refuses to uncordon the held node", func(context.Context) (bool, error) {
		// kubectl uncordon prints the refusal, and exits with code 0.
		_, stderr, _ := cluster.Kubectl(t, "", "uncordon", held, "--dry-run=server")
		return strings.Contains(stderr, "error:") && strings.Contains(stderr, "is held by NodeMaintenance "+nm.Name), nil
	})
	_, stderr, err := cluster.Kubectl(t, "", "taint", "node", held, v1alpha1.TaintHeld+"-")
	is.True(t, err != nil && strings.Contains(stderr, "keeps the taint"), "kubectl taint: %v: %s", err, stderr)
	// A maintenance in stage Idle holds no node.
	for _, args := range [][]string{{"cordon", idle}, {"uncordon", idle}, {"label", "node", held, "rack=7"}} {
		cluster.MustKubectl(t, "", args...)
	}
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, held)
}

// TestConditionsOfKubectlDrainAreTakenOver sets the conditions of a node as kubectl drain
// --report-node-conditions does, before and during a maintenance.
func TestConditionsOfKubectlDrainAreTakenOver(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	node, namespace := nodes[0], cluster.NewNamespace(t)
	byKubectl := []string{"DrainInProgress=False KubectlDrainCompleted", "Drained=True KubectlDrainCompleted"}
	kubectlDrain := func() {
		for conditionType, status := range map[corev1.NodeConditionType]corev1.ConditionStatus{
			v1alpha1.NodeConditionDrainInProgress: corev1.ConditionFalse, v1alpha1.NodeConditionDrained: corev1.ConditionTrue,
		} {
			setCondition(t, node, corev1.NodeCondition{Type: conditionType, Status: status, Reason: "KubectlDrainCompleted"}, "", "")
		}
	}
	stuckOn(t, namespace, "stays", pool, node)
	kubectlDrain()
	nodeShows(t, node, byKubectl)

	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon))
	nodeShows(t, node, append(byKubectl[:2:2], "MaintenanceInProgress=True HauloutCordon"))
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageDrain)
	nodeShows(t, node, showsDraining)
	kubectlDrain()
	nodeShows(t, node, showsDraining)
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	nodeShows(t, node, showsNothing)
}

// TestAutoscalersLeaveHeldNodesAlone compares the annotations for cluster-autoscaler and Karpenter
// before, during and after a maintenance.
func TestAutoscalersLeaveHeldNodesAlone(t *testing.T) {
	t.Parallel()
	const scaleDownDisabled, doNotDisrupt = "cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt"
	pool, nodes := cluster.NewPool(t, 3, true)
	bare, theirs, changed := nodes[0], nodes[1], nodes[2]
	protection := func(node *corev1.Node) map[string]string {
		found := maps.Clone(node.Annotations)
		maps.DeleteFunc(found, func(key, _ string) bool { return key != scaleDownDisabled && key != doNotDisrupt })
		return found
	}
	show := func(what string, want map[string]map[string]string) {
		t.Helper()
		for name, annotations := range want {
			framework.Until(t, fmt.Sprintf("node %s has %v %s", name, annotations, what), cluster.As(t).Nodes(), name,
				func(node *corev1.Node) bool { return maps.Equal(protection(node), annotations) })
		}
	}
	both := map[string]string{scaleDownDisabled: "true", doNotDisrupt: "true"}
	merge(t, "", "node", theirs, fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, doNotDisrupt))
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon))
	unschedulable(t, true, nodes...)
	for _, name := range nodes {
		// The write that cordons a node also annotates it.
		node := must.Get(cluster.As(t).Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
		if got := protection(node); !maps.Equal(got, both) {
			t.Errorf("cordoned node %s has %v, want %v", name, got, both)
		}
	}
	merge(t, "", "node", changed, fmt.Sprintf(`{"metadata":{"annotations":{%q:"false",%q:null}}}`, scaleDownDisabled, doNotDisrupt))
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageDrain)
	drained(t, nm.Name)
	show("during the drain", map[string]map[string]string{bare: both, theirs: both, changed: {scaleDownDisabled: "false"}})

	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, nodes...)
	show("afterwards", map[string]map[string]string{bare: {}, theirs: {doNotDisrupt: "true"}, changed: {scaleDownDisabled: "false"}})
}
