// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package deletioncost reads the deletion cost of pods (KEP-2255), and lowers it for pods that have
// to leave anyway, so that a scale-down deletes these pods first. Only the controller of this
// package and the evacuator of Deployments, before its own scale-downs, write costs.
//
// The write that lowers a cost also stores the previous cost in an annotation of the pod. So no
// process has to remember it: the controller restores the cost of a pod that has the annotation and
// may stay, even if another process lowered it.
package deletioncost

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/mergepatch"
)

const (
	// Lowest is the cost of pods that have to be deleted first.
	Lowest       int32 = -2147483647
	fieldManager       = "haulout-deletioncost"
	// attempts is the number of times that a write with a conflict is tried. The kubelet may write
	// a pod's status at any time.
	attempts = 4
)

var lowestText = strconv.Itoa(int(Lowest))

// Of returns the pod's original deletion cost, even while it is lowered. ok is false if the cost is
// malformed; it then counts as 0, like an unset cost.
func Of(pod *corev1.Pod) (cost int32, ok bool) {
	original, lowered := pod.Annotations[v1alpha1.AnnotationOriginalPodDeletionCost]
	value, set := pod.Annotations[corev1.PodDeletionCost]
	if lowered && value == lowestText {
		value, set = original, original != ""
	}
	if !set {
		return 0, true
	}
	return parse(value)
}

// parse parses a cost as the API server does: a 32-bit integer without a plus sign or leading
// zeros.
func parse(value string) (cost int32, ok bool) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || value != "0" && strings.ContainsRune("+0", rune(value[0])) {
		return 0, false
	}
	return int32(n), true
}

// IsLowered reports whether a pod's cost was lowered and has not been restored.
func IsLowered(pod *corev1.Pod) bool {
	_, lowered := pod.Annotations[v1alpha1.AnnotationOriginalPodDeletionCost]
	return lowered
}

// IsLowest reports whether no other pod of a ReplicaSet is deleted before this one because of its
// cost, also if another client set the cost.
func IsLowest(pod *corev1.Pod) bool {
	cost, ok := parse(cmp.Or(pod.Annotations[corev1.PodDeletionCost], "0"))
	return ok && cost <= Lowest
}

// Keeps reports whether the owner of a pod does not want its cost to be lowered. The evacuator of
// Deployments lowers it nevertheless if the pod can leave only by a scale-down.
func Keeps(pod *corev1.Pod) bool {
	return pod.Annotations[v1alpha1.AnnotationDeletionCost] == v1alpha1.DeletionCostKeep
}

// annotations are the changes of a pod's annotations. A nil value removes an annotation. It is
// empty if there is no change.
type annotations map[string]any

// CanLower reports whether Lower would change a pod. A cost that was already lowered is not lowered
// again, even if another client has changed it since. A cost that already is the lowest stays as it
// is, and so does a malformed cost: the API server would refuse to restore it.
func CanLower(pod *corev1.Pod) bool {
	return len(decideLower(pod)) > 0
}

func decideLower(pod *corev1.Pod) annotations {
	cost, ok := Of(pod)
	if IsLowered(pod) || !ok || cost <= Lowest {
		return nil
	}
	return annotations{
		v1alpha1.AnnotationOriginalPodDeletionCost: pod.Annotations[corev1.PodDeletionCost],
		corev1.PodDeletionCost:                     lowestText,
	}
}

// decideRestore restores the previous cost, unless another client has changed the cost since it was
// lowered.
func decideRestore(pod *corev1.Pod) annotations {
	if !IsLowered(pod) {
		return nil
	}
	change := annotations{v1alpha1.AnnotationOriginalPodDeletionCost: nil}
	if pod.Annotations[corev1.PodDeletionCost] != lowestText {
		return change
	}
	original := pod.Annotations[v1alpha1.AnnotationOriginalPodDeletionCost]
	change[corev1.PodDeletionCost] = nil
	// This package does not store a malformed cost, and the API server would refuse it. Treat it as
	// unset.
	if _, ok := parse(original); ok {
		change[corev1.PodDeletionCost] = original
	}
	return change
}

// Lower sets the lowest cost of a pod if CanLower returns true. The pod may come from a cache. If
// the pod no longer exists, or another pod has its name, Lower does nothing and returns no error.
func Lower(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	if err := write(ctx, client, pod, decideLower); err != nil {
		return fmt.Errorf("lower the deletion cost of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// Restore restores the cost that a pod had before it was lowered. It is idempotent, and does
// nothing if the cost was not lowered. It treats missing and replaced pods like Lower.
func Restore(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	if err := write(ctx, client, pod, decideRestore); err != nil {
		return fmt.Errorf("restore the deletion cost of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// write applies the change that decide returns, if the pod has not changed since. After a conflict
// it reads the pod and decides again.
func write(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, decide func(*corev1.Pod) annotations) error {
	pods := client.CoreV1().Pods(pod.Namespace)
	var conflict error
	for range attempts {
		change := decide(pod)
		if len(change) == 0 {
			return nil
		}
		_, conflict = mergepatch.IfUnchanged(ctx, pods.Patch, pod, map[string]any{"annotations": change}, nil,
			metav1.PatchOptions{FieldManager: fieldManager})
		if !apierrors.IsConflict(conflict) {
			return loop.IgnoreNotFound(conflict)
		}
		live, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return loop.IgnoreNotFound(err)
		}
		if live.UID != pod.UID {
			return nil
		}
		pod = live
	}
	return errors.Join(errors.New("other clients keep changing the pod"), conflict)
}

// IsOfReplicaSet reports whether a pod belongs to a ReplicaSet, whose controller reads the costs.
func IsOfReplicaSet(pod *corev1.Pod) bool {
	return protocol.ControllerOf(pod, "ReplicaSet") != nil
}
