// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package previewer

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestCachesHaveAllThatPreviewsRead compares previews of random worlds by caches that have all
// fields with those by caches as the server has them.
func TestCachesHaveAllThatPreviewsRead(t *testing.T) {
	whole := func(obj any) (any, error) { return obj, nil }
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newWorld(seed)
			f := newFixture(t, w.objects...)
			f.evacuators = w.some(v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet, v1alpha1.EvacuatorClassKubelet)
			f.others = []*v1alpha1.NodeMaintenance{maintenance("other", drain, append(w.some("blue"), "red")...)}
			nm := maintenance("nm", []v1alpha1.NodeMaintenanceStage{idle, drain}[w.IntN(2)], "blue")
			got := f.mustPreview(t, nm)
			f.caches = cachesOf(t, f.kube, whole)
			want := f.mustPreview(t, nm)
			is.True(t, reflect.DeepEqual(got, want), "got:\n%+v\nby all fields:\n%+v", got, want)
		})
	}
}

func TestAPreviewListsNoPodsAndOwners(t *testing.T) {
	w := newWorld(1)
	f := newFixture(t, w.objects...)
	f.evacuators = []string{v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet}
	is.True(t, f.mustPreview(t, maintenance("nm", idle, "blue", "red")).PodCount > 0, "got no pods")
	for _, read := range f.asked() {
		is.True(t, !slices.Contains([]string{
			"list pods", "list poddisruptionbudgets", "list replicasets", "list deployments", "list daemonsets", "list horizontalpodautoscalers",
		}, read), "the preview asks: %s", read)
	}
}

// world is a random cluster.
type world struct {
	*rand.Rand
	objects []runtime.Object
	nodes   []*corev1.Node
}

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 33))}
	for i := range []int{3, 12, 80}[w.IntN(3)] {
		n := node(fmt.Sprintf("node-%02d", i), []string{"blue", "red"}[w.IntN(2)])
		n.Labels[corev1.LabelHostname] = n.Name
		n.Spec.Unschedulable = w.oneIn(5)
		if w.oneIn(8) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		}
		if w.oneIn(3) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: v1alpha1.NodeConditionAgentReady, Status: corev1.ConditionTrue})
		}
		w.nodes = append(w.nodes, n)
		w.objects = append(w.objects, n)
	}
	for i := range 1 + w.IntN(12) {
		w.addApp(fmt.Sprintf("app-%02d", i))
	}
	for i := range w.IntN(3) {
		w.objects = append(w.objects, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("team-", i)}, Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating},
		})
	}
	return w
}

func (w *world) oneIn(n int) bool { return w.IntN(n) == 0 }

// some returns a random part of the values.
func (w *world) some(values ...string) []string {
	return slices.DeleteFunc(values, func(string) bool { return w.oneIn(3) })
}

// addApp adds a random workload with its pods, its budgets and its autoscaler.
func (w *world) addApp(name string) {
	namespace := fmt.Sprint("team-", w.IntN(20))
	meta := func(kind string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(kind + "-" + name)}
	}
	labels := map[string]string{"app": name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	if w.oneIn(8) {
		selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "another"}}
	}
	var owner []metav1.OwnerReference
	switch w.IntN(6) {
	case 0, 1, 2:
		owner = build.Owner("apps/v1", "ReplicaSet", name, types.UID("rs-"+name))
		set := &appsv1.ReplicaSet{ObjectMeta: meta("rs"), Spec: appsv1.ReplicaSetSpec{Selector: selector}}
		set.Status.Replicas = int32(w.IntN(3))
		set.OwnerReferences = build.Owner("apps/v1", "Deployment", name, types.UID("d-"+name))
		w.objects = append(w.objects, set)
		w.addDeployment(&appsv1.Deployment{ObjectMeta: meta("d"), Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Replicas: ptr.To(int32(w.IntN(4))), Paused: w.oneIn(8),
		}})
	case 3:
		owner = build.Owner("apps/v1", "DaemonSet", name, types.UID("ds-"+name))
		w.objects = append(w.objects, &appsv1.DaemonSet{ObjectMeta: meta("ds"), Spec: appsv1.DaemonSetSpec{Selector: selector}})
	case 4:
		owner = build.Owner("batch/v1", "Job", name, types.UID("job-"+name))
		w.objects = append(w.objects, &batchv1.Job{ObjectMeta: meta("job"), Spec: batchv1.JobSpec{BackoffLimit: ptr.To(int32(w.IntN(6)))}})
	}
	for range w.IntN(3) {
		w.objects = append(w.objects, &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(name, "-", w.Uint32())},
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: labels}, MaxUnavailable: ptr.To(intstr.FromInt32(int32(w.IntN(3)))),
			},
			Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(w.IntN(2)), DesiredHealthy: 2, CurrentHealthy: 2, ExpectedPods: 3},
		})
	}
	tied := w.oneIn(3)
	for i := range w.IntN(12) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprint(name, "-", i), UID: types.UID(fmt.Sprint(name, "-", i)), Labels: labels, OwnerReferences: owner,
		}}
		w.vary(p)
		if tied {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: p.Spec.NodeName, "pool": "blue"}
		}
		w.objects = append(w.objects, p)
	}
}

func (w *world) addDeployment(d *appsv1.Deployment) {
	if w.oneIn(4) {
		d.Annotations = map[string]string{v1alpha1.AnnotationSurge: []string{v1alpha1.SurgeAlways, v1alpha1.SurgeDisabled}[w.IntN(2)]}
	}
	if w.oneIn(4) {
		d.Spec.Template.Spec.Volumes = w.claim(d.Namespace, "shared-"+d.Name)
	}
	if w.oneIn(3) {
		w.objects = append(w.objects, &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: d.Name},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: d.Name},
				MaxReplicas:    int32(1 + w.IntN(5)),
			},
		})
	}
	w.objects = append(w.objects, d)
}

// claim adds a volume claim whose volume can only be used on the first node, and returns the volume
// of a pod.
func (w *world) claim(namespace, name string) []corev1.Volume {
	w.objects = append(w.objects,
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: name},
		},
		&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: build.Labelled(corev1.LabelHostname, w.nodes[0].Name)},
		}})
	return []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}}
}

// vary sets random fields of a pod.
func (w *world) vary(p *corev1.Pod) {
	on := w.nodes[w.IntN(len(w.nodes))]
	p.Spec.NodeName, p.Status = on.Name, build.Ready()
	p.Spec.RestartPolicy = []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyNever}[w.IntN(2)]
	p.Annotations = map[string]string{"other": "x"}
	for _, change := range []func(){
		func() { p.Spec.Priority = ptr.To(int32(w.IntN(2) * 2_000_000_000)) },
		func() { p.Annotations[v1alpha1.AnnotationEvacuatorPrefix+"a.example.com"] = "1000/controller" },
		func() { p.Finalizers = []string{"example.com/f", "batch.kubernetes.io/job-tracking"} },
		func() {
			p.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(time.Duration(w.IntN(200)-100) * time.Second)))
			p.DeletionGracePeriodSeconds = ptr.To(int64(w.IntN(2)))
		},
		func() { p.Spec.Volumes = w.claim(p.Namespace, p.Name) },
		func() {
			p.Spec.EvictionResponders = []corev1.EvictionResponder{{Name: "example.com/r", Priority: ptr.To[int32](1)}}
		},
		func() { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} },
		func() { p.Status.Conditions[0].Status = corev1.ConditionFalse },
		func() { p.Status.Phase = corev1.PodSucceeded },
		func() {
			p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending, NominatedNodeName: on.Name}
		},
		func() { p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending} },
		func() { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/g"}} },
		func() {
			p.Annotations[corev1.MirrorPodAnnotationKey] = "x"
			p.OwnerReferences = build.Owner("v1", "Node", on.Name, on.UID)
		},
		func() { p.Labels = map[string]string{"app": p.Labels["app"], "extra": fmt.Sprint(w.IntN(2))} },
	} {
		if w.oneIn(8) {
			change()
		}
	}
}
