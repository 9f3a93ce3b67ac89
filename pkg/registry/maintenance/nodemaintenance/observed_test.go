// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	testclock "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/must"
)

// observedAt returns an observation at a time at which a replica leads.
func observedAt(now time.Time) observation {
	return observation{clock: testclock.NewFakePassiveClock(now), noLeader: func() string { return "" }}
}

func TestTableOfMaintenanceThatIsNotObserved(t *testing.T) {
	at := func(sinceStart time.Duration) *metav1.Time { return &metav1.Time{Time: start.Add(sinceStart)} }
	for name, test := range map[string]struct {
		change func(*maintenance.NodeMaintenance)
		after  time.Duration
		want   string
	}{
		"a maintenance that was created a moment ago": {after: 59 * time.Second, want: "Drain"},
		"a maintenance that was created a minute ago": {after: time.Minute, want: "Drain (not observed)"},
		"a maintenance that was observed": {
			change: func(nm *maintenance.NodeMaintenance) { nm.Status.ObservedGeneration = 3 }, after: time.Hour, want: "Drain",
		},
		"a maintenance whose stage changed a moment ago": {
			change: func(nm *maintenance.NodeMaintenance) {
				nm.Status.ObservedGeneration = 2
				nm.Status.StageStatuses = []maintenance.StageStatus{{Name: drain, StartTimestamp: at(time.Hour)}}
			}, after: time.Hour + 59*time.Second, want: "Drain",
		},
		"a maintenance whose stage changed a minute ago": {
			change: func(nm *maintenance.NodeMaintenance) {
				nm.Status.ObservedGeneration = 2
				nm.Status.StageStatuses = []maintenance.StageStatus{{Name: drain, StartTimestamp: at(time.Hour)}}
			}, after: time.Hour + time.Minute, want: "Drain (not observed)",
		},
		"a maintenance whose selector changed a moment ago": {
			change: func(nm *maintenance.NodeMaintenance) {
				nm.Status.ObservedGeneration = 2
				nm.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", Time: at(time.Hour)}}
			}, after: time.Hour + 59*time.Second, want: "Drain",
		},
		"a maintenance whose status was written a moment ago for an older generation": {
			change: func(nm *maintenance.NodeMaintenance) {
				nm.Status.ObservedGeneration = 2
				nm.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "haulout", Subresource: "status", Time: at(time.Hour)}}
			}, after: time.Hour + 59*time.Second, want: "Drain (not observed)",
		},
		"a maintenance that was deleted a minute ago": {
			change: func(nm *maintenance.NodeMaintenance) {
				nm.Spec.Stage = complete
				nm.Finalizers = []string{completion}
				nm.DeletionTimestamp = at(time.Hour)
			}, after: time.Hour + time.Minute, want: "Complete (not observed)",
		},
		"a maintenance that has released its nodes and got another reason": {
			change: func(nm *maintenance.NodeMaintenance) { nm.Spec.Stage = complete }, after: time.Hour, want: "Complete",
		},
	} {
		t.Run(name, func(t *testing.T) {
			nm := newMaintenance(t, "a", atStage(drain))
			nm.Generation, nm.CreationTimestamp = 3, metav1.NewTime(start)
			if test.change != nil {
				test.change(nm)
			}
			table := must.Get(newTable(observedAt(start.Add(test.after))).ConvertToTable(t.Context(), nm, nil))(t)
			if got := table.Rows[0].Cells[2]; got != test.want {
				t.Errorf("got stage %q, want %q", got, test.want)
			}
		})
	}
}

// TestWarningsWithoutALeader gets, creates and updates maintenances.
func TestWarningsWithoutALeader(t *testing.T) {
	const leaderless = protocol.NoLeaderWarning + ": none has renewed the Lease"
	r := newRegistry(t, registrytest.RunEtcd(t))
	requests := map[string]func(name string) []string{
		"get": func(name string) []string {
			ctx, warnings := registrytest.WithWarnings(r.ctx(ann, ""))
			must.Get(r.storage.NodeMaintenance.Get(ctx, name, &metav1.GetOptions{}))(t)
			return warnings.Texts()
		},
		"update": func(name string) []string {
			ctx, warnings := registrytest.WithWarnings(r.ctx(ann, ""))
			if _, _, err := r.storage.NodeMaintenance.Update(ctx, name, transform(func(nm *maintenance.NodeMaintenance) {
				nm.Spec.Reason += "!"
			}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			return warnings.Texts()
		},
		"create": func(name string) []string {
			ctx, warnings := registrytest.WithWarnings(r.ctx(ann, ""))
			must.Get(r.storage.NodeMaintenance.Create(ctx, newMaintenance(t, fmt.Sprintf("%s-%t", name, r.noLeader != "")),
				rest.ValidateAllObjectFunc, &metav1.CreateOptions{}))(t)
			return warnings.Texts()
		},
	}
	for verb, request := range requests {
		t.Run(verb, func(t *testing.T) {
			r.noLeader = ""
			r.mustCreate(ann, newMaintenance(t, verb, atStage(drain)))
			if got := request(verb); len(got) != 0 {
				t.Errorf("with a leader: got warnings %q", got)
			}
			r.noLeader = leaderless
			if got := request(verb); !slices.Equal(got, []string{leaderless}) {
				t.Errorf("without a leader: got warnings %q", got)
			}
		})
	}
	t.Run("a leader that does not observe it", func(t *testing.T) {
		r.noLeader = ""
		nm := newMaintenance(t, "a", atStage(drain))
		nm.Generation = 1
		nm.CreationTimestamp = metav1.NewTime(start)
		got := observedAt(start.Add(2 * time.Minute)).warnings(nm)
		if len(got) != 1 || !strings.HasPrefix(got[0], protocol.NoLeaderWarning) || !strings.Contains(got[0], "generation 1") {
			t.Errorf("got warnings %q", got)
		}
		if got := observedAt(start.Add(59 * time.Second)).warnings(nm); len(got) != 0 {
			t.Errorf("before a minute: got warnings %q", got)
		}
	})
}
