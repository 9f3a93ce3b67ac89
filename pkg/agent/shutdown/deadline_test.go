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

package shutdown

import (
	"testing"
	"time"

	"haulout.dev/haulout/pkg/agent/state"
)

func TestRemaining(t *testing.T) {
	at := wall.Add
	for name, tt := range map[string]struct {
		machine MachineState
		want    time.Duration
	}{
		"a deadline":                       {MachineState{Since: at(0), Deadline: at(time.Minute)}, time.Minute},
		"no deadline and a delay":          {MachineState{Delay: 5 * time.Second}, 5 * time.Second},
		"no deadline and no delay":         {MachineState{}, 30 * time.Minute},
		"longer than configured":           {MachineState{Since: at(0), Deadline: at(24 * time.Hour)}, 30 * time.Minute},
		"longer than configured, and late": {MachineState{Since: at(-10 * time.Minute), Deadline: at(24 * time.Hour)}, 20 * time.Minute},
		"over":                             {MachineState{Since: at(-time.Hour), Deadline: at(-time.Minute), Delay: 5 * time.Minute}, 5 * time.Minute},
		"over since the limit":             {MachineState{Since: at(-time.Hour), Deadline: at(time.Minute)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := remainingOf(&tt.machine, wall, 30*time.Minute); got != tt.want {
				t.Errorf("remainingOf() = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestRemainingOfStored(t *testing.T) {
	at := wall.Add
	for name, tt := range map[string]struct {
		signal state.Signal
		want   time.Duration
		wantOK bool
	}{
		"none":                   {state.Signal{}, 0, false},
		"in the middle":          {state.Signal{Time: at(-time.Minute), Deadline: at(time.Minute)}, time.Minute, true},
		"the clock was set back": {state.Signal{Time: at(time.Hour), Deadline: at(time.Hour + 2*time.Minute)}, 2 * time.Minute, true},
		"the clock was set forward, or the shutdown is another one": {state.Signal{Time: at(-time.Hour), Deadline: at(-50 * time.Minute)}, 0, false},
		"longer than configured":                                    {state.Signal{Time: at(0), Deadline: at(2 * time.Hour)}, 30 * time.Minute, true},
		"without a beginning":                                       {state.Signal{Deadline: at(time.Minute)}, time.Minute, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := remainingOfStored(&tt.signal, wall, 30*time.Minute)
			if got != tt.want || ok != tt.wantOK {
				t.Errorf("remainingOfStored() = %s, %t, want %s, %t", got, ok, tt.want, tt.wantOK)
			}
		})
	}
}
