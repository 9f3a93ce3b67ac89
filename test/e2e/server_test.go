// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// TestNamespaceWithEvacuationsIsDeleted deletes a namespace whose pods are being evacuated.
func TestNamespaceWithEvacuationsIsDeleted(t *testing.T) {
	t.Parallel()
	namespaces := cluster.As(t).Kube.CoreV1().Namespaces()
	pool, _ := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "stuck", pool, 3)
	cluster.Budget(t, namespace, "stuck", 0)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	framework.Eventually(t, "the pods have evacuations", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Evacuations(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 3, err
	})
	must.Do(t, namespaces.Delete(t.Context(), namespace, metav1.DeleteOptions{}))
	framework.UntilGone(t, "the namespace is gone", namespaces, namespace)
	drained(t, nm.Name)
}

// TestNamespaceIsDeletedWhenTheServerIsBack deletes a namespace while the server does not run. A
// condition of the namespace must name the reason, and the deletion must end after the server has
// started.
func TestNamespaceIsDeletedWhenTheServerIsBack(t *testing.T) {
	namespaces := cluster.As(t).Kube.CoreV1().Namespaces()
	namespace := cluster.NewNamespace(t)
	cluster.KillServer(t)
	t.Cleanup(func() {
		if err := cluster.Up(); err != nil {
			t.Error(err)
		}
	})
	framework.Eventually(t, "the aggregator reports the API as unavailable", func(ctx context.Context) (bool, error) {
		_, errOut, err := cluster.Kubectl(t, "", "get", "nodemaintenances")
		return err != nil && errOut != "", nil
	})
	must.Do(t, namespaces.Delete(t.Context(), namespace, metav1.DeleteOptions{}))
	framework.Until(t, "the namespace's condition names our API group", namespaces, namespace, func(ns *corev1.Namespace) bool {
		return slices.ContainsFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == corev1.NamespaceDeletionDiscoveryFailure && c.Status == corev1.ConditionTrue
		})
	})
	must.Do(t, cluster.Up())
	// The namespace controller retries after up to a minute, but after five seconds if the
	// namespace changes.
	merge(t, "", "namespace", namespace, `{"metadata":{"annotations":{"e2e.haulout.dev/nudged":"yes"}}}`)
	framework.UntilGone(t, "the namespace is gone", namespaces, namespace)
}

// TestThousandsOfNodes drains 1,000 nodes in one maintenance. With E2E_FULL=1 it drains 5,000
// nodes, the size of the largest clusters.
func TestThousandsOfNodes(t *testing.T) {
	const largest = 5000
	count := 1000
	if framework.Full(t) {
		count = largest
	}
	// kube-apiserver has to process two writes for each node, on a machine that may be busy.
	patience := time.Minute + time.Duration(count)*time.Minute/1000
	pool, _ := cluster.NewPool(t, count, false)
	maintenances := cluster.As(t).Maintenances()
	w := must.Get(maintenances.Watch(t.Context(), metav1.ListOptions{}))(t)
	defer w.Stop()
	nm := cluster.Create(
		t,
		framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Reason = "a kernel update for everybody"
		}),
	)
	// A watch, since reading the object again and again would slow down what it waits for.
	limit := time.After(2 * patience)
	var got *v1alpha1.NodeMaintenance
	full := false
	for !full || !conditionIs(got.Status.Conditions, v1alpha1.ConditionDrained, metav1.ConditionTrue, "") {
		select {
		case event, open := <-w.ResultChan():
			must.True(t, open, "the watch ended; it has shown the status of all nodes: %t", full)
			if changed, ok := event.Object.(*v1alpha1.NodeMaintenance); ok && changed.Name == nm.Name {
				got, full = changed, len(changed.Status.NodeStatuses) == count
			}
		case <-limit:
			t.Fatalf("timed out after %v: the maintenance is drained; the status names all nodes: %t", 2*patience, full)
		}
	}
	size := got.Size()
	t.Logf("protobuf size with %d nodes: %d KiB", count, size>>10)
	if size*largest/count > 1536<<10 {
		t.Errorf("%d bytes for %d nodes: with %d nodes the object exceeds etcd's limit of 1.5 MiB", size, count, largest)
	}
	// A client writes the whole object, including the status.
	got.Annotations = map[string]string{"e2e.haulout.dev/touched": "yes"}
	framework.Eventually(t, "a client can write the maintenance", func(ctx context.Context) (bool, error) {
		fresh, err := maintenances.Get(ctx, nm.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		fresh.Annotations = got.Annotations
		_, err = maintenances.Update(ctx, fresh, metav1.UpdateOptions{})
		return err == nil, err
	})
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	schedulable := metav1.ListOptions{LabelSelector: framework.Pool + "=" + pool, FieldSelector: "spec.unschedulable=false"}
	one := schedulable
	one.FieldSelector, one.Limit = "spec.unschedulable=true", 1
	framework.EventuallyWithin(t, patience, "all nodes are schedulable again", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Nodes().List(ctx, one)
		return err == nil && len(list.Items) == 0, err
	})
	list := must.Get(cluster.As(t).Nodes().List(t.Context(), schedulable))(t)
	must.True(t, len(list.Items) == count, "%d nodes are schedulable, want %d", len(list.Items), count)
}

// TestObjectsOfANewerServer stores objects of a newer server, with stages, policies and fields that
// this version does not know, as after a downgrade. The server must not crash, the nodes must stay
// cordoned, and users must be able to complete the maintenance.
func TestObjectsOfANewerServer(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	pod := cluster.PodOn(t, namespace, "web", pool, nodes[0])
	name := framework.Name("newer")
	writeStored(t, "nodemaintenances/"+name, "NodeMaintenance", map[string]any{
		"metadata": map[string]any{
			"name": name, "uid": uuid.NewUUID(), "generation": 2, "creationTimestamp": metav1.Now(),
			"finalizers": []string{v1alpha1.FinalizerMaintenanceCompletion},
		},
		"spec": map[string]any{
			"stage": "Paused", "newNodes": "JoinLater", "nodeSelector": framework.Select(framework.Pool, pool), "pausedUntil": "tomorrow",
			"requestedBy": map[string]any{"username": "admin", "groups": []string{"system:masters"}},
			"drainPlan":   []any{map[string]any{"podType": "Virtual", "podPriority": 1000}},
		},
		"status": map[string]any{
			"observedGeneration": 1, "phase": "Waiting", "newestNodeTimestamp": metav1.Now(),
			"stageStatuses": []any{map[string]any{"name": "Paused", "startTimestamp": metav1.Now()}},
			"nodeStatuses":  []any{map[string]any{"nodeRef": map[string]any{"name": "gone", "uid": "gone"}, "mood": "calm"}},
		},
	})
	evacuation := "newer-" + pod.Name
	writeStored(t, fmt.Sprintf("evacuations/%s/%s", namespace, evacuation), "Evacuation", map[string]any{
		"metadata": map[string]any{
			"name": evacuation, "namespace": namespace, "uid": uuid.NewUUID(), "creationTimestamp": metav1.Now(),
			"finalizers": []string{"evacuation.coordination.k8s.io/instigator_newer.example.com"},
		},
		"spec":   map[string]any{"podRef": map[string]any{"name": "another", "uid": "another"}, "urgency": "high"},
		"status": map[string]any{"evacuationCancellationPolicy": "Maybe", "activeEvacuatorClass": "newer.example.com", "mood": "calm"},
	})
	maintenances := cluster.As(t).Maintenances()
	shown := func() {
		t.Helper()
		framework.Eventually(t, "the maintenance cordons its node and reports the unknown stage", func(ctx context.Context) (bool, error) {
			nm, err := maintenances.Get(ctx, name, metav1.GetOptions{})
			if err != nil || nm.Spec.Stage != "Paused" || len(nm.Spec.DrainPlan) != 1 {
				return false, err
			}
			c := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionProgressing)
			return c != nil && c.Status == metav1.ConditionFalse && strings.Contains(c.Message, "does not know the stage Paused"), nil
		})
		unschedulable(t, true, nodes...)
	}
	shown()
	cluster.KillServer(t)
	must.Do(t, cluster.Up())
	shown()
	if out := cluster.MustKubectl(t, "", "get", "nodemaintenance", name); !strings.Contains(out, "Paused") {
		t.Errorf("got %q, want the stage", out)
	}
	cluster.MustKubectl(t, "", "get", "evacuation", "--namespace="+namespace, evacuation, "--output=wide")

	// The server must still handle other maintenances.
	others, _ := cluster.NewPool(t, 1, true)
	drained(t, cluster.Create(t, framework.Maintenance(others, v1alpha1.NodeMaintenanceStageDrain)).Name)

	if _, err := maintenances.Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"stage":"Drain"}}`), metav1.PatchOptions{}); err == nil ||
		!strings.Contains(err.Error(), "from Paused to Complete") {
		t.Errorf("got error %v, want that the stage can only change to Complete", err)
	}
	setStage(t, name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, nodes...)
	cluster.Remove(t, name)
	cluster.MustKubectl(t, "", "patch", "evacuation", "--namespace="+namespace, evacuation, "--type=json",
		`--patch=[{"op":"remove","path":"/metadata/finalizers"}]`)
	cluster.MustKubectl(t, "", "delete", "evacuation", "--namespace="+namespace, evacuation, "--ignore-not-found", "--timeout=30s")
}

// writeStored writes an object to the server's etcd.
func writeStored(t *testing.T, key, kind string, object map[string]any) {
	t.Helper()
	client := must.Get(clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(cluster.Dir(), "haulout", "data", "client.sock")}}))(t)
	defer client.Close()
	object["apiVersion"], object["kind"] = v1alpha1.SchemeGroupVersion.String(), kind
	content := must.Get(json.Marshal(object))(t)
	must.Get(client.Put(t.Context(), "/registry/maintenance.haulout.dev/"+key, string(content)))(t)
}
