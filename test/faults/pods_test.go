// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/evict"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

const (
	// slots is the maximum number of pods in a namespace, and groups the number of budgets there.
	slots, groups = 10, 2
	// last is the number of pods that instigators ask to leave after the storm.
	last = 15
	// hold is a finalizer that keeps a deleted pod.
	hold = "faults.haulout.dev/hold"
)

// makePod creates a pod with one of a few names, unless a pod of that name exists. Some pods have
// evacuators.
func (s *storm) makePod(ctx context.Context, random *rand.Rand) error {
	slot, node, namespace := random.IntN(slots), one(random, s.nodes), one(random, s.namespaces)
	s.mu.Lock()
	s.serial++
	serial := s.serial
	s.mu.Unlock()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("web-%d", slot), Annotations: map[string]string{},
			// Pods with the same labels would count as successors of each other.
			Labels: map[string]string{"group": strconv.Itoa(slot % groups), "serial": strconv.Itoa(serial)},
		},
		Spec: framework.PodSpec(s.pool),
	}
	pod.Spec.NodeName = node
	for _, evacuator := range evacuators {
		value := strconv.Itoa(int(evacuator.Priority))
		if evacuator.Role != "" {
			value += "/" + string(evacuator.Role)
		}
		if random.IntN(3) == 0 {
			pod.Annotations[v1alpha1.AnnotationEvacuatorPrefix+evacuator.EvacuatorClass] = value
		}
	}
	_, err := s.admin.Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// pod returns a random existing pod, or nil if there is none.
func (s *storm) pod(random *rand.Rand) *corev1.Pod {
	list := s.recorder.View().Pods()
	if len(list) == 0 {
		return nil
	}
	return one(random, list)
}

func (s *storm) deletePod(ctx context.Context, random *rand.Rand) error {
	pod := s.pod(random)
	if pod == nil {
		return errNothing
	}
	return s.admin.Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To(int64(random.IntN(2))),
	})
}

// evictPod evicts a pod as kubectl drain does. The eviction may be refused because the pod is being
// evacuated, or by its budget. For a pod with two budgets, kube-apiserver answers with an internal
// error, which has no reason.
func (s *storm) evictPod(ctx context.Context, random *rand.Rand) error {
	pod := s.pod(random)
	if pod == nil {
		return errNothing
	}
	err := evict.Client{Host: s.admin.Kube}.Evict(ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
	})
	var status apierrors.APIStatus
	switch {
	case apierrors.IsTooManyRequests(err):
		return nil
	case errors.As(err, &status) && status.Status().Code == http.StatusInternalServerError &&
		strings.Contains(err.Error(), "more than one PodDisruptionBudget"):
		return nil
	}
	return err
}

// evictAgain tries to evict the pods that wait for their clients. A name may have another pod by
// now.
func (s *storm) evictAgain(ctx context.Context) {
	for _, e := range s.recorder.View().Evacuations() {
		if oracle.WaitsForItsClient(e) {
			// The caller repeats evictAgain until the pod is gone.
			_ = evict.Client{Host: s.admin.Kube}.Evict(ctx, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Spec.PodRef.Name},
				DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &e.Spec.PodRef.UID}},
			})
		}
	}
}

func (s *storm) endPod(ctx context.Context, random *rand.Rand) error {
	phase := one(random, []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed})
	return s.patchPod(ctx, random, fmt.Sprintf(`{"status":{"phase":%q}}`, phase), "status")
}

func (s *storm) holdPod(ctx context.Context, random *rand.Rand) error {
	return s.patchPod(ctx, random, fmt.Sprintf(`{"metadata":{"finalizers":[%q]}}`, hold))
}

func (s *storm) patchPod(ctx context.Context, random *rand.Rand, patch string, subresource ...string) error {
	pod := s.pod(random)
	if pod == nil {
		return errNothing
	}
	_, err := s.admin.Pods(pod.Namespace).Patch(
		ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...,
	)
	return err
}

// letPodsGo removes the finalizers of all pods.
func (s *storm) letPodsGo(ctx context.Context, _ *rand.Rand) error {
	for _, pod := range s.recorder.View().Pods() {
		if len(pod.Finalizers) == 0 {
			continue
		}
		_, err := s.admin.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// changeBudget changes the budget of a group of pods: it allows all disruptions or none, or cannot
// be computed because its pods have no controller. Or changeBudget adds a second budget, or removes
// all budgets of the group.
func (s *storm) changeBudget(ctx context.Context, random *rand.Rand) error {
	namespace, group, what := one(random, s.namespaces), random.IntN(groups), random.IntN(8)
	budgets := s.admin.Kube.PolicyV1().PodDisruptionBudgets(namespace)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("budget-%d", group)},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"group": strconv.Itoa(group)}},
		},
	}
	if random.IntN(4) == 0 {
		// A group usually has one budget.
		budget.Name += "-second"
		what = max(0, what-4)
	}
	switch what {
	case 0, 1, 2:
		return budgets.Delete(ctx, budget.Name, metav1.DeleteOptions{})
	case 3, 4:
		budget.Spec.MinAvailable = ptr.To(intstr.FromInt32(0))
	case 5, 7:
		budget.Spec.MinAvailable = ptr.To(intstr.FromInt32(100))
	case 6:
		budget.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(1))
	}
	now, err := budgets.Get(ctx, budget.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = budgets.Create(ctx, budget, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	now.Spec = budget.Spec
	_, err = budgets.Update(ctx, now, metav1.UpdateOptions{})
	return err
}

// maintain begins to drain a node, or cancels the drain: by the stage or by deletion.
func (s *storm) maintain(ctx context.Context, random *rand.Rand) error {
	maintenances := s.admin.Maintenances()
	node, how := one(random, s.nodes[:2]), random.IntN(2)
	_, err := maintenances.Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = maintenances.Create(
			ctx,
			framework.Maintenance(s.pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
				nm.Name, nm.Spec.NodeSelector = node, framework.Select(corev1.LabelHostname, node)
			}),
			metav1.CreateOptions{},
		)
	case err != nil:
	case how == 0:
		_, err = maintenances.Patch(ctx, node, types.MergePatchType,
			fmt.Appendf(nil, `{"spec":{"stage":%q}}`, v1alpha1.NodeMaintenanceStageComplete), metav1.PatchOptions{})
	default:
		err = maintenances.Delete(ctx, node, metav1.DeleteOptions{})
	}
	return err
}

// deleteNamespace deletes a namespace. This action is rare, because it deletes all objects in it.
func (s *storm) deleteNamespace(ctx context.Context, random *rand.Rand) error {
	namespace := one(random, s.namespaces)
	if random.IntN(8) > 0 {
		return errNothing
	}
	return s.admin.Kube.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{})
}

// makeNamespaces recreates the deleted namespaces.
func (s *storm) makeNamespaces(ctx context.Context, _ *rand.Rand) error {
	for _, namespace := range s.namespaces {
		_, err := s.admin.Kube.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// askOnceMore asks further pods to leave, half of them under budgets that allow no disruption. A
// storm may have deleted almost all pods and namespaces, and left no such budget, so that no pod
// would be blocked.
func (s *storm) askOnceMore() {
	s.t.Helper()
	random := rand.New(rand.NewPCG(s.seed, 200)) //nolint:gosec // nothing here is secret
	asked := 0
	framework.EventuallyWithin(
		s.t, settles, "some more pods are asked to leave",
		func(ctx context.Context) (bool, error) {
			if err := s.makeNamespaces(ctx, random); err != nil {
				return false, err
			}
			var going error
			for _, namespace := range s.namespaces {
				err := s.closeBudget(ctx, namespace)
				if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
					// This namespace is being deleted. The pods in the other namespaces are
					// sufficient.
					going = errors.Join(going, s.whatHolds(ctx, namespace))
					continue
				}
				if err != nil {
					return false, err
				}
			}
			for range last {
				// The name may be in use, and the namespace may be terminating.
				_ = s.makePod(ctx, random)
				if s.ask(ctx, random) == nil {
					asked++
				}
			}
			if asked < last {
				return false, errors.Join(fmt.Errorf("%d were, want %d", asked, last), going)
			}
			return true, nil
		},
	)
}

// whatHolds returns an error with the phase and the true conditions of a namespace.
func (s *storm) whatHolds(ctx context.Context, namespace string) error {
	found, err := s.admin.Kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var all []string
	for _, c := range found.Status.Conditions {
		if c.Status == corev1.ConditionTrue {
			all = append(all, fmt.Sprintf("%s: %s", c.Type, c.Message))
		}
	}
	return fmt.Errorf("namespace %s, %s: %s", namespace, found.Status.Phase, strings.Join(all, "; "))
}

// closeBudget gives the pods of one group a budget that allows no disruption.
func (s *storm) closeBudget(ctx context.Context, namespace string) error {
	budgets := s.admin.Kube.PolicyV1().PodDisruptionBudgets(namespace)
	_, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "closed"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{"group": "0"}},
			MinAvailable: ptr.To(intstr.FromInt32(100)),
		},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// callOff removes all instigators from half of the Evacuations. Their pods must then stay, whatever
// their budgets allow later.
func (s *storm) callOff() {
	s.t.Helper()
	chance := rand.New(rand.NewPCG(s.seed, 100)) //nolint:gosec // nothing here is secret
	turns := map[string]int{}
	for _, e := range s.recorder.View().Evacuations() {
		if chance.IntN(2) == 0 {
			continue
		}
		if !meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionComplete) {
			turns[e.Status.ActiveEvacuatorClass]++
		}
		framework.Eventually(s.t, "an Evacuation is withdrawn", func(ctx context.Context) (bool, error) {
			_, err := s.evacuations("", e.Namespace).Patch(ctx, e.Name, types.MergePatchType,
				[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			return err == nil || apierrors.IsNotFound(err), nil
		})
	}
	s.t.Logf("withdrawn at the end, by active evacuator: %v", turns)
}

// letEveryPodGo removes the finalizers of all pods.
func (s *storm) letEveryPodGo() {
	s.t.Helper()
	framework.Eventually(s.t, "no finalizer holds a pod", func(ctx context.Context) (bool, error) {
		return true, s.letPodsGo(ctx, nil)
	})
}

// clearAway deletes the maintenances and budgets, so that all pods may leave.
func (s *storm) clearAway() {
	s.t.Helper()
	for _, node := range s.nodes {
		err := s.admin.Maintenances().Delete(s.t.Context(), node, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			s.t.Fatal(err)
		}
	}
	for _, namespace := range s.namespaces {
		must.Do(s.t, s.admin.Kube.PolicyV1().PodDisruptionBudgets(namespace).DeleteCollection(s.t.Context(),
			metav1.DeleteOptions{}, metav1.ListOptions{}))
	}
}
