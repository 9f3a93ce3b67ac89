// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestStrip(t *testing.T) {
	agentReady := corev1.NodeCondition{Type: v1alpha1.NodeConditionAgentReady, Status: corev1.ConditionTrue}
	full := metav1.ObjectMeta{
		Name: "a", UID: "1", Labels: map[string]string{"app": "web"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		Annotations:   map[string]string{ownPrefix + "x": "ours", corev1.LastAppliedConfigAnnotation: "long"},
	}
	ours := metav1.ObjectMeta{
		Name: "a", UID: "1", Labels: full.Labels, Annotations: map[string]string{ownPrefix + "x": "ours"},
	}
	bare := metav1.ObjectMeta{Name: "a", UID: "1", Labels: full.Labels}
	source, replicas := "pv", int32(2)
	for name, test := range map[string]struct {
		object, want runtime.Object
	}{
		"a pod keeps its node, not its containers": {
			object: &corev1.Pod{
				ObjectMeta: *full.DeepCopy(),
				Spec:       corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}}},
				Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"},
			},
			want: &corev1.Pod{
				ObjectMeta: ours, Spec: corev1.PodSpec{NodeName: "n"},
				Status: corev1.PodStatus{Phase: corev1.PodRunning},
			},
		},
		"a pod keeps its claims and no other volumes": {
			object: &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "tmp"}, claimed("data")}}},
			want:   &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{claimed("data")}}},
		},
		"a pod keeps the host that it selects and its eviction responders": {
			object: &corev1.Pod{Spec: corev1.PodSpec{
				NodeSelector:       map[string]string{corev1.LabelHostname: "h", "disk": "ssd"},
				EvictionResponders: []corev1.EvictionResponder{{Name: "example.com/r"}},
			}},
			want: &corev1.Pod{Spec: corev1.PodSpec{
				NodeSelector:       map[string]string{corev1.LabelHostname: "h"},
				EvictionResponders: []corev1.EvictionResponder{{Name: "example.com/r"}},
			}},
		},
		"a ReplicaSet with replicas keeps its selector": {
			object: &appsv1.ReplicaSet{
				ObjectMeta: *full.DeepCopy(), Status: appsv1.ReplicaSetStatus{Replicas: 2, ReadyReplicas: 1},
				Spec: appsv1.ReplicaSetSpec{
					Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: full.Labels},
					Template: corev1.PodTemplateSpec{ObjectMeta: full},
				},
			},
			want: &appsv1.ReplicaSet{
				ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}, Status: appsv1.ReplicaSetStatus{Replicas: 2},
				Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: full.Labels}},
			},
		},
		"an old ReplicaSet keeps only its owners": {
			object: &appsv1.ReplicaSet{
				ObjectMeta: *full.DeepCopy(), Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: full.Labels}},
			},
			want: &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}},
		},
		"a node keeps its cordon and conditions, not its images": {
			object: &corev1.Node{
				ObjectMeta: *full.DeepCopy(), Spec: corev1.NodeSpec{Unschedulable: true},
				Status: corev1.NodeStatus{
					Images:   []corev1.ContainerImage{{}},
					NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1", KernelVersion: "6.1"},
					Capacity: corev1.ResourceList{corev1.ResourcePods: {}}, Allocatable: corev1.ResourceList{corev1.ResourcePods: {}},
					Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}, agentReady},
				},
			},
			want: &corev1.Node{
				ObjectMeta: ours,
				Spec:       corev1.NodeSpec{Unschedulable: true},
				Status: corev1.NodeStatus{
					NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1", KernelVersion: "6.1"}, Allocatable: corev1.ResourceList{corev1.ResourcePods: {}},
					Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}, agentReady},
				},
			},
		},
		"a volume attachment keeps its volume, its node, whether it is attached and why it cannot be": {
			object: &storagev1.VolumeAttachment{
				ObjectMeta: *full.DeepCopy(),
				Spec: storagev1.VolumeAttachmentSpec{
					Attacher: "csi", NodeName: "n",
					Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &source},
				},
				Status: storagev1.VolumeAttachmentStatus{
					Attached: true, AttachmentMetadata: map[string]string{"device": "sda"},
					AttachError: &storagev1.VolumeError{Message: "no"}, DetachError: &storagev1.VolumeError{},
				},
			},
			want: &storagev1.VolumeAttachment{
				ObjectMeta: bare,
				Spec: storagev1.VolumeAttachmentSpec{
					NodeName: "n", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &source},
				},
				Status: storagev1.VolumeAttachmentStatus{
					Attached: true, AttachError: &storagev1.VolumeError{Message: "no"},
				},
			},
		},
		"a Deployment keeps how it scales, and of its template the labels and claims": {
			object: &appsv1.Deployment{
				ObjectMeta: *full.DeepCopy(),
				Spec: appsv1.DeploymentSpec{Replicas: &replicas, Paused: true, Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: full.Labels, Annotations: full.Annotations},
					Spec: corev1.PodSpec{
						Containers: []corev1.Container{{Name: "c"}},
						Volumes:    []corev1.Volume{{Name: "tmp"}, claimed("data")},
					},
				}},
				Status: appsv1.DeploymentStatus{Replicas: 2, Conditions: []appsv1.DeploymentCondition{
					{Type: appsv1.DeploymentAvailable}, {Type: appsv1.DeploymentReplicaFailure, Message: "quota"},
					{
						Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse,
						Reason: "ProgressDeadlineExceeded", Message: "timed out",
					},
				}},
			},
			want: &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", Annotations: ours.Annotations},
				Spec: appsv1.DeploymentSpec{Replicas: &replicas, Paused: true, Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: full.Labels},
					Spec:       corev1.PodSpec{Volumes: []corev1.Volume{claimed("data")}},
				}},
				Status: appsv1.DeploymentStatus{Replicas: 2, Conditions: []appsv1.DeploymentCondition{
					{Type: appsv1.DeploymentReplicaFailure, Message: "quota"},
					{
						Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse,
						Reason: "ProgressDeadlineExceeded",
					},
				}},
			},
		},
		"an autoscaler keeps its bounds, not its metrics": {
			object: &autoscalingv2.HorizontalPodAutoscaler{
				ObjectMeta: *full.DeepCopy(),
				Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
					MinReplicas: &replicas, MaxReplicas: 3, Metrics: []autoscalingv2.MetricSpec{{}},
					Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
						ScaleUp: &autoscalingv2.HPAScalingRules{}, ScaleDown: &autoscalingv2.HPAScalingRules{},
					},
				},
				Status: autoscalingv2.HorizontalPodAutoscalerStatus{
					CurrentReplicas: 2, CurrentMetrics: []autoscalingv2.MetricStatus{{}},
					Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{
						{Type: autoscalingv2.ScalingLimited},
						{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue, Message: "long"},
						{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionFalse, Message: "long"},
					},
				},
			},
			want: &autoscalingv2.HorizontalPodAutoscaler{
				ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", Annotations: ours.Annotations},
				Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: &replicas, MaxReplicas: 3,
					Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
						ScaleDown: &autoscalingv2.HPAScalingRules{},
					}},
				Status: autoscalingv2.HorizontalPodAutoscalerStatus{CurrentReplicas: 2,
					Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{
						{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue},
						{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionFalse},
					}},
			},
		},
		"any other object loses only the managed fields": {
			object: &policyv1.PodDisruptionBudget{
				ObjectMeta: *full.DeepCopy(), Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1},
			},
			want: &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1", Labels: full.Labels, Annotations: full.Annotations},
				Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			// Informers may transform an object twice.
			for range 2 {
				got, err := Strip(test.object)
				is.True(t, err == nil && reflect.DeepEqual(got, test.want), "got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func claimed(name string) corev1.Volume {
	return corev1.Volume{
		Name: name,
		VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		},
	}
}

// TestStripKeepsProtections covers the annotations that the server removes at the end of a
// maintenance, if they still have its value.
func TestStripKeepsProtections(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"theirs": "x"}}}
	for _, key := range NodeProtections {
		node.Annotations[key] = "true"
	}
	if _, err := Strip(node); err != nil {
		t.Fatal(err)
	}
	if len(node.Annotations) != len(NodeProtections) || node.Annotations["theirs"] != "" {
		t.Errorf("a node keeps the annotations %v", node.Annotations)
	}
}
