// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
)

func TestMessageOfAPodThatWaitsInTheQueue(t *testing.T) {
	const waits = "The pod waits for other pods of StatefulSet db to be available."
	handover := turnMessage(maintenancev1alpha1.EvacuatorClassEviction, "test")
	for name, tc := range map[string]struct {
		class string
		state eviction.State
		want  string
	}{
		"the queue has a message": {
			class: maintenancev1alpha1.EvacuatorClassEviction, state: eviction.State{Known: true, Message: waits},
			want: waits,
		},
		"the queue has no message": {
			class: maintenancev1alpha1.EvacuatorClassEviction, state: eviction.State{Known: true}, want: handover,
		},
		"another evacuator is active": {
			class: "a.example.com", state: eviction.State{Known: true, Message: waits},
			want: turnMessage("a.example.com", "test"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := decision{evict: true}
			e := newEvacuation(active(tc.class))
			d.status = e.Status
			d.quoteQueue(situation{evacuation: e, eviction: tc.state})
			if d.status.Message != tc.want {
				t.Errorf("got message %q, want %q", d.status.Message, tc.want)
			}
		})
	}
}
