// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/build"
)

const (
	class    = v1alpha1.EvacuatorClassDaemonSet
	ours     = v1alpha1.FinalizerInstigatorNodeMaintenance
	podName  = "logger-x7k"
	podUID   = types.UID("11111111-2222-3333-4444-555555555555")
	nodeName = "node-7"
)

// start is the initial time of a bubble.
var start = informertest.Start

func at(d time.Duration) *metav1.Time {
	return &metav1.Time{Time: start.Add(d)}
}

// newEvacuation returns an Evacuation for which this evacuator has been active since the start.
func newEvacuation(mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	return build.With(&v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "logging", Name: protocol.CanonicalName(podName, podUID), UID: "evacuation-1",
			ResourceVersion: "1", Finalizers: []string{ours},
		},
		Spec: v1alpha1.EvacuationSpec{
			PodRef: v1alpha1.PodReference{Name: podName, UID: podUID}, NodeName: nodeName,
			ProgressDeadlineSeconds: ptr.To[int32](1800),
		},
		Status: v1alpha1.EvacuationStatus{
			ActiveEvacuatorClass: class, ActiveEvacuatorSince: at(0), Message: "turn",
		},
	}, mods...)
}

func reported(when, expected time.Duration, message string) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		e.Status.EvacuationProgressTimestamp, e.Status.ExpectedEvacuationFinishTime, e.Status.Message = at(when), at(
			expected,
		), message
	}
}

func newPod(mods ...func(*corev1.Pod)) *corev1.Pod {
	return build.With(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "logging", Name: podName, UID: podUID, ResourceVersion: "1",
			OwnerReferences: build.Owner("apps/v1", "DaemonSet", "logger", "ds"),
		},
		Spec:   corev1.PodSpec{NodeName: nodeName, TerminationGracePeriodSeconds: ptr.To[int64](60)},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}, mods...)
}

func stopping(until time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp = at(until)
		// The fake API refuses a terminating pod without a finalizer.
		p.Finalizers = []string{"example.com/hold"}
	}
}

func newNode(mods ...func(*corev1.Node)) *corev1.Node {
	return build.With(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "uid-node-7"}}, mods...)
}

func tainted(n *corev1.Node) {
	n.Spec.Taints = []corev1.Taint{{Key: "maintenance.haulout.dev/drain", Effect: corev1.TaintEffectNoSchedule}}
}

// newMaintenance returns a maintenance that drains all DaemonSet pods of the node.
func newMaintenance(mods ...func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	return build.With(&v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "kernel", UID: "uid-kernel", ResourceVersion: "1"},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageDrain, Reason: "kernel update",
		},
		Status: v1alpha1.NodeMaintenanceStatus{
			NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{{
				NodeRef: v1alpha1.NodeReference{Name: nodeName, UID: "uid-node-7"},
				DrainTargets: []v1alpha1.DrainPlanEntry{
					{PodType: v1alpha1.PodTypeDaemonSet, PodPriority: 1000},
				},
			}},
		},
	}, mods...)
}

func tolerating(t corev1.Toleration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{t} }
}

func TestDecide(t *testing.T) {
	const message = "The pod is evicted for NodeMaintenance kernel (kernel update) and has 1m0s to stop."
	const waits = "The pod waits until node node-7 has released volumes of pods that have left, at most until " +
		"2000-01-01T00:05:00Z: csi.example.com^vol-1."
	volumes := func(s *situation) {
		s.volumes, s.volumesUntil = []string{"csi.example.com^vol-1"}, start.Add(5*time.Minute)
	}
	asked := func(mods ...func(*situation)) situation {
		s := situation{
			now: start.Add(time.Minute), evacuation: newEvacuation(), pod: newPod(), node: newNode(tainted),
			askedBy: newMaintenance(),
		}
		return *build.With(&s, mods...)
	}
	evacuation := func(mods ...func(*v1alpha1.Evacuation)) func(*situation) {
		return func(s *situation) { s.evacuation = newEvacuation(mods...) }
	}
	pod := func(mods ...func(*corev1.Pod)) func(*situation) {
		return func(s *situation) { s.pod = newPod(mods...) }
	}
	status := func(
		progress time.Duration, mods ...func(*v1alpha1.EvacuationStatus),
	) *v1alpha1.EvacuationStatus {
		return build.With(&v1alpha1.EvacuationStatus{
			ActiveEvacuatorClass: class, ActiveEvacuatorSince: at(0), EvacuationProgressTimestamp: at(progress),
		}, mods...)
	}
	saying := func(expected time.Duration, message string) func(*v1alpha1.EvacuationStatus) {
		return func(st *v1alpha1.EvacuationStatus) {
			st.ExpectedEvacuationFinishTime, st.Message = at(expected), message
		}
	}
	declined := func(message string) func(*v1alpha1.EvacuationStatus) {
		return func(st *v1alpha1.EvacuationStatus) {
			st.ActiveEvacuatorCompleted, st.Message = true, message
		}
	}
	const (
		minute    = time.Minute
		tolerates = "The pod tolerates the taint maintenance.haulout.dev/drain: if it were evicted, its " +
			"DaemonSet would replace it on the node immediately. The pod is kept."
	)
	tolerant := tolerating(corev1.Toleration{Operator: corev1.TolerationOpExists})
	for name, tc := range map[string]struct {
		situation situation
		want      decision
	}{
		"the eviction is requested for a pod on a tainted node that is asked to leave": {
			situation: asked(), want: decision{status: status(minute, saying(2*minute, message)), requested: true},
		},
		"the message of a maintenance without a reason has none": {
			situation: asked(func(s *situation) { s.askedBy.Spec.Reason = "" }),
			want: decision{
				status: status(minute,
					saying(2*minute, "The pod is evicted for NodeMaintenance kernel and has 1m0s to stop.")),
				requested: true,
			},
		},
		"a pod without a grace period gets the default": {
			situation: asked(pod(func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = nil })),
			want: decision{
				status: status(minute, saying(minute+30*time.Second,
					"The pod is evicted for NodeMaintenance kernel (kernel update) and has 30s to stop.")),
				requested: true,
			},
		},
		"a requested eviction is not requested again": {
			situation: asked(evacuation(reported(0, 30*time.Second, message))),
		},
		"the pod waits while the node has volumes of pods that have left, and that is reported": {
			situation: asked(volumes),
			want: decision{
				status: status(minute, func(st *v1alpha1.EvacuationStatus) { st.Message = waits }),
				wake:   start.Add(minute + 30*time.Second),
			},
		},
		"the wait is not reported again before a third of the deadline has passed": {
			situation: asked(volumes, func(s *situation) {
				s.now = start.Add(4*minute + 45*time.Second)
				s.evacuation.Status.EvacuationProgressTimestamp = at(minute)
			}),
			want: decision{wake: start.Add(5 * minute)},
		},
		"the wait is reported more often with a short deadline": {
			situation: asked(volumes, func(s *situation) {
				s.evacuation.Status.EvacuationProgressTimestamp, s.evacuation.Spec.ProgressDeadlineSeconds = at(
					40*time.Second,
				), ptr.To[int32](60)
			}),
			want: decision{
				status: status(minute, func(st *v1alpha1.EvacuationStatus) { st.Message = waits }),
				wake:   start.Add(minute + 20*time.Second),
			},
		},
		"the wait for volumes ends after its timeout": {
			situation: asked(volumes, func(s *situation) { s.now = start.Add(5 * minute) }),
			want:      decision{status: status(5*minute, saying(6*minute, message)), requested: true},
		},
		"a pod that tolerates the taint does not wait for volumes": {
			situation: asked(volumes, pod(tolerant)), want: decision{status: status(minute, declined(tolerates))},
		},
		"a pod that the drain has not reached waits":      {situation: asked(func(s *situation) { s.askedBy = nil })},
		"a pod whose node is not tainted yet waits":       {situation: asked(func(s *situation) { s.node = newNode() })},
		"nothing is done if the pod is not in the cache":  {situation: asked(func(s *situation) { s.pod = nil })},
		"nothing is done if the node is not in the cache": {situation: asked(func(s *situation) { s.node = nil })},
		"nothing is done for a finished pod": {
			situation: asked(pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })),
		},
		"nothing is done while another evacuator is active": {
			situation: asked(evacuation(func(e *v1alpha1.Evacuation) {
				e.Status.ActiveEvacuatorClass = "a.example.com"
			})),
		},
		"nothing is done after this evacuator has declined": {
			situation: asked(evacuation(func(e *v1alpha1.Evacuation) {
				e.Status.ActiveEvacuatorCompleted = true
			})),
		},
		"nothing is done without an instigator": {
			situation: asked(evacuation(func(e *v1alpha1.Evacuation) { e.Finalizers = nil })),
		},
		"nothing is done for an Evacuation that is being deleted": {
			situation: asked(evacuation(func(e *v1alpha1.Evacuation) { e.DeletionTimestamp = at(0) })),
		},
		"nothing is done for a complete Evacuation": {
			situation: asked(evacuation(func(e *v1alpha1.Evacuation) {
				e.Status.Conditions = []metav1.Condition{
					{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue},
				}
			})),
		},
		"a pod that tolerates everything would return and is declined": {
			situation: asked(pod(tolerant)), want: decision{status: status(minute, declined(tolerates))},
		},
		"a pod without a DaemonSet is declined although its annotation names this evacuator": {
			situation: asked(pod(func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" })),
			want: decision{
				status: status(minute,
					declined("The pod does not belong to a DaemonSet: this evacuator does not act on it.")),
			},
		},
		"no report is written while a pod stops as expected": {
			situation: asked(evacuation(reported(minute, 2*minute, message)), pod(stopping(2*minute+time.Second))),
			want:      decision{wake: start.Add(11 * minute)},
		},
		"a pod that another client has deleted is reported": {
			situation: asked(pod(stopping(3 * minute))),
			want: decision{
				status: status(minute, saying(3*minute, "The pod is terminating; another client has deleted it.")),
				wake:   start.Add(11 * minute),
			},
		},
		"a grace period that a user has shortened is reported": {
			situation: asked(evacuation(reported(0, 3*minute, message)), pod(stopping(minute+time.Second))),
			want:      decision{status: status(minute, saying(minute+time.Second, message)), wake: start.Add(11 * minute)},
		},
		"heartbeats are sent within a long grace period": {
			situation: asked(evacuation(reported(-10*minute, 60*minute, message)), pod(stopping(60*minute))),
			want:      decision{status: status(minute, saying(60*minute, message)), wake: start.Add(11 * minute)},
		},
		"no heartbeat is sent after the grace period": {
			situation: asked(evacuation(reported(-10*minute, 0, message)), pod(stopping(0))),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(tc.situation)
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(decision{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestMessageFits(t *testing.T) {
	nm := newMaintenance()
	nm.Name, nm.Spec.Reason = strings.Repeat("n", 253), strings.Repeat("\x1b[31mä", 512)
	s := situation{now: start, evacuation: newEvacuation(), pod: newPod(), node: newNode(tainted), askedBy: nm}
	if message := decide(s).status.Message; len(message) > 1024 || strings.ContainsRune(message, 0x1b) ||
		!strings.HasSuffix(message, "to stop.") {
		t.Errorf("got %d bytes: %q", len(message), message)
	}
}
