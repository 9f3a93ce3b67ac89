// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// TestNext has when the next decision may differ.
func TestNext(t *testing.T) {
	window := v1alpha1.RolloutWindow{Schedule: "0 22 * * *", Duration: metav1.Duration{Duration: time.Hour}}
	hold := v1alpha1.RolloutHold{Name: "x", Until: ptr.To(metav1.NewTime(now.Add(time.Hour)))}
	blocked := attempts(ended(attempt("n0", WithdrawnBlocked), time.Minute))
	for name, c := range map[string]struct {
		changes []change
		want    time.Duration
	}{
		"nothing": {},
		"window":  {[]change{spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.Windows = []v1alpha1.RolloutWindow{window} })}, 22 * time.Hour},
		"hold":    {[]change{spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) { s.Holds = []v1alpha1.RolloutHold{hold} })}, time.Hour},
		"retry":   {[]change{blocked}, 9 * time.Minute},
		"grace":   {[]change{node("n0", notReady(10*time.Second))}, 20 * time.Second},
		"all": {[]change{blocked, spec(func(s *v1alpha1.NodeMaintenanceRolloutSpec) {
			s.Windows, s.Holds = []v1alpha1.RolloutWindow{window}, []v1alpha1.RolloutHold{hold}
		})}, 9 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			want := time.Time{}
			if c.want > 0 {
				want = now.Add(c.want)
			}
			if got := decide(1, c.changes...).Next; !got.Equal(want) {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
}
