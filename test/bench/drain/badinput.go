// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/evict"
	"haulout.dev/haulout/test/bench/internal/apps"
	"haulout.dev/haulout/test/internal/webhook"
)

const (
	// badPool are nodes that only this file uses.
	badPool      = "bad"
	badNodes     = 5
	badNamespace = "bench-bad"
	// waitingPods is the number of pods under one budget that allows no disruption. Its spec is
	// rewritten continuously.
	waitingPods  = 1000
	waiting      = "waiting"
	rewriteEvery = time.Second / 3
	// deniedPods is the number of pods whose evictions a webhook denies for an hour.
	deniedPods = 20
	deniedApp  = "denied"
	// sendEvery is the interval between rounds of requests that the server must refuse.
	sendEvery = 5 * time.Second
)

// disturb sends bad input to the server during the measured drain, and returns when the server has
// processed all of the bad input. The input stays until the returned function is called.
func (c *cluster) disturb(ctx context.Context) (end func(context.Context) error, err error) {
	var running sync.WaitGroup
	acting, stop := context.WithCancelCause(ctx)
	stopWebhook := func(context.Context) error { return nil }
	end = func(ctx context.Context) error {
		stop(nil)
		running.Wait()
		failed := context.Cause(acting)
		if errors.Is(failed, context.Canceled) {
			failed = nil
		}
		return errors.Join(failed, stopWebhook(ctx), c.removeBadInput(ctx))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end(context.WithoutCancel(ctx)))
		}
	}()
	if stopWebhook, err = c.denyEvictions(ctx); err != nil {
		return end, err
	}
	if err := c.createBadPods(ctx); err != nil {
		return end, err
	}
	if err := until(ctx, c.evictionsAreDenied); err != nil {
		return end, err
	}
	foreign := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"{\"a/b\":\"x\"}"}}}`, v1alpha1.AnnotationCordonedBy)
	if _, err := c.kube.CoreV1().Nodes().Patch(ctx, c.bad[0], types.MergePatchType, foreign,
		metav1.PatchOptions{}); err != nil {
		return end, fmt.Errorf("annotate node %s: %w", c.bad[0], err)
	}
	drains := badMaintenance("bad")
	drains.Spec.Reason = "\x1b]0;title\a\x1b[2J"
	if _, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, drains,
		metav1.CreateOptions{}); err != nil {
		return end, err
	}
	for _, crowd := range []func(context.Context) error{c.createBudgets, c.createCrowds, c.sendEvacuations} {
		if err := crowd(ctx); err != nil {
			return end, err
		}
	}
	for _, repeated := range []struct {
		every time.Duration
		do    func(context.Context) error
	}{{rewriteEvery, c.rewriteBudget}, {sendEvery, c.sendRefused}} {
		running.Go(func() {
			wait.UntilWithContext(acting, func(ctx context.Context) {
				if err := repeated.do(ctx); err != nil && ctx.Err() == nil {
					stop(err)
				}
			}, repeated.every)
		})
	}
	settling, cancel := context.WithTimeoutCause(acting, setupTime,
		fmt.Errorf("the server did not process the bad input within %v", setupTime))
	defer cancel()
	return end, untilEvery(settling, time.Second, c.badInputIsKnown)
}

func badMaintenance(name string) *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.NodeMaintenanceSpec{NodeSelector: inPool(badPool), Stage: v1alpha1.NodeMaintenanceStageDrain},
	}
}

// denyEvictions makes a webhook deny the evictions of some pods.
func (c *cluster) denyEvictions(ctx context.Context) (func(context.Context) error, error) {
	return webhook.Webhook{
		Name: badNamespace, Namespace: badNamespace,
		Rule: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/eviction"},
			},
		},
		Decide: func(r *admissionv1.AdmissionRequest) *metav1.Status {
			if !strings.HasPrefix(r.Name, deniedApp) {
				return nil
			}
			return &metav1.Status{
				Status: metav1.StatusFailure, Code: http.StatusTooManyRequests,
				Reason:  metav1.StatusReasonTooManyRequests,
				Message: "not now", Details: &metav1.StatusDetails{RetryAfterSeconds: 3600},
			}
		},
	}.Start(ctx, c.kube)
}

// evictionsAreDenied returns what is missing until the webhook denies evictions, or "".
func (c *cluster) evictionsAreDenied(ctx context.Context) (string, error) {
	name := fmt.Sprintf("%s-%02d", deniedApp, 0)
	err := evict.Client{Host: c.kube}.Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: badNamespace, Name: name},
		DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	})
	if apierrors.IsTooManyRequests(err) {
		return "", nil
	}
	return "the webhook denies no eviction", err
}

// createBadPods creates the waiting pods and their budget, the pods whose evictions the webhook
// denies, and a pod with 22,000 labels.
func (c *cluster) createBadPods(ctx context.Context) error {
	labelled := badPod("labelled", "labelled", c.bad[0])
	for i := range 22_000 {
		labelled.Labels[fmt.Sprintf("label-%05d", i)] = "x"
	}
	pods := []*corev1.Pod{labelled}
	for i := range waitingPods {
		pods = append(pods, badPod(fmt.Sprintf("%s-%04d", waiting, i), waiting, c.bad[i%len(c.bad)]))
	}
	for i := range deniedPods {
		pods = append(pods, badPod(fmt.Sprintf("%s-%02d", deniedApp, i), deniedApp, c.bad[i%len(c.bad)]))
	}
	keepsAll := apps.Budget(waiting,
		policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(waitingPods))})
	if _, err := c.kube.PolicyV1().PodDisruptionBudgets(badNamespace).Create(ctx, keepsAll,
		metav1.CreateOptions{}); err != nil {
		return err
	}
	return each(ctx, pods, setupWriters, func(ctx context.Context, pod **corev1.Pod) error {
		_, err := c.kube.CoreV1().Pods(badNamespace).Create(ctx, *pod, metav1.CreateOptions{})
		return err
	})
}

func badPod(name, app, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{apps.Label: app}},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "app", Image: "example/app"}},
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
}

// rewriteBudget changes the number in the budget of the waiting pods. The budget still allows no
// disruption.
func (c *cluster) rewriteBudget(ctx context.Context) error {
	budgets := c.kube.PolicyV1().PodDisruptionBudgets(badNamespace)
	b, err := budgets.Get(ctx, waiting, metav1.GetOptions{})
	if err != nil {
		return err
	}
	needed := int32(waitingPods)
	if b.Spec.MinAvailable.IntVal == needed {
		needed++
	}
	b.Spec.MinAvailable = ptr.To(intstr.FromInt32(needed))
	if _, err := budgets.Update(ctx, b, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
		return err
	}
	return nil
}

// sendRefused sends NodeMaintenances that the server must refuse.
func (c *cluster) sendRefused(ctx context.Context) error {
	terms := badMaintenance("terms")
	for i := range 26_000 {
		terms.Spec.NodeSelector.NodeSelectorTerms = append(terms.Spec.NodeSelector.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{fmt.Sprint("n", i)}},
			},
		})
	}
	// The status of each node would repeat the 441 KiB of this plan.
	plan := badMaintenance("plan")
	for i := range int32(4000) {
		plan.Spec.DrainPlan = append(plan.Spec.DrainPlan, v1alpha1.DrainPlanEntry{
			PodPriority: i, PodType: v1alpha1.PodTypeDefault,
			PodSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{"app": strings.Repeat("x", 57) + fmt.Sprintf("%06d", i)},
			},
		})
	}
	for what, nm := range map[string]*v1alpha1.NodeMaintenance{
		"26,000 selector terms": terms, "a plan of 441 KiB": plan, "1,000 terms of DoesNotExist": withoutLabels(),
	} {
		_, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, nm, metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) && !apierrors.IsRequestEntityTooLargeError(err) && ctx.Err() == nil {
			return fmt.Errorf("NodeMaintenance with %s: want it refused as invalid, got: %w", what, err)
		}
	}
	return errors.Join(c.sendOneMore(ctx), c.sendEvacuation(ctx))
}

// badInputIsKnown returns what is missing until the server has created all Evacuations and has
// marked the Evacuations of the waiting pods as blocked.
func (c *cluster) badInputIsKnown(ctx context.Context) (string, error) {
	list, err := c.haulout.MaintenanceV1alpha1().Evacuations(badNamespace).List(ctx,
		metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return "", err
	}
	blocked := 0
	for i := range list.Items {
		if meta.IsStatusConditionTrue(list.Items[i].Status.Conditions, v1alpha1.ConditionBlocked) {
			blocked++
		}
	}
	if asked := len(list.Items); asked < waitingPods+deniedPods || blocked < waitingPods {
		return fmt.Sprintf("%d pods of the bad input have an Evacuation, %d of them are blocked",
			asked, blocked), nil
	}
	return "", nil
}

// removeBadInput deletes the objects that disturb has created.
func (c *cluster) removeBadInput(ctx context.Context) error {
	if err := errors.Join(c.label(ctx, c.bad[2], "null"), c.removeMaintenances(ctx)); err != nil {
		return err
	}
	all, now := metav1.ListOptions{}, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}
	if err := errors.Join(c.kube.CoreV1().Pods(badNamespace).DeleteCollection(ctx, now, all),
		c.kube.PolicyV1().PodDisruptionBudgets(badNamespace).DeleteCollection(ctx, now, all)); err != nil {
		return err
	}
	own := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, v1alpha1.AnnotationCordonedBy)
	if _, err := c.kube.CoreV1().Nodes().Patch(ctx, c.bad[0], types.MergePatchType, own,
		metav1.PatchOptions{}); err != nil {
		return err
	}
	return until(ctx, func(ctx context.Context) (string, error) {
		pods, err := c.kube.CoreV1().Pods(badNamespace).List(ctx, all)
		return missing(err, len(pods.Items), "pods of bad input are left")
	})
}

const (
	// crowdedBudgets is the number of budgets that select no pod, in the namespace of the bad pods.
	crowdedBudgets = 5000
	// mostHolders is the limit of NodeMaintenances per node. crowd is the number of
	// NodeMaintenances that select another node only after its labels have changed. Admission
	// cannot refuse these.
	mostHolders = 50
	crowd       = 400
	crowdLabel  = "bench.haulout.dev/crowd"
	// refusedEvacuations is the number of Evacuations that the server refuses before the drain
	// begins.
	refusedEvacuations = 10_000
)

// createBudgets creates budgets that select no pod.
func (c *cluster) createBudgets(ctx context.Context) error {
	return each(ctx, make([]struct{}, crowdedBudgets), setupWriters, func(ctx context.Context, _ *struct{}) error {
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "crowd-"},
			Spec: policyv1.PodDisruptionBudgetSpec{
				MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{apps.Label: "none"}},
			},
		}
		_, err := c.kube.PolicyV1().PodDisruptionBudgets(badNamespace).Create(ctx, budget, metav1.CreateOptions{})
		return err
	})
}

// createCrowds creates NodeMaintenances up to the limit of one node, and far beyond the limit of
// another.
func (c *cluster) createCrowds(ctx context.Context) error {
	full, crowded := c.bad[1], c.bad[2]
	var all []*v1alpha1.NodeMaintenance
	// The NodeMaintenance of all bad nodes counts towards the limit, too.
	for i := range mostHolders - 1 {
		all = append(all, crowding(fmt.Sprintf("full-%02d", i), byName(full)))
	}
	for i := range crowd {
		all = append(all, crowding(fmt.Sprintf("crowd-%03d", i), withLabel(crowdLabel)))
	}
	if err := each(ctx, all, setupWriters, func(ctx context.Context, nm **v1alpha1.NodeMaintenance) error {
		_, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, *nm, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return c.label(ctx, crowded, `"yes"`)
}

// label sets the label that the crowd selects, or removes it.
func (c *cluster) label(ctx context.Context, node, value string) error {
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, crowdLabel, value)
	_, err := c.kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func crowding(name string, selector *corev1.NodeSelector) *v1alpha1.NodeMaintenance {
	nm := badMaintenance(name)
	nm.Spec.NodeSelector = selector
	return nm
}

func byName(node string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
		{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
	}}}}
}

func withLabel(key string) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: key, Operator: corev1.NodeSelectorOpExists},
	}}}}
}

// withoutLabels returns a NodeMaintenance whose selector terms cannot use the index of labels. Its
// stage is Idle because it selects all nodes.
func withoutLabels() *v1alpha1.NodeMaintenance {
	nm := badMaintenance("without-labels")
	nm.Spec.Stage, nm.Spec.NodeSelector = v1alpha1.NodeMaintenanceStageIdle, &corev1.NodeSelector{}
	for i := range 1000 {
		nm.Spec.NodeSelector.NodeSelectorTerms = append(nm.Spec.NodeSelector.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: fmt.Sprintf("bench.haulout.dev/label-%04d", i), Operator: corev1.NodeSelectorOpDoesNotExist},
			},
		})
	}
	return nm
}

// sendOneMore sends a NodeMaintenance for the node that is at the limit.
func (c *cluster) sendOneMore(ctx context.Context) error {
	_, err := c.haulout.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, crowding("one-more", byName(c.bad[1])), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) && ctx.Err() == nil {
		return fmt.Errorf("NodeMaintenance %d of node %s: want it refused as forbidden, got: %w", mostHolders+1, c.bad[1], err)
	}
	return nil
}

// sendEvacuations sends many Evacuations that the server must refuse.
func (c *cluster) sendEvacuations(ctx context.Context) error {
	return each(ctx, make([]struct{}, refusedEvacuations), setupWriters,
		func(ctx context.Context, _ *struct{}) error { return c.sendEvacuation(ctx) })
}

// sendEvacuation sends an Evacuation of a bad pod with 64 KiB of labels and a finalizer that would
// keep the Evacuation after its pod is gone.
func (c *cluster) sendEvacuation(ctx context.Context) error {
	name := fmt.Sprintf("%s-%04d", waiting, 0)
	pod, err := c.kube.CoreV1().Pods(badNamespace).Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	e := &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Finalizers: []string{v1alpha1.FinalizerInstigatorPrefix + "bench.haulout.dev", "bench.haulout.dev/foreign"},
			Labels:     map[string]string{},
		},
		Spec: v1alpha1.EvacuationSpec{PodRef: v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}},
	}
	for i := range 1000 {
		e.Labels[fmt.Sprintf("label-%04d", i)] = strings.Repeat("x", 55)
	}
	_, err = c.haulout.MaintenanceV1alpha1().Evacuations(badNamespace).Create(ctx, e, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) && ctx.Err() == nil {
		return fmt.Errorf("an Evacuation with a foreign finalizer and 64 KiB of labels: want it refused as invalid, got: %w", err)
	}
	return nil
}
