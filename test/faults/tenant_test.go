// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	// tenantRounds is the maximum number of objects of each kind that a tenant creates. More
	// objects would overload the machine of the test.
	tenantRounds = 200
	// paddingBytes is the size of the value of a label that makes an Evacuation large.
	paddingBytes = 60
)

// tenant is a user with rights in one namespace and none to nodes. The tenant fills the storage of
// the server: with pods that fit no node, their Evacuations, budgets, and maintenances without
// nodes.
type tenant struct {
	t         *testing.T
	namespace string
	clients   framework.Clients
	// made is the number of objects that the tenant has created.
	made int
}

// newTenant creates the namespace of a tenant. The objects of the tenant are deleted after the
// test.
func newTenant(t *testing.T, r *rig) *tenant {
	t.Helper()
	x := &tenant{t: t, namespace: r.NewNamespace(t)}
	user := framework.Name("tenant")
	r.Grant(t, user,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create", "delete"}},
		rbacv1.PolicyRule{APIGroups: []string{"policy"}, Resources: []string{"poddisruptionbudgets"}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"evacuations", "nodemaintenances"}, Verbs: []string{"create", "delete"},
		},
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"instigators"}, ResourceNames: instigators[:1], Verbs: []string{"use"},
		})
	x.clients = r.As(t, user)
	t.Cleanup(func() { x.removeMaintenances(r) })
	return x
}

// label is the label of all objects of a tenant.
const label = "faults.haulout.dev/tenant"

func (x *tenant) labels(i int) map[string]string {
	return map[string]string{label: x.namespace, "app": fmt.Sprintf("p-%d", i), "padding": strings.Repeat("x", paddingBytes)}
}

// fill creates objects until the context ends. It ignores refusals, which the limits must cause.
func (x *tenant) fill(ctx context.Context) {
	for i := 0; i < tenantRounds && ctx.Err() == nil; i++ {
		for _, create := range []func(context.Context, int) error{x.makePod, x.makeBudget, x.makeMaintenance} {
			ctx, cancel := context.WithTimeout(ctx, writeTime)
			if err := create(ctx, i); err == nil {
				x.made++
			}
			cancel()
		}
	}
}

// makePod creates a pod that fits no node, with an Evacuation, and deletes every other pod: a limit
// on pods does not limit their Evacuations.
func (x *tenant) makePod(ctx context.Context, i int) error {
	pods := x.clients.Pods(x.namespace)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%d", i), Labels: x.labels(i)},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{label: "none"}, Containers: []corev1.Container{{Name: "c", Image: "none"}},
			TerminationGracePeriodSeconds: ptr.To(int64(0)),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = x.clients.Evacuations(x.namespace).Create(ctx, &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{Labels: x.labels(i), Finalizers: []string{v1alpha1.FinalizerInstigatorPrefix + instigators[0]}},
		Spec:       v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	if err != nil || i%2 == 0 {
		return err
	}
	return pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
}

func (x *tenant) makeBudget(ctx context.Context, i int) error {
	_, err := x.clients.Kube.PolicyV1().PodDisruptionBudgets(x.namespace).Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("b-%d", i), Labels: x.labels(i)},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{label: x.namespace}}, MaxUnavailable: ptr.To(intstr.FromInt32(0)),
		},
	}, metav1.CreateOptions{})
	return err
}

func (x *tenant) makeMaintenance(ctx context.Context, i int) error {
	_, err := x.clients.Maintenances().Create(ctx, &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", x.namespace, i), Labels: x.labels(i)},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageDrain, NodeSelector: framework.Select(label, "none"),
		},
	}, metav1.CreateOptions{})
	return err
}

// removeMaintenances deletes the maintenances of the tenant, which are not in the namespace.
func (x *tenant) removeMaintenances(r *rig) {
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	maintenances := r.observer.Maintenances()
	list, err := maintenances.List(ctx, metav1.ListOptions{LabelSelector: label + "=" + x.namespace})
	for err == nil && len(list.Items) > 0 {
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp == nil {
				if err := maintenances.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
					x.t.Logf("delete a maintenance of the tenant: %v", err)
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(nudgeInterval):
		}
		list, err = maintenances.List(ctx, metav1.ListOptions{LabelSelector: label + "=" + x.namespace})
	}
	is.True(x.t, err == nil, "remove the maintenances of the tenant: %v", err)
}
