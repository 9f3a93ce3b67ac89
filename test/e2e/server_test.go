// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

// What was acknowledged must still be there, to the last write, after the process was killed in the
// middle of writing.
func TestNothingAcknowledgedIsLost(t *testing.T) {
	maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	const label = "e2e.haulout.dev/acknowledged"
	run := framework.Name("run")
	selector := labels.Set{label: run}.AsSelector().String()
	acknowledged := make(chan string, 100000)
	go func() {
		defer close(acknowledged)
		for i := 0; t.Context().Err() == nil; i++ {
			nm := framework.Maintenance("none", v1alpha1.NodeMaintenanceStageIdle, func(nm *v1alpha1.NodeMaintenance) {
				nm.Name = fmt.Sprintf("%s-%d", run, i)
				nm.Labels = map[string]string{label: run}
			})
			if _, err := maintenances.Create(t.Context(), nm, metav1.CreateOptions{}); err != nil {
				return
			}
			acknowledged <- nm.Name
		}
	}()
	framework.Eventually(t, "some are written", func(context.Context) (bool, error) {
		return len(acknowledged) >= 50, nil
	})
	cluster.KillServer(t)
	if err := cluster.Up(); err != nil {
		t.Fatal(err)
	}
	list, err := maintenances.List(t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for i := range list.Items {
		found[list.Items[i].Name] = true
	}
	total := 0
	for name := range acknowledged {
		total++
		if !found[name] {
			t.Errorf("%s was acknowledged and is lost", name)
		}
	}
	t.Logf("%d acknowledged, %d found", total, len(found))
	if err := maintenances.DeleteCollection(t.Context(), metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: selector}); err != nil {
		t.Error(err)
	}
}

func TestNamespaceDeletion(t *testing.T) {
	namespaces := cluster.As(t).Kube.CoreV1().Namespaces()
	gone := func(t *testing.T, name string) {
		t.Helper()
		framework.Eventually(t, "namespace "+name+" is gone", func(ctx context.Context) (bool, error) {
			_, err := namespaces.Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		})
	}
	t.Run("finishes, with pods that are being evacuated in it", func(t *testing.T) {
		pool, _ := cluster.NewPool(t, 1, true)
		namespace := cluster.NewNamespace(t)
		cluster.Deployment(t, namespace, "stuck", pool, 3)
		cluster.Budget(t, namespace, "stuck", 0)
		nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
		framework.Eventually(t, "the pods have evacuations", func(ctx context.Context) (bool, error) {
			list, err := cluster.As(t).Haulout.MaintenanceV1alpha1().Evacuations(namespace).List(ctx,
				metav1.ListOptions{})
			return err == nil && len(list.Items) == 3, err
		})
		if err := namespaces.Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		gone(t, namespace)
		drained(t, nm.Name)
	})
	t.Run("says what it waits for while our server is down, and finishes when it is back", func(t *testing.T) {
		namespace := cluster.NewNamespace(t)
		cluster.KillServer(t)
		t.Cleanup(func() {
			if err := cluster.Up(); err != nil {
				t.Error(err)
			}
		})
		framework.Eventually(t, "the aggregator has noticed", func(ctx context.Context) (bool, error) {
			_, errOut, err := cluster.Kubectl(t, "", "get", "nodemaintenances")
			return err != nil && errOut != "", nil
		})
		if err := namespaces.Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		framework.Eventually(
			t, "the namespace's condition names our API group",
			func(ctx context.Context) (bool, error) {
				ns, err := namespaces.Get(ctx, namespace, metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				for _, c := range ns.Status.Conditions {
					if c.Type == corev1.NamespaceDeletionDiscoveryFailure && c.Status == corev1.ConditionTrue {
						return true, nil
					}
				}
				return false, nil
			},
		)
		if err := cluster.Up(); err != nil {
			t.Fatal(err)
		}
		gone(t, namespace)
	})
}

// TestThousandsOfNodes drains 1,000 nodes in one maintenance, with E2E_FULL=1 the 5,000 of the
// largest clusters.
func TestThousandsOfNodes(t *testing.T) {
	const largest = 5000
	count := 1000
	if framework.Full(t) {
		count = largest
	}
	// Two writes to each node go through one kube-apiserver on a machine that may be busy.
	patience := time.Minute + time.Duration(count)*time.Minute/1000
	pool, _ := cluster.NewPool(t, count, false)
	maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	w, err := maintenances.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	nm := cluster.Create(
		t,
		framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Reason = "a kernel update for everybody"
		}),
	)
	full := func(nm *v1alpha1.NodeMaintenance) bool { return len(nm.Status.NodeStatuses) == count }
	framework.EventuallyWithin(t, patience, "the status names all nodes", func(ctx context.Context) (bool, error) {
		got, err := maintenances.Get(ctx, nm.Name, metav1.GetOptions{})
		return err == nil && full(got), err
	})
	seen := false
	for !seen {
		event, open := <-w.ResultChan()
		if !open {
			t.Fatal("the watch ended before it showed the full status")
		}
		got, ok := event.Object.(*v1alpha1.NodeMaintenance)
		seen = ok && got.Name == nm.Name && full(got)
	}
	var got *v1alpha1.NodeMaintenance
	framework.EventuallyWithin(t, patience, "it is drained", func(ctx context.Context) (bool, error) {
		var err error
		got, err = maintenances.Get(ctx, nm.Name, metav1.GetOptions{})
		return err == nil &&
			conditionIs(got.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionTrue, ""), err
	})
	size := got.Size()
	t.Logf("protobuf size with %d nodes: %d KiB", count, size>>10)
	if size*largest/count > 1536<<10 {
		t.Errorf("%d bytes for %d nodes: those for %d do not fit the 1.5 MiB of an etcd", size, count, largest)
	}
	// A client writes the whole object, full status and all.
	got.Annotations = map[string]string{"e2e.haulout.dev/touched": "yes"}
	framework.Eventually(t, "a client may write it", func(ctx context.Context) (bool, error) {
		fresh, err := maintenances.Get(ctx, nm.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		fresh.Annotations = got.Annotations
		_, err = maintenances.Update(ctx, fresh, metav1.UpdateOptions{})
		return err == nil, err
	})
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	framework.EventuallyWithin(t, patience, "all nodes are schedulable again", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{
			LabelSelector: framework.Pool + "=" + pool,
		})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			if list.Items[i].Spec.Unschedulable {
				return false, nil
			}
		}
		return len(list.Items) == count, nil
	})
}
