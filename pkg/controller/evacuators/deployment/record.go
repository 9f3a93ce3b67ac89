// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"encoding/json"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// maxRecorded is the maximum number of pods in one surge, which limits the size of the annotation.
// Further pods join when some of these have left.
const maxRecorded = 200

// record is the value of the surge annotation. It is written together with the replica count, so
// that any replica of the server, or a user, can revert the surge.
type record struct {
	// UID is the UID of the annotated object. A copy of the object has another UID, and was not
	// scaled by the surge.
	UID types.UID `json:"uid"`
	// From is the replica count before the surge, and To the replica count during the surge. If
	// both are missing, no surge is active.
	From int32 `json:"from,omitempty"`
	To   int32 `json:"to,omitempty"`
	// Keep is the number of pods that must always be available. It differs from From if From is the
	// minReplicas of an autoscaler.
	Keep int32 `json:"keep,omitempty"`
	// Since is the time at which the surge started. Pods that were created later are its
	// replacements.
	Since *metav1.Time `json:"since,omitempty"`
	// Evacuations has the names of the Evacuations in this surge. The surge lasts until the pods of
	// these Evacuations have left.
	Evacuations []string `json:"evacuations,omitempty"`
	// Gone counts the pods that had left when their names were removed to free space for other
	// names.
	Gone int `json:"gone,omitempty"`
	// Resets counts how often a user or controller has reverted the replica count.
	Resets int `json:"resets,omitempty"`
}

// isUp reports whether a surge is active.
func (r *record) isUp() bool {
	return r != nil && r.To > 0
}

// resets returns Resets, or 0 if there is no record.
func (r *record) resets() int {
	if r == nil {
		return 0
	}
	return r.Resets
}

// readRecord parses the annotation of an object. garbage is true if the annotation is invalid: it
// cannot be parsed, was copied from another object, or has contradictory values. In the last case
// the record is also returned. lowest is the lowest possible replica count before a surge.
func readRecord(object metav1.Object, lowest int32) (r *record, garbage bool) {
	value, ok := object.GetAnnotations()[v1alpha1.AnnotationSurgeRecord]
	if !ok {
		return nil, false
	}
	r = &record{}
	if err := json.Unmarshal([]byte(value), r); err != nil || r.UID != object.GetUID() {
		return nil, true
	}
	if r.isUp() && (r.From < lowest || r.To <= r.From || r.Keep < r.From || r.Keep >= r.To || r.Since == nil) || r.To < 0 || r.Gone < 0 || r.Resets < 0 {
		return r, true
	}
	return r, false
}

// isSurgeUp reports whether a surge is active according to the annotation of an object. It is asked
// again and again for each pod that waits, so it does not read the names in the annotation, of
// which there may be two hundred: they come after the numbers.
func isSurgeUp(object metav1.Object) bool {
	decoder := json.NewDecoder(strings.NewReader(object.GetAnnotations()[v1alpha1.AnnotationSurgeRecord]))
	if start, err := decoder.Token(); err != nil || start != json.Delim('{') {
		return false
	}
	var r record
	for r.UID == "" || r.To == 0 {
		key, err := decoder.Token()
		switch key {
		case "uid":
			err = decoder.Decode(&r.UID)
		case "to":
			err = decoder.Decode(&r.To)
		default: // another field, or the end
			err = cmp.Or(err, decoder.Decode(&json.RawMessage{}))
		}
		if err != nil {
			return false
		}
	}
	return r.UID == object.GetUID() && r.isUp()
}

// newTarget returns the target, given the record that was read from its object.
func newTarget(a *autoscalingv2.HorizontalPodAutoscaler, value int32, r *record, garbage bool, lowest int32) target {
	t := target{autoscaler: a, value: value, record: r, garbage: garbage}
	if garbage {
		t.record = nil
		if r != nil && r.To == value && r.From != value && r.From >= lowest {
			t.origin = &r.From
		}
	}
	return t
}

// isRecorded reports whether a pod is in the record of the surge, even if its Evacuation was
// withdrawn.
func (s *situation) isRecorded(p *pod) bool {
	_, ok := s.recordedPods()[p.UID]
	return ok
}

// recordedPods returns the pods that are in the record of the surge. It compares each pod once with
// the names in the record: there may be thousands of pods and hundreds of names.
func (s *situation) recordedPods() map[types.UID]struct{} {
	if s.target.record == nil || s.recorded != nil {
		return s.recorded
	}
	names := sets.New(s.target.record.Evacuations...)
	s.recorded = make(map[types.UID]struct{}, len(names))
	for i := range s.pods {
		if p := &s.pods[i]; names.Has(p.evacuationName()) {
			s.recorded[p.UID] = struct{}{}
		}
	}
	return s.recorded
}
