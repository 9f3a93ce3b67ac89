// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/loop"
	"haulout.dev/haulout/pkg/drain/surge"
)

const (
	// comebacksTolerated is how often a pod may return to the node before the server assumes that a
	// controller creates it there deliberately. The scheduler may still bind a pod that it assigned
	// before the cordon, and a controller may have been about to create another pod.
	comebacksTolerated = 2
	// firstHold is how long the first pod beyond comebacksTolerated is not evicted. The time
	// doubles with each further pod.
	firstHold = 10 * time.Second
	// longestHold is the maximum of that time.
	longestHold = 5 * time.Minute
	// rememberedFor is how long a returned pod counts after it has left. maxRemembered is the
	// maximum number of these pods per namespace and node that are remembered after their
	// Evacuations are deleted. More would not increase the wait.
	rememberedFor = time.Hour
	maxRemembered = 20
)

// comebacks is how often pods returned to a node.
type comebacks struct {
	count int
	// byNamespace is set if the pods that returned have other names and labels than this one. They
	// count because they are in its namespace and were created after the drain had begun.
	byNamespace bool
}

// countComebacks counts how many pods like this one were evacuated from the node, each created
// after the evacuation of the previous one. Pods that existed at the same time left in one drain
// and count as one. A deleted pod is like this one if its Evacuation has the same pod name or the
// same labels.
//
// A client may create each pod with another name, other labels and no owner. So countComebacks also
// counts all pods of the namespace that were created after its first Evacuation on the node, and
// uses the higher of the two counts. All these pods ignore the cordon, and a namespace has few
// clients that create such pods. created has the creation times of deleted pods that this leader
// has observed.
func countComebacks(pod *corev1.Pod, evacuations []*v1alpha1.Evacuation, created map[types.UID]time.Time) comebacks {
	var left []*v1alpha1.Evacuation
	for _, e := range evacuations {
		if e.Namespace == pod.Namespace && e.Spec.PodRef.UID != pod.UID && hasEvacuated(e) {
			left = append(left, e)
		}
	}
	slices.SortFunc(left, func(a, b *v1alpha1.Evacuation) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	var alike, late []*v1alpha1.Evacuation
	for _, e := range left {
		isLike := isAlike(pod, e)
		if isLike {
			alike = append(alike, e)
		}
		at, known := created[e.Spec.PodRef.UID]
		if isLike || known && at.After(left[0].CreationTimestamp.Time) {
			late = append(late, e)
		}
	}
	own, all := chainOf(pod, alike), chainOf(pod, late)
	return comebacks{count: max(own, all), byNamespace: all > own}
}

// chainOf returns the number of Evacuations in a chain, in which each began after the end of the
// previous one. It returns 0 if the pod was created before the last of them.
func chainOf(pod *corev1.Pod, left []*v1alpha1.Evacuation) int {
	count := 0
	var last *v1alpha1.Evacuation
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

// hasEvacuated reports whether the pod of an Evacuation has left.
func hasEvacuated(e *v1alpha1.Evacuation) bool {
	_, left := protocol.LeftAt(e)
	return left
}

func goneAt(e *v1alpha1.Evacuation) time.Time {
	at, _ := protocol.LeftAt(e)
	return at
}

func isAlike(pod *corev1.Pod, e *v1alpha1.Evacuation) bool {
	return e.Spec.PodRef.Name == pod.Name || len(pod.Labels) > 0 && maps.Equal(pod.Labels, e.Labels)
}

// heldUntil returns the time until which a pod that keeps returning is not evicted; zero if the pod
// may be evicted now.
func heldUntil(s situation) time.Time {
	if s.comebacks.count <= comebacksTolerated {
		return time.Time{}
	}
	hold := min(firstHold<<min(s.comebacks.count-comebacksTolerated-1, 10), longestHold)
	return s.pod.CreationTimestamp.Add(hold)
}

// recreated returns the blocker of a pod that is not evicted until the given time, because pods
// like it have returned to the node repeatedly.
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
	created := s.pod.CreationTimestamp.UTC().Format(time.RFC3339)
	what := fmt.Sprintf("%s has returned to node %s %d times after it was evacuated, the last time at %s.", owner, s.pod.Spec.NodeName, s.comebacks.count, created)
	if s.comebacks.byNamespace {
		what = fmt.Sprintf("%s was created at %s on node %s, as other pods of its namespace with other names and labels were since the drain began: %d times.",
			owner, created, s.pod.Spec.NodeName, s.comebacks.count)
	}
	return &eviction.Blocker{
		Reason:  v1alpha1.ReasonRecreated,
		Message: fmt.Sprintf("%s %s It is evicted again at %s.", what, remedy, until.UTC().Format(time.RFC3339)),
	}
}

// arrivals records two things that the existing Evacuations do not show: when their pods were
// created, and which pods with deleted Evacuations had returned. A new leader does not know the
// pods that left before, so it counts pods with other names and labels from zero.
type arrivals struct {
	pods loop.Memory[types.UID, arrival]
	// past has the returned pods that have left, the oldest first.
	past loop.Memory[place, []departure]
}

// place is a namespace and the node to which its pods return.
type place struct{ namespace, node string }

type arrival struct {
	created  time.Time
	returned bool
}

type departure struct {
	evacuation *v1alpha1.Evacuation
	created    time.Time
}

// add records a pod if matters returns true. It calls matters under the lock, since leave may be
// called at the same time.
func (a *arrivals) add(pod *corev1.Pod, matters func() bool) {
	a.pods.Change(pod.UID, func(was arrival, known bool) (arrival, bool) {
		if !known {
			was = arrival{created: pod.CreationTimestamp.Time}
		}
		return was, known || matters()
	})
}

// count returns how often pods like this one returned to its node. evacuations are the existing
// Evacuations of the node.
func (a *arrivals) count(pod *corev1.Pod, evacuations []*v1alpha1.Evacuation, now time.Time) comebacks {
	created := make(map[types.UID]time.Time, len(evacuations))
	for _, e := range evacuations {
		if is, known := a.pods.Get(e.Spec.PodRef.UID); known {
			created[e.Spec.PodRef.UID] = is.created
		}
	}
	past, _ := a.past.Get(place{pod.Namespace, pod.Spec.NodeName})
	for _, left := range past {
		if !left.isOver(now) {
			evacuations = append(evacuations, left.evacuation)
			created[left.evacuation.Spec.PodRef.UID] = left.created
		}
	}
	counted := countComebacks(pod, evacuations, created)
	if counted.count > 0 {
		a.pods.Change(pod.UID, func(is arrival, known bool) (arrival, bool) { return arrival{is.created, true}, known })
	}
	return counted
}

// leave records that an Evacuation was deleted.
func (a *arrivals) leave(e *v1alpha1.Evacuation) {
	was, _ := a.pods.Get(e.Spec.PodRef.UID)
	a.pods.Forget(e.Spec.PodRef.UID)
	if !was.returned || !hasEvacuated(e) {
		return
	}
	a.past.Change(place{e.Namespace, e.Spec.NodeName}, func(past []departure, _ bool) ([]departure, bool) {
		past = append(slices.Clone(past), departure{e, was.created})
		return past[max(0, len(past)-maxRemembered):], true
	})
}

// sweep forgets the places to which no pod has returned for a while.
func (a *arrivals) sweep(now time.Time) {
	a.past.Sweep(func(past []departure) bool { return past[len(past)-1].isOver(now) })
}

func (d departure) isOver(now time.Time) bool { return now.Sub(goneAt(d.evacuation)) >= rememberedFor }
