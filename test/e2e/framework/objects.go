// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/internal/webhook"
)

// Pool is the label that distinguishes the nodes of each test.
const Pool = "e2e.haulout.dev/pool"

// background is the context of cleanups, because the context of the test has ended by then.
func background() context.Context { return context.Background() }

// NewPool creates nodes for a test and returns the name of their pool. Pods run only on simulated
// nodes. The other nodes are only objects, for tests that need very many. NewPool removes the nodes
// after the test.
func (c *Cluster) NewPool(tb testing.TB, count int, simulated bool) (pool string, nodes []string) {
	tb.Helper()
	pool = Name("pool")
	nodes = make([]string, count)
	for i := range nodes {
		nodes[i] = fmt.Sprintf("%s-%04d", pool, i)
	}
	c.NewNodes(tb, pool, simulated, nodes...)
	return pool, nodes
}

// NewNodes creates nodes with the given names in a pool, and removes them after the test.
func (c *Cluster) NewNodes(tb testing.TB, pool string, simulated bool, names ...string) {
	tb.Helper()
	admin := c.As(tb)
	forAll(tb, names, func(name string) error {
		_, err := admin.Nodes().Create(tb.Context(), newNode(name, pool, simulated), metav1.CreateOptions{})
		return err
	})
	tb.Cleanup(func() {
		forAll(tb, names, func(name string) error {
			err := admin.Nodes().Delete(background(), name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	})
	if simulated {
		Eventually(tb, "the nodes of the pool are ready", func(ctx context.Context) (bool, error) {
			list, err := admin.Nodes().List(ctx, metav1.ListOptions{LabelSelector: Pool + "=" + pool})
			if err != nil {
				return false, err
			}
			for i := range list.Items {
				if slices.Contains(names, list.Items[i].Name) && !ready(&list.Items[i]) {
					return false, nil
				}
			}
			return len(list.Items) >= len(names), nil
		})
	}
}

func ready(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue &&
				!slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
					return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
				})
		}
	}
	return false
}

// forAll calls f for every name, 16 calls at a time.
func forAll(tb testing.TB, names []string, f func(string) error) {
	tb.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	slots := make(chan struct{}, 16)
	for _, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := f(name); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	must.Do(tb, errors.Join(errs...))
}

// newNode returns a node with a taint that only the pods of its pool tolerate.
func newNode(name, pool string, simulated bool) *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse("250"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{Pool: pool, corev1.LabelHostname: name}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: Pool, Value: pool, Effect: corev1.TaintEffectNoSchedule}}},
		Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	if simulated {
		node.Annotations = map[string]string{"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"}
	}
	return node
}

// NewNamespace creates a namespace, and deletes it after the test.
func (c *Cluster) NewNamespace(tb testing.TB) string {
	tb.Helper()
	admin := c.As(tb)
	name := Name("e2e")
	must.Get(admin.Kube.CoreV1().Namespaces().Create(tb.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(tb)
	tb.Cleanup(func() {
		if err := admin.Kube.CoreV1().Namespaces().Delete(background(), name, metav1.DeleteOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			tb.Error(err)
		}
	})
	return name
}

// PodSpec returns the spec of a pod that can run only in the pool.
func PodSpec(pool string) corev1.PodSpec {
	return corev1.PodSpec{
		Containers: []corev1.Container{{Name: "app", Image: "none"}}, NodeSelector: map[string]string{Pool: pool},
		Tolerations:                   []corev1.Toleration{{Key: Pool, Operator: corev1.TolerationOpExists}},
		TerminationGracePeriodSeconds: ptr.To[int64](1),
	}
}

// PodOn creates a bare pod on a node and waits until it runs.
func (c *Cluster) PodOn(tb testing.TB, namespace, name, pool, node string, modify ...func(*corev1.Pod)) *corev1.Pod {
	tb.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec:       PodSpec(pool),
	}
	pod.Spec.NodeName = node
	for _, m := range modify {
		m(pod)
	}
	pods := c.As(tb).Pods(namespace)
	must.Get(pods.Create(tb.Context(), pod, metav1.CreateOptions{}))(tb)
	var running *corev1.Pod
	Eventually(tb, "pod "+name+" runs", func(ctx context.Context) (bool, error) {
		var err error
		running, err = pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && running.Status.Phase == corev1.PodRunning, err
	})
	return running
}

// PodsOn creates bare pods whose specs name their nodes, and waits until all of them run.
func (c *Cluster) PodsOn(tb testing.TB, namespace, pool string, pods ...*corev1.Pod) {
	tb.Helper()
	admin := c.As(tb)
	byName := make(map[string]*corev1.Pod, len(pods))
	names := make([]string, len(pods))
	for i, pod := range pods {
		node := pod.Spec.NodeName
		priority := pod.Spec.PriorityClassName
		pod.Spec = PodSpec(pool)
		pod.Spec.NodeName, pod.Spec.PriorityClassName = node, priority
		byName[pod.Name], names[i] = pod, pod.Name
	}
	forAll(tb, names, func(name string) error {
		_, err := admin.Pods(namespace).Create(tb.Context(), byName[name], metav1.CreateOptions{})
		return err
	})
	Eventually(tb, "the pods run", func(ctx context.Context) (bool, error) {
		list, err := admin.Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		running := 0
		for i := range list.Items {
			if byName[list.Items[i].Name] != nil && list.Items[i].Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return running == len(pods), nil
	})
}

// PriorityClass creates a class with a priority, deletes it after the test, and returns its name.
func (c *Cluster) PriorityClass(tb testing.TB, priority int32) string {
	tb.Helper()
	classes := c.As(tb).Kube.SchedulingV1().PriorityClasses()
	name := Name(fmt.Sprintf("priority-%d", priority))
	must.Get(classes.Create(tb.Context(),
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: priority},
		metav1.CreateOptions{}))(tb)
	tb.Cleanup(func() {
		// A policy of haulout-scheduler prevents the deletion of classes with a threshold
		// annotation.
		if _, err := classes.Patch(background(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{}); err != nil {
			tb.Error(err)
		}
		if err := classes.Delete(background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			tb.Error(err)
		}
	})
	// Admission reads the class from a cache: wait until it accepts pods of the class.
	Eventually(tb, "priority class "+name+" is known", func(ctx context.Context) (bool, error) {
		probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe"}, Spec: PodSpec("none")}
		probe.Spec.PriorityClassName = name
		_, err := c.As(tb).Pods(metav1.NamespaceDefault).Create(ctx, probe, metav1.CreateOptions{
			DryRun: []string{metav1.DryRunAll},
		})
		return err == nil, err
	})
	return name
}

// WithSurge makes Haulout replace the pods of a Deployment before they leave, as it does by
// default.
func WithSurge(d *appsv1.Deployment) {
	delete(d.Annotations, v1alpha1.AnnotationSurge)
}

// Deployment creates a Deployment in the pool and waits until all replicas are available. Haulout
// evicts its pods without a replacement, unless WithSurge is among the modifications.
func (c *Cluster) Deployment(
	tb testing.TB, namespace, name, pool string, replicas int32, modify ...func(*appsv1.Deployment),
) *appsv1.Deployment {
	tb.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: labels,
			Annotations: map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled},
		},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: PodSpec(pool)},
		},
	}
	for _, m := range modify {
		m(d)
	}
	deployments := c.As(tb).Kube.AppsV1().Deployments(namespace)
	must.Get(deployments.Create(tb.Context(), d, metav1.CreateOptions{}))(tb)
	nudge := time.Now().Add(nudgeAfter)
	Eventually(tb, "deployment "+name+" is available", func(ctx context.Context) (bool, error) {
		var err error
		d, err = deployments.Get(ctx, name, metav1.GetOptions{})
		if err != nil || d.Status.AvailableReplicas == replicas || time.Now().Before(nudge) {
			return err == nil && d.Status.AvailableReplicas == replicas, err
		}
		nudge = time.Now().Add(nudgeAfter)
		return false, Nudge(ctx, c.As(tb).Kube.CoreV1().Pods(namespace))
	})
	return d
}

// nudgeAfter is the time after which a test nudges the pods of a Deployment that is not available,
// and the interval between two nudges.
const nudgeAfter = 10 * time.Second

// Nudge changes all pods of a namespace that do not run or that are being deleted, so that kwok
// handles them again: unlike a kubelet, kwok does not repeat a request that kube-apiserver has
// refused. The returned error names these pods.
func Nudge(ctx context.Context, pods typedcorev1.PodInterface) error {
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var left []string
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
			continue
		}
		left = append(left, fmt.Sprintf("%s on node %q is %s: %v", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.Status.Conditions))
		if pod.Spec.NodeName != "" {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"e2e.haulout.dev/nudged":%q}}}`, time.Now())
			// The next nudge repeats a failed patch.
			_, _ = pods.Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
	}
	return fmt.Errorf("pods that do not run: %s", strings.Join(left, "; "))
}

// Budget creates a PodDisruptionBudget for the pods with the label app=name and waits until its
// status is current.
func (c *Cluster) Budget(tb testing.TB, namespace, name string, maxUnavailable int) {
	tb.Helper()
	budgets := c.As(tb).Kube.PolicyV1().PodDisruptionBudgets(namespace)
	must.Get(budgets.Create(tb.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			MaxUnavailable: ptr.To(intstr.FromInt(maxUnavailable)),
		},
	}, metav1.CreateOptions{}))(tb)
	Eventually(tb, "budget "+name+" is computed", func(ctx context.Context) (bool, error) {
		b, err := budgets.Get(ctx, name, metav1.GetOptions{})
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.ExpectedPods > 0, err
	})
}

// Maintenance returns a NodeMaintenance of the nodes of a pool.
func Maintenance(
	pool string, stage v1alpha1.NodeMaintenanceStage, modify ...func(*v1alpha1.NodeMaintenance),
) *v1alpha1.NodeMaintenance {
	return build.With(&v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: Name("nm")},
		Spec:       v1alpha1.NodeMaintenanceSpec{Stage: stage, NodeSelector: Select(Pool, pool)},
	}, modify...)
}

// Select returns a node selector for a label with one of the values.
func Select(key string, values ...string) *corev1.NodeSelector {
	return build.Labelled(key, values...)
}

// Create creates a NodeMaintenance as the administrator, and removes it after the test.
func (c *Cluster) Create(tb testing.TB, nm *v1alpha1.NodeMaintenance) *v1alpha1.NodeMaintenance {
	tb.Helper()
	maintenances := c.As(tb).Maintenances()
	created := must.Get(maintenances.Create(tb.Context(), nm, metav1.CreateOptions{}))(tb)
	tb.Cleanup(func() {
		if tb.Failed() {
			c.Diagnose(tb)
		}
		c.Remove(tb, nm.Name)
	})
	return created
}

// Remove deletes a NodeMaintenance, if it exists, and waits until it has released its nodes.
func (c *Cluster) Remove(tb testing.TB, name string) {
	tb.Helper()
	maintenances := c.As(tb).Maintenances()
	EventuallyWithin(tb, 3*Timeout, "NodeMaintenance "+name+" is gone", func(ctx context.Context) (bool, error) {
		if err := maintenances.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return apierrors.IsNotFound(err), loop.IgnoreNotFound(err)
		}
		nm, err := maintenances.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return apierrors.IsNotFound(err), loop.IgnoreNotFound(err)
		}
		// Without a version, the watch would begin some time after the request, and not show a
		// deletion before that.
		w, err := maintenances.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: nm.ResourceVersion})
		if err != nil {
			return false, err
		}
		defer w.Stop()
		for event := range w.ResultChan() {
			if event.Type == watch.Deleted {
				return true, nil
			}
		}
		return false, errors.New("the watch has ended")
	})
}

// Webhook registers a validating webhook for requests in a namespace until the test ends. decide
// returns the response to a denied request, or nil to allow the request. API servers call the
// webhook only a moment later: the caller has to wait until a request is denied.
func (c *Cluster) Webhook(
	tb testing.TB, namespace string, rule admissionregistrationv1.RuleWithOperations,
	decide func(*admissionv1.AdmissionRequest) *metav1.Status,
) {
	tb.Helper()
	stop := must.Get(webhook.Webhook{Name: Name("e2e"), Namespace: namespace, Rule: rule, Decide: decide}.
		Start(tb.Context(), c.As(tb).Kube))(tb)
	tb.Cleanup(func() {
		if err := stop(background()); err != nil {
			tb.Error(err)
		}
	})
}
