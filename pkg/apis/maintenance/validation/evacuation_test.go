// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

const (
	evacuationTestUID        = "f5823a89-e03f-4752-b013-445643b8c7a0"
	evacuationTestInstigator = "evacuation.coordination.k8s.io/instigator_nodemaintenance.k8s.io"
	evacuationTestEviction   = "eviction.maintenance.haulout.dev"
)

type evacuationMod func(*maintenance.Evacuation)

// newEvacuation returns a valid Evacuation of the pod web-1 with three evacuators, none of which is
// active yet: first.example.com before the controller, and last.example.com after it.
func newEvacuation(mods ...evacuationMod) *maintenance.Evacuation {
	return build.With(&maintenance.Evacuation{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "blue", Name: evacuationTestUID + "-web-1", Finalizers: []string{evacuationTestInstigator},
		},
		Spec: maintenance.EvacuationSpec{
			PodRef:                  maintenance.PodReference{Name: "web-1", UID: evacuationTestUID},
			ProgressDeadlineSeconds: ptr.To[int32](1800),
			Evacuators: []maintenance.Evacuator{
				{EvacuatorClass: "last.example.com", Priority: 5},
				{EvacuatorClass: "deployment.apps.k8s.io", Priority: 10000, Role: maintenance.EvacuatorRoleController},
				{EvacuatorClass: "first.example.com", Priority: 20000},
			},
			NodeName: "node-7",
		},
		Status: maintenance.EvacuationStatus{
			EvacuationCancellationPolicy: maintenance.EvacuationCancellationPolicyAllow,
		},
	}, mods...)
}

func withEvacuators(list ...maintenance.Evacuator) evacuationMod {
	return func(e *maintenance.Evacuation) { e.Spec.Evacuators = list }
}

func active(class string) evacuationMod {
	return func(e *maintenance.Evacuation) { e.Status.ActiveEvacuatorClass = class }
}

// The following modifiers set the active evacuator of newEvacuation.
var (
	first, second  = active("first.example.com"), active("deployment.apps.k8s.io")
	last, evicting = active("last.example.com"), active(evacuationTestEviction)
)

func reportedAt(seconds int64) evacuationMod {
	return func(e *maintenance.Evacuation) {
		e.Status.EvacuationProgressTimestamp = ptr.To(metav1.Unix(seconds, 0))
	}
}

func activeSince(seconds int64) evacuationMod {
	return func(e *maintenance.Evacuation) {
		e.Status.ActiveEvacuatorSince = ptr.To(metav1.Unix(seconds, 0))
	}
}

func forbid(e *maintenance.Evacuation) {
	e.Status.EvacuationCancellationPolicy = maintenance.EvacuationCancellationPolicyForbid
}

func evacuationDeleting(e *maintenance.Evacuation) {
	e.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
}

func withoutInstigator(e *maintenance.Evacuation) { e.Finalizers = nil }

func failedEvictions(n int32) evacuationMod {
	return func(e *maintenance.Evacuation) { e.Status.FailedEvictionCounter = n }
}

func withMessage(message string) evacuationMod {
	return func(e *maintenance.Evacuation) { e.Status.Message = message }
}

func withCondition(conditionType string, status metav1.ConditionStatus, reason string) evacuationMod {
	return func(e *maintenance.Evacuation) {
		e.Status.Conditions = append(e.Status.Conditions, metav1.Condition{
			Type: conditionType, Status: status, Reason: reason, LastTransitionTime: metav1.Unix(1000, 0),
		})
	}
}

var evacuationComplete = withCondition("Complete", metav1.ConditionTrue, "PodDeleted")

// matchEvacuationErrors compares errors by type, path and number.
func matchEvacuationErrors(t *testing.T, got, want field.ErrorList) {
	t.Helper()
	field.ErrorMatcher{}.ByType().ByField().Test(t, want, got)
	is.True(t, len(got) == len(want), "got %d errors, want %d: %v", len(got), len(want), got)
}

func TestValidateEvacuation(t *testing.T) {
	namePath, generateNamePath := field.NewPath("metadata", "name"), field.NewPath("metadata", "generateName")
	evacuatorPath := func(i int, name string) *field.Path {
		return field.NewPath("spec", "evacuators").Index(i).Child(name)
	}
	badPriority := field.ErrorList{field.Invalid(evacuatorPath(0, "priority"), "", "")}
	badName, badGenerateName := field.ErrorList{field.Invalid(namePath, "", "")}, field.ErrorList{field.Invalid(generateNamePath, "", "")}
	badFinalizer := field.ErrorList{field.Forbidden(field.NewPath("metadata", "finalizers").Index(1), "")}
	evacuator := func(class string, priority int32, role maintenance.EvacuatorRole) maintenance.Evacuator {
		return maintenance.Evacuator{EvacuatorClass: class, Priority: priority, Role: role}
	}
	controller := maintenance.Evacuator{EvacuatorClass: "deployment.apps.k8s.io", Priority: 10000, Role: "controller"}
	tests := map[string]struct {
		mod  evacuationMod
		want field.ErrorList
	}{
		"a valid Evacuation": {mod: func(*maintenance.Evacuation) {}},
		"no evacuators":      {mod: withEvacuators()},
		"no node yet":        {mod: func(e *maintenance.Evacuation) { e.Spec.NodeName = "" }},
		"additional finalizers": {
			mod:  func(e *maintenance.Evacuation) { e.Finalizers = append(e.Finalizers, "example.com/other") },
			want: badFinalizer,
		},
		"a finalizer of the garbage collector": {
			mod:  func(e *maintenance.Evacuation) { e.Finalizers = append(e.Finalizers, metav1.FinalizerDeleteDependents) },
			want: badFinalizer,
		},
		"an invalid node name": {
			mod:  func(e *maintenance.Evacuation) { e.Spec.NodeName = "a/b" },
			want: field.ErrorList{field.Invalid(field.NewPath("spec", "nodeName"), "", "")},
		},
		"another name":          {mod: func(e *maintenance.Evacuation) { e.Name = "other" }, want: badName},
		"the UID alone as name": {mod: func(e *maintenance.Evacuation) { e.Name = evacuationTestUID }, want: badName},
		"generateName, name made from it": {
			mod:  func(e *maintenance.Evacuation) { e.Name, e.GenerateName = "web-x7k2p", "web-" },
			want: badGenerateName,
		},
		"generateName beside the right name": {
			mod: func(e *maintenance.Evacuation) { e.GenerateName = "web-" }, want: badGenerateName,
		},
		"no pod name, which the tags report": {mod: func(e *maintenance.Evacuation) { e.Spec.PodRef.Name = "" }},
		"no pod UID, which the tags report":  {mod: func(e *maintenance.Evacuation) { e.Spec.PodRef.UID = "" }},
		"a UID that cannot be part of a name": {
			mod:  func(e *maintenance.Evacuation) { e.Spec.PodRef.UID = "A/B" },
			want: field.ErrorList{field.Invalid(field.NewPath("spec", "podRef", "uid"), "", "")},
		},
		"no finalizer": {
			mod:  func(e *maintenance.Evacuation) { e.Finalizers = nil },
			want: field.ErrorList{field.Required(field.NewPath("metadata", "finalizers"), "")},
		},
		"no instigator among the finalizers": {
			mod: func(e *maintenance.Evacuation) { e.Finalizers = []string{"example.com/other"} },
			want: field.ErrorList{
				field.Required(field.NewPath("metadata", "finalizers"), ""),
				field.Forbidden(field.NewPath("metadata", "finalizers").Index(0), ""),
			},
		},
		"two controllers": {
			mod:  withEvacuators(controller, evacuator("b.example.com", 10000, "controller")),
			want: field.ErrorList{field.Invalid(evacuatorPath(1, "role"), "", "")},
		},
		"a controller at another priority": {
			mod: withEvacuators(evacuator("b.example.com", 9999, "controller")), want: badPriority,
		},
		"the controller's priority without the role": {
			mod:  withEvacuators(evacuator("b.example.com", 10000, "")),
			want: field.ErrorList{field.Required(evacuatorPath(0, "role"), "")},
		},
		"an unknown role, which the tags report": {mod: withEvacuators(evacuator("b.example.com", 10000, "boss"))},
		"a reserved priority under the controller's parent domain": {
			mod: withEvacuators(evacuator("before.apps.k8s.io", 10050, ""), controller),
		},
		"a reserved priority in another domain": {
			mod: withEvacuators(evacuator("before.example.com", 10050, ""), controller), want: badPriority,
		},
		"a reserved priority without a controller": {
			mod: withEvacuators(evacuator("before.apps.k8s.io", 10050, "")), want: badPriority,
		},
		"the lowest and the highest reserved priority": {
			mod: withEvacuators(controller, evacuator("low.example.com", 9900, ""),
				evacuator("high.example.com", 10099, "")),
			want: field.ErrorList{
				field.Invalid(evacuatorPath(1, "priority"), "", ""),
				field.Invalid(evacuatorPath(2, "priority"), "", ""),
			},
		},
		"the priorities around the reserved ones": {mod: withEvacuators(controller,
			evacuator("low.example.com", 9899, ""),
			evacuator("high.example.com", 10100, ""))},
		"the class of eviction": {
			mod:  withEvacuators(evacuator(evacuationTestEviction, 1, "")),
			want: field.ErrorList{field.Invalid(evacuatorPath(0, "evacuatorClass"), "", "")},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			matchEvacuationErrors(t, ValidateEvacuation(newEvacuation(tt.mod)), tt.want)
		})
	}
}

func TestValidateEvacuationNamesTheCanonicalName(t *testing.T) {
	for _, mod := range []evacuationMod{
		func(e *maintenance.Evacuation) { e.Name = "other" },
		func(e *maintenance.Evacuation) { e.GenerateName = "web-" },
	} {
		errs := ValidateEvacuation(newEvacuation(mod))
		if len(errs) != 1 || !strings.Contains(errs[0].Detail, evacuationTestUID+"-web-1") {
			t.Errorf("the canonical name is missing in %v", errs)
		}
	}
}

func TestWarnEvacuation(t *testing.T) {
	tests := map[string]struct {
		seconds *int32
		want    bool
	}{
		"the default":                 {ptr.To[int32](1800), false},
		"exactly a minute":            {ptr.To[int32](60), false},
		"less than a minute":          {ptr.To[int32](59), true},
		"no deadline, which is valid": {nil, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := WarnEvacuation(newEvacuation(func(e *maintenance.Evacuation) {
				e.Spec.ProgressDeadlineSeconds = tt.seconds
			}))
			is.True(t, (len(got) > 0) == tt.want, "got %q", got)
			for _, text := range got {
				is.True(t, len(text) <= 120, "warning of %d characters: %s", len(text), text)
			}
		})
	}
}

func TestValidateEvacuationUpdate(t *testing.T) {
	immutable := field.ErrorList{field.Forbidden(field.NewPath("spec"), "")}
	tests := map[string]struct {
		mod  evacuationMod
		want field.ErrorList
	}{
		"an instigator is added": {mod: func(e *maintenance.Evacuation) {
			e.Finalizers = append(e.Finalizers, "evacuation.coordination.k8s.io/instigator_a")
		}},
		"the last instigator is removed": {mod: withoutInstigator},
		"labels":                         {mod: func(e *maintenance.Evacuation) { e.Labels = map[string]string{"a": "b"} }},
		"another pod":                    {mod: func(e *maintenance.Evacuation) { e.Spec.PodRef.UID = "other" }, want: immutable},
		"another deadline": {
			mod: func(e *maintenance.Evacuation) { e.Spec.ProgressDeadlineSeconds = ptr.To[int32](5) }, want: immutable,
		},
		"an additional evacuator": {
			mod: withEvacuators(
				append(newEvacuation().Spec.Evacuators, maintenance.Evacuator{EvacuatorClass: "x.example.com"})...,
			),
			want: immutable,
		},
		"the same evacuators in another order": {
			mod: withEvacuators(newEvacuation().Spec.Evacuators[2], newEvacuation().Spec.Evacuators[1],
				newEvacuation().Spec.Evacuators[0]),
			want: immutable,
		},
		"another node": {mod: func(e *maintenance.Evacuation) { e.Spec.NodeName = "node-8" }, want: immutable},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			matchEvacuationErrors(t, ValidateEvacuationUpdate(newEvacuation(tt.mod), newEvacuation()), tt.want)
		})
	}
}

func TestValidateEvacuationStatusUpdate(t *testing.T) {
	status := field.NewPath("status")
	class, policy := status.Child("activeEvacuatorClass"), status.Child("evacuationCancellationPolicy")
	badClass, badPolicy := field.ErrorList{field.Invalid(class, "", "")}, field.ErrorList{field.Invalid(policy, "", "")}
	ended := field.ErrorList{field.Forbidden(status, "")}
	mods := func(m ...evacuationMod) []evacuationMod { return m }
	turns := Turns{Now: time.Unix(10000, 0), StartDeadline: 5 * time.Minute}
	tests := map[string]struct {
		old, mods []evacuationMod
		want      field.ErrorList
	}{
		"the evacuator with the highest priority becomes active first": {mods: mods(first)},
		"an evacuator with a lower priority becomes active first":      {mods: mods(second), want: badClass},
		"eviction becomes active first":                                {mods: mods(evicting), want: badClass},
		"eviction becomes active first without evacuators": {
			old: mods(withEvacuators()), mods: mods(withEvacuators(), evicting),
		},
		"the next evacuator becomes active": {old: mods(first), mods: mods(second)},
		"an evacuator is skipped":           {old: mods(first), mods: mods(last), want: badClass},
		"the active evacuator keeps reporting": {
			old: mods(first, reportedAt(9000)), mods: mods(second, reportedAt(10000)), want: badClass,
		},
		"the active evacuator has not reported for its deadline": {
			old: mods(first, reportedAt(8200)), mods: mods(second, reportedAt(10000)),
		},
		"the active evacuator has never reported":                  {old: mods(first, activeSince(9700)), mods: mods(second)},
		"the active evacuator still has time for its first report": {old: mods(first, activeSince(9701)), mods: mods(second), want: badClass},
		"an active class that is not listed": {
			old: mods(active("x.example.com"), reportedAt(9999)), mods: mods(evicting),
		},
		"an active class that is not listed, followed by a listed class": {
			old: mods(active("x.example.com"), reportedAt(9999)), mods: mods(last), want: badClass,
		},
		"withdrawn before the first evacuator became active": {
			old: mods(withoutInstigator), mods: mods(first), want: badClass,
		},
		"being deleted, and the next evacuator becomes active": {
			old: mods(first, evacuationDeleting), mods: mods(second), want: badClass,
		},
		"eviction becomes active":                            {old: mods(last), mods: mods(evicting)},
		"an evacuator with a higher priority becomes active": {old: mods(last), mods: mods(first), want: badClass},
		"an evacuator becomes active after eviction":         {old: mods(evicting), mods: mods(last), want: badClass},
		"the active class is removed":                        {old: mods(first), mods: mods(active("")), want: badClass},
		"an evacuator that is not listed becomes active": {
			old: mods(first), mods: mods(active("x.example.com")),
			want: field.ErrorList{field.NotSupported(class, "", []string{})},
		},

		"failed evictions are counted": {old: mods(failedEvictions(3)), mods: mods(failedEvictions(4))},
		"the counter decreases": {
			old: mods(failedEvictions(3)), mods: mods(failedEvictions(2)),
			want: field.ErrorList{field.Invalid(status.Child("failedEvictionCounter"), "", "")},
		},
		"a negative counter, which the tag reports": {old: mods(failedEvictions(3)), mods: mods(failedEvictions(-1))},

		"the active evacuator forbids":      {old: mods(first), mods: mods(first, forbid)},
		"the active evacuator allows again": {old: mods(first, forbid), mods: mods(first)},
		"forbidding while the object is being deleted": {
			old: mods(first, evacuationDeleting), mods: mods(first, forbid, evacuationDeleting), want: badPolicy,
		},
		"forbidding without an instigator": {
			old: mods(first, withoutInstigator), mods: mods(first, withoutInstigator, forbid), want: badPolicy,
		},
		"forbidding before an evacuator is active": {mods: mods(forbid), want: badPolicy},
		"Forbid from before the withdrawal stays": {
			old:  mods(first, withoutInstigator, forbid),
			mods: mods(first, withoutInstigator, forbid, withMessage("on")),
		},
		"Forbid from before the deletion stays": {
			old:  mods(first, evacuationDeleting, forbid),
			mods: mods(first, evacuationDeleting, forbid, withMessage("on")),
		},
		"forbidding for the eviction":              {old: mods(evicting), mods: mods(evicting, forbid), want: badPolicy},
		"Forbid when the active evacuator changes": {old: mods(first, forbid), mods: mods(second, forbid), want: badPolicy},

		"it completes": {old: mods(first), mods: mods(first, evacuationComplete)},
		"nothing changes after completion": {
			old: mods(first, evacuationComplete), mods: mods(first, evacuationComplete),
		},
		"the message changes after completion": {
			old: mods(evacuationComplete), mods: mods(evacuationComplete, withMessage("x")), want: ended,
		},
		"the active evacuator changes after completion": {
			old: mods(first, evacuationComplete), mods: mods(last, evacuationComplete), want: ended,
		},
		"completion is reverted": {old: mods(evacuationComplete), want: ended},
		"a condition Complete that is False does not complete the Evacuation": {
			old:  mods(withCondition("Complete", metav1.ConditionFalse, "Evacuating")),
			mods: mods(withCondition("Complete", metav1.ConditionFalse, "Evacuating"), withMessage("x")),
		},

		"blocked": {mods: mods(withCondition("Blocked", "True", "PodDisruptionBudget"))},
		"a condition without a reason": {
			mods: mods(withCondition("Blocked", "True", "")),
			want: field.ErrorList{field.Required(status.Child("conditions").Index(0).Child("reason"), "")},
		},
		"a condition of unknown status": {
			mods: mods(withCondition("Blocked", "Maybe", "A")),
			want: field.ErrorList{
				field.NotSupported(status.Child("conditions").Index(0).Child("status"), "", []string{}),
			},
		},
		"duplicates, which the tag reports": {
			mods: mods(withCondition("Blocked", "True", "A"), withCondition("Blocked", "True", "A")),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			matchEvacuationErrors(t,
				ValidateEvacuationStatusUpdate(newEvacuation(tt.mods...), newEvacuation(tt.old...), turns), tt.want)
		})
	}
}

func TestValidateEvacuationReport(t *testing.T) {
	status := field.NewPath("status")
	forbidden := field.ErrorList{field.Forbidden(status, "")}
	badClass := field.ErrorList{field.Invalid(status.Child("activeEvacuatorClass"), "", "")}
	mods := func(m ...evacuationMod) []evacuationMod { return m }
	tests := map[string]struct {
		old, mods []evacuationMod
		want      field.ErrorList
	}{
		"a heartbeat": {old: mods(first), mods: mods(first)},
		"all that an evacuator reports": {
			old: mods(first),
			mods: mods(first, forbid, withMessage("x"), func(e *maintenance.Evacuation) {
				e.Status.ActiveEvacuatorCompleted = true
				e.Status.ExpectedEvacuationFinishTime = ptr.To(metav1.Unix(2000, 0))
				e.Status.EvacuationProgressTimestamp = ptr.To(metav1.Unix(1000, 0))
			}),
		},
		"no evacuator is active yet":              {mods: mods(withMessage("x")), want: forbidden},
		"the evacuator makes itself active":       {mods: mods(first), want: forbidden},
		"eviction is active":                      {old: mods(evicting), mods: mods(evicting, withMessage("x")), want: forbidden},
		"the evacuator makes the next one active": {old: mods(first), mods: mods(last), want: badClass},
		"the evacuator is no longer active":       {old: mods(last), mods: mods(first, withMessage("x")), want: badClass},
		"the evacuator sets activeEvacuatorSince": {
			old:  mods(first, activeSince(1000)),
			mods: mods(first, activeSince(2000)),
			want: field.ErrorList{field.Forbidden(status.Child("activeEvacuatorSince"), "")},
		},
		"the evacuator sets the counter of evictions": {
			old: mods(first), mods: mods(first, failedEvictions(1)),
			want: field.ErrorList{field.Forbidden(status.Child("failedEvictionCounter"), "")},
		},
		"the evacuator sets a condition": {
			old: mods(first), mods: mods(first, evacuationComplete),
			want: field.ErrorList{field.Forbidden(status.Child("conditions"), "")},
		},
		"the evacuator removes a condition": {
			old:  mods(first, withCondition("Blocked", "True", "A")),
			mods: mods(first),
			want: field.ErrorList{field.Forbidden(status.Child("conditions"), "")},
		},
		"the Evacuation is complete, which other rules check": {
			old: mods(first, evacuationComplete), mods: mods(first, evacuationComplete, withMessage("x")),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			matchEvacuationErrors(t, ValidateEvacuationReport(newEvacuation(tt.mods...), newEvacuation(tt.old...)),
				tt.want)
		})
	}
}

// TestAddedFinalizers has an object that an older version stored, when any client could add
// finalizers.
func TestAddedFinalizers(t *testing.T) {
	const foreign = "example.com/other"
	refused := field.ErrorList{field.Forbidden(field.NewPath("metadata", "finalizers").Index(1), "")}
	tests := map[string]struct {
		old, add, remove string
		deleted          bool
		want             field.ErrorList
	}{
		"a foreign finalizer is refused":                                                               {add: foreign, want: refused},
		"a foreign finalizer is refused on an object that is being deleted":                            {add: foreign, deleted: true, want: refused},
		"an existing finalizer stays":                                                                  {old: foreign},
		"an existing finalizer can be removed":                                                         {old: foreign, remove: foreign},
		"an instigator can be added beside an existing finalizer":                                      {old: foreign, add: "evacuation.coordination.k8s.io/instigator_a"},
		"finalizers of the garbage collector are refused on an object that is not being deleted":       {add: metav1.FinalizerOrphanDependents, want: refused},
		"a finalizer of the garbage collector can be added to an object that is being deleted":         {add: metav1.FinalizerOrphanDependents, deleted: true},
		"the finalizer of a deletion in the foreground can be added, too":                              {add: metav1.FinalizerDeleteDependents, deleted: true},
		"the prefix of an instigator without a name is a foreign finalizer":                            {add: "evacuation.coordination.k8s.io/instigator_", want: refused},
		"a finalizer of the garbage collector can be removed from an object that is not being deleted": {old: metav1.FinalizerOrphanDependents, remove: metav1.FinalizerOrphanDependents},
		"an existing finalizer does not allow another one of the same kind":                            {old: foreign, add: "example.com/third", want: field.ErrorList{field.Forbidden(field.NewPath("metadata", "finalizers").Index(2), "")}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			old := newEvacuation()
			if tt.old != "" {
				old.Finalizers = append(old.Finalizers, tt.old)
			}
			if tt.deleted {
				old.DeletionTimestamp = &metav1.Time{}
			}
			now := old.DeepCopy()
			if tt.add != "" {
				now.Finalizers = append(now.Finalizers, tt.add)
			}
			now.Finalizers = slices.DeleteFunc(now.Finalizers, func(f string) bool { return f == tt.remove })
			matchEvacuationErrors(t, ValidateEvacuationUpdate(now, old), tt.want)
		})
	}
}
