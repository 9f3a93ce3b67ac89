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
			want:   []Message{{EventPhase, false, "Shutdown of the node: Maintaining, NodeMaintenance shutdown-a-1"}, {EventSolved, false, "No problem any more: a"}},
		},
		{
			status: shutdown.Status{State: state.State{Phase: state.LocalRun, Maintenance: nm}, Why: "no API", Problems: []string{"b"}},
			want:   []Message{{EventPhase, true, "Shutdown of the node: Local, NodeMaintenance shutdown-a-1: no API"}},
		},
		{status: shutdown.Status{State: state.State{Phase: state.LocalRun, Maintenance: nm}, Why: "no API", Problems: []string{"b"}}},
	} {
		if diff := cmp.Diff(step.want, j.Next(&step.status)); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
}
