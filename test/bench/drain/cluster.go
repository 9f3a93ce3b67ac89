// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/test/bench/internal/devcluster"
	"haulout.dev/haulout/test/bench/internal/usage"
	"haulout.dev/haulout/test/oracle"
)

const (
	namespace = "bench"
	// poolLabel distinguishes the nodes to drain from the nodes to which the pods move.
	poolLabel   = "bench.haulout.dev/pool"
	drainedPool = "drained"
	sparePool   = "spare"
	// server and host are the names of the two main processes in the cluster program.
	server = "haulout-apiserver"
	host   = "kube-apiserver"
	// setupTime is the timeout for the cluster to reach a state.
	setupTime = 5 * time.Minute
	// setupWriters is the number of concurrent requests that prepare the cluster.
	setupWriters = 16
	// calmShare is the share of one processor that all processes of an idle cluster may use
	// together.
	calmShare = 0.3
)

// cluster is the development cluster that all contenders share.
type cluster struct {
	*devcluster.Cluster
	kube    kubernetes.Interface
	haulout clientset.Interface
	running usage.Cluster
	drained []string
	spare   []string
	bad     []string
}

// connect returns clients without client-side rate limits.
func connect(kubeconfig string) (kubernetes.Interface, clientset.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, nil, err
	}
	config.QPS = -1
	// The client also accepts JSON, because the version endpoint serves only JSON.
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	haulout, err := clientset.NewForConfig(config)
	return kube, haulout, err
}

// setUp creates the namespace and labels the pools of nodes.
func (c *cluster) setUp(ctx context.Context, s settings) error {
	var err error
	if c.running, err = usage.Open(c.Dir); err != nil {
		return err
	}
	if c.kube, c.haulout, err = connect(c.Kubeconfig()); err != nil {
		return err
	}
	nodes, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range nodes.Items {
		pool, names := badPool, &c.bad
		switch {
		case i < s.nodes:
			pool, names = drainedPool, &c.drained
		case i < s.nodes+s.spare:
			pool, names = sparePool, &c.spare
		}
		name := nodes.Items[i].Name
		*names = append(*names, name)
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, poolLabel, pool)
		if _, err := c.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	for _, name := range []string{namespace, badNamespace} {
		if _, err := c.kube.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	// The workload must not run on the bad nodes.
	return each(ctx, c.bad, setupWriters,
		func(ctx context.Context, node *string) error { return setUnschedulable(ctx, c.kube, *node, true) })
}

// prepare restores the state before a drain: the workload runs on the nodes to drain, all other
// nodes are empty and schedulable, no objects of an earlier drain are left, and no process is busy.
func (c *cluster) prepare(ctx context.Context, w workload) error {
	ctx, cancel := context.WithTimeoutCause(ctx, setupTime,
		fmt.Errorf("the cluster was not ready for a drain within %v", setupTime))
	defer cancel()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"remove the maintenances", c.removeMaintenances},
		{"remove the workload", c.removeWorkload},
		{"uncordon the nodes to drain", func(ctx context.Context) error { return c.setNodes(ctx, c.drained, c.spare) }},
		{"start the workload", func(ctx context.Context) error { return c.startWorkload(ctx, w) }},
		{
			"uncordon all nodes",
			func(ctx context.Context) error { return c.setNodes(ctx, slices.Concat(c.drained, c.spare), nil) },
		},
		{"wait until the processes are idle", c.calm},
	} {
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func (c *cluster) removeMaintenances(ctx context.Context) error {
	background := metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	maintenances, evacuations := c.haulout.MaintenanceV1alpha1().NodeMaintenances(), c.haulout.MaintenanceV1alpha1().Evacuations(metav1.NamespaceAll)
	if err := maintenances.DeleteCollection(ctx, background, metav1.ListOptions{}); err != nil {
		return err
	}
	if err := until(ctx, func(ctx context.Context) (string, error) {
		list, err := maintenances.List(ctx, metav1.ListOptions{})
		return missing(err, len(list.Items), "NodeMaintenances are left")
	}); err != nil {
		return err
	}
	for _, name := range []string{namespace, badNamespace} {
		if err := c.haulout.MaintenanceV1alpha1().Evacuations(name).DeleteCollection(ctx, background,
			metav1.ListOptions{}); err != nil {
			return err
		}
	}
	return until(ctx, func(ctx context.Context) (string, error) {
		list, err := evacuations.List(ctx, metav1.ListOptions{})
		return missing(err, len(list.Items), "Evacuations are left")
	})
}

func (c *cluster) removeWorkload(ctx context.Context) error {
	background, all := metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationBackground),
	}, metav1.ListOptions{}
	if err := errors.Join(c.kube.AppsV1().Deployments(namespace).DeleteCollection(ctx, background, all),
		c.kube.PolicyV1().PodDisruptionBudgets(namespace).DeleteCollection(ctx, background, all)); err != nil {
		return err
	}
	if err := until(ctx, func(ctx context.Context) (string, error) {
		sets, err := c.kube.AppsV1().ReplicaSets(namespace).List(ctx, all)
		if err != nil || len(sets.Items) > 0 {
			return missing(err, 1, "ReplicaSets are left")
		}
		pods, err := c.kube.CoreV1().Pods(namespace).List(ctx, all)
		return missing(err, len(pods.Items), "pods are left")
	}); err != nil {
		return err
	}
	// Delete the events last, because the deletion of the pods creates events. Those of a large
	// drain take longer than one request may.
	return until(ctx, func(ctx context.Context) (string, error) {
		return "", c.kube.EventsV1().Events(namespace).DeleteCollection(ctx, background, all)
	})
}

func (c *cluster) startWorkload(ctx context.Context, w workload) error {
	for _, d := range w.deployments {
		if _, err := c.kube.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for _, b := range w.budgets {
		if _, err := c.kube.PolicyV1().PodDisruptionBudgets(namespace).Create(ctx, b,
			metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return until(ctx, func(ctx context.Context) (string, error) {
		pods, err := c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		ready := 0
		for i := range pods.Items {
			if slices.Contains(c.drained, pods.Items[i].Spec.NodeName) && oracle.IsReady(&pods.Items[i]) {
				ready++
			}
		}
		if ready != w.pods() || len(pods.Items) != ready {
			return fmt.Sprintf("%d of %d pods are ready", ready, w.pods()), nil
		}
		budgets, err := c.kube.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		closed := 0
		for i := range budgets.Items {
			if !full(&budgets.Items[i]) {
				closed++
			}
		}
		return missing(nil, closed, "budgets are not up to date")
	})
}

// full reports whether the disruption controller has counted all pods of a budget.
func full(b *policyv1.PodDisruptionBudget) bool {
	// A budget with minAvailable may allow no disruption.
	return b.Status.ObservedGeneration == b.Generation && b.Status.ExpectedPods > 0 && b.Status.CurrentHealthy == b.Status.ExpectedPods &&
		(b.Status.DisruptionsAllowed > 0 || b.Spec.MinAvailable != nil) && len(b.Status.DisruptedPods) == 0
}

// setNodes uncordons the nodes in open and cordons the nodes in closed, and waits until their
// taints match.
func (c *cluster) setNodes(ctx context.Context, open, closed []string) error {
	if err := each(
		ctx,
		open,
		setupWriters,
		func(ctx context.Context, node *string) error { return setUnschedulable(ctx, c.kube, *node, false) },
	); err != nil {
		return err
	}
	if err := each(
		ctx,
		closed,
		setupWriters,
		func(ctx context.Context, node *string) error { return setUnschedulable(ctx, c.kube, *node, true) },
	); err != nil {
		return err
	}
	return until(ctx, func(ctx context.Context) (string, error) {
		nodes, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		var wrong []string
		for i := range nodes.Items {
			node := &nodes.Items[i]
			if slices.Contains(c.bad, node.Name) {
				continue
			}
			want := slices.Contains(closed, node.Name)
			if tainted := slices.ContainsFunc(node.Spec.Taints,
				func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnschedulable }); tainted != want {
				wrong = append(wrong,
					fmt.Sprintf("node %s: has the unschedulable taint: %t", node.Name, tainted))
			}
			wrong = append(wrong, oracle.LeftOn(node, want)...)
		}
		return strings.Join(wrong, ", "), nil
	})
}

// calm waits until the processes of the cluster are idle for a second.
func (c *cluster) calm(ctx context.Context) error {
	const window = time.Second
	before := time.Duration(-1)
	return untilEvery(ctx, window, func(context.Context) (string, error) {
		var now time.Duration
		for name, p := range c.running.Processes {
			cpu, err := p.CPU()
			if err != nil {
				return "", fmt.Errorf("%s: %w", name, err)
			}
			now += cpu
		}
		share := (now - before).Seconds() / window.Seconds()
		first := before < 0
		before = now
		if first || share > calmShare {
			return fmt.Sprintf("the processes of the cluster use %.0f%% of a processor", share*100), nil
		}
		return "", nil
	})
}

// missing returns a count of objects as text. It returns "" if the count is zero, or if there is an
// error.
func missing(err error, count int, text string) (string, error) {
	if err != nil || count == 0 {
		return "", err
	}
	return fmt.Sprintf("%d %s", count, text), nil
}

// until calls check until it returns "", which means that nothing is missing.
func until(ctx context.Context, check func(context.Context) (missing string, err error)) error {
	return untilEvery(ctx, 200*time.Millisecond, check)
}

func untilEvery(ctx context.Context, interval time.Duration, check func(context.Context) (string, error)) error {
	var last string
	err := wait.PollUntilContextCancel(ctx, interval, true, func(ctx context.Context) (bool, error) {
		missing, err := check(ctx)
		if apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) {
			missing, err = err.Error(), nil
		}
		if err == nil {
			last = missing
		}
		return missing == "" && err == nil, err
	})
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %s", context.Cause(ctx), last)
	}
	return err
}
