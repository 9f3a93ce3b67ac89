// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/evict"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// errNotYet is returned while a condition is not true yet.
var errNotYet = errors.New("not yet")

// requests returns the rule of a webhook for one resource.
func requests(
	operation admissionregistrationv1.OperationType, group, version, resource string,
) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{operation},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{resource},
		},
	}
}

// progressing waits until the condition Progressing of a maintenance has a status and a reason, and
// its message contains the words.
func progressing(t *testing.T, name string, status metav1.ConditionStatus, reason string, words ...string) {
	t.Helper()
	framework.Eventually(t, fmt.Sprintf("%s: Progressing is %s, %s", name, status, reason),
		func(ctx context.Context) (bool, error) {
			nm, err := cluster.As(t).Maintenances().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			c := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing)
			if c == nil || c.Status != status || c.Reason != reason {
				return false, fmt.Errorf("the condition is %+v", c)
			}
			for _, word := range words {
				if !strings.Contains(c.Message, word) {
					return false, fmt.Errorf("the message does not contain %q: %s", word, c.Message)
				}
			}
			return true, nil
		})
}

// dryRunEviction sends an eviction as a dry run. Its client ignores Retry-After.
func dryRunEviction(ctx context.Context, t *testing.T, namespace, pod string) error {
	t.Helper()
	return evict.Client{Host: cluster.As(t).Kube}.Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: namespace, Name: pod},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	})
}

// isDenied reports whether an error contains the words of a webhook. It returns all other errors.
func isDenied(answer error, words string) (bool, error) {
	if answer != nil && strings.Contains(answer.Error(), words) {
		return true, nil
	}
	return false, answer
}

// TestPodThatAWebhookDeniesHoldsUpNoOther drains a node with many pods under one budget. A webhook
// denies the eviction of one of them with code 429 and a Retry-After of one hour, as the webhooks
// of virtual machines do. All other pods must be evicted, and the Evacuation of this pod must
// contain the message of the webhook.
func TestPodThatAWebhookDeniesHoldsUpNoOther(t *testing.T) {
	defer cluster.WithServerFlags(t, "--denied-after=3s")()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	const replicas, maxUnavailable, mostTries = 24, 6, 15
	cluster.Deployment(t, namespace, "vms", pool, replicas)
	cluster.Budget(t, namespace, "vms", maxUnavailable)
	cluster.NewNodes(t, pool, true, pool+"-spare")
	denied := livePods(t, namespace)[0]
	const words = "the eviction starts the migration of a virtual machine"
	var migrated atomic.Bool
	cluster.Webhook(t, namespace,
		requests(admissionregistrationv1.Create, corev1.GroupName, "v1", "pods/eviction"),
		func(r *admissionv1.AdmissionRequest) *metav1.Status {
			if r.Name != denied.Name || migrated.Load() {
				return nil
			}
			return &metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Message: words,
				Reason: metav1.StatusReasonTooManyRequests, Details: &metav1.StatusDetails{RetryAfterSeconds: 3600},
			}
		})
	framework.Eventually(t, "the webhook denies the pod", func(ctx context.Context) (bool, error) {
		return isDenied(dryRunEviction(ctx, t, namespace, denied.Name), words)
	})

	log := cluster.AuditLog(t)
	nm := drainNodes(t, pool, nodes...)
	framework.Eventually(t, "all other pods have left", func(ctx context.Context) (bool, error) {
		left, err := podsOn(ctx, t, nodes...)
		if err != nil || len(left) != 1 {
			return false, fmt.Errorf("%d pods are on the node (%w)", len(left), cmp.Or(err, errNotYet))
		}
		return left[0].UID == denied.UID, nil
	})
	e := evacuationFor(t, &denied, "is created", isOurs)
	blocked(t, e, v1alpha1.ReasonEvictionDenied, words)
	progressing(t, nm.Name, metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked)
	calls := must.Get(log.Calls())(t)
	tries := 0
	for _, call := range calls {
		if call.Name == denied.Name && call.Code == http.StatusTooManyRequests {
			tries++
		}
	}
	if tries < 1 || tries > mostTries {
		t.Errorf("the eviction of the denied pod was tried %d times, want 1 to %d", tries, mostTries)
	}
	migrated.Store(true)
	drained(t, nm.Name)
}

// TestForeignFinalizerOnAnEvacuationDoesNotHoldItsPod tries to add a finalizer to an Evacuation,
// which the server refuses. Then it deletes the Evacuation in the foreground while a dependent
// object cannot be deleted, so that the finalizer of the garbage collector stays. No other
// Evacuation of the pod can be created now, but the pod must be evicted within its budget, and the
// next wave must follow.
func TestForeignFinalizerOnAnEvacuationDoesNotHoldItsPod(t *testing.T) {
	t.Parallel()
	const foreign, collectors = "e2e.haulout.dev/foreign", metav1.FinalizerDeleteDependents
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	pod := cluster.PodOn(t, namespace, "web", pool, nodes[0])
	controlled(t, namespace, pool, "web", 1)
	cluster.Budget(t, namespace, "web", 0)
	cluster.PodOn(t, namespace, "next-wave", pool, nodes[0], func(p *corev1.Pod) {
		p.Spec.PriorityClassName = "system-cluster-critical"
	})
	nm := drainNodes(t, pool, nodes...)
	e := evacuationFor(t, pod, "is created", isOurs)
	evacuations := cluster.As(t).Evacuations(namespace)
	patch := func(ctx context.Context, patchType types.PatchType, patch string) error {
		_, err := evacuations.Patch(ctx, e.Name, patchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	if err := patch(t.Context(), types.JSONPatchType,
		fmt.Sprintf(`[{"op":"add","path":"/metadata/finalizers/-","value":%q}]`, foreign)); !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want the foreign finalizer refused", err)
	}
	dependent := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "dependent", Finalizers: []string{foreign}, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "Evacuation", Name: e.Name, UID: e.UID,
			BlockOwnerDeletion: ptr.To(true),
		}},
	}}
	must.Get(cluster.As(t).Kube.CoreV1().ConfigMaps(namespace).Create(t.Context(), dependent, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		_, err := cluster.As(t).Kube.CoreV1().ConfigMaps(namespace).Patch(context.Background(), dependent.Name,
			types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		err = patch(context.Background(), types.MergePatchType, `{"metadata":{"finalizers":null}}`)
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	must.Do(t, evacuations.Delete(t.Context(), e.Name,
		metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}))
	evacuationFor(t, pod, "has only the finalizer of the garbage collector", func(e *v1alpha1.Evacuation) bool {
		return e.DeletionTimestamp != nil && slices.Equal(e.Finalizers, []string{collectors})
	})
	blocked(t, e, v1alpha1.ReasonEvacuationHeld, collectors)
	progressing(t, nm.Name, metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked)
	merge(t, namespace, "pdb", "web", `{"spec":{"maxUnavailable":1}}`)
	drained(t, nm.Name)
	if left := livePods(t, namespace); slices.ContainsFunc(left, func(p corev1.Pod) bool {
		return p.Spec.NodeName == nodes[0]
	}) {
		t.Errorf("pods are left on the node: %v", left)
	}
	if _, err := evacuations.Get(t.Context(), e.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the finalizer did not keep the Evacuation: %v", err)
	}
	// The release of the node must not wait until the Evacuation is gone.
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, nodes...)
}
