// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// serverUser is the name under which haulout-apiserver evicts pods.
const serverUser = "system:serviceaccount:haulout-system:haulout-apiserver"

// pausedFor returns how long a test lets a drain be paused: longer than the ten seconds after which
// the server probes a budget that allows no disruption, and ten minutes in the large size.
func pausedFor(t *testing.T) time.Duration {
	t.Helper()
	if framework.Full(t) {
		return 10 * time.Minute
	}
	return 15 * time.Second
}

func setPaused(t *testing.T, name string, paused bool) *v1alpha1.NodeMaintenance {
	t.Helper()
	return must.Get(cluster.As(t).Maintenances().Patch(t.Context(), name,
		types.MergePatchType, fmt.Appendf(nil, `{"spec":{"paused":%t}}`, paused), metav1.PatchOptions{}))(t)
}

// TestPausedDrainEvictsNoPod pauses a drain whose pods wait for a budget and for evacuators, makes
// everything ready for their eviction, and resumes the drain. The audit log of kube-apiserver shows
// that nobody evicted or deleted a pod during the pause.
func TestPausedDrainEvictsNoPod(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "stuck", pool, 3)
	cluster.Budget(t, namespace, "stuck", 0)
	begun := cluster.PodOn(t, namespace, "begun", pool, nodes[0], movable)
	waiting := cluster.PodOn(t, namespace, "waiting", pool, nodes[0], movable)
	recorder := cluster.Judge(t, pool, namespace)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	evacuating(t, namespace, 5)
	turn := evacuationFor(t, begun, "has an active evacuator", hasTurn)
	evacuationFor(t, waiting, "has an active evacuator", hasTurn)
	report(t, turn, fmt.Sprintf(`{"evacuationProgressTimestamp":%q,"message":"flushing"}`, time.Now().UTC().Format(time.RFC3339)))

	out := setPaused(t, nm.Name, true)
	is.True(t, out.Status.Pause != nil && out.Status.Pause.By == out.Spec.RequestedBy.Username, "got the pause %+v, want one by the administrator", out.Status.Pause)
	untilPaused(t, nm.Name)
	evacuating(t, namespace, 1)
	since := time.Now()
	// Now all pods could be evicted if the drain were not paused.
	must.Get(cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace).Patch(t.Context(), "stuck",
		types.MergePatchType, []byte(`{"spec":{"maxUnavailable":3}}`), metav1.PatchOptions{}))(t)
	report(t, turn, `{"activeEvacuatorCompleted":true}`)
	late := cluster.PodOn(t, namespace, "late", pool, nodes[0])
	<-time.After(pausedFor(t))

	e := evacuationFor(t, begun, "is paused", func(e *v1alpha1.Evacuation) bool {
		return conditionIs(e.Status.Conditions, v1alpha1.ConditionBlocked, metav1.ConditionFalse, v1alpha1.ReasonPaused)
	})
	is.Equal(t, e.Status.ActiveEvacuatorClass, mover, "active class during the pause")
	evacuating(t, namespace, 1)
	untilPaused(t, nm.Name)
	unschedulable(t, true, nodes...)
	resumed := time.Now()
	setPaused(t, nm.Name, false)
	turn = evacuationFor(t, waiting, "is recreated", hasTurn)
	report(t, turn, `{"activeEvacuatorCompleted":true}`)
	drained(t, nm.Name)
	for _, call := range must.Get(recorder.Log())(t).Calls {
		if call.Namespace == namespace && call.Received.After(since) && call.Received.Before(resumed) {
			t.Errorf("%s sent %s %s of pod %s during the pause", call.User, call.Verb, call.Subresource, call.Name)
		}
	}
	for _, pod := range []string{begun.Name, waiting.Name, late.Name} {
		_, err := cluster.As(t).Pods(namespace).Get(t.Context(), pod, metav1.GetOptions{})
		is.True(t, apierrors.IsNotFound(err), "pod %s after the drain: %v", pod, err)
	}

	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	waitFor(t, recorder, oracle.PutBack(nil, nm.Name))
	found, err := recorder.Verdict(oracle.Rules{Server: serverUser})
	framework.Accept(t, found, err)
}

// TestPausedSurgeRemovesNoPod pauses a drain whose pods have replacements, but whose evictions a
// policy refuses. To take the surge back would remove the two old pods, since they are on the same
// node.
func TestPausedSurgeRemovesNoPod(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "web", pool, 2, framework.WithSurge, func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(2)), MaxUnavailable: ptr.To(intstr.FromInt32(0))}
	})
	cluster.Budget(t, namespace, "web", 1)
	old := must.Get(cluster.As(t).Pods(namespace).List(t.Context(), metav1.ListOptions{}))(t).Items
	allow := refuseEvictions(t, namespace, old[0].Name)
	cluster.NewNodes(t, pool, true, pool+"-spare-0", pool+"-spare-1")
	nm := drainNodes(t, pool, nodes...)
	for i := range old {
		evacuationFor(t, &old[i], "is up for eviction", func(e *v1alpha1.Evacuation) bool {
			return e.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction
		})
	}
	setPaused(t, nm.Name, true)
	untilPaused(t, nm.Name)
	evacuating(t, namespace, 0)
	allow()
	<-time.After(pausedFor(t))
	for i := range old {
		pod, err := cluster.As(t).Pods(namespace).Get(t.Context(), old[i].Name, metav1.GetOptions{})
		is.True(t, err == nil && pod.DeletionTimestamp == nil, "pod %s has left during the pause: %v", old[i].Name, err)
	}
	scaledTo(t, namespace, "web", 4)
	setPaused(t, nm.Name, false)
	drained(t, nm.Name)
	asBefore(t, namespace, "web", 2)
}

// refuseEvictions refuses all evictions in a namespace, until the returned function is called.
func refuseEvictions(t *testing.T, namespace, pod string) (allow func()) {
	t.Helper()
	remove := refuse(t, admissionregistrationv1.Create,
		admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
		fmt.Sprintf("request.namespace == %q", namespace))
	refuses := func(want bool) {
		framework.Eventually(t, fmt.Sprintf("the policy refuses evictions: %t", want), func(ctx context.Context) (bool, error) {
			err := cluster.As(t).Kube.PolicyV1().Evictions(namespace).Evict(ctx, &policyv1.Eviction{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
			})
			if want && apierrors.IsForbidden(err) {
				return true, nil
			}
			return !want && err == nil, err
		})
	}
	refuses(true)
	return func() {
		remove()
		refuses(false)
	}
}

// refuse refuses the requests that match a rule and a condition in CEL, until the returned function
// is called, or the test ends.
func refuse(
	t *testing.T, operation admissionregistrationv1.OperationType, rule admissionregistrationv1.Rule, condition string,
) (allow func()) {
	t.Helper()
	name := framework.Name("refused")
	admission := cluster.As(t).Kube.AdmissionregistrationV1()
	allow = func() {
		ctx := context.WithoutCancel(t.Context())
		for _, err := range []error{
			admission.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}),
			admission.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}),
		} {
			is.True(t, err == nil || apierrors.IsNotFound(err), "remove the policy: %v", err)
		}
	}
	t.Cleanup(allow)
	must.Get(admission.ValidatingAdmissionPolicies().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{operation}, Rule: rule,
				},
			}}},
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "condition", Expression: condition}},
			Validations:     []admissionregistrationv1.Validation{{Expression: "false", Message: "not today", Reason: ptr.To(metav1.StatusReasonForbidden)}},
		},
	}, metav1.CreateOptions{}))(t)
	must.Get(admission.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}, metav1.CreateOptions{}))(t)
	return allow
}

func hasTurn(e *v1alpha1.Evacuation) bool {
	return isOurs(e) && e.DeletionTimestamp == nil && e.Status.ActiveEvacuatorClass == mover
}

// evacuating waits until the server requests the evacuation of a number of pods of a namespace.
func evacuating(t *testing.T, namespace string, want int) {
	t.Helper()
	framework.Eventually(t, fmt.Sprintf("%d Evacuations are requested", want), func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Evacuations(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		list.Items = slices.DeleteFunc(list.Items, func(e v1alpha1.Evacuation) bool { return !isOurs(&e) })
		return len(list.Items) == want, nil
	})
}

// untilPaused waits until the conditions of a maintenance report that it is paused.
func untilPaused(t *testing.T, name string) {
	t.Helper()
	framework.Eventually(t, name+" is paused", func(ctx context.Context) (bool, error) {
		nm, err := cluster.As(t).Maintenances().Get(ctx, name, metav1.GetOptions{})
		return err == nil &&
			conditionIs(nm.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionFalse, v1alpha1.ReasonPaused) &&
			conditionIs(nm.Status.Conditions, v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonPaused), err
	})
}
