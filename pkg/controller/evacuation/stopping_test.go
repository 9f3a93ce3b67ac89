// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
)

func TestDecideStopping(t *testing.T) {
	const stopping, long = "not: PodStopping", "LongGracePeriod"
	unreachable := func(s *situation) { s.nodeUnreachable = true }
	runDecide(t, map[string]decideTest{
		"a pod that has just begun to stop costs no write": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(hour)), at: 2 * second,
			want: outcome{Active: evict, Wake: 5 * second},
		},
		"the end of the grace period of a stopping pod is reported": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(hour)), at: minute,
			want: outcome{Active: evict, Blocked: stopping, Wake: hour + 30*second},
			says: "The pod is stopping until " + start.Add(hour).Format(time.RFC3339),
		},
		"the stopping of a pod that leaves by scale-down is in the condition, and the message of its evacuator stays": {
			evacuation: turnOfA(reported(0, "scaled down")),
			pod:        newPod(stoppingFor(20 * minute)), at: minute,
			want: outcome{Active: classA, Blocked: stopping, Wake: 20*minute + 30*second},
			says: "scaled down",
		},
		"the longest grace period that is not blocked, at its end": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(protocol.DefaultLongGrace)), at: protocol.DefaultLongGrace,
			want: outcome{Active: evict, Blocked: stopping, Wake: protocol.DefaultLongGrace + 30*second},
		},
		"a longer grace period, before it is long": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(365 * 24 * hour)), at: hour,
			want: outcome{Active: evict, Blocked: stopping, Wake: protocol.DefaultLongGrace},
		},
		"a longer grace period, when it is long": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(365 * 24 * hour)), at: protocol.DefaultLongGrace,
			want: outcome{Active: evict, Blocked: long, Wake: 365*24*hour + 30*second, Events: EventBlocked},
		},
		"a node without a heartbeat comes first within the grace period": {
			evacuation: upForEviction(), pod: newPod(stoppingFor(2 * hour)), at: second, mod: unreachable,
			want: outcome{Active: evict, Blocked: "NodeUnreachable", Events: EventBlocked},
		},
		"a node without a heartbeat comes first although an evacuator is active": {
			evacuation: turnOfA(), pod: newPod(), at: minute, mod: unreachable,
			want: outcome{Active: classA, Blocked: "NodeUnreachable", Wake: 2*minute + 30*second, Events: EventBlocked},
		},
		"a pod that waits for its turn is reported": {
			evacuation: upForEviction(), pod: newPod(), at: minute,
			mod:  func(s *situation) { s.eviction = eviction.State{Known: true, Message: "The pod waits."} },
			want: outcome{Active: evict, Blocked: "not: PodWaits", Evict: true},
			says: "The pod waits.",
		},
		"a node without a heartbeat is reported for a pod that waits for its turn": {
			evacuation: upForEviction(), pod: newPod(), at: minute,
			mod: func(s *situation) {
				s.nodeUnreachable, s.eviction = true, eviction.State{Known: true, Message: "The pod waits."}
			},
			want: outcome{Active: evict, Blocked: "NodeUnreachable", Evict: true, Events: EventBlocked},
		},
		"the pod is gone, which ends the stopping": {
			evacuation: upForEviction(wasStopping), at: minute,
			want: outcome{Active: evict, Complete: "PodDeleted", Blocked: "not: NotBlocked", Wake: 6 * minute},
		},
	})
}

// wasStopping adds the condition of a stopping pod to an Evacuation.
func wasStopping(e *v1alpha1.Evacuation) {
	withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodStopping, 0)(e)
	e.Status.Conditions[len(e.Status.Conditions)-1].Status = "False"
}

// TestLongGracePeriodNamesPodAndEnd also covers a node that stops responding: the end is in both
// messages.
func TestLongGracePeriodNamesPodAndEnd(t *testing.T) {
	const grace = 24 * hour
	for name, mod := range map[string]func(*situation){
		"the kubelet responds":         func(*situation) {},
		"the kubelet does not respond": func(s *situation) { s.nodeUnreachable = true },
	} {
		t.Run(name, func(t *testing.T) {
			s := situation{
				now: start.Add(3 * hour), evacuation: upForEviction(), pod: newPod(stoppingFor(grace)),
				podType: v1alpha1.PodTypeDefault, longGrace: protocol.DefaultLongGrace,
			}
			mod(&s)
			d := decide(s)
			got := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked).Message
			if want := start.Add(grace).Format(time.RFC3339); !strings.Contains(got, want) {
				t.Errorf("got %q, want the end %s in it", got, want)
			}
			if node := strings.Contains(got, testNode); node != s.nodeUnreachable || strings.Contains(got, podName) == node {
				t.Errorf("got %q, want it to name the pod, or the node that does not respond", got)
			}
		})
	}
}
