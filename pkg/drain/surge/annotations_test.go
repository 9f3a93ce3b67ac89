// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package surge

import (
	"testing"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestTimeoutFor(t *testing.T) {
	const fallback = 5 * time.Minute
	if got, err := TimeoutFor(nil, fallback); got != fallback || err != nil {
		t.Errorf("without an annotation got %s, %v", got, err)
	}
	for value, want := range map[string]time.Duration{
		"1s": time.Second, "20m": 20 * time.Minute, "24h": 24 * time.Hour, "1h30m": 90 * time.Minute,
		// These values are invalid.
		"": 0, "20": 0, "999ms": 0, "24h1s": 0, "-5m": 0, "soon": 0,
	} {
		t.Run(value, func(t *testing.T) {
			got, err := TimeoutFor(map[string]string{v1alpha1.AnnotationSurgeTimeout: value}, fallback)
			if refused := want == 0; refused != (err != nil) || !refused && got != want || refused && got != fallback {
				t.Errorf("got %s, %v", got, err)
			}
		})
	}
}

func TestCheckMode(t *testing.T) {
	for value, known := range map[string]bool{
		"Always":   true,
		"Disabled": true,
		"always":   false,
		"":         false,
		"true":     false,
	} {
		annotations := map[string]string{v1alpha1.AnnotationSurge: value}
		if err := CheckMode(annotations); known != (err == nil) {
			t.Errorf("%q: got %v", value, err)
		}
		if IsAlways(annotations) != (value == "Always") {
			t.Errorf("%q: IsAlways is %v", value, !IsAlways(annotations))
		}
	}
	if err := CheckMode(nil); err != nil {
		t.Error(err)
	}
}
