// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

// TestObjectsOfANewerServer has objects in the storage that a newer server may write: with stages,
// policies and fields that this version does not know. As after a downgrade, nothing may crash,
// nodes stay cordoned, and users can end the maintenance.
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
	maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	shown := func() {
		t.Helper()
		framework.Eventually(t, "the maintenance holds its node and says why it does no more", func(ctx context.Context) (bool, error) {
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
	if err := cluster.Up(); err != nil {
		t.Fatal(err)
	}
	shown()
	if out := cluster.MustKubectl(t, "", "get", "nodemaintenance", name); !strings.Contains(out, "Paused") {
		t.Errorf("got %q, want the stage", out)
	}
	cluster.MustKubectl(t, "", "get", "evacuation", "--namespace="+namespace, evacuation, "--output=wide")

	// Others go on.
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

// writeStored writes an object to the storage of the server.
func writeStored(t *testing.T, key, kind string, object map[string]any) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + filepath.Join(cluster.Dir(), "haulout", "data", "client.sock")}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	object["apiVersion"], object["kind"] = v1alpha1.SchemeGroupVersion.String(), kind
	content, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), "/registry/maintenance.haulout.dev/"+key, string(content)); err != nil {
		t.Fatal(err)
	}
}
