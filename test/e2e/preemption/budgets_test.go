// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

const (
	threshold = "maintenance.haulout.dev/allow-disruption-by-priority-greater-than-or-equal"
	scheduler = oracle.SchedulerUser
)

// world is a node that is full with two pods of a Deployment. The class of the pods has the
// threshold 1000: only pods with at least this priority may exceed their budget.
type world struct {
	pool, namespace string
	log             oracle.AuditLog
}

// fullNode creates a world. maxUnavailable is the field of its budget.
func fullNode(t *testing.T, maxUnavailable int) world {
	t.Helper()
	pool, _ := cluster.NewPool(t, 1, true)
	w := world{pool: pool, namespace: cluster.NewNamespace(t)}
	class := cluster.PriorityClass(t, 10)
	annotate(t, class, "1000")
	cluster.Deployment(t, w.namespace, "web", pool, 2, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.PriorityClassName = class
		request(&d.Spec.Template.Spec, "32")
	})
	cluster.Budget(t, w.namespace, "web", maxUnavailable)
	w.log = cluster.AuditLog(t)
	return w
}

func annotate(t *testing.T, class, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, threshold, value)
	must.Get(cluster.As(t).Kube.SchedulingV1().PriorityClasses().Patch(
		t.Context(), class, types.MergePatchType, []byte(patch), metav1.PatchOptions{},
	))(t)
}

func request(spec *corev1.PodSpec, cpu string) {
	spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
}

// pending creates a pod that fits after one pod of the Deployment has left the node.
func (w world) pending(t *testing.T, name string, priority int32) {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: framework.PodSpec(w.pool)}
	pod.Spec.PriorityClassName = cluster.PriorityClass(t, priority)
	request(&pod.Spec, "32")
	must.Get(cluster.As(t).Kube.CoreV1().Pods(w.namespace).Create(t.Context(), pod, metav1.CreateOptions{}))(t)
}

// waitHeld waits until the pod's condition reports that budgets protect the victims.
func (w world) waitHeld(t *testing.T, name string) {
	t.Helper()
	want := "1 node(s) with pods that PodDisruptionBudgets protect; preempting them needs priority 1000."
	framework.Eventually(t, name+" reports the protected pods", func(ctx context.Context) (bool, error) {
		pod, err := cluster.As(t).Kube.CoreV1().Pods(w.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && strings.Contains(condition.Message, want) {
				return true, nil
			}
		}
		return false, nil
	})
}

func (w world) waitRuns(t *testing.T, name string) {
	t.Helper()
	framework.Eventually(t, name+" runs", func(ctx context.Context) (bool, error) {
		pod, err := cluster.As(t).Kube.CoreV1().Pods(w.namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning, err
	})
}

// waitEvent waits for an event about an object. The events of cluster-scoped objects are in the
// namespace default.
func waitEvent(t *testing.T, namespace, reason, about, text string) {
	t.Helper()
	framework.Eventually(t, "event "+reason+" about "+about, func(ctx context.Context) (bool, error) {
		events, err := cluster.As(t).Kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range events.Items {
			event := &events.Items[i]
			if event.Reason == reason && event.Regarding.Name == about && strings.Contains(event.Note, text) {
				return true, checkEvent(event)
			}
		}
		return false, nil
	})
}

func checkEvent(event *eventsv1.Event) error {
	if event.ReportingController != "default-scheduler" {
		return fmt.Errorf("the event is from %q, want the scheduler", event.ReportingController)
	}
	return nil
}

// counts returns how many pods of the world the scheduler has evicted, has failed to evict, and has
// deleted.
func (w world) counts(t *testing.T) (evicted, refused, deleted int) {
	t.Helper()
	calls := must.Get(w.log.Calls())(t)
	for i := range calls {
		call := &calls[i]
		switch {
		case call.Namespace != w.namespace || call.User != scheduler:
		case call.Evicted():
			evicted++
		case call.Subresource == "eviction":
			refused++
		case call.Deleted():
			deleted++
		}
	}
	return evicted, refused, deleted
}

func (w world) wantCounts(t *testing.T, wantEvicted, wantRefused, wantDeleted int) {
	t.Helper()
	evicted, refused, deleted := w.counts(t)
	if evicted != wantEvicted || refused != wantRefused || deleted != wantDeleted {
		t.Errorf("got %d evicted, %d refused, %d deleted, want %d, %d, %d",
			evicted, refused, deleted, wantEvicted, wantRefused, wantDeleted)
	}
}

// TestBudgetHoldsUpAPod is the main case. A pod with a priority below the threshold waits, and its
// condition names the cause, until the budget allows a disruption. Then the scheduler evicts one
// pod and deletes none.
func TestBudgetHoldsUpAPod(t *testing.T) {
	const limit = 10 * time.Second
	w := fullNode(t, 0)
	w.pending(t, "important", 100)
	w.waitHeld(t, "important")
	w.wantCounts(t, 0, 0, 0)

	begin := time.Now()
	w.allow(t, "web", 1)
	w.waitRuns(t, "important")
	took := time.Since(begin)
	is.True(t, took <= limit, "the pod ran %v after the budget was changed, want at most %v", took, limit)
	w.wantCounts(t, 1, 0, 0)
	waitEvent(t, w.namespace, "Preempted", w.evicted(t), "within its PodDisruptionBudget")
}

// evicted returns the name of the first evicted pod.
func (w world) evicted(t *testing.T) string {
	t.Helper()
	calls := must.Get(w.log.Calls())(t)
	for i := range calls {
		if calls[i].Namespace == w.namespace && calls[i].User == scheduler && calls[i].Evicted() {
			return calls[i].Name
		}
	}
	t.Fatal("no pod was evicted")
	return ""
}

// TestThresholdIsReached checks that a pod with the threshold's priority preempts as with
// kube-scheduler, although the budget allows no disruption.
func TestThresholdIsReached(t *testing.T) {
	w := fullNode(t, 0)
	w.pending(t, "critical", 1000)
	w.waitRuns(t, "critical")
	w.wantCounts(t, 0, 0, 1)
}

// TestThresholdIsLowered lowers the threshold. The scheduler must then retry the waiting pod.
func TestThresholdIsLowered(t *testing.T) {
	w := fullNode(t, 0)
	w.pending(t, "important", 100)
	w.waitHeld(t, "important")
	pods := must.Get(cluster.As(t).Kube.CoreV1().Pods(w.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"}))(t)
	annotate(t, pods.Items[0].Spec.PriorityClassName, "100")
	w.waitRuns(t, "important")
	w.wantCounts(t, 0, 0, 1)
}

// TestRoomForOne creates two pods that preempt at the same time, while the budget allows one
// disruption.
func TestRoomForOne(t *testing.T) {
	w := fullNode(t, 1)
	w.pending(t, "first", 100)
	w.pending(t, "second", 100)
	var ran string
	framework.Eventually(t, "one of the pods runs", func(ctx context.Context) (bool, error) {
		pods, err := cluster.As(t).Kube.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.Labels["app"] == "" && pod.Status.Phase == corev1.PodRunning {
				ran = pod.Name
			}
		}
		return ran != "", nil
	})
	other := map[string]string{"first": "second", "second": "first"}[ran]
	w.waitHeld(t, other)
	if evicted, _, deleted := w.counts(t); evicted != 1 || deleted != 0 {
		t.Errorf("got %d evicted and %d deleted, want 1 and 0", evicted, deleted)
	}
}

// TestWebhookRefusesEviction lets a webhook deny an eviction that the budget allows. No pod may be
// deleted, an event of the pending pod must name the webhook, and the pod must be scheduled after
// the webhook allows evictions.
func TestWebhookRefusesEviction(t *testing.T) {
	w := fullNode(t, 1)
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"}},
	}
	asked := make(chan struct{}, 1000)
	allow := make(chan struct{})
	cluster.Webhook(t, w.namespace, rule, func(*admissionv1.AdmissionRequest) *metav1.Status {
		select {
		case <-allow:
			return nil
		default:
			asked <- struct{}{}
			return &metav1.Status{Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "ask me later"}
		}
	})
	w.waitWebhook(t)
	w.pending(t, "important", 100)
	<-asked
	waitEvent(t, w.namespace, "PreemptionRefused", "important", "ask me later")
	w.waitHeld(t, "important")
	if evicted, _, deleted := w.counts(t); evicted != 0 || deleted != 0 {
		t.Errorf("got %d evicted and %d deleted, want none", evicted, deleted)
	}
	close(allow)
	w.waitRuns(t, "important")
	if evicted, _, deleted := w.counts(t); evicted != 1 || deleted != 0 {
		t.Errorf("got %d evicted and %d deleted, want 1 and 0", evicted, deleted)
	}
}

// waitWebhook waits until the webhook denies evictions.
func (w world) waitWebhook(t *testing.T) {
	t.Helper()
	framework.Eventually(t, "the webhook denies evictions", func(ctx context.Context) (bool, error) {
		pods, err := cluster.As(t).Kube.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return false, err
		}
		err = cluster.As(t).Kube.PolicyV1().Evictions(w.namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: w.namespace, Name: pods.Items[0].Name},
			DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
		})
		return err != nil && strings.Contains(err.Error(), "ask me later"), nil
	})
}

// TestPolicyKeepsClassesWithAThreshold deletes a class with a threshold. The policy must refuse
// this until the annotation is removed.
func TestPolicyKeepsClassesWithAThreshold(t *testing.T) {
	classes := cluster.As(t).Kube.SchedulingV1().PriorityClasses()
	class := cluster.PriorityClass(t, 10)
	annotate(t, class, "1000")
	dryRun := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	framework.Eventually(t, "the policy is in effect", func(ctx context.Context) (bool, error) {
		err := classes.Delete(ctx, class, dryRun)
		return err != nil && strings.Contains(err.Error(), "remove the annotation before you delete the class"), nil
	})
	must.Get(classes.Patch(t.Context(), class, types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{}))(t)
	if err := classes.Delete(t.Context(), class, dryRun); err != nil {
		t.Errorf("without the annotation: %v", err)
	}
}

// TestPolicyRefusesBadThresholds tests the shipped ValidatingAdmissionPolicy with invalid
// thresholds.
func TestPolicyRefusesBadThresholds(t *testing.T) {
	classes := cluster.As(t).Kube.SchedulingV1().PriorityClasses()
	create := func(ctx context.Context, value string) error {
		_, err := classes.Create(ctx, &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: framework.Name("threshold"), Annotations: map[string]string{threshold: value}},
			Value:      10,
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	framework.Eventually(t, "the policy is in effect", func(ctx context.Context) (bool, error) {
		return create(ctx, "many") != nil, nil
	})
	for _, value := range []string{"", "many", "1.5", "2000000001", "-2147483649", "99999999999", "+1", "01", "-0"} {
		err := create(t.Context(), value)
		want := fmt.Sprintf("must be a whole number from -2147483648 to 2000000000, got %q", value)
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", value, err, want)
		}
	}
	for _, value := range []string{"0", "-1", "1000", "2000000000", "-2147483648"} {
		if err := create(t.Context(), value); err != nil {
			t.Errorf("%q: %v", value, err)
		}
	}
}
