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

package evacuation

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/evacuators"
	"haulout.dev/haulout/pkg/registry/registrytest"
)

// handOver is the server's write that gives the turn to a class.
func (r *registry) handOver(to string) error {
	_, err := r.updateStatus(server, active(to), message(evacuators.TurnMessage(to, r.clock.Now(), "test")))
	return err
}

func TestTurnsEndByCompletionOrDeadlineOnly(t *testing.T) {
	const second = "deployment.apps.k8s.io"
	etcd := registrytest.RunEtcd(t)
	refused := []string{"FieldValueInvalid status.activeEvacuatorClass"}
	deadline := func(seconds int32) mod {
		return func(e *maintenance.Evacuation) { e.Spec.ProgressDeadlineSeconds = ptr.To(seconds) }
	}
	stamped := func(at time.Duration) mod {
		return func(e *maintenance.Evacuation) {
			e.Status.EvacuationProgressTimestamp = ptr.To(metav1.NewTime(start.Add(at)))
		}
	}
	tests := map[string]struct {
		mod mod
		// meanwhile happens a minute after the first evacuator got its turn.
		meanwhile func(*registry)
		// after is when the turn is to be handed over, counted from when it began.
		after time.Duration
		want  []string
	}{
		"it completed":                              {meanwhile: func(r *registry) { r.mustUpdateStatus(ann, completed) }, after: time.Minute},
		"it completed and took it back":             {meanwhile: func(r *registry) { r.mustUpdateStatus(ann, completed); r.mustUpdateStatus(ann, uncompleted) }, after: 2 * time.Minute, want: refused},
		"it reported, and its deadline is near":     {meanwhile: func(r *registry) { r.mustUpdateStatus(ann, message("x")) }, after: 30*time.Minute + 59*time.Second, want: refused},
		"it reported, and its deadline is here":     {meanwhile: func(r *registry) { r.mustUpdateStatus(ann, message("x")) }, after: 31 * time.Minute},
		"it beats without a word":                   {meanwhile: func(r *registry) { r.mustUpdateStatus(ann) }, after: 30 * time.Minute, want: refused},
		"it never started, and its time is near":    {after: startDeadline - time.Second, want: refused},
		"it never started, and its time is here":    {after: startDeadline},
		"its deadline is the shorter one, and near": {mod: deadline(120), after: 2*time.Minute - time.Second, want: refused},
		"its deadline is the shorter one, and here": {mod: deadline(120), after: 2 * time.Minute},
		"the server dates its turn back": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(server, stamped(-time.Hour)) }, after: 5 * time.Minute, want: refused},
		"the server takes its stamp away": {
			meanwhile: func(r *registry) {
				r.mustUpdateStatus(server, func(e *maintenance.Evacuation) { e.Status.EvacuationProgressTimestamp = nil })
			},
			after: startDeadline - time.Second, want: refused},
		"a replica whose clock is ahead stamped its report": {
			mod: deadline(60), meanwhile: func(r *registry) {
				r.clock.SetTime(start.Add(3 * time.Minute))
				r.mustUpdateStatus(ann, message("x"))
			}, after: 3 * time.Minute, want: refused},
		"a replica whose clock is behind stamped its report": {
			mod: deadline(60), meanwhile: func(r *registry) {
				r.clock.SetTime(start.Add(-time.Minute))
				r.mustUpdateStatus(ann, message("x"))
			}, after: time.Minute},
		"nobody asks for the evacuation any more": {
			meanwhile: func(r *registry) {
				r.mustUpdateStatus(ann, forbid, completed)
				r.mustUpdate(finalizers("example.com/other"))
			},
			after: time.Minute, want: refused},
		"the evacuation is being deleted": {
			meanwhile: func(r *registry) { r.mustUpdateStatus(ann, forbid, completed); r.delete() }, after: time.Minute, want: refused},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			if tt.mod == nil {
				tt.mod = deadline(1800)
			}
			r.mustCreate(tt.mod)
			if err := r.handOver("first.example.com"); err != nil {
				t.Fatal(err)
			}
			if tt.meanwhile != nil {
				r.clock.SetTime(start.Add(time.Minute))
				tt.meanwhile(r)
			}
			r.clock.SetTime(start.Add(tt.after))
			expectCauses(t, r.handOver(second), tt.want...)
		})
	}
}

func uncompleted(e *maintenance.Evacuation) { e.Status.ActiveEvacuatorCompleted = false }
