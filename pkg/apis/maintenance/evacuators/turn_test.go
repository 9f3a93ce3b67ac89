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

package evacuators

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestTurn(t *testing.T) {
	const class = "a.example.com"
	begin := time.Date(2026, 11, 3, 10, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(begin.Add(d))) }
	told := TurnMessage(class, begin, "it is the first evacuator")
	tests := map[string]struct {
		status       maintenancev1alpha1.EvacuationStatus
		seconds      *int32
		wantReported bool
		wantPatience time.Duration
	}{
		"it has just got its turn": {
			status: maintenancev1alpha1.EvacuationStatus{Message: told, EvacuationProgressTimestamp: at(0)}, wantPatience: 5 * time.Minute},
		"the API took a moment to stamp its turn": {
			status: maintenancev1alpha1.EvacuationStatus{Message: told, EvacuationProgressTimestamp: at(2 * time.Second)}, wantPatience: 5 * time.Minute},
		"its deadline is shorter than the time to start": {
			status: maintenancev1alpha1.EvacuationStatus{Message: told, EvacuationProgressTimestamp: at(0)}, seconds: ptr.To[int32](60), wantPatience: time.Minute},
		"it gave a sign without a word": {
			status: maintenancev1alpha1.EvacuationStatus{Message: told, EvacuationProgressTimestamp: at(3 * time.Second)}, wantReported: true, wantPatience: 30 * time.Minute},
		"it said something": {
			status: maintenancev1alpha1.EvacuationStatus{Message: "copying", EvacuationProgressTimestamp: at(0)}, seconds: ptr.To[int32](60), wantReported: true, wantPatience: time.Minute},
		"the message is about another's turn": {
			status: maintenancev1alpha1.EvacuationStatus{Message: TurnMessage("b.example.com", begin, "x"), EvacuationProgressTimestamp: at(0)}, wantReported: true, wantPatience: 30 * time.Minute},
		"it said when it will be done": {
			status: maintenancev1alpha1.EvacuationStatus{Message: told, EvacuationProgressTimestamp: at(0), ExpectedEvacuationFinishTime: at(time.Hour)}, wantReported: true, wantPatience: 30 * time.Minute},
		"it cannot be called off": {
			status: maintenancev1alpha1.EvacuationStatus{
				Message: told, EvacuationProgressTimestamp: at(0), EvacuationCancellationPolicy: maintenancev1alpha1.EvacuationCancellationPolicyForbid,
			}, wantReported: true, wantPatience: 30 * time.Minute},
		"it completed": {
			status: maintenancev1alpha1.EvacuationStatus{Message: told, EvacuationProgressTimestamp: at(0), ActiveEvacuatorCompleted: true}, wantReported: true, wantPatience: 30 * time.Minute},
		"nobody wrote down when it got its turn": {status: maintenancev1alpha1.EvacuationStatus{Message: told}, wantPatience: 5 * time.Minute},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tt.status.ActiveEvacuatorClass = class
			var internal maintenance.EvacuationStatus
			if err := maintenancev1alpha1.Convert_v1alpha1_EvacuationStatus_To_maintenance_EvacuationStatus(&tt.status, &internal, nil); err != nil {
				t.Fatal(err)
			}
			turn := TurnOf(&tt.status)
			if turn != TurnOfInternal(&internal) {
				t.Errorf("got %+v, and %+v from the internal status", turn, TurnOfInternal(&internal))
			}
			if got := turn.Patience(tt.seconds, 5*time.Minute); turn.Reported != tt.wantReported || got != tt.wantPatience {
				t.Errorf("reported %v, patience %v; want %v, %v", turn.Reported, got, tt.wantReported, tt.wantPatience)
			}
			if turn.Class != class || turn.Completed != tt.status.ActiveEvacuatorCompleted {
				t.Errorf("got %+v", turn)
			}
		})
	}
}
