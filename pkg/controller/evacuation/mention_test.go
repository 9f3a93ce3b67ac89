// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const mentioned = " The pod leaves for NodeMaintenance kernel-2026-11 (kernel update)."

func TestMention(t *testing.T) {
	nm := asking("kernel-2026-11", newNode(corev1.ConditionTrue))
	long := strings.Repeat("ä", protocol.MaxMessage)
	for name, tt := range map[string]struct {
		decision  decision
		nm        *v1alpha1.NodeMaintenance
		status    string
		notes     []string
		forPeople bool
	}{
		"a hand-over: the status and the event": {
			decision: decision{
				handedOver: true, status: v1alpha1.EvacuationStatus{Message: "x."},
				events: []event{{reason: EventHandedOver, note: "y."}},
			},
			nm: nm, status: "x." + mentioned, notes: []string{"y." + mentioned}, forPeople: true,
		},
		"an event about a blocker: not the message of the evacuator": {
			decision: decision{
				status: v1alpha1.EvacuationStatus{Message: "copying"},
				events: []event{{reason: EventBlocked, note: "y."}},
			},
			nm: nm, status: "copying", notes: []string{"y." + mentioned}, forPeople: true,
		},
		"a message that names the maintenance already: nothing": {
			decision: decision{
				handedOver: true, status: v1alpha1.EvacuationStatus{Message: `It said: "for NodeMaintenance kernel-2026-11 (kernel update)".`},
				events: []event{{reason: EventHandedOver, note: `It said: "for NodeMaintenance kernel-2026-11".`}},
			},
			nm: nm, status: `It said: "for NodeMaintenance kernel-2026-11 (kernel update)".`,
			notes: []string{`It said: "for NodeMaintenance kernel-2026-11".`}, forPeople: true,
		},
		"a cancellation: nothing": {
			decision: decision{events: []event{{reason: EventCancelled, note: "y."}}}, nm: nm, notes: []string{"y."},
			forPeople: true,
		},
		"no maintenance targets the pod: nothing": {
			decision: decision{
				handedOver: true, status: v1alpha1.EvacuationStatus{Message: "x."},
				events: []event{{reason: EventBlocked, note: "y."}},
			},
			status: "x.", notes: []string{"y."}, forPeople: true,
		},
		"a long message is cut before the name of the maintenance": {
			decision: decision{handedOver: true, status: v1alpha1.EvacuationStatus{Message: long}}, nm: nm,
			status: wording.Cut(long, protocol.MaxMessage-len(mentioned)) + mentioned, forPeople: true,
		},
		"a decision without a message": {decision: decision{}},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, tt.decision.isForPeople(), tt.forPeople, "isForPeople")
			tt.decision.mention(tt.nm)
			if got := tt.decision.status.Message; got != tt.status || len(got) > protocol.MaxMessage {
				t.Errorf("got message %q, want %q", got, tt.status)
			}
			for i, want := range tt.notes {
				is.Equal(t, tt.decision.events[i].note, want, "note")
			}
		})
	}
}

func TestEventOfAnEvictionNamesTheMaintenance(t *testing.T) {
	const unprotected = "Normal Evicted The pod is evicted. No disruption budget selects it."
	for name, tt := range map[string]struct {
		asked, protected bool
		want             string
	}{
		"a maintenance targets the pod":  {asked: true, want: unprotected + mentioned},
		"no maintenance targets the pod": {want: unprotected},
		"a budget selects the pod": {
			protected: true, want: "Normal Evicted The pod is evicted, as its disruption budget allows.",
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			node := newNode(corev1.ConditionTrue)
			objects := []runtime.Object{newPod(), node}
			if tt.protected {
				objects = append(objects, newBudget("1", 1))
			}
			w := newWorld(t, 0, newEvacuation(withEvacuators(classA), active(classA)), objects...)
			if tt.asked {
				must.Do(w, w.api.client.Tracker().Add(asking("kernel-2026-11", node)))
			}
			w.until("the pod is deleted", 10*time.Second, podDeleted)
			var evicted []string
			for len(w.events.Events) > 0 {
				if text := <-w.events.Events; strings.Contains(text, EventEvicted) {
					evicted = append(evicted, text)
				}
			}
			is.True(t, slices.Equal(evicted, []string{tt.want}), "got events %q, want %q", evicted, tt.want)
		})
	}
}

func TestHandOverNamesTheMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode(corev1.ConditionTrue)
		w := newWorld(t, 0, newEvacuation(withEvacuators(classA), active(classA)), newPod(), node, newBudget("1", 0))
		must.Do(w, w.api.client.Tracker().Add(asking("kernel-2026-11", node)))
		w.until("the eviction is active", 10*time.Second, hasClass(evict))
		if got := w.get().Status.Message; !strings.HasSuffix(got, mentioned) {
			t.Errorf("got message %q, want it to end with %q", got, mentioned)
		}
	})
}
