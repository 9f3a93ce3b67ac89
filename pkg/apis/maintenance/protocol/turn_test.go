// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestTurn(t *testing.T) {
	const class = "a.example.com"
	begin := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(begin.Add(d))) }
	tests := map[string]struct {
		since, progress *metav1.Time
		completed       bool
		message         string
		seconds         *int32
		wantSince       *metav1.Time
		wantReported    bool
		wantPatience    time.Duration
	}{
		"it has just become active": {since: at(0), wantSince: at(0), wantPatience: 5 * time.Minute},
		"its deadline is shorter than the time to start": {
			since: at(0), seconds: ptr.To[int32](60), wantSince: at(0), wantPatience: time.Minute,
		},
		"it reported a millisecond after it became active": {
			since: at(0), progress: at(time.Millisecond), wantSince: at(time.Millisecond),
			wantReported: true, wantPatience: 30 * time.Minute,
		},
		"it reported in the second in which it became active, as stamps are stored": {
			since: at(0), progress: at(0), wantSince: at(0), wantReported: true, wantPatience: 30 * time.Minute,
		},
		"its message is still that of the server": {
			since: at(0), progress: at(time.Minute), message: TurnMessage(class, "it is the first evacuator"),
			wantSince: at(time.Minute), wantReported: true, wantPatience: 30 * time.Minute,
		},
		"it has its own message and never reported": {
			since: at(0), message: "copying", wantSince: at(0), wantPatience: 5 * time.Minute,
		},
		"a report counts with a short deadline, too": {
			since: at(0), progress: at(time.Second), seconds: ptr.To[int32](60), wantSince: at(time.Second),
			wantReported: true, wantPatience: time.Minute,
		},
		"its start was moved after its report, as the drain has not reached the pod": {
			since: at(time.Hour), progress: at(time.Second), wantSince: at(time.Hour),
			wantReported: true, wantPatience: 30 * time.Minute,
		},
		"it completed": {
			since: at(0), progress: at(time.Second), completed: true, wantSince: at(time.Second),
			wantReported: true, wantPatience: 30 * time.Minute,
		},
		"no time is recorded": {wantPatience: 5 * time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			status := v1alpha1.EvacuationStatus{
				ActiveEvacuatorClass: class, ActiveEvacuatorSince: tt.since, EvacuationProgressTimestamp: tt.progress,
				ActiveEvacuatorCompleted: tt.completed, Message: tt.message,
			}
			var internal maintenance.EvacuationStatus
			must.Do(t, v1alpha1.Convert_v1alpha1_EvacuationStatus_To_maintenance_EvacuationStatus(&status,
				&internal, nil))
			want := Turn{Class: class, Completed: tt.completed, Reported: tt.wantReported}
			if tt.wantSince != nil {
				want.Since = tt.wantSince.Time
			}
			turn := TurnOf(&status)
			is.Equal(t, turn, want)
			is.Equal(t, TurnOfInternal(&internal), want, "from the internal status")
			is.Equal(t, turn.Patience(tt.seconds, 5*time.Minute), tt.wantPatience, "patience")
		})
	}
}

// TestEndOfTurn has turns that began an hour ago.
func TestEndOfTurn(t *testing.T) {
	now := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	turn := Turn{Since: now.Add(-time.Hour)}
	for name, test := range map[string]struct {
		patience, leaderSince, want time.Duration
	}{
		"the leader was there before":         {patience: 30 * time.Minute, leaderSince: -2 * time.Hour, want: -30 * time.Minute},
		"it started before the deadline":      {patience: time.Hour, leaderSince: -10 * time.Minute, want: 0},
		"it started at the deadline":          {patience: 30 * time.Minute, leaderSince: -30 * time.Minute, want: -25 * time.Minute},
		"it started just now":                 {patience: 30 * time.Minute, want: 5 * time.Minute},
		"it started now, the deadline is now": {patience: time.Hour, want: 5 * time.Minute},
		"it waits no longer than a deadline":  {patience: time.Minute, want: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, turn.End(test.patience, now.Add(test.leaderSince)).Sub(now), test.want)
		})
	}
}

func TestStartDeadlineOf(t *testing.T) {
	for value, want := range map[string]time.Duration{"1s": time.Second, "20m": 20 * time.Minute, "24h": 24 * time.Hour} {
		got, err := StartDeadlineOf(map[string]string{v1alpha1.AnnotationEvacuatorStartDeadline: value})
		if got != want || err != nil {
			t.Errorf("StartDeadlineOf(%q) = %s, %v, want %s", value, got, err, want)
		}
	}
	if got, err := StartDeadlineOf(nil); got != 0 || err != nil {
		t.Errorf("StartDeadlineOf() = %s, %v without the annotation, want 0", got, err)
	}
	for _, value := range []string{"", "20", "999ms", "24h1s", "-5m", "soon"} {
		annotations := map[string]string{v1alpha1.AnnotationEvacuatorStartDeadline: value}
		if got, err := StartDeadlineOf(annotations); got != 0 || err == nil || !strings.Contains(err.Error(), "from 1s to 24h") {
			t.Errorf("StartDeadlineOf(%q) = %s, %v, want an error with the allowed values", value, got, err)
		}
		list, ignored := OfPod(annotations, "", func(string) bool { return true })
		if len(list) != 0 || len(ignored) != 1 || ignored[0].Key != v1alpha1.AnnotationEvacuatorStartDeadline {
			t.Errorf("OfPod() = %v, %v for %q, want the annotation to be ignored", list, ignored, value)
		}
	}
}
