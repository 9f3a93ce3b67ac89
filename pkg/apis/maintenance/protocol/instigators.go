// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// InstigatorManual is the name of people as an instigator: the command `kubectl maintenance
// evacuate` uses it. The role haulout-evacuation-admin includes the right to it.
const InstigatorManual = "manual." + v1alpha1.GroupName

// FinalizerInstigatorManual is the instigator finalizer of people.
const FinalizerInstigatorManual = v1alpha1.FinalizerInstigatorPrefix + InstigatorManual

// IsInstigatorFinalizer returns the name of the instigator to which a finalizer belongs, and false
// for other finalizers.
func IsInstigatorFinalizer(finalizer string) (name string, ok bool) {
	name, ok = strings.CutPrefix(finalizer, v1alpha1.FinalizerInstigatorPrefix)
	if !ok || name == "" {
		return "", false
	}
	return name, true
}

// Instigators returns the names of the instigators among finalizers, in their order.
func Instigators(finalizers []string) []string {
	var names []string
	for _, finalizer := range finalizers {
		if name, ok := IsInstigatorFinalizer(finalizer); ok {
			names = append(names, name)
		}
	}
	return names
}

// HasInstigator reports whether an instigator still requests the evacuation.
func HasInstigator(finalizers []string) bool {
	return slices.ContainsFunc(finalizers, func(finalizer string) bool {
		_, is := IsInstigatorFinalizer(finalizer)
		return is
	})
}

// IsWithdrawn reports whether no instigator requests the evacuation any longer. It accepts an
// internal or a versioned Evacuation.
func IsWithdrawn(evacuation metav1.Object) bool {
	return evacuation.GetDeletionTimestamp() != nil || !HasInstigator(evacuation.GetFinalizers())
}

// OnlyMaintenancesDecide reports whether it is for NodeMaintenances alone that the server makes
// evacuators active and evicts the pod of an evacuation: they are its only instigators, apart from
// the eviction of another client, for which the server evicts no pod.
func OnlyMaintenancesDecide(evacuation metav1.Object) bool {
	maintenances := false
	for _, name := range Instigators(evacuation.GetFinalizers()) {
		switch name {
		case v1alpha1.InstigatorNodeMaintenance:
			maintenances = true
		case v1alpha1.InstigatorRawEviction:
		default:
			return false
		}
	}
	return maintenances
}

// IsForEviction reports whether the server requests the evacuation because of an eviction.
func IsForEviction(evacuation metav1.Object) bool {
	return slices.Contains(evacuation.GetFinalizers(), v1alpha1.FinalizerInstigatorRawEviction)
}

// OnlyEvictionAsks reports whether the eviction of another client is the only instigator of an
// evacuation.
func OnlyEvictionAsks(evacuation metav1.Object) bool {
	return slices.Equal(Instigators(evacuation.GetFinalizers()), []string{v1alpha1.InstigatorRawEviction})
}

// EvictionAsked returns the time of the last eviction that is recorded in an Evacuation, the time
// of its creation if none is.
func EvictionAsked(evacuation metav1.Object) time.Time {
	asked, err := time.Parse(time.RFC3339, evacuation.GetAnnotations()[v1alpha1.AnnotationEvictionAsked])
	if err != nil {
		return evacuation.GetCreationTimestamp().Time
	}
	return asked
}

// IsPaused reports whether the condition Blocked of an Evacuation says that its maintenances are
// paused.
func IsPaused(evacuation *v1alpha1.Evacuation) bool {
	blocked := meta.FindStatusCondition(evacuation.Status.Conditions, v1alpha1.ConditionBlocked)
	return blocked != nil && blocked.Reason == v1alpha1.ReasonPaused
}

// IsComplete reports whether an Evacuation is complete.
func IsComplete(evacuation *v1alpha1.Evacuation) bool {
	return meta.IsStatusConditionTrue(evacuation.Status.Conditions, v1alpha1.ConditionComplete)
}
