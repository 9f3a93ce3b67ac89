/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package deletioncost reads what it costs to lose a pod compared to others of its kind (KEP-2255),
// and lowers it for pods that are to leave anyway, so that a scale-down takes these first.
//
// What a pod had before is kept on the pod itself, in the same write. Whoever lowers it has nothing
// to remember: a pod that bears the annotation and is not asked to leave any more gets its old cost
// back, whether this process or another one lowered it.
package deletioncost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// Lowest is the cost that pods are given that are to go first.
	Lowest int32 = -2147483647
	// fieldManager owns what is written here.
	fieldManager = "haulout-deletioncost"
	// attempts is how often a write is tried that others get ahead of. Kubelets write a pod's
	// status at any time.
	attempts = 4
)

// lowestText is Lowest as it stands in the annotation.
var lowestText = strconv.Itoa(int(Lowest))

// Of returns what its owner says that it costs to lose a pod, also while it is lowered. Not ok if
// that is malformed; then it counts as 0, as it does where nothing is said.
func Of(pod *corev1.Pod) (cost int32, ok bool) {
	original, lowered := pod.Annotations[maintenancev1alpha1.AnnotationOriginalPodDeletionCost]
	value, set := pod.Annotations[corev1.PodDeletionCost]
	if lowered && value == lowestText {
		value, set = original, original != ""
	}
	if !set {
		return 0, true
	}
	return parse(value)
}

// parse reads a cost as the API server does: a 32-bit integer, written without sign or zeros that
// it does not need.
func parse(value string) (cost int32, ok bool) {
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil || value != "0" && strings.ContainsRune("+0", rune(value[0])) {
		return 0, false
	}
	return int32(n), true
}

// IsLowered says whether a pod's cost was lowered and has not been restored.
func IsLowered(pod *corev1.Pod) bool {
	_, lowered := pod.Annotations[maintenancev1alpha1.AnnotationOriginalPodDeletionCost]
	return lowered
}

// annotations are what is to be changed about a pod's; nil stands for one that is removed. Empty if
// nothing is to be done.
type annotations map[string]any

// CanLower says whether Lower would change a pod. It leaves a pod alone that was lowered already,
// also if somebody has changed the cost since, that is as cheap anyway, or whose cost is malformed:
// the API server would not take such a value back.
func CanLower(pod *corev1.Pod) bool {
	return len(decideLower(pod)) > 0
}

func decideLower(pod *corev1.Pod) annotations {
	cost, ok := Of(pod)
	if IsLowered(pod) || !ok || cost <= Lowest {
		return nil
	}
	return annotations{
		maintenancev1alpha1.AnnotationOriginalPodDeletionCost: pod.Annotations[corev1.PodDeletionCost],
		corev1.PodDeletionCost:                                lowestText,
	}
}

// decideRestore gives back what the pod had. A cost that somebody has changed since is his.
func decideRestore(pod *corev1.Pod) annotations {
	if !IsLowered(pod) {
		return nil
	}
	change := annotations{maintenancev1alpha1.AnnotationOriginalPodDeletionCost: nil}
	if pod.Annotations[corev1.PodDeletionCost] != lowestText {
		return change
	}
	original := pod.Annotations[maintenancev1alpha1.AnnotationOriginalPodDeletionCost]
	change[corev1.PodDeletionCost] = nil
	// A malformed one is not from here, and the API server would refuse it. It counts as none.
	if _, ok := parse(original); ok {
		change[corev1.PodDeletionCost] = original
	}
	return change
}

// Lower gives a pod the lowest cost, if CanLower. The pod may come from a cache. A pod that is gone
// is no error, nor is one that has been replaced by another of its name, which is left alone.
func Lower(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	if err := write(ctx, client, pod, decideLower); err != nil {
		return fmt.Errorf("lower the deletion cost of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// Restore gives a pod the cost back that it had before it was lowered. It does nothing to one that
// was not, and may be called any number of times. What is said of the pod at Lower goes for it,
// too.
func Restore(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	if err := write(ctx, client, pod, decideRestore); err != nil {
		return fmt.Errorf("restore the deletion cost of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// write makes the change that decide wants, on the condition that the pod is in the state that it
// was decided for.
func write(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, decide func(*corev1.Pod) annotations) error {
	pods := client.CoreV1().Pods(pod.Namespace)
	var conflict error
	for range attempts {
		change := decide(pod)
		if len(change) == 0 {
			return nil
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "annotations": change,
		}})
		if err != nil {
			return err
		}
		_, conflict = pods.Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
		if !apierrors.IsConflict(conflict) {
			return ignoreNotFound(conflict)
		}
		live, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return ignoreNotFound(err)
		}
		if live.UID != pod.UID {
			return nil
		}
		pod = live
	}
	return errors.Join(errors.New("others keep writing first"), conflict)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
