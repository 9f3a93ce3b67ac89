// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestTurnGoesBackToTheEvacuatorOfDeploymentsOnly(t *testing.T) {
	const (
		deployment, eviction = v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassEviction
		first, last          = "first.example.com", "last.example.com"
	)
	for name, tc := range map[string]struct {
		order    []string
		from, to string
		deleted  bool
		allowed  bool
	}{
		"from eviction, which follows it":   {order: []string{first, deployment}, from: eviction, to: deployment, allowed: true},
		"with another evacuator in between": {order: []string{deployment, last}, from: eviction, to: deployment},
		"from another evacuator":            {order: []string{deployment, last}, from: last, to: deployment},
		"to another evacuator":              {order: []string{first}, from: eviction, to: first},
		"of a withdrawn Evacuation":         {order: []string{deployment}, from: eviction, to: deployment, deleted: true},
	} {
		t.Run(name, func(t *testing.T) {
			old := &maintenance.Evacuation{ObjectMeta: metav1.ObjectMeta{
				Finalizers: []string{v1alpha1.FinalizerInstigatorNodeMaintenance},
			}}
			for i, class := range tc.order {
				old.Spec.Evacuators = append(old.Spec.Evacuators,
					maintenance.Evacuator{EvacuatorClass: class, Priority: int32(100 - i)})
			}
			if tc.deleted {
				old.DeletionTimestamp = &metav1.Time{Time: time.Unix(0, 0)}
			}
			old.Status.ActiveEvacuatorClass = tc.from
			next := old.DeepCopy()
			next.Status.ActiveEvacuatorClass = tc.to
			errs := validateHandOver(next, old, Turns{Now: time.Unix(0, 0)}, field.NewPath("status"))
			is.True(t, (len(errs) == 0) == tc.allowed, "got %v, want it to be allowed: %t", errs, tc.allowed)
		})
	}
}
