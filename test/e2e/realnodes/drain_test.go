// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

//go:embed workloads.yaml
var workloads string

// drained is the node to drain, with the volume of the StatefulSet. Its pods move to the node
// other.
const drained, other = "real-2", "real-1"

// TestNodes runs several tests on one cluster.
func TestNodes(t *testing.T) {
	c := start(t)
	if status, err := c.Status(); err != nil || strings.Count(status, "ready") != 9 || !strings.Contains(status, "198.18.0.12") {
		t.Errorf("got status %v, want 9 ready processes:\n%s", err, status)
	}
	t.Run("drain", func(t *testing.T) { testDrain(t, c) })
	t.Run("kubelet killed", func(t *testing.T) { testKubeletKilled(t, c) })
	t.Run("power failure", func(t *testing.T) { testPowerFailure(t, c) })
	t.Run("workers", func(t *testing.T) { testWorkers(t, c) })
	t.Run("down leaves nothing", func(t *testing.T) { testDown(t, c) })
}

// testDrain drains a node whose pods end slowly, and completes the maintenance.
func testDrain(t *testing.T, c *framework.Cluster) {
	t.Helper()
	namespace := c.NewNamespace(t)
	deploy(t, c, namespace)
	client := c.As(t)
	web := podsOn(t, c, namespace, drained, "app=web")
	must.True(t, len(web) == 2, "got %d pods of the Deployment on %s, want 2 of 4", len(web), drained)
	logs := follow(t, c, namespace, web[0])
	seen := record(t, c, namespace)

	nm := beginDrain(t, c)
	untilDrained(t, c, nm, namespace)
	seen.check(t)
	got := <-logs
	position := 0
	for _, want := range []string{"preStop begins", "preStop ends", "got terminated", "exit"} {
		at := strings.Index(got[position:], want)
		if at < 0 {
			t.Errorf("the container's log has no %q at the right position:\n%s", want, got)
			break
		}
		position += at
	}

	ready(t, c, namespace, "app=queue", 1)
	if moved := podsOn(t, c, namespace, other, "app=queue"); len(moved) != 1 {
		t.Errorf("got pods %q of the StatefulSet with a shared volume on %s, want the pod from the drained node", moved, other)
	}
	startedBefore(t, client, namespace, "queue-0")
	complete(t, c, nm)
	ready(t, c, namespace, "app=db", 1)
	startedBefore(t, client, namespace, "db-0")
}

// startedBefore checks that a pod has the data that the pod with the same name has written on the
// drained node.
func startedBefore(t *testing.T, client framework.Clients, namespace, pod string) {
	t.Helper()
	log, err := client.Kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{}).DoRaw(t.Context())
	if want := "started before: " + pod + "@" + drained; err != nil || !strings.Contains(string(log), want) {
		t.Errorf("got log %q, error %v, want %q: the data of the first pod", log, err, want)
	}
}

// beginDrain begins to drain a node, with entries of the plan, and returns the name of the
// maintenance.
func beginDrain(t *testing.T, c *framework.Cluster, plan ...v1alpha1.DrainPlanEntry) string {
	t.Helper()
	return c.Create(t, &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: framework.Name("real")},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage:        v1alpha1.NodeMaintenanceStageDrain,
			NodeSelector: framework.Select(corev1.LabelHostname, drained),
			DrainPlan:    plan,
		},
	}).Name
}

// untilDrained waits for the end of a drain. Then no pods may be left, not even completed ones, so
// that Drained and `kubectl get pods` agree.
func untilDrained(t *testing.T, c *framework.Cluster, nm, namespace string) {
	t.Helper()
	framework.Eventually(t, "the node is drained", func(ctx context.Context) (bool, error) {
		got, err := c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, nm, metav1.GetOptions{})
		return err == nil && isDrained(got), err
	})
	if left := podsOn(t, c, namespace, drained, ""); len(left) > 0 {
		t.Errorf("the node is drained but has pods %q", left)
	}
}

// testKubeletKilled kills the kubelet while a pod is terminating. The node then restarts the
// kubelet.
func testKubeletKilled(t *testing.T, c *framework.Cluster) {
	t.Helper()
	namespace := c.NewNamespace(t)
	deploy(t, c, namespace)
	seen := record(t, c, namespace)
	nm := beginDrain(t, c)
	pods := c.As(t).Kube.CoreV1().Pods(namespace)
	var ending string
	framework.Eventually(t, "a pod ends", func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{
			LabelSelector: "app=web", FieldSelector: fields.OneTermEqualSelector("spec.nodeName", drained).String(),
		})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp != nil {
				ending = list.Items[i].Name
			}
		}
		return ending != "", nil
	})
	signal(t, match{program: "kubelet", argument: "--hostname-override=" + drained}, syscall.SIGKILL)
	if _, err := pods.Get(t.Context(), ending, metav1.GetOptions{}); err != nil {
		t.Errorf("pod %s had ended before the kubelet was killed: %v", ending, err)
	}
	untilDrained(t, c, nm, namespace)
	seen.check(t)
	complete(t, c, nm)
	ready(t, c, namespace, "app=db", 1)
}

// testPowerFailure kills all processes of a node at the same time, and starts the node again.
func testPowerFailure(t *testing.T, c *framework.Cluster) {
	t.Helper()
	namespace := c.NewNamespace(t)
	deploy(t, c, namespace)
	before := podsOn(t, c, namespace, drained, "app=web")
	c.Kill(t, drained)
	// The main thread of PID 1 may have ended while its last thread still ends the other processes.
	framework.EventuallyWithin(t, 10*time.Second, "no process of the node is left", func(context.Context) (bool, error) {
		if left := processesOf(t, c.Dir()+"/nodes/"+drained+"/"); len(left) > 0 {
			return false, fmt.Errorf("there are %q", left)
		}
		return true, nil
	})
	must.Do(t, c.Up())
	ready(t, c, namespace, "app=web", 4)
	if after := podsOn(t, c, namespace, drained, "app=web"); !slices.Equal(after, before) {
		t.Errorf("got pods %q on the restarted node, want the pods before, %q", after, before)
	}
}

// deploy creates the workloads and waits until all pods are ready.
func deploy(t *testing.T, c *framework.Cluster, namespace string) {
	t.Helper()
	freeVolumes(t, c)
	sharedVolume(t, c, namespace)
	c.MustKubectl(t, workloads, "--namespace="+namespace, "apply", "--filename=-")
	ready(t, c, namespace, "app=web", 4)
	ready(t, c, namespace, "app=db", 1)
	ready(t, c, namespace, "app=queue", 1)
	ready(t, c, namespace, "app=agent", 2)
}

// sharedClass is the class of volumes that all nodes can use.
const sharedClass = "shared"

// sharedVolume creates the volume of the StatefulSet whose pod can move. The volume is a folder of
// the machine, which is visible on all nodes.
func sharedVolume(t *testing.T, c *framework.Cluster, namespace string) {
	t.Helper()
	folder := t.TempDir()
	// The pods run as another user, who must be able to write to the folder.
	for path := folder; path != filepath.Dir(os.TempDir()) && path != os.TempDir(); path = filepath.Dir(path) {
		must.Do(t, os.Chmod(path, 0o777))
	}
	volumes := c.As(t).Kube.CoreV1().PersistentVolumes()
	must.Get(volumes.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "shared-" + namespace},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: sharedClass, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}},
			ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: "data-queue-0"},
		},
	}, metav1.CreateOptions{}))(t)
}

// freeVolumes makes the volumes of earlier tests available, as an administrator does after a claim
// was deleted.
func freeVolumes(t *testing.T, c *framework.Cluster) {
	t.Helper()
	volumes := c.As(t).Kube.CoreV1().PersistentVolumes()
	list := must.Get(volumes.List(t.Context(), metav1.ListOptions{}))(t)
	for i := range list.Items {
		volume := &list.Items[i]
		if volume.Status.Phase != corev1.VolumeReleased || volume.Spec.StorageClassName == sharedClass {
			continue
		}
		volume.Spec.ClaimRef = nil
		must.Get(volumes.Update(t.Context(), volume, metav1.UpdateOptions{}))(t)
	}
}

// ready waits until a selector matches exactly this number of pods, and all are ready.
func ready(t *testing.T, c *framework.Cluster, namespace, selector string, count int) {
	t.Helper()
	pods := c.As(t).Kube.CoreV1().Pods(namespace)
	framework.Eventually(t, fmt.Sprintf("%d pods with %s are ready", count, selector), func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil || len(list.Items) != count {
			return false, err
		}
		for i := range list.Items {
			if !isReady(&list.Items[i]) {
				return false, nil
			}
		}
		return true, nil
	})
}

// podsOn returns the names of the pods on a node, sorted.
func podsOn(t *testing.T, c *framework.Cluster, namespace, node, selector string) []string {
	t.Helper()
	list := must.Get(c.As(t).Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: selector,
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	}))(t)
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	slices.Sort(names)
	return names
}

func isReady(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// follow returns a channel that receives the whole log of a pod after the end of its container.
func follow(t *testing.T, c *framework.Cluster, namespace, pod string) <-chan string {
	t.Helper()
	request := c.As(t).Kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Follow: true})
	stream, err := request.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := make(chan string, 1)
	go func() {
		defer stream.Close()
		content, err := io.ReadAll(stream)
		if err != nil {
			content = append(content, err.Error()...)
		}
		all <- string(content)
	}()
	return all
}

// departures records a watch of the pods during a drain.
type departures struct {
	mu   sync.Mutex
	pods map[string]*corev1.Pod
	// wrong has descriptions of the violations.
	wrong []string
	// left has the apps of the pods that were deleted from the drained node, in order.
	left []string
}

// record watches the pods of a namespace until the test ends.
func record(t *testing.T, c *framework.Cluster, namespace string) *departures {
	t.Helper()
	pods := c.As(t).Kube.CoreV1().Pods(namespace)
	list := must.Get(pods.List(t.Context(), metav1.ListOptions{}))(t)
	d := &departures{pods: map[string]*corev1.Pod{}}
	for i := range list.Items {
		d.pods[list.Items[i].Name] = &list.Items[i]
	}
	watcher := must.Get(pods.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	t.Cleanup(watcher.Stop)
	go func() {
		for event := range watcher.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				d.take(event.Type, pod)
			}
		}
	}()
	return d
}

func (d *departures) take(what watch.EventType, pod *corev1.Pod) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.pods[pod.Name]
	if what == watch.Deleted {
		delete(d.pods, pod.Name)
		if pod.Spec.NodeName == drained {
			d.left = append(d.left, pod.Labels["app"])
		}
		return
	}
	d.pods[pod.Name] = pod
	begins := pod.DeletionTimestamp != nil && before != nil && before.DeletionTimestamp == nil
	if !begins || pod.Spec.NodeName != drained || pod.Labels["app"] != "web" {
		return
	}
	count := 0
	for _, other := range d.pods {
		if other.Labels["app"] == "web" && isReady(other) {
			count++
		}
	}
	if count < 4 {
		d.wrong = append(d.wrong, fmt.Sprintf("%s began to leave while %d of the 4 other pods were ready", pod.Name, count))
	}
	if grace := pod.DeletionGracePeriodSeconds; grace == nil || *grace != 20 {
		d.wrong = append(d.wrong, fmt.Sprintf("%s has the grace period %v, want the 20 s of its spec", pod.Name, grace))
	}
}

// departing is the number of pods on the drained node: two of the Deployment, two of StatefulSets,
// and one of the DaemonSet.
const departing = 5

// check waits until the watch has recorded all departures, and judges them.
func (d *departures) check(t *testing.T) {
	t.Helper()
	framework.EventuallyWithin(t, 10*time.Second, "the watch shows all departures", func(context.Context) (bool, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(d.left) == departing, nil
	})
	for _, text := range d.wrong {
		t.Error(text)
	}
	if last := d.left[len(d.left)-1]; last != "agent" {
		t.Errorf("the pods left in the order %q, want the DaemonSet last", d.left)
	}
}
