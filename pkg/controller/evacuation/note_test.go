// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestMessageOfAPodThatWaitsInTheQueue(t *testing.T) {
	const waits = "The pod waits for other pods of StatefulSet db to be available."
	handover := turnMessage(v1alpha1.EvacuatorClassEviction, "test")
	for name, tc := range map[string]struct {
		class string
		state eviction.State
		want  string
	}{
		"the queue has a message": {
			v1alpha1.EvacuatorClassEviction, eviction.State{Known: true, Message: waits}, waits,
		},
		"the queue has no message": {v1alpha1.EvacuatorClassEviction, eviction.State{Known: true}, handover},
		"another evacuator is active": {
			"a.example.com", eviction.State{Known: true, Message: waits}, turnMessage("a.example.com", "test"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := decision{evict: true}
			e := newEvacuation(active(tc.class))
			d.status = e.Status
			d.quoteQueue(situation{evacuation: e, eviction: tc.state})
			is.Equal(t, d.status.Message, tc.want, "message")
		})
	}
}
