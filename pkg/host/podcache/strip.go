// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// NewTransform returns a transform for a whole informer factory of the host cluster. It removes the
// fields that nothing reads (see Strip), makes pods with the same controller share equal
// parts, and packs pods. PodLister, unpackPod and unpackedPods return the packed pods. Without this
// transform, a cluster with 150,000 pods would not fit into memory.
func NewTransform() cache.TransformFunc {
	s := newSharing()
	return func(obj any) (any, error) {
		if _, err := Strip(obj); err != nil {
			return nil, err
		}
		if pod, ok := obj.(*corev1.Pod); ok {
			s.share(pod)
			return pack(pod), nil
		}
		return obj, nil
	}
}

// Strip removes the fields that no controller and no preview reads from pods, nodes, volume
// attachments, workloads and their autoscalers, and the managed fields from all objects.
func Strip(obj any) (any, error) {
	switch o := obj.(type) {
	case *packedPod:
	case *corev1.Pod:
		stripPod(o)
	case *corev1.Node:
		stripNode(o)
	case *storagev1.VolumeAttachment:
		stripVolumeAttachment(o)
	case *appsv1.Deployment:
		stripDeployment(o)
	case *appsv1.DaemonSet:
		stripDaemonSet(o)
	case *appsv1.ReplicaSet:
		stripReplicaSet(o)
	case *appsv1.StatefulSet:
		o.ManagedFields, o.Labels, o.Annotations = nil, nil, nil
		o.Spec, o.Status = appsv1.StatefulSetSpec{Replicas: o.Spec.Replicas}, appsv1.StatefulSetStatus{}
	case *autoscalingv2.HorizontalPodAutoscaler:
		stripAutoscaler(o)
	case metav1.Object:
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// stripPod keeps the fields that evacuations depend on: identity, owners, labels, finalizers, the
// annotations for evacuators and deletion cost, placement, priority, tolerations, restart policy,
// volume claims, the selected host, eviction responders, phase, and the conditions that report
// whether the pod is ready and why it has no node.
func stripPod(pod *corev1.Pod) {
	pod.ManagedFields = nil
	pod.GenerateName = ""
	for key := range pod.Annotations {
		if !keepPodAnnotation(key) {
			delete(pod.Annotations, key)
		}
	}
	if len(pod.Annotations) == 0 {
		pod.Annotations = nil
	}
	nominated := ""
	if pod.Spec.NodeName == "" {
		nominated = NodeOf(pod) // before the scheduling gates are removed
	}
	pod.Spec = corev1.PodSpec{
		NodeName:                      pod.Spec.NodeName,
		Priority:                      pod.Spec.Priority,
		Tolerations:                   pod.Spec.Tolerations,
		TerminationGracePeriodSeconds: pod.Spec.TerminationGracePeriodSeconds,
		RestartPolicy:                 pod.Spec.RestartPolicy,
		Volumes:                       claims(pod.Spec.Volumes),
		NodeSelector:                  hostSelector(pod.Spec.NodeSelector),
		EvictionResponders:            pod.Spec.EvictionResponders,
	}
	pod.Status = corev1.PodStatus{
		Phase:             pod.Status.Phase,
		Conditions:        telling(pod.Status.Conditions),
		NominatedNodeName: nominated,
	}
}

// telling returns the conditions that controllers read, in a new slice, so that all other
// conditions can be freed.
func telling(conditions []corev1.PodCondition) []corev1.PodCondition {
	keep := func(c *corev1.PodCondition) bool {
		switch c.Type {
		case corev1.PodReady, corev1.DisruptionTarget:
			return true
		case corev1.PodScheduled:
			return c.Status != corev1.ConditionTrue
		}
		return false
	}
	n := 0
	for i := range conditions {
		if keep(&conditions[i]) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	kept := make([]corev1.PodCondition, 0, n)
	for i := range conditions {
		if keep(&conditions[i]) {
			kept = append(kept, conditions[i])
		}
	}
	return kept
}

func keepPodAnnotation(key string) bool {
	return key == corev1.MirrorPodAnnotationKey || key == corev1.PodDeletionCost ||
		strings.HasPrefix(key, v1alpha1.AnnotationEvacuatorPrefix) || strings.HasPrefix(key, ownPrefix)
}

// ownPrefix is the prefix of all keys of Haulout.
const ownPrefix = v1alpha1.GroupName + "/"

// claims returns the volumes with claims, in a new slice, so that the other volumes can be freed.
func claims(volumes []corev1.Volume) []corev1.Volume {
	var kept []corev1.Volume
	for _, v := range volumes {
		if v.PersistentVolumeClaim != nil {
			kept = append(kept, corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: v.PersistentVolumeClaim}})
		}
	}
	return kept
}

// hostSelector returns the part of a node selector that names a single node.
func hostSelector(selector map[string]string) map[string]string {
	if host, ok := selector[corev1.LabelHostname]; ok {
		return map[string]string{corev1.LabelHostname: host}
	}
	return nil
}

// NodeProtections are the annotations with which cluster-autoscaler and Karpenter keep a node. They
// stay in cached nodes.
var NodeProtections = []string{"cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt"}

// stripNode keeps the fields that cordons, reachability and the conditions of tasks depend on:
// identity, labels, our annotations and those for autoscalers, the spec, the conditions, the
// volumes in use, the versions, and the allocatable resources.
func stripNode(node *corev1.Node) {
	node.ManagedFields = nil
	for key := range node.Annotations {
		if !strings.HasPrefix(key, ownPrefix) && !slices.Contains(NodeProtections, key) {
			delete(node.Annotations, key)
		}
	}
	node.Status = corev1.NodeStatus{
		Conditions: node.Status.Conditions, VolumesInUse: node.Status.VolumesInUse,
		NodeInfo: node.Status.NodeInfo, Allocatable: node.Status.Allocatable,
	}
}

// StripImages removes the images and the managed fields from a node, which are most of it. It keeps
// all other fields, for an informer that admission policies may read as well.
func StripImages(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		node.ManagedFields, node.Status.Images = nil, nil
	}
	return obj, nil
}

// stripVolumeAttachment keeps the volume, the node, whether the volume is attached, and the attach
// error. It removes inline volumes, which can be large.
func stripVolumeAttachment(attachment *storagev1.VolumeAttachment) {
	attachment.ManagedFields = nil
	attachment.Annotations = nil
	attachment.Spec = storagev1.VolumeAttachmentSpec{
		NodeName: attachment.Spec.NodeName, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: attachment.Spec.Source.PersistentVolumeName},
	}
	attachment.Status = storagev1.VolumeAttachmentStatus{Attached: attachment.Status.Attached, AttachError: attachment.Status.AttachError}
}

// stripReplicaSet keeps the identity, the owners and the numbers of replicas. A ReplicaSet that has
// replicas also keeps its selector: most ReplicaSets are old ones without replicas.
func stripReplicaSet(r *appsv1.ReplicaSet) {
	r.ManagedFields, r.Labels, r.Annotations = nil, nil, nil
	spec := appsv1.ReplicaSetSpec{Replicas: r.Spec.Replicas}
	if r.Status.Replicas > 0 {
		spec.Selector = r.Spec.Selector
	}
	r.Spec, r.Status = spec, appsv1.ReplicaSetStatus{Replicas: r.Status.Replicas}
}

// stripDaemonSet keeps the fields that determine on which nodes a DaemonSet has pods, and when a
// drain evicts these pods.
func stripDaemonSet(d *appsv1.DaemonSet) {
	d.ManagedFields, d.Annotations, d.Labels = nil, nil, nil
	full := &d.Spec.Template
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: full.Labels},
		Spec: corev1.PodSpec{
			NodeSelector: full.Spec.NodeSelector, Affinity: full.Spec.Affinity, Tolerations: full.Spec.Tolerations, HostNetwork: full.Spec.HostNetwork,
			PriorityClassName: full.Spec.PriorityClassName, Priority: full.Spec.Priority,
		},
	}
	d.Spec = appsv1.DaemonSetSpec{
		Selector: d.Spec.Selector, Template: template, UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: d.Spec.UpdateStrategy.Type},
	}
	d.Status = appsv1.DaemonSetStatus{}
}

// DeploymentRevision is the annotation in which the deployment controller counts the revisions of a
// Deployment.
const DeploymentRevision = "deployment.kubernetes.io/revision"

// stripDeployment keeps the fields that surges depend on: our annotations and the revision, the
// spec with the labels and claims of the pods, the numbers of the status, and the conditions about
// pods that could not be created and about stuck rollouts. It removes most of the pod template,
// which is the largest part of a Deployment.
func stripDeployment(d *appsv1.Deployment) {
	d.ManagedFields, d.Labels = nil, nil
	for key := range d.Annotations {
		if key != DeploymentRevision && !strings.HasPrefix(key, ownPrefix) {
			delete(d.Annotations, key)
		}
	}
	d.Spec.Template = corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: d.Spec.Template.Labels},
		Spec:       corev1.PodSpec{Volumes: claims(d.Spec.Template.Spec.Volumes)},
	}
	var kept []appsv1.DeploymentCondition
	for _, c := range d.Status.Conditions {
		switch {
		case c.Type == appsv1.DeploymentReplicaFailure:
			kept = append(kept, c)
		case c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse:
			kept = append(kept, appsv1.DeploymentCondition{Type: c.Type, Status: c.Status, Reason: c.Reason})
		}
	}
	d.Status.Conditions = kept
}

// stripAutoscaler keeps the fields that surges depend on: its target, its limits, its scale-down
// behaviour, the numbers of the status, and the conditions AbleToScale and ScalingActive.
func stripAutoscaler(a *autoscalingv2.HorizontalPodAutoscaler) {
	a.ManagedFields, a.Labels = nil, nil
	for key := range a.Annotations {
		if !strings.HasPrefix(key, ownPrefix) {
			delete(a.Annotations, key)
		}
	}
	a.Spec.Metrics, a.Status.CurrentMetrics = nil, nil
	if a.Spec.Behavior != nil {
		a.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleDown: a.Spec.Behavior.ScaleDown}
	}
	var kept []autoscalingv2.HorizontalPodAutoscalerCondition
	for _, c := range a.Status.Conditions {
		if c.Type == autoscalingv2.AbleToScale || c.Type == autoscalingv2.ScalingActive {
			kept = append(kept, autoscalingv2.HorizontalPodAutoscalerCondition{Type: c.Type, Status: c.Status})
		}
	}
	a.Status.Conditions = kept
}
