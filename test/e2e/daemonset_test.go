// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// daemonSet creates a DaemonSet with a pod on each node of a pool.
func daemonSet(t *testing.T, namespace, pool, name string, nodes int, modify ...func(*corev1.PodSpec)) {
	t.Helper()
	labels := map[string]string{"app": name}
	spec := framework.PodSpec(pool)
	for _, m := range modify {
		m(&spec)
	}
	must.Get(cluster.As(t).Kube.AppsV1().DaemonSets(namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
		},
	}, metav1.CreateOptions{}))(t)
	daemonPods(t, namespace, name, nodes)
}

// tolerant adds a toleration of all taints.
func tolerant(spec *corev1.PodSpec) {
	spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
}

// daemonPods waits until a DaemonSet desires, and has, the given number of ready pods.
func daemonPods(t *testing.T, namespace, name string, want int) {
	t.Helper()
	framework.Eventually(
		t, fmt.Sprintf("DaemonSet %s desires and has %d ready pods", name, want),
		func(ctx context.Context) (bool, error) {
			ds, err := cluster.As(t).Kube.AppsV1().DaemonSets(namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			pods, err := cluster.As(t).Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
			status := ds.Status
			return err == nil && int(status.DesiredNumberScheduled) == want && int(status.NumberReady) == want &&
				len(pods.Items) == want, err
		},
	)
}

func theNode(t *testing.T, name string) *corev1.Node {
	t.Helper()
	return must.Get(cluster.As(t).Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
}

// TestDaemonSetPodsLeaveInTheirWave drains nodes with DaemonSets: their pods are evicted after all
// other pods, are not recreated during the drain, and return when it is complete. Pods that
// tolerate all taints stay. During the drain, the server is killed or the drain is cancelled.
func TestDaemonSetPodsLeaveInTheirWave(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 3, true)
	namespace := cluster.NewNamespace(t)
	daemonSet(t, namespace, pool, "logs", 3)
	daemonSet(t, namespace, pool, "network", 3, tolerant)
	target, foreign := nodes[:2], nodes[1]
	cluster.MustKubectl(t, "", "taint", "node", foreign, v1alpha1.TaintDrain+":NoSchedule")
	held := cluster.PodOn(t, namespace, "held", pool, nodes[0], movable)
	drain := func() *v1alpha1.NodeMaintenance {
		return cluster.Create(
			t,
			framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
				nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, target...)
				nm.Spec.Reason = "new kernel"
			}),
		)
	}
	nm := drain()
	turn := evacuationFor(t, held, "has an active evacuator", func(e *v1alpha1.Evacuation) bool {
		return e.Status.ActiveEvacuatorClass == mover
	})
	// The previous wave is not complete, so no node has the drain taint yet.
	if drainplan.IsTainted(theNode(t, nodes[0])) {
		t.Errorf("node %s has the drain taint before the wave of DaemonSet pods", nodes[0])
	}
	list, err := cluster.As(t).Evacuations(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d pods have an Evacuation (%v), want only the pod of the first wave", len(list.Items), err)
	}

	order := watchDepartures(t, namespace)
	report(t, turn, `{"activeEvacuatorCompleted":true}`)
	cluster.KillServer(t)
	must.Do(t, cluster.Up())
	nm = drained(t, nm.Name)
	condition := meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	want := "tolerates the drain taint of " + namespace + "/network (2)"
	if condition.Reason != v1alpha1.ReasonDrainCompleteWithPodsLeft || !strings.Contains(condition.Message, want) {
		t.Errorf("Drained is %s: %q, want it to name %q", condition.Reason, condition.Message, want)
	}
	newShell(t, operatorOf(t, target...)).run(t, 6, "wait "+nm.Name+" --timeout=1m", "kept pods", nm.Name+" is drained.")
	for _, status := range nm.Status.NodeStatuses {
		is.True(t, status.PodsKept == 1, "node %s has %d kept pods, want 1", status.NodeRef.Name, status.PodsKept)
	}
	if got := order(); len(got) < 2 || got[0] != namespace+"/held" ||
		strings.Contains(strings.Join(got, " "), "/network") {
		t.Errorf("pods left in the order %v, want held, then the pods of logs, and none of network", got)
	}
	// The DaemonSet controller must not recreate the evicted pods.
	daemonPods(t, namespace, "logs", 1)
	daemonPods(t, namespace, "network", 3)
	for _, name := range target {
		is.True(t, drainplan.IsTainted(theNode(t, name)), "node %s is not tainted", name)
	}

	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, target...)
	framework.Accept(t, oracle.LeftOn(theNode(t, nodes[0]), false), nil)
	is.True(t, drainplan.IsTainted(theNode(t, foreign)), "the taint of another client was removed from %s", foreign)
	daemonPods(t, namespace, "logs", 2)
	cluster.MustKubectl(t, "", "taint", "node", foreign, v1alpha1.TaintDrain+"-")
	daemonPods(t, namespace, "logs", 3)

	nm = drain()
	drained(t, nm.Name)
	cluster.MustKubectl(t, "", "delete", "nodemaintenance", nm.Name, "--timeout=60s")
	for _, name := range target {
		framework.Accept(t, oracle.LeftOn(theNode(t, name), false), nil)
	}
	daemonPods(t, namespace, "logs", 3)
}

// csiVolume creates a claim bound to a CSI volume, and returns the name of the volume in the status
// of a node.
func csiVolume(t *testing.T, namespace, claim string) corev1.UniqueVolumeName {
	t.Helper()
	const driver = "csi.e2e.haulout.dev"
	core, name := cluster.As(t).Kube.CoreV1(), framework.Name(claim)
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
	must.Get(core.PersistentVolumes().Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: claim},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name},
			},
		},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		if err := core.PersistentVolumes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	claims := core.PersistentVolumeClaims(namespace)
	must.Get(claims.Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size},
			StorageClassName: ptr.To(""), VolumeName: name,
		},
	}, metav1.CreateOptions{}))(t)
	framework.Eventually(t, "claim "+claim+" is bound", func(ctx context.Context) (bool, error) {
		c, err := claims.Get(ctx, claim, metav1.GetOptions{})
		return err == nil && c.Status.Phase == corev1.ClaimBound, err
	})
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + name)
}

// mounting adds a volume with a claim to a pod.
func mounting(claim string) func(*corev1.PodSpec) {
	return func(spec *corev1.PodSpec) {
		spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}}
	}
}

// inUse sets the volumes in the status of a node, as a kubelet does for mounted volumes.
func inUse(t *testing.T, node string, volumes ...corev1.UniqueVolumeName) {
	t.Helper()
	patch := must.Get(json.Marshal(map[string]any{"status": map[string]any{"volumesInUse": volumes}}))(t)
	merge(t, "", "node", node, string(patch), "--subresource=status")
}

// TestDaemonSetPodWaitsUntilVolumesAreReleased drains a node whose kubelet has not released the
// volume of a pod that is gone. DaemonSet pods must stay until the volume is released, because one
// of them may be the node plugin of the CSI driver. They do not wait for the volume of a pod that
// the drain keeps.
func TestDaemonSetPodWaitsUntilVolumesAreReleased(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	released, kept := csiVolume(t, namespace, "released"), csiVolume(t, namespace, "kept")
	daemonSet(t, namespace, pool, "plugin", 2)
	daemonSet(t, namespace, pool, "network", 2, tolerant, mounting("kept"))
	user := cluster.PodOn(t, namespace, "user", pool, nodes[0], movable, func(p *corev1.Pod) {
		mounting("released")(&p.Spec)
	})
	inUse(t, nodes[0], released, kept)
	inUse(t, nodes[1], kept)
	plugins := map[string]corev1.Pod{}
	for _, pod := range livePods(t, namespace) {
		if pod.Labels["app"] == "plugin" {
			plugins[pod.Spec.NodeName] = pod
		}
	}
	waiting, free := plugins[nodes[0]], plugins[nodes[1]]

	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	turn := evacuationFor(t, user, "has an active evacuator", func(e *v1alpha1.Evacuation) bool {
		return e.Status.ActiveEvacuatorClass == mover
	})
	list, err := cluster.As(t).Evacuations(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d pods have an Evacuation (%v), want only the pod that uses the volume", len(list.Items), err)
	}
	report(t, turn, `{"activeEvacuatorCompleted":true}`)
	evacuationFor(t, &waiting, "has a report, and its pod is not terminating", func(e *v1alpha1.Evacuation) bool {
		s := &e.Status
		return s.ActiveEvacuatorClass == v1alpha1.EvacuatorClassDaemonSet && s.EvacuationProgressTimestamp != nil &&
			s.ExpectedEvacuationFinishTime == nil
	})
	leaves(t, evacuationFor(t, &free, "is created", isOurs))
	pod, err := cluster.As(t).Pods(namespace).Get(t.Context(), waiting.Name, metav1.GetOptions{})
	if err != nil || pod.UID != waiting.UID || pod.DeletionTimestamp != nil {
		t.Fatalf("the pod did not wait for volume %s: %v (%v)", released, pod, err)
	}
	inUse(t, nodes[0], kept)
	drained(t, nm.Name)
	daemonPods(t, namespace, "plugin", 0)
	daemonPods(t, namespace, "network", 2)
}

// TestDaemonSetEvacuationIsCalledOff cancels a drain while a DaemonSet pod is terminating.
func TestDaemonSetEvacuationIsCalledOff(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	daemonSet(t, namespace, pool, "logs", 1)
	pod := livePods(t, namespace)[0]
	merge(t, namespace, "pod", pod.Name, `{"metadata":{"finalizers":["e2e.haulout.dev/hold"]}}`)
	nm := cluster.Create(
		t,
		framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Reason = "new kernel"
		}),
	)
	e := evacuationFor(t, &pod, "is in progress", func(e *v1alpha1.Evacuation) bool {
		return e.Status.ExpectedEvacuationFinishTime != nil
	})
	if s := e.Status; s.ActiveEvacuatorClass != v1alpha1.EvacuatorClassDaemonSet || s.ActiveEvacuatorSince == nil ||
		s.ActiveEvacuatorCompleted {
		t.Errorf("the status is %+v, want the evacuator of DaemonSets active", s)
	}
	eventsReach(t, namespace, pod.Name, map[string]int{"Evicted": 1})
	setStage(t, nm.Name, v1alpha1.NodeMaintenanceStageComplete)
	unschedulable(t, false, nodes...)
	framework.Accept(t, oracle.LeftOn(theNode(t, nodes[0]), false), nil)
	framework.UntilGone(t, "the Evacuation of the pod is deleted", cluster.As(t).Evacuations(namespace), e.Name)
	merge(t, namespace, "pod", pod.Name, `{"metadata":{"finalizers":null}}`)
	daemonPods(t, namespace, "logs", 1)
}
