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
		"a valid one":          {mod: func(*maintenance.Evacuation) {}},
		"no evacuators at all": {mod: withEvacuators()},
		"no node yet":          {mod: func(e *maintenance.Evacuation) { e.Spec.NodeName = "" }},
		"other finalizers beside": {
			mod:  func(e *maintenance.Evacuation) { e.Finalizers = append(e.Finalizers, "example.com/other") },
			want: badFinalizer,
		},
		"a finalizer of the garbage collector": {
			mod:  func(e *maintenance.Evacuation) { e.Finalizers = append(e.Finalizers, metav1.FinalizerDeleteDependents) },
			want: badFinalizer,
		},
		"a node whose name is none": {
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
		"a UID that no name can be made of": {
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
		"an unknown role is left to the tags": {mod: withEvacuators(evacuator("b.example.com", 10000, "boss"))},
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
		"the default":              {ptr.To[int32](1800), false},
		"just a minute":            {ptr.To[int32](60), false},
		"less than a minute":       {ptr.To[int32](59), true},
		"nothing, which validates": {nil, false},
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
		"an instigator that joins": {mod: func(e *maintenance.Evacuation) {
			e.Finalizers = append(e.Finalizers, "evacuation.coordination.k8s.io/instigator_a")
		}},
		"the last instigator that goes": {mod: withoutInstigator},
		"labels":                        {mod: func(e *maintenance.Evacuation) { e.Labels = map[string]string{"a": "b"} }},
		"another pod":                   {mod: func(e *maintenance.Evacuation) { e.Spec.PodRef.UID = "other" }, want: immutable},
		"another deadline": {
			mod: func(e *maintenance.Evacuation) { e.Spec.ProgressDeadlineSeconds = ptr.To[int32](5) }, want: immutable,
		},
		"an evacuator more": {
			mod: withEvacuators(
				append(newEvacuation().Spec.Evacuators, maintenance.Evacuator{EvacuatorClass: "x.example.com"})...,
			),
			want: immutable,
		},
		"the same evacuators reshuffled": {
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
		"the turn starts at the highest priority": {mods: mods(first)},
		"the turn starts lower":                   {mods: mods(second), want: badClass},
		"the turn starts with eviction":           {mods: mods(evicting), want: badClass},
		"eviction starts where there is no evacuator": {
			old: mods(withEvacuators()), mods: mods(withEvacuators(), evicting),
		},
		"the next one takes over": {old: mods(first), mods: mods(second)},
		"one is left out":         {old: mods(first), mods: mods(last), want: badClass},
		"one that keeps reporting": {
			old: mods(first, reportedAt(9000)), mods: mods(second, reportedAt(10000)), want: badClass,
		},
		"one that has been silent for its deadline": {
			old: mods(first, reportedAt(8200)), mods: mods(second, reportedAt(10000)),
		},
		"one that has never started": {old: mods(first, activeSince(9700)), mods: mods(second)},
		"one that may still start":   {old: mods(first, activeSince(9701)), mods: mods(second), want: badClass},
		"an active class that is not listed": {
			old: mods(active("x.example.com"), reportedAt(9999)), mods: mods(evicting),
		},
		"an active class that is not listed, then a listed": {
			old: mods(active("x.example.com"), reportedAt(9999)), mods: mods(last), want: badClass,
		},
		"it was withdrawn before the first became active": {
			old: mods(withoutInstigator), mods: mods(first), want: badClass,
		},
		"it is being deleted, and the next one takes over": {
			old: mods(first, evacuationDeleting), mods: mods(second), want: badClass,
		},
		"eviction takes over":               {old: mods(last), mods: mods(evicting)},
		"the turn moves up":                 {old: mods(last), mods: mods(first), want: badClass},
		"the turn comes back from eviction": {old: mods(evicting), mods: mods(last), want: badClass},
		"the turn is taken back":            {old: mods(first), mods: mods(active("")), want: badClass},
		"the turn goes to one that is not listed": {
			old: mods(first), mods: mods(active("x.example.com")),
			want: field.ErrorList{field.NotSupported(class, "", []string{})},
		},

		"failed evictions are counted": {old: mods(failedEvictions(3)), mods: mods(failedEvictions(4))},
		"the counter falls": {
			old: mods(failedEvictions(3)), mods: mods(failedEvictions(2)),
			want: field.ErrorList{field.Invalid(status.Child("failedEvictionCounter"), "", "")},
		},
		"a negative one is for the tag": {old: mods(failedEvictions(3)), mods: mods(failedEvictions(-1))},

		"the active evacuator forbids": {old: mods(first), mods: mods(first, forbid)},
		"it allows again":              {old: mods(first, forbid), mods: mods(first)},
		"forbidding while the object is being deleted": {
			old: mods(first, evacuationDeleting), mods: mods(first, forbid, evacuationDeleting), want: badPolicy,
		},
		"forbidding without an instigator": {
			old: mods(first, withoutInstigator), mods: mods(first, withoutInstigator, forbid), want: badPolicy,
		},
		"forbidding before an evacuator is active": {mods: mods(forbid), want: badPolicy},
		"what was forbidden before the instigators left stays so": {
			old:  mods(first, withoutInstigator, forbid),
			mods: mods(first, withoutInstigator, forbid, withMessage("on")),
		},
		"what was forbidden before the deletion stays so": {
			old:  mods(first, evacuationDeleting, forbid),
			mods: mods(first, evacuationDeleting, forbid, withMessage("on")),
		},
		"forbidding for the eviction": {old: mods(evicting), mods: mods(evicting, forbid), want: badPolicy},
		"Forbid across a hand-over":   {old: mods(first, forbid), mods: mods(second, forbid), want: badPolicy},

		"it completes": {old: mods(first), mods: mods(first, evacuationComplete)},
		"nothing changes after completion": {
			old: mods(first, evacuationComplete), mods: mods(first, evacuationComplete),
		},
		"the message changes after completion": {
			old: mods(evacuationComplete), mods: mods(evacuationComplete, withMessage("x")), want: ended,
		},
		"the turn moves after completion": {
			old: mods(first, evacuationComplete), mods: mods(last, evacuationComplete), want: ended,
		},
		"completion is taken back": {old: mods(evacuationComplete), want: ended},
		"a condition Complete that is False does not end it": {
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
		"duplicates are left to the tag": {
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
		"no evacuator is active yet": {mods: mods(withMessage("x")), want: forbidden},
		"it makes itself active":     {mods: mods(first), want: forbidden},
		"eviction is the server's":   {old: mods(evicting), mods: mods(evicting, withMessage("x")), want: forbidden},
		"it passes the turn on":      {old: mods(first), mods: mods(last), want: badClass},
		"it lost the turn":           {old: mods(last), mods: mods(first, withMessage("x")), want: badClass},
		"it dates its turn": {
			old:  mods(first, activeSince(1000)),
			mods: mods(first, activeSince(2000)),
			want: field.ErrorList{field.Forbidden(status.Child("activeEvacuatorSince"), "")},
		},
		"it counts evictions": {
			old: mods(first), mods: mods(first, failedEvictions(1)),
			want: field.ErrorList{field.Forbidden(status.Child("failedEvictionCounter"), "")},
		},
		"it sets a condition": {
			old: mods(first), mods: mods(first, evacuationComplete),
			want: field.ErrorList{field.Forbidden(status.Child("conditions"), "")},
		},
		"it removes a condition": {
			old:  mods(first, withCondition("Blocked", "True", "A")),
			mods: mods(first),
			want: field.ErrorList{field.Forbidden(status.Child("conditions"), "")},
		},
		"it is over, which others check": {
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
		"a foreign one is refused":                                      {add: foreign, want: refused},
		"a foreign one is refused on an object under deletion":          {add: foreign, deleted: true, want: refused},
		"one that is there stays":                                       {old: foreign},
		"one that is there can be removed":                              {old: foreign, remove: foreign},
		"an instigator may join beside one that is there":               {old: foreign, add: "evacuation.coordination.k8s.io/instigator_a"},
		"the garbage collector's are refused on a living object":        {add: metav1.FinalizerOrphanDependents, want: refused},
		"the garbage collector's may be added to one under deletion":    {add: metav1.FinalizerOrphanDependents, deleted: true},
		"so may that of a deletion in the foreground":                   {add: metav1.FinalizerDeleteDependents, deleted: true},
		"a prefix of an instigator without a name is a foreign one":     {add: "evacuation.coordination.k8s.io/instigator_", want: refused},
		"the garbage collector's can be removed from a living object":   {old: metav1.FinalizerOrphanDependents, remove: metav1.FinalizerOrphanDependents},
		"one that is there does not allow another one of the same kind": {old: foreign, add: "example.com/third", want: field.ErrorList{field.Forbidden(field.NewPath("metadata", "finalizers").Index(2), "")}},
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
