// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// nodeMaintenance returns a valid maintenance with defaults, to which the modifiers are applied
// afterwards.
func nodeMaintenance(t *testing.T, modifiers ...func(*v1alpha1.NodeMaintenance)) *maintenance.NodeMaintenance {
	t.Helper()
	versioned := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: v1alpha1.NodeMaintenanceSpec{
			NodeSelector: selectNodes(corev1.NodeSelectorRequirement{
				Key: "pool", Operator: "In", Values: []string{"blue"},
			}),
		},
	}
	for _, modify := range modifiers {
		modify(versioned)
	}
	v1alpha1.SetObjectDefaults_NodeMaintenance(versioned)
	nm := &maintenance.NodeMaintenance{}
	must.Do(t, v1alpha1.Convert_v1alpha1_NodeMaintenance_To_maintenance_NodeMaintenance(versioned, nm, nil))
	return nm
}

func selectNodes(requirements ...corev1.NodeSelectorRequirement) *corev1.NodeSelector {
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: requirements}}}
}

func withSelector(s *corev1.NodeSelector) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.NodeSelector = s }
}

func withPlan(plan ...v1alpha1.DrainPlanEntry) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.DrainPlan = plan }
}

func withStage(stage v1alpha1.NodeMaintenanceStage) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = stage }
}

func deleting(nm *v1alpha1.NodeMaintenance) {
	nm.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
}

func expect(t *testing.T, errs field.ErrorList, want ...string) {
	t.Helper()
	var got []string
	for _, err := range errs {
		got = append(got, err.Field+" "+string(err.Type))
	}
	is.True(t, slices.Equal(got, want), "errors are %q, want %q: %v", got, want, errs)
}

func TestValidateNodeMaintenanceSelector(t *testing.T) {
	const term = "spec.nodeSelector.nodeSelectorTerms[0]"
	byField := func(r corev1.NodeSelectorRequirement) *corev1.NodeSelector {
		return &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{r}}},
		}
	}
	label := func(key string, op corev1.NodeSelectorOperator, values ...string) *corev1.NodeSelector {
		return selectNodes(corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values})
	}
	name := func(key string, op corev1.NodeSelectorOperator, values ...string) *corev1.NodeSelector {
		return byField(corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values})
	}
	for name, test := range map[string]struct {
		selector *corev1.NodeSelector
		want     []string
	}{
		"an unset selector, which the tags report": {},
		"no term": {&corev1.NodeSelector{}, []string{"spec.nodeSelector.nodeSelectorTerms FieldValueRequired"}},
		"an empty term": {
			&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}},
			[]string{term + " FieldValueRequired"},
		},
		"In":                {label("a", "In", "x", "y"), nil},
		"In without values": {label("a", "In"), []string{term + ".matchExpressions[0].values FieldValueRequired"}},
		"NotIn without values": {
			label("a", "NotIn"), []string{term + ".matchExpressions[0].values FieldValueRequired"},
		},
		"Exists": {label("a", "Exists"), nil},
		"Exists with a value": {
			label("a", "Exists", "x"), []string{term + ".matchExpressions[0].values FieldValueForbidden"},
		},
		"DoesNotExist with a value": {
			label("a", "DoesNotExist", "x"), []string{term + ".matchExpressions[0].values FieldValueForbidden"},
		},
		"Gt": {label("a", "Gt", "3"), nil},
		"Gt with two values": {
			label("a", "Gt", "1", "2"), []string{term + ".matchExpressions[0].values FieldValueInvalid"},
		},
		"Lt without a number": {
			label("a", "Lt", "x"), []string{term + ".matchExpressions[0].values[0] FieldValueInvalid"},
		},
		"an unknown operator": {
			label("a", "Matches", "x"), []string{term + ".matchExpressions[0].operator FieldValueNotSupported"},
		},
		"no operator":    {label("a", ""), []string{term + ".matchExpressions[0].operator FieldValueNotSupported"}},
		"an invalid key": {label("a b", "Exists"), []string{term + ".matchExpressions[0].key FieldValueInvalid"}},
		"no key": {
			label("", "Exists"),
			[]string{
				term + ".matchExpressions[0].key FieldValueInvalid",
				term + ".matchExpressions[0].key FieldValueInvalid",
			},
		},
		"an invalid label value": {
			label("a", "In", "x", "-"), []string{term + ".matchExpressions[0].values[1] FieldValueInvalid"},
		},
		"a node's name":         {name("metadata.name", "In", "node-1"), nil},
		"all but a node's name": {name("metadata.name", "NotIn", "node-1"), nil},
		"another field": {
			name("metadata.uid", "In", "x"), []string{term + ".matchFields[0].key FieldValueNotSupported"},
		},
		"an operator only for labels": {
			name("metadata.name", "Exists"), []string{term + ".matchFields[0].operator FieldValueNotSupported"},
		},
		"two names": {
			name("metadata.name", "In", "a", "b"), []string{term + ".matchFields[0].values FieldValueInvalid"},
		},
		"an invalid node name": {
			name("metadata.name", "In", "A_b"), []string{term + ".matchFields[0].values[0] FieldValueInvalid"},
		},
		"a field and an operator that are unknown": {
			name("spec.x", "Gt", "1"),
			[]string{
				term + ".matchFields[0].key FieldValueNotSupported",
				term + ".matchFields[0].operator FieldValueNotSupported",
			},
		},
		"each of several terms with its own index": {
			&corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Exists"}}}, {},
				},
			},
			[]string{"spec.nodeSelector.nodeSelectorTerms[1] FieldValueRequired"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, ValidateNodeMaintenance(nodeMaintenance(t, withSelector(test.selector))), test.want...)
		})
	}
}

func TestSelectorLimits(t *testing.T) {
	terms := func(n int) *corev1.NodeSelector {
		s := &corev1.NodeSelector{}
		for i := range n {
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "k" + strconv.Itoa(i), Operator: "Exists"}},
			})
		}
		return s
	}
	without := func(n int) *corev1.NodeSelector {
		s := terms(n)
		for i := range s.NodeSelectorTerms {
			s.NodeSelectorTerms[i].MatchExpressions[0].Operator = corev1.NodeSelectorOpDoesNotExist
		}
		return s
	}
	values := func(n int) *corev1.NodeSelector {
		in := corev1.NodeSelectorRequirement{Key: "kubernetes.io/hostname", Operator: "In"}
		for i := range n {
			in.Values = append(in.Values, "n"+strconv.Itoa(i))
		}
		return selectNodes(in, corev1.NodeSelectorRequirement{Key: "a", Operator: "Exists"})
	}
	const path = "spec.nodeSelector.nodeSelectorTerms"
	for name, test := range map[string]struct {
		selector *corev1.NodeSelector
		want     []string
		parts    []string
	}{
		"1,000 requirements": {selector: terms(1000)},
		"1,001 requirements": {
			selector: terms(1001), want: []string{path + " FieldValueTooMany"},
			parts: []string{path, "1001", "1000", "requirements"},
		},
		"26,000 requirements": {
			selector: terms(26000), want: []string{path + " FieldValueTooMany"},
			parts: []string{path, "26000", "1000", "requirements"},
		},
		"50 terms that are tried on every node": {selector: without(50)},
		"1,000 equal terms tried on every node": {selector: &corev1.NodeSelector{NodeSelectorTerms: slices.Repeat(without(1).NodeSelectorTerms, 1000)}},
		"51 terms that are tried on every node": {
			selector: without(51), want: []string{path + " FieldValueTooMany"},
			parts: []string{path, "51", "50", "tried on every node", "operator In"},
		},
		"1,000 terms that are tried on every node": {
			selector: without(1000), want: []string{path + " FieldValueTooMany"}, parts: []string{path, "1000", "50"},
		},
		"10,000 values": {selector: values(10000)},
		"10,001 values": {
			selector: values(10001), want: []string{path + " FieldValueTooMany"},
			parts: []string{path, "10001", "10000", "values"},
		},
		"both count over all terms": {
			selector: func() *corev1.NodeSelector {
				s := terms(998)
				s.NodeSelectorTerms = append(s.NodeSelectorTerms, values(9999).NodeSelectorTerms[0],
					values(2).NodeSelectorTerms[0])
				return s
			}(),
			want: []string{path + " FieldValueTooMany", path + " FieldValueTooMany"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			errs := ValidateNodeMaintenance(nodeMaintenance(t, withSelector(test.selector)))
			expect(t, errs, test.want...)
			for _, part := range test.parts {
				if text := errs.ToAggregate().Error(); !strings.Contains(text, part) || len(text) > 250 {
					t.Errorf("the error does not have %q in few words: %s", part, text)
				}
			}
		})
	}
	t.Run("a stored selector with too many terms is unchanged", func(t *testing.T) {
		old := nodeMaintenance(t, withSelector(without(1000)))
		expect(t, ValidateNodeMaintenanceUpdate(old.DeepCopy(), old))
		changed := nodeMaintenance(t, withSelector(without(999)))
		expect(t, ValidateNodeMaintenanceUpdate(changed, old), path+" FieldValueTooMany")
	})
}

func TestValidateNodeMaintenanceDrainPlan(t *testing.T) {
	entry := func(podType v1alpha1.PodType, priority int32) v1alpha1.DrainPlanEntry {
		return v1alpha1.DrainPlanEntry{PodType: podType, PodPriority: priority}
	}
	app := func(e v1alpha1.DrainPlanEntry, value string) v1alpha1.DrainPlanEntry {
		e.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": value}}
		return e
	}
	many := func(n int) []v1alpha1.DrainPlanEntry {
		plan := make([]v1alpha1.DrainPlanEntry, n)
		for i := range plan {
			plan[i] = entry("Default", int32(i))
		}
		return plan
	}
	for name, test := range map[string]struct {
		plan []v1alpha1.DrainPlanEntry
		want []string
	}{
		"none":                  {},
		"a hundred own entries": {plan: many(100)},
		"a hundred own entries and the frozen ones": {
			plan: append(many(100), entry("Default", 1000000000), entry("Static", 2147483647)),
		},
		"a hundred and one own entries": {plan: many(101), want: []string{"spec.drainPlan FieldValueTooMany"}},
		"a hundred own entries and a frozen entry with a selector": {
			plan: append(many(100), app(entry("Static", 2147483647), "x")),
			want: []string{"spec.drainPlan FieldValueTooMany"},
		},
		"descending priorities": {
			plan: []v1alpha1.DrainPlanEntry{entry("Default", 20), entry("Default", 10)},
			want: []string{"spec.drainPlan[1] FieldValueInvalid"},
		},
		"types out of order": {
			plan: []v1alpha1.DrainPlanEntry{entry("Static", 20), entry("Default", 10)},
			want: []string{"spec.drainPlan[1] FieldValueInvalid"},
		},
		"a selector behind all pods": {
			plan: []v1alpha1.DrainPlanEntry{entry("Default", 10), app(entry("Default", 10), "x")},
			want: []string{"spec.drainPlan[1] FieldValueInvalid"},
		},
		"a duplicate": {
			plan: []v1alpha1.DrainPlanEntry{entry("Default", 10), entry("Default", 20), entry("Default", 10)},
			want: []string{"spec.drainPlan[2] FieldValueDuplicate"},
		},
		"a duplicate after defaulting": {
			plan: []v1alpha1.DrainPlanEntry{entry("Default", 10), entry("", 10)},
			want: []string{"spec.drainPlan[1] FieldValueDuplicate"},
		},
		"an unknown type, which the tags report": {plan: []v1alpha1.DrainPlanEntry{entry("Bare", 10)}},
		"a selector with an invalid label value": {
			plan: []v1alpha1.DrainPlanEntry{app(entry("Default", 10), "-")},
			want: []string{"spec.drainPlan[0].podSelector.matchLabels FieldValueInvalid"},
		},
		"a selector with an unknown operator": {
			plan: []v1alpha1.DrainPlanEntry{{PodPriority: 10, PodSelector: &metav1.LabelSelector{
				MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Gt", Values: []string{"1"}}},
			}}},
			want: []string{"spec.drainPlan[0].podSelector.matchExpressions[0].operator FieldValueInvalid"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, ValidateNodeMaintenance(nodeMaintenance(t, withPlan(test.plan...))), test.want...)
		})
	}
	t.Run("the error names the entry and the rule", func(t *testing.T) {
		errs := ValidateNodeMaintenance(nodeMaintenance(t, withPlan(entry("Default", 20), entry("Default", 10))))
		for _, part := range []string{
			"spec.drainPlan[1]", "Default 10", "entry 0 (Default 20)", "priorities must ascend",
		} {
			if text := errs.ToAggregate().Error(); !strings.Contains(text, part) {
				t.Errorf("%q does not say %q", text, part)
			}
		}
	})
}

func TestValidateNodeMaintenanceName(t *testing.T) {
	expect(t,
		ValidateNodeMaintenance(nodeMaintenance(t, func(nm *v1alpha1.NodeMaintenance) { nm.Name = "kernel-2026.11" })))
	expect(t, ValidateNodeMaintenance(nodeMaintenance(t, func(nm *v1alpha1.NodeMaintenance) { nm.Name = "Kernel" })),
		"metadata.name FieldValueInvalid")
	expect(t, ValidateNodeMaintenance(nodeMaintenance(t, func(nm *v1alpha1.NodeMaintenance) { nm.Namespace = "x" })),
		"metadata.namespace FieldValueForbidden")
}

func TestValidatePauseOfANewMaintenance(t *testing.T) {
	pause := func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = true }
	for _, stage := range []v1alpha1.NodeMaintenanceStage{"Idle", "Cordon", "Drain"} {
		expect(t, ValidateNodeMaintenance(nodeMaintenance(t, withStage(stage), pause)))
	}
	expect(t, ValidateNodeMaintenance(nodeMaintenance(t, withStage("Complete"), pause)), "spec.paused FieldValueForbidden")
	expect(t, ValidateNodeMaintenance(nodeMaintenance(t, ofShutdown, withStage("Drain"), pause)), "spec.paused FieldValueForbidden")
}

// ofShutdown makes a maintenance that of a node's own shutdown.
func ofShutdown(nm *v1alpha1.NodeMaintenance) {
	nm.Name = protocol.ShutdownName("blue-1", "boot")
	nm.Annotations = map[string]string{v1alpha1.AnnotationBootID: "boot"}
	nm.Spec.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: "In", Values: []string{"blue-1"}}},
	}}}
}

func TestValidateNodeMaintenanceUpdate(t *testing.T) {
	red := withSelector(selectNodes(corev1.NodeSelectorRequirement{
		Key: "pool", Operator: "In", Values: []string{"red"},
	}))
	broken := withSelector(&corev1.NodeSelector{})
	join := func(nm *v1alpha1.NodeMaintenance) { nm.Spec.NewNodes = v1alpha1.NewNodesPolicyJoin }
	waiting := func(nm *v1alpha1.NodeMaintenance) { nm.Spec.OnExcludedNode = v1alpha1.ExcludedNodeWait }
	pause := func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = true }
	inLabels := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	inExpressions := &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "In", Values: []string{"x"}}},
	}
	type modifiers []func(*v1alpha1.NodeMaintenance)
	for name, test := range map[string]struct {
		old, nm modifiers
		want    []string
	}{
		"nothing":                {},
		"the selector in Idle":   {old: modifiers{withStage("Idle")}, nm: modifiers{red}},
		"the selector in Cordon": {old: modifiers{withStage("Cordon")}, nm: modifiers{withStage("Cordon"), red}},
		"the selector in Drain":  {old: modifiers{withStage("Drain")}, nm: modifiers{withStage("Drain"), red}},
		"the selector together with the step to Complete": {
			old: modifiers{withStage("Drain")}, nm: modifiers{withStage("Complete"), red},
		},
		"the selector in Complete": {
			old: modifiers{withStage("Complete")}, nm: modifiers{withStage("Complete"), red},
			want: []string{"spec.nodeSelector FieldValueForbidden"},
		},
		"the selector while deleting": {
			old: modifiers{deleting}, nm: modifiers{deleting, red},
			want: []string{"spec.nodeSelector FieldValueForbidden"},
		},
		"a selector that selects nothing": {
			nm: modifiers{broken}, want: []string{"spec.nodeSelector.nodeSelectorTerms FieldValueRequired"},
		},
		"newNodes in Idle":  {old: modifiers{withStage("Idle")}, nm: modifiers{join}},
		"newNodes in Drain": {old: modifiers{withStage("Drain")}, nm: modifiers{withStage("Drain"), join}},
		"newNodes together with the step to Complete": {
			old: modifiers{withStage("Drain")}, nm: modifiers{withStage("Complete"), join},
		},
		"newNodes in Complete": {
			old: modifiers{withStage("Complete")}, nm: modifiers{withStage("Complete"), join},
			want: []string{"spec.newNodes FieldValueForbidden"},
		},
		"newNodes while deleting": {
			old: modifiers{deleting}, nm: modifiers{deleting, join},
			want: []string{"spec.newNodes FieldValueForbidden"},
		},
		"onExcludedNode in Drain": {old: modifiers{withStage("Drain")}, nm: modifiers{withStage("Drain"), waiting}},
		"onExcludedNode in Complete": {
			old: modifiers{withStage("Complete")}, nm: modifiers{withStage("Complete"), waiting},
			want: []string{"spec.onExcludedNode FieldValueForbidden"},
		},
		"onExcludedNode while deleting": {
			old: modifiers{deleting}, nm: modifiers{deleting, waiting},
			want: []string{"spec.onExcludedNode FieldValueForbidden"},
		},
		"a pause in Idle":     {old: modifiers{withStage("Idle")}, nm: modifiers{withStage("Idle"), pause}},
		"a pause in Cordon":   {old: modifiers{withStage("Cordon")}, nm: modifiers{withStage("Cordon"), pause}},
		"a pause in Drain":    {old: modifiers{withStage("Drain")}, nm: modifiers{withStage("Drain"), pause}},
		"a resume in Drain":   {old: modifiers{withStage("Drain"), pause}, nm: modifiers{withStage("Drain")}},
		"Drain, paused":       {old: modifiers{withStage("Cordon")}, nm: modifiers{withStage("Drain"), pause}},
		"Complete of a pause": {old: modifiers{withStage("Drain"), pause}, nm: modifiers{withStage("Complete"), pause}},
		"a resume together with the step to Complete": {
			old: modifiers{withStage("Drain"), pause}, nm: modifiers{withStage("Complete")},
		},
		"a pause together with the step to Complete": {
			old: modifiers{withStage("Drain")}, nm: modifiers{withStage("Complete"), pause},
			want: []string{"spec.paused FieldValueForbidden"},
		},
		"a pause in Complete": {
			old: modifiers{withStage("Complete")}, nm: modifiers{withStage("Complete"), pause},
			want: []string{"spec.paused FieldValueForbidden"},
		},
		"a resume in Complete": {
			old: modifiers{withStage("Complete"), pause}, nm: modifiers{withStage("Complete")},
			want: []string{"spec.paused FieldValueForbidden"},
		},
		"a pause of a shutdown": {
			old: modifiers{ofShutdown, withStage("Drain")}, nm: modifiers{ofShutdown, withStage("Drain"), pause},
			want: []string{"spec.paused FieldValueForbidden"},
		},
		"a resume of a shutdown that an older server has paused": {
			old: modifiers{ofShutdown, withStage("Drain"), pause}, nm: modifiers{ofShutdown, withStage("Drain")},
		},
		"Complete of a shutdown that an older server has paused": {
			old: modifiers{ofShutdown, withStage("Drain"), pause}, nm: modifiers{ofShutdown, withStage("Complete"), pause},
		},
		"a pause while deleting": {
			old: modifiers{deleting}, nm: modifiers{deleting, pause},
			want: []string{"spec.paused FieldValueForbidden"},
		},
		"an invalid selector that was stored before": {old: modifiers{broken}, nm: modifiers{broken}},
		"the stage while deleting": {
			old: modifiers{deleting, withStage("Cordon")}, nm: modifiers{deleting, withStage("Complete")},
			want: []string{"spec.stage FieldValueForbidden"},
		},
		"an unknown stage, which the tags report": {
			old: modifiers{withStage("Drain")}, nm: modifiers{withStage("Sleep")},
		},
		"the plan": {
			old: modifiers{withPlan()}, nm: modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5})},
			want: []string{"spec.drainPlan FieldValueInvalid"},
		},
		"the plan, into one in the wrong order, is one mistake": {
			old:  modifiers{withPlan()},
			nm:   modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5}, v1alpha1.DrainPlanEntry{PodPriority: 4})},
			want: []string{"spec.drainPlan FieldValueInvalid"},
		},
		"the plan is omitted": {
			old:  modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5})},
			want: []string{"spec.drainPlan FieldValueInvalid"},
		},
		"the plan is complete": {
			nm: modifiers{
				withPlan(v1alpha1.DrainPlanEntry{PodPriority: 1000000000},
					v1alpha1.DrainPlanEntry{PodPriority: 2147483647, PodType: "Static"}),
			},
		},
		"the plan in an equivalent form": {
			old: modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5, PodSelector: inLabels})},
			nm:  modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5, PodSelector: inExpressions})},
		},
	} {
		t.Run(name, func(t *testing.T) {
			expect(
				t, ValidateNodeMaintenanceUpdate(nodeMaintenance(t, test.nm...), nodeMaintenance(t, test.old...)),
				test.want...,
			)
		})
	}
}
