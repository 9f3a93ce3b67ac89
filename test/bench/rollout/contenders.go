// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/evict"
	"haulout.dev/haulout/pkg/worker"
	"haulout.dev/haulout/test/bench/internal/usage"
)

const (
	workerClass = "rollout.bench.haulout.dev"
	// versionLabel is the label that the work on a node changes, and versionKey the parameter with
	// its value.
	versionLabel = "bench.haulout.dev/version"
	versionKey   = "version"
	// evictAgain is the time after which the loop repeats a refused eviction, and lookAgain the
	// time between two looks at the pods of a node.
	evictAgain = 100 * time.Millisecond
	lookAgain  = 200 * time.Millisecond
)

// install does the work on a node: it takes a while, and changes a label of the node.
func (c *cluster) install(ctx context.Context, node, version string, takes time.Duration) error {
	if err := usage.Pause(ctx, takes); err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, versionLabel, version)
	_, err := c.kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// newRollout returns a rollout over all nodes.
func newRollout(name string, percent int) *v1alpha1.NodeMaintenanceRollout {
	return &v1alpha1.NodeMaintenanceRollout{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.NodeMaintenanceRolloutSpec{
			Stage: v1alpha1.RolloutStageRoll,
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpExists}},
			}}},
			Limits:   []v1alpha1.RolloutLimit{{MaxUnavailable: ptr.To(intstr.FromString(fmt.Sprintf("%d%%", percent)))}},
			Template: v1alpha1.RolloutTemplate{Task: &v1alpha1.NodeMaintenanceTask{Worker: workerClass}},
		},
	}
}

// roll creates a rollout over all nodes, and waits until it is complete. The worker runs in this
// program.
func (c *cluster) roll(ctx context.Context, s settings, version string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	w, err := worker.New(worker.Config{
		Class: workerClass, Holder: "bench", Client: c.haulout,
		Handler: func(ctx context.Context, t *worker.Task) error {
			return c.install(ctx, t.NodeName, t.Object().Spec.Parameters[versionKey], s.work)
		},
	})
	if err != nil {
		return err
	}
	working, stop := context.WithCancel(ctx)
	stopped := make(chan error, 1)
	go func() { stopped <- w.Run(working) }()
	r := newRollout("version-"+version, s.percent)
	r.Spec.Template.Task.Parameters = map[string]string{versionKey: version}
	r.Spec.Template.Task.DoneWhen = fmt.Sprintf("%[1]q in node.metadata.labels && node.metadata.labels[%[1]q] == %[2]q", versionLabel, version)
	rollouts := c.haulout.MaintenanceV1alpha1().NodeMaintenanceRollouts()
	if _, err = rollouts.Create(ctx, r, metav1.CreateOptions{}); err == nil {
		err = wait.PollUntilContextCancel(ctx, lookAgain, true, func(ctx context.Context) (bool, error) {
			now, err := rollouts.Get(ctx, r.Name, metav1.GetOptions{})
			if err == nil {
				r = now
			}
			return isOver(r), err
		})
	}
	stop()
	if err = errors.Join(err, <-stopped); err != nil || !isComplete(r) {
		return errors.Join(fmt.Errorf("rollout %s is not complete: %+v", r.Name, r.Status.Conditions), err)
	}
	return nil
}

// isComplete reports whether all nodes of a rollout are done.
func isComplete(r *v1alpha1.NodeMaintenanceRollout) bool {
	return meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionComplete)
}

// isOver reports whether a rollout is complete, or has failed.
func isOver(r *v1alpha1.NodeMaintenanceRollout) bool {
	return isComplete(r) || meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionStalled)
}

// loop takes all nodes out of service and back with a number of goroutines, of which each takes one
// node after another: it drains the node, works on it, and uncordons it.
func (c *cluster) loop(ctx context.Context, s settings, version string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var running sync.WaitGroup
	next, errs := make(chan string), make([]error, s.places())
	for i := range errs {
		running.Go(func() {
			for node := range next {
				errs[i] = errors.Join(errs[i], c.visit(ctx, s, node, version))
			}
		})
	}
	for _, node := range c.nodes {
		next <- node
	}
	close(next)
	running.Wait()
	return errors.Join(errs...)
}

func (c *cluster) visit(ctx context.Context, s settings, node, version string) error {
	if err := c.setUnschedulable(ctx, node, true); err != nil {
		return err
	}
	if err := usage.Pause(ctx, s.loopPause); err != nil {
		return err
	}
	if err := c.empty(ctx, node); err != nil {
		return fmt.Errorf("drain node %s: %w", node, err)
	}
	if err := c.install(ctx, node, version, s.work); err != nil {
		return err
	}
	return c.setUnschedulable(ctx, node, false)
}

func (c *cluster) setUnschedulable(ctx context.Context, node string, closed bool) error {
	_, err := c.kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed), metav1.PatchOptions{})
	return err
}

// empty evicts the pods of a node, all at the same time, and waits until they are gone.
func (c *cluster) empty(ctx context.Context, node string) error {
	return wait.PollUntilContextCancel(ctx, lookAgain, true, func(ctx context.Context) (bool, error) {
		pods, err := c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
		})
		if err != nil {
			return false, err
		}
		var running sync.WaitGroup
		errs := make([]error, len(pods.Items))
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.DeletionTimestamp == nil {
				running.Go(func() { errs[i] = c.evict(ctx, pod) })
			}
		}
		running.Wait()
		return len(pods.Items) == 0, errors.Join(errs...)
	})
}

// evict evicts a pod, and repeats the eviction while the budget or the server refuses it.
func (c *cluster) evict(ctx context.Context, pod *corev1.Pod) error {
	return wait.PollUntilContextCancel(ctx, evictAgain, true, func(ctx context.Context) (bool, error) {
		err := evict.Client{Host: c.kube}.Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}})
		switch {
		case err == nil || apierrors.IsNotFound(err):
			return true, nil
		case apierrors.IsTooManyRequests(err), apierrors.IsConflict(err), apierrors.IsInternalError(err), apierrors.IsTimeout(err):
			return false, nil
		}
		return false, err
	})
}
