// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	serverNamespace = "haulout-system"
	apiService      = "v1alpha1.maintenance.haulout.dev"
)

// TestServerAsAPod installs the server from artifacts/base, as in docs/install.md. The server
// drains the other node and its own node, and recovers after a power failure. The test also
// installs the second scheduler.
func TestServerAsAPod(t *testing.T) {
	t.Setenv("HAULOUT", "false")
	c := start(t)
	install(t, c)
	checkFlowSchemas(t, c)
	pod := serverPod(t, c)
	own, next := pod.Spec.NodeName, drained
	if own == drained {
		next = other
	}
	namespace := c.NewNamespace(t)
	deploy(t, c, namespace)

	drain(t, c, "next", next)
	complete(t, c, "next")
	ready(t, c, namespace, "app=web", 4)

	left := departuresFrom(t, c, own)
	drain(t, c, "own", own)
	checkServerLast(t, left(), pod.Name)
	replaced := serverPod(t, c)
	is.True(t, replaced.UID != pod.UID, "the server's pod did not leave its node")
	for _, status := range replaced.Status.ContainerStatuses {
		if status.RestartCount > 0 {
			t.Errorf("the new pod of the server was restarted %d times, want no restart: %+v",
				status.RestartCount, status.LastTerminationState)
		}
	}

	// The server's volume is local, so its pod must return to the same node.
	c.Kill(t, own)
	must.Do(t, c.Up())
	maintenances := c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	framework.Eventually(t, "the API is served after a power failure", func(ctx context.Context) (bool, error) {
		nm, err := maintenances.Get(ctx, "own", metav1.GetOptions{})
		return err == nil && isDrained(nm), err
	})
	complete(t, c, "own")
	ready(t, c, namespace, "app=db", 1)
	t.Run("a backup is restored", func(t *testing.T) { testRestore(t, c) })
	t.Run("a second scheduler", func(t *testing.T) { testSecondScheduler(t, c) })
}

// checkFlowSchemas waits until kube-apiserver has handled requests of the server with each of the
// two FlowSchemas of artifacts/base.
func checkFlowSchemas(t *testing.T, c *framework.Cluster) {
	t.Helper()
	for _, schema := range []string{"haulout-leader-election", "haulout-apiserver"} {
		framework.Eventually(t, "requests have the FlowSchema "+schema, func(context.Context) (bool, error) {
			metrics, err := c.ScrapeHost(t)
			for _, sample := range metrics["apiserver_flowcontrol_dispatched_requests_total"] {
				if string(sample.Metric["flow_schema"]) == schema && sample.Value > 0 {
					return true, nil
				}
			}
			return false, err
		})
	}
}

// departuresFrom watches the pods of a node. The returned function ends the watch and returns the
// names of the deleted pods, in order. It omits the pods of DaemonSets, which are evicted in a
// later wave.
func departuresFrom(t *testing.T, c *framework.Cluster, node string) func() []string {
	t.Helper()
	pods := c.As(t).Kube.CoreV1().Pods(metav1.NamespaceAll)
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	list := must.Get(pods.List(t.Context(), metav1.ListOptions{FieldSelector: selector}))(t)
	watcher := must.Get(pods.Watch(t.Context(), metav1.ListOptions{FieldSelector: selector, ResourceVersion: list.ResourceVersion}))(t)
	done := make(chan []string, 1)
	go func() {
		var left []string
		for event := range watcher.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok || event.Type != watch.Deleted {
				continue
			}
			if owner := metav1.GetControllerOf(pod); owner == nil || owner.Kind != "DaemonSet" {
				left = append(left, pod.Name)
			}
		}
		done <- left
	}()
	return func() []string {
		watcher.Stop()
		return <-done
	}
}

// checkServerLast checks that the pod of the server was the last one that left its node.
func checkServerLast(t *testing.T, left []string, server string) {
	t.Helper()
	if len(left) < 3 || left[len(left)-1] != server {
		t.Errorf("the pods left the server's node in the order %q, want several, and %s last", left, server)
	}
}

// testRestore makes a backup of the server and restores it, as in docs/operations.md. At the time
// of the backup a worker has a node, which is back in service before the restore.
func testRestore(t *testing.T, c *framework.Cluster) {
	t.Helper()
	maintenances, tasks := c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances(), c.As(t).Haulout.MaintenanceV1alpha1().NodeTasks()
	report := func(ctx context.Context, status string) error {
		_, err := tasks.Patch(ctx, other, types.MergePatchType, []byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
		return err
	}
	work := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "work"},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageCordon, NodeSelector: framework.Select(corev1.LabelHostname, other),
			Task: &v1alpha1.NodeMaintenanceTask{Worker: "restore.example.com", Stage: v1alpha1.NodeTaskStageCordon},
		},
	}
	must.Get(maintenances.Create(t.Context(), work, metav1.CreateOptions{}))(t)
	framework.Eventually(t, "a worker claims the node", func(ctx context.Context) (bool, error) {
		err := report(ctx, `{"holder":"test"}`)
		return err == nil, err
	})
	framework.Until(t, "the worker has the node", tasks, other, func(task *v1alpha1.NodeTask) bool { return task.Status.State == v1alpha1.NodeTaskClaimed })
	snapshot := c.MustKubectl(t, "", "exec", "--namespace="+serverNamespace, "deployment/haulout-apiserver", "--",
		"/haulout-apiserver", "etcd", "snapshot", "-")
	must.Do(t, report(t.Context(), `{"result":"Done"}`))
	complete(t, c, work.Name)
	late := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "late"},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageIdle, NodeSelector: framework.Select(corev1.LabelHostname, other),
		},
	}
	must.Get(maintenances.Create(t.Context(), late, metav1.CreateOptions{}))(t)
	scale := func(replicas string) {
		t.Helper()
		c.MustKubectl(t, "", "scale", "--namespace="+serverNamespace, "deployment/haulout-apiserver", "--replicas="+replicas)
	}
	scale("0")
	c.MustKubectl(t, "", "wait", "--namespace="+serverNamespace, "pod", "--selector=app.kubernetes.io/name=haulout-apiserver",
		"--for=delete", "--timeout=1m")
	manifest, err := os.ReadFile(filepath.Join(c.Root(), "artifacts", "examples", "etcd-restore.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	restore := strings.Replace(string(manifest), "image: haulout-apiserver", "image: localhost/haulout-apiserver:dev", 1)
	c.MustKubectl(t, restore, "apply", "--filename=-")
	c.MustKubectl(t, "", "wait", "--namespace="+serverNamespace, "pod/etcd-restore", "--for=condition=Ready", "--timeout=1m")
	c.MustKubectl(t, snapshot, "attach", "--namespace="+serverNamespace, "--stdin", "etcd-restore")
	c.MustKubectl(t, "", "wait", "--namespace="+serverNamespace, "pod/etcd-restore", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=1m")
	if log := c.MustKubectl(t, "", "logs", "--namespace="+serverNamespace, "etcd-restore"); !strings.Contains(log, "Restored revision") {
		t.Errorf("got log %q of the restore", log)
	}
	c.MustKubectl(t, "", "delete", "--namespace="+serverNamespace, "pod", "etcd-restore")
	scale("1")
	framework.Eventually(t, "the restored maintenances are served", func(ctx context.Context) (bool, error) {
		list, err := maintenances.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 3, err
	})
	if _, err := maintenances.Get(t.Context(), late.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got error %v for a maintenance created after the backup, want not found", err)
	}
	framework.Eventually(t, "the controllers are disabled", func(ctx context.Context) (bool, error) {
		list, err := c.As(t).Kube.CoreV1().Events(serverNamespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=ControllersOff"})
		return err == nil && len(list.Items) > 0 && strings.Contains(list.Items[0].Message, "RestoredStorage"), err
	})
	err = report(t.Context(), `{"message":"I have the node"}`)
	is.True(t, apierrors.IsServiceUnavailable(err) && strings.Contains(err.Error(), "was restored from a backup"), "got error %v for a report about a restored task", err)
	node := must.Get(c.As(t).Nodes().Get(t.Context(), other, metav1.GetOptions{}))(t)
	is.True(t, !node.Spec.Unschedulable, "the node of the restored task is unschedulable")
	c.MustKubectl(t, "", "patch", "nodemaintenances.maintenance.haulout.dev", work.Name, "--type=merge", `--patch={"spec":{"stage":"Complete"}}`)
	c.MustKubectl(t, "", "patch", "--namespace="+serverNamespace, "deployment", "haulout-apiserver", "--type=json",
		`--patch=[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--accept-restored-state"}]`)
	c.MustKubectl(t, "", "rollout", "status", "--namespace="+serverNamespace, "deployment/haulout-apiserver", "--timeout=2m")
	framework.Eventually(t, "the API is served", func(ctx context.Context) (bool, error) {
		_, err := maintenances.List(ctx, metav1.ListOptions{})
		return err == nil, err
	})
	framework.UntilGone(t, "the restored NodeTask is deleted", tasks, other)
	drain(t, c, "again", other)
	complete(t, c, "again")
}

// install applies artifacts/base with the image of this build.
func install(t *testing.T, c *framework.Cluster) {
	t.Helper()
	apply(t, c, "base", "haulout-apiserver")
	c.MustKubectl(t, "", "wait", "apiservice", apiService, "--for=condition=Available", "--timeout=2m")
}

// apply applies a folder of artifacts with an image of this build.
func apply(t *testing.T, c *framework.Cluster, folder, image string) {
	t.Helper()
	overlay := t.TempDir()
	base := must.Get(filepath.Rel(overlay, filepath.Join(c.Root(), "artifacts", folder)))(t)
	kustomization := fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%[1]s]
images:
- {name: %[2]s, newName: localhost/%[2]s, newTag: dev}
`, base, image)
	must.Do(t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(kustomization), 0o600))
	c.MustKubectl(t, "", "apply", "--kustomize="+overlay)
}

// serverPod returns the pod of the server that is not terminating.
func serverPod(t *testing.T, c *framework.Cluster) *corev1.Pod {
	t.Helper()
	list := must.Get(c.As(t).Kube.CoreV1().Pods(serverNamespace).List(t.Context(), metav1.ListOptions{}))(t)
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp == nil {
			return &list.Items[i]
		}
	}
	t.Fatalf("no pod of the server among %d", len(list.Items))
	return nil
}

func drain(t *testing.T, c *framework.Cluster, name, node string) {
	t.Helper()
	maintenances := c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	_, err := maintenances.Create(t.Context(), &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage:        v1alpha1.NodeMaintenanceStageDrain,
			NodeSelector: framework.Select(corev1.LabelHostname, node),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, "node "+node+" is drained", func(ctx context.Context) (bool, error) {
		nm, err := maintenances.Get(ctx, name, metav1.GetOptions{})
		return err == nil && isDrained(nm), err
	})
}

// complete completes a maintenance and waits until its nodes are schedulable.
func complete(t *testing.T, c *framework.Cluster, name string) {
	t.Helper()
	maintenances := c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	must.Get(maintenances.Patch(t.Context(), name, "application/merge-patch+json",
		[]byte(`{"spec":{"stage":"Complete"}}`), metav1.PatchOptions{}))(t)
	framework.Eventually(t, "maintenance "+name+" is done", func(ctx context.Context) (bool, error) {
		nm, err := maintenances.Get(ctx, name, metav1.GetOptions{})
		return err == nil && v1alpha1.IsDone(nm), err
	})
}

func isDrained(nm *v1alpha1.NodeMaintenance) bool {
	return meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained)
}
