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

package evacuation

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/drain/surge"
)

const (
	// comebacksTolerated is how often a pod may return to the node before the server assumes that a
	// controller puts it there: the scheduler may still bind a pod that it assigned before the
	// cordon, and a controller may have been about to create another one.
	comebacksTolerated = 2
	// firstHold is how long the first pod after those is not evicted. The time doubles with each
	// further one.
	firstHold = 10 * time.Second
	// longestHold is the maximum, which limits how often a pod is evicted that always returns.
	longestHold = 5 * time.Minute
)

// countComebacks counts how many pods like this one were evacuated from the node, each created
// after the evacuation of the previous one. Pods that were there at the same time are siblings that
// left in one drain and count as one. The Evacuations that are still kept identify deleted pods by
// the name or, if each pod gets a new name, by the labels.
func countComebacks(pod *corev1.Pod, evacuations []*maintenancev1alpha1.Evacuation) int {
	var left []*maintenancev1alpha1.Evacuation
	for _, e := range evacuations {
		if e.Namespace == pod.Namespace && e.Spec.PodRef.UID != pod.UID && hasEvacuated(e) && isAlike(pod, e) {
			left = append(left, e)
		}
	}
	slices.SortFunc(left, func(a, b *maintenancev1alpha1.Evacuation) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	count := 0
	var last *maintenancev1alpha1.Evacuation
	for _, e := range left {
		if last == nil || e.Spec.PodRef.Name == last.Spec.PodRef.Name || e.CreationTimestamp.After(goneAt(last)) {
			last = e
			count++
		}
	}
	if last == nil || pod.Name != last.Spec.PodRef.Name && !pod.CreationTimestamp.After(last.CreationTimestamp.Time) {
		return 0
	}
	return count
}

func hasEvacuated(e *maintenancev1alpha1.Evacuation) bool {
	complete := meta.FindStatusCondition(e.Status.Conditions, maintenancev1alpha1.ConditionComplete)
	return complete != nil && complete.Status == metav1.ConditionTrue && complete.Reason == maintenancev1alpha1.ReasonPodDeleted
}

func goneAt(e *maintenancev1alpha1.Evacuation) time.Time {
	return meta.FindStatusCondition(e.Status.Conditions, maintenancev1alpha1.ConditionComplete).LastTransitionTime.Time
}

func isAlike(pod *corev1.Pod, e *maintenancev1alpha1.Evacuation) bool {
	return e.Spec.PodRef.Name == pod.Name || len(pod.Labels) > 0 && maps.Equal(pod.Labels, e.Labels)
}

// heldUntil is the time until which a pod that keeps returning is not evicted; zero if it may be.
func heldUntil(s situation) time.Time {
	if s.comebacks <= comebacksTolerated {
		return time.Time{}
	}
	hold := min(firstHold<<min(s.comebacks-comebacksTolerated-1, 10), longestHold)
	return s.pod.CreationTimestamp.Add(hold)
}

// recreated returns the blocker of a pod that keeps returning while it is not evicted.
func recreated(s situation, until time.Time) *eviction.Blocker {
	owner := fmt.Sprintf("Pod %s, which has no owner,", s.pod.Name)
	if refs := s.pod.OwnerReferences; len(refs) > 0 {
		ref := &refs[0]
		if controller := metav1.GetControllerOfNoCopy(s.pod); controller != nil {
			ref = controller
		}
		owner = fmt.Sprintf("A pod of %s %s", ref.Kind, ref.Name)
	}
	remedy := "Stop what recreates it there."
	if tolerates := surge.CordonToleration(s.pod); tolerates != "" {
		remedy = fmt.Sprintf("It %s: remove that toleration where its pods are defined, or stop what recreates it there.", tolerates)
	}
	return &eviction.Blocker{
		Reason: maintenancev1alpha1.ReasonRecreated,
		Message: fmt.Sprintf("%s has returned to node %s %d times after it was evacuated, the last time at %s. %s It is evicted again at %s.",
			owner, s.pod.Spec.NodeName, s.comebacks, s.pod.CreationTimestamp.UTC().Format(time.RFC3339), remedy, until.UTC().Format(time.RFC3339)),
	}
}
