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

package deployment

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// maxRecorded bounds how many pods a surge is for at a time, and with it the size of the
// annotation. The others join when some have gone.
const maxRecorded = 200

// record is what the annotation of the surge says. It is written together with the number that it
// is about, so that a surge can be taken back whoever finds it.
type record struct {
	// UID is that of the object that bears it: a copy of the object has not been scaled by us.
	UID types.UID `json:"uid"`
	// From is the number before the surge, and To is the number with it. Without them no surge is
	// under way.
	From int32 `json:"from,omitempty"`
	To   int32 `json:"to,omitempty"`
	// Keep is how many pods are to be available all the time. It differs from From where that is
	// the least that an autoscaler may choose.
	Keep int32 `json:"keep,omitempty"`
	// Since is when the surge started. Pods that came later are its replacements.
	Since *metav1.Time `json:"since,omitempty"`
	// Evacuations are the names of those that the surge is for. It is held until their pods have
	// left.
	Evacuations []string `json:"evacuations,omitempty"`
	// Gone counts those that had left when their names made room for others.
	Gone int `json:"gone,omitempty"`
	// Resets counts how often somebody has set the number back.
	Resets int `json:"resets,omitempty"`
}

// isUp says whether a surge is under way.
func (r *record) isUp() bool {
	return r != nil && r.To > 0
}

// resets counts them, also where nothing is recorded.
func (r *record) resets() int {
	if r == nil {
		return 0
	}
	return r.Resets
}

// readRecord returns what the annotation of an object says; garbage says that there is one that
// means nothing: it cannot be read, or it was copied from another object. lowest is the lowest
// number that there may have been before a surge.
func readRecord(object metav1.Object, lowest int32) (r *record, garbage bool) {
	value, ok := object.GetAnnotations()[maintenancev1alpha1.AnnotationSurgeRecord]
	if !ok {
		return nil, false
	}
	r = &record{}
	if err := json.Unmarshal([]byte(value), r); err != nil || r.UID != object.GetUID() {
		return nil, true
	}
	if r.isUp() && (r.From < lowest || r.To <= r.From || r.Keep < r.From || r.Keep >= r.To || r.Since == nil) || r.To < 0 || r.Gone < 0 || r.Resets < 0 {
		return nil, true
	}
	return r, false
}
