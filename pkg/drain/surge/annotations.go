// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package surge

import (
	"fmt"
	"time"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// shortestTimeout and longestTimeout limit the value of the annotation of the surge timeout.
	shortestTimeout = time.Second
	longestTimeout  = 24 * time.Hour
)

// TimeoutFor returns how long a surge of a Deployment with these annotations may make no progress.
// It returns the fallback if the annotation maintenance.haulout.dev/surge-timeout is not set or,
// with an error, if its value is not a duration from 1s to 24h.
func TimeoutFor(annotations map[string]string, fallback time.Duration) (time.Duration, error) {
	value, set := annotations[maintenancev1alpha1.AnnotationSurgeTimeout]
	if !set {
		return fallback, nil
	}
	timeout, err := time.ParseDuration(value)
	if err != nil || timeout < shortestTimeout || timeout > longestTimeout {
		return fallback, fmt.Errorf("annotation %s: %.64q must be a duration from 1s to 24h, such as \"20m\"; %s is used",
			maintenancev1alpha1.AnnotationSurgeTimeout, value, fallback)
	}
	return timeout, nil
}

// CheckMode returns an error if the annotation maintenance.haulout.dev/surge has an invalid value,
// which is treated as if it was not set.
func CheckMode(annotations map[string]string) error {
	switch value, set := annotations[maintenancev1alpha1.AnnotationSurge]; {
	case !set, value == maintenancev1alpha1.SurgeDisabled, value == maintenancev1alpha1.SurgeAlways:
		return nil
	default:
		return fmt.Errorf("annotation %s: %.64q must be %q or %q; it is ignored", maintenancev1alpha1.AnnotationSurge, value,
			maintenancev1alpha1.SurgeDisabled, maintenancev1alpha1.SurgeAlways)
	}
}

// IsAlways reports whether the pods of a Deployment with these annotations are replaced even if
// their budgets never allow an eviction.
func IsAlways(annotations map[string]string) bool {
	return annotations[maintenancev1alpha1.AnnotationSurge] == maintenancev1alpha1.SurgeAlways
}
