// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	costKey     = "controller.kubernetes.io/pod-deletion-cost"
	originalKey = "maintenance.haulout.dev/original-pod-deletion-cost"
	lowest      = "-2147483647"
)

func ofReplicaSet(p *corev1.Pod) {
	p.OwnerReferences = build.Owner("apps/v1", "ReplicaSet", "web", "uid-web")
}

func annotated(annotations map[string]string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations = annotations }
}

// untilAnnotations waits until the pod has exactly the given annotations.
func (w *world) untilAnnotations(step time.Duration, want map[string]string) {
	w.Helper()
	var got map[string]string
	if !informertest.Until(step, func() bool {
		pod := must.Get(w.client.CoreV1().Pods("shop").Get(w.Context(), podName, metav1.GetOptions{}))(w)
		got = pod.Annotations
		return maps.Equal(got, want)
	}) {
		w.Fatalf("got annotations %v, want %v", got, want)
	}
}

func TestDeletionCostIsLoweredAndRestored(t *testing.T) {
	withdraw := func(w *world) { w.api.edit(w.T, w.target, withFinalizers()) }
	for name, tc := range map[string]struct {
		original   map[string]string
		evacuation []func(*maintenancev1alpha1.Evacuation)
		end        func(*world)
	}{
		"restored when the evacuation is cancelled": {map[string]string{costKey: "7"}, nil, withdraw},
		"removed if the pod had none":               {nil, nil, withdraw},
		"restored when a user deletes the Evacuation": {
			original: map[string]string{costKey: "7"}, end: func(w *world) { w.api.edit(w.T, w.target, deleting) },
		},
		"restored when the Evacuation is removed without its finalizers": {
			original: map[string]string{costKey: "7"},
			end: func(w *world) {
				must.Do(w, w.api.client.Tracker().Delete(evacuationsResource, w.target.Namespace, w.target.Name))
			},
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, 0, newEvacuation(tc.evacuation...), newPod(ofReplicaSet, annotated(tc.original)),
				newNode(corev1.ConditionTrue), newBudget("1", 0))
			w.host.answer(refuse)
			w.until("the eviction is active", 0, hasClass(evict))
			w.untilAnnotations(time.Second, map[string]string{costKey: lowest, originalKey: tc.original[costKey]})
			if waited := w.clock.Since(start); waited < 10*time.Second {
				t.Errorf("the deletion cost was lowered after %s, want not before 10s", waited)
			}
			tc.end(w)
			w.untilAnnotations(0, tc.original)
		})
	}
}

func TestDeletionCostThatTheLastLeaderLowered(t *testing.T) {
	lowered := map[string]string{costKey: lowest, originalKey: "7"}
	bubble.Run(t, "restored if the Evacuation does not exist", func(t *testing.T) {
		other := newEvacuation(func(e *maintenancev1alpha1.Evacuation) {
			e.Name, e.Spec.PodRef.Name, e.Spec.PodRef.UID = "uid-web-2", "web-2", "uid"
		})
		w := newWorld(t, 0, other, newPod(ofReplicaSet, annotated(lowered)), newNode(corev1.ConditionTrue))
		w.untilAnnotations(0, map[string]string{costKey: "7"})
	})
	bubble.Run(t, "restored if the evacuation was cancelled", func(t *testing.T) {
		w := newWorld(
			t, 0,
			newEvacuation(withCondition(maintenancev1alpha1.ConditionComplete, maintenancev1alpha1.ReasonCancelled, 0)),
			newPod(ofReplicaSet, annotated(lowered)), newNode(corev1.ConditionTrue),
		)
		w.untilAnnotations(0, map[string]string{costKey: "7"})
	})
	bubble.Run(t, "kept while the pod is asked to leave", func(t *testing.T) {
		w := newWorld(t, 0, newEvacuation(), newPod(ofReplicaSet, annotated(lowered)),
			newNode(corev1.ConditionTrue), newBudget("1", 0))
		w.host.answer(refuse)
		w.until("the Evacuation is blocked", time.Second,
			hasReason(maintenancev1alpha1.ConditionBlocked, maintenancev1alpha1.ReasonPodDisruptionBudget))
		w.untilAnnotations(0, lowered)
	})
	bubble.Run(t, "restored although the first attempts fail", func(t *testing.T) {
		other := newEvacuation(func(e *maintenancev1alpha1.Evacuation) {
			e.Name, e.Spec.PodRef.Name, e.Spec.PodRef.UID = "uid-web-2", "web-2", "uid"
		})
		pod := newPod(ofReplicaSet, annotated(lowered))
		failures := 3
		w := newWorldWith(t, 0, other, func(client *fake.Clientset) {
			client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				failures--
				if failures >= 0 {
					return true, nil, apierrors.NewInternalError(context.DeadlineExceeded)
				}
				return false, nil, nil
			})
		}, pod, newNode(corev1.ConditionTrue))
		w.untilAnnotations(50*time.Millisecond, map[string]string{costKey: "7"})
	})
}
