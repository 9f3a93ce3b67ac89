// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
)

func TestJournal(t *testing.T) {
	var j Journal
	nm := &state.MaintenanceRef{Name: "shutdown-a-1"}
	for i, step := range []struct {
		status shutdown.Status
		want   []Message
	}{
		{status: shutdown.Status{State: state.State{Phase: state.Armed}}},
		{
			status: shutdown.Status{State: state.State{Phase: state.Armed}, Problems: []string{"a", "b"}},
			want:   []Message{{EventProblem, true, "Problem: a"}, {EventProblem, true, "Problem: b"}},
		},
		{status: shutdown.Status{State: state.State{Phase: state.Armed}, Problems: []string{"b", "a"}}},
		{
			status: shutdown.Status{State: state.State{Phase: state.Maintaining, Maintenance: nm}, Problems: []string{"b"}},
			want:   []Message{{EventPhase, false, "Phase of the node's shutdown: Maintaining, NodeMaintenance shutdown-a-1"}, {EventSolved, false, "Problem solved: a"}},
		},
		{
			status: shutdown.Status{State: state.State{Phase: state.LocalRun, Maintenance: nm}, Why: "no API", Problems: []string{"b"}},
			want:   []Message{{EventPhase, true, "Phase of the node's shutdown: Local, NodeMaintenance shutdown-a-1: no API"}},
		},
		{status: shutdown.Status{State: state.State{Phase: state.LocalRun, Maintenance: nm}, Why: "no API", Problems: []string{"b"}}},
	} {
		if diff := cmp.Diff(step.want, j.Next(&step.status)); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
}
