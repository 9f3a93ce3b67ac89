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

package validation

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// nodeMaintenance is valid and has been defaulted, unless a modifier makes it otherwise.
func nodeMaintenance(t *testing.T, modifiers ...func(*v1alpha1.NodeMaintenance)) *maintenance.NodeMaintenance {
	t.Helper()
	versioned := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       v1alpha1.NodeMaintenanceSpec{NodeSelector: selectNodes(corev1.NodeSelectorRequirement{Key: "pool", Operator: "In", Values: []string{"blue"}})},
	}
	for _, modify := range modifiers {
		modify(versioned)
	}
	v1alpha1.SetObjectDefaults_NodeMaintenance(versioned)
	nm := &maintenance.NodeMaintenance{}
	if err := v1alpha1.Convert_v1alpha1_NodeMaintenance_To_maintenance_NodeMaintenance(versioned, nm, nil); err != nil {
		t.Fatal(err)
	}
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
	if !slices.Equal(got, want) {
		t.Errorf("errors are %q, want %q: %v", got, want, errs)
	}
}

func TestValidateNodeMaintenanceSelector(t *testing.T) {
	const term = "spec.nodeSelector.nodeSelectorTerms[0]"
	byField := func(r corev1.NodeSelectorRequirement) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{r}}}}
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
		"an absent one is for the tags to refuse": {nil, nil},
		"no term":                        {&corev1.NodeSelector{}, []string{"spec.nodeSelector.nodeSelectorTerms FieldValueRequired"}},
		"an empty term":                  {&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}, []string{term + " FieldValueRequired"}},
		"In":                             {label("a", "In", "x", "y"), nil},
		"In without values":              {label("a", "In"), []string{term + ".matchExpressions[0].values FieldValueRequired"}},
		"NotIn without values":           {label("a", "NotIn"), []string{term + ".matchExpressions[0].values FieldValueRequired"}},
		"Exists":                         {label("a", "Exists"), nil},
		"Exists with a value":            {label("a", "Exists", "x"), []string{term + ".matchExpressions[0].values FieldValueForbidden"}},
		"DoesNotExist with a value":      {label("a", "DoesNotExist", "x"), []string{term + ".matchExpressions[0].values FieldValueForbidden"}},
		"Gt":                             {label("a", "Gt", "3"), nil},
		"Gt with two values":             {label("a", "Gt", "1", "2"), []string{term + ".matchExpressions[0].values FieldValueInvalid"}},
		"Lt without a number":            {label("a", "Lt", "x"), []string{term + ".matchExpressions[0].values[0] FieldValueInvalid"}},
		"an unknown operator":            {label("a", "Matches", "x"), []string{term + ".matchExpressions[0].operator FieldValueNotSupported"}},
		"no operator":                    {label("a", ""), []string{term + ".matchExpressions[0].operator FieldValueNotSupported"}},
		"a key that is none":             {label("a b", "Exists"), []string{term + ".matchExpressions[0].key FieldValueInvalid"}},
		"no key":                         {label("", "Exists"), []string{term + ".matchExpressions[0].key FieldValueInvalid", term + ".matchExpressions[0].key FieldValueInvalid"}},
		"a value that no label can have": {label("a", "In", "x", "-"), []string{term + ".matchExpressions[0].values[1] FieldValueInvalid"}},
		"a node's name":                  {name("metadata.name", "In", "node-1"), nil},
		"all but a node's name":          {name("metadata.name", "NotIn", "node-1"), nil},
		"another field":                  {name("metadata.uid", "In", "x"), []string{term + ".matchFields[0].key FieldValueNotSupported"}},
		"an operator that is for labels": {name("metadata.name", "Exists"), []string{term + ".matchFields[0].operator FieldValueNotSupported"}},
		"two names":                      {name("metadata.name", "In", "a", "b"), []string{term + ".matchFields[0].values FieldValueInvalid"}},
		"a name that no node can have":   {name("metadata.name", "In", "A_b"), []string{term + ".matchFields[0].values[0] FieldValueInvalid"}},
		"a field and an operator that are unknown": {name("spec.x", "Gt", "1"), []string{term + ".matchFields[0].key FieldValueNotSupported", term + ".matchFields[0].operator FieldValueNotSupported"}},
		"each of several terms with its own index": {
			&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: "Exists"}}}, {}}},
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
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "k" + strconv.Itoa(i), Operator: "Exists"}}})
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
		"1,000 requirements":  {selector: terms(1000)},
		"1,001 requirements":  {terms(1001), []string{path + " FieldValueTooMany"}, []string{path, "1001", "1000", "requirements"}},
		"26,000 requirements": {terms(26000), []string{path + " FieldValueTooMany"}, []string{path, "26000", "1000", "requirements"}},
		"10,000 values":       {selector: values(10000)},
		"10,001 values":       {values(10001), []string{path + " FieldValueTooMany"}, []string{path, "10001", "10000", "values"}},
		"both count over all terms": {func() *corev1.NodeSelector {
			s := terms(998)
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, values(9999).NodeSelectorTerms[0], values(2).NodeSelectorTerms[0])
			return s
		}(), []string{path + " FieldValueTooMany", path + " FieldValueTooMany"}, nil},
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
		"none":                          {nil, nil},
		"a hundred own entries":         {many(100), nil},
		"a hundred and the frozen ones": {append(many(100), entry("Default", 1000000000), entry("Static", 2147483647)), nil},
		"a hundred and one":             {many(101), []string{"spec.drainPlan FieldValueTooMany"}},
		"a hundred and a frozen one that has a selector": {append(many(100), app(entry("Static", 2147483647), "x")), []string{"spec.drainPlan FieldValueTooMany"}},
		"priorities that fall":                           {[]v1alpha1.DrainPlanEntry{entry("Default", 20), entry("Default", 10)}, []string{"spec.drainPlan[1] FieldValueInvalid"}},
		"types out of order":                             {[]v1alpha1.DrainPlanEntry{entry("Static", 20), entry("Default", 10)}, []string{"spec.drainPlan[1] FieldValueInvalid"}},
		"a selector behind all pods":                     {[]v1alpha1.DrainPlanEntry{entry("Default", 10), app(entry("Default", 10), "x")}, []string{"spec.drainPlan[1] FieldValueInvalid"}},
		"a duplicate":                                    {[]v1alpha1.DrainPlanEntry{entry("Default", 10), entry("Default", 20), entry("Default", 10)}, []string{"spec.drainPlan[2] FieldValueDuplicate"}},
		"a duplicate by its default":                     {[]v1alpha1.DrainPlanEntry{entry("Default", 10), entry("", 10)}, []string{"spec.drainPlan[1] FieldValueDuplicate"}},
		"an unknown type is for the tags to refuse":      {[]v1alpha1.DrainPlanEntry{entry("Bare", 10)}, nil},
		"a selector with a value that no label can have": {[]v1alpha1.DrainPlanEntry{app(entry("Default", 10), "-")}, []string{"spec.drainPlan[0].podSelector.matchLabels FieldValueInvalid"}},
		"a selector with an unknown operator": {[]v1alpha1.DrainPlanEntry{{PodPriority: 10, PodSelector: &metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Gt", Values: []string{"1"}}},
		}}}, []string{"spec.drainPlan[0].podSelector.matchExpressions[0].operator FieldValueInvalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, ValidateNodeMaintenance(nodeMaintenance(t, withPlan(test.plan...))), test.want...)
		})
	}
	t.Run("the error says which entry and which rule", func(t *testing.T) {
		errs := ValidateNodeMaintenance(nodeMaintenance(t, withPlan(entry("Default", 20), entry("Default", 10))))
		for _, part := range []string{"spec.drainPlan[1]", "Default 10", "entry 0 (Default 20)", "priorities must ascend"} {
			if text := errs.ToAggregate().Error(); !strings.Contains(text, part) {
				t.Errorf("%q does not say %q", text, part)
			}
		}
	})
}

func TestValidateNodeMaintenanceName(t *testing.T) {
	expect(t, ValidateNodeMaintenance(nodeMaintenance(t, func(nm *v1alpha1.NodeMaintenance) { nm.Name = "kernel-2026.11" })))
	expect(t, ValidateNodeMaintenance(nodeMaintenance(t, func(nm *v1alpha1.NodeMaintenance) { nm.Name = "Kernel" })), "metadata.name FieldValueInvalid")
	expect(t, ValidateNodeMaintenance(nodeMaintenance(t, func(nm *v1alpha1.NodeMaintenance) { nm.Namespace = "x" })), "metadata.namespace FieldValueForbidden")
}

func TestValidateNodeMaintenanceUpdate(t *testing.T) {
	red := withSelector(selectNodes(corev1.NodeSelectorRequirement{Key: "pool", Operator: "In", Values: []string{"red"}}))
	broken := withSelector(&corev1.NodeSelector{})
	join := func(nm *v1alpha1.NodeMaintenance) { nm.Spec.NewNodes = v1alpha1.NewNodesPolicyJoin }
	inLabels := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	inExpressions := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "In", Values: []string{"x"}}}}
	type modifiers []func(*v1alpha1.NodeMaintenance)
	for name, test := range map[string]struct {
		old, nm modifiers
		want    []string
	}{
		"nothing":                {nil, nil, nil},
		"the selector in Idle":   {modifiers{withStage("Idle")}, modifiers{red}, nil},
		"the selector in Cordon": {modifiers{withStage("Cordon")}, modifiers{withStage("Cordon"), red}, nil},
		"the selector in Drain":  {modifiers{withStage("Drain")}, modifiers{withStage("Drain"), red}, nil},
		"the selector together with the step to Complete": {modifiers{withStage("Drain")}, modifiers{withStage("Complete"), red}, nil},
		"the selector in Complete":                        {modifiers{withStage("Complete")}, modifiers{withStage("Complete"), red}, []string{"spec.nodeSelector FieldValueForbidden"}},
		"the selector while deleting":                     {modifiers{deleting}, modifiers{deleting, red}, []string{"spec.nodeSelector FieldValueForbidden"}},
		"a selector that selects nothing":                 {nil, modifiers{broken}, []string{"spec.nodeSelector.nodeSelectorTerms FieldValueRequired"}},
		"newNodes in Idle":                                {modifiers{withStage("Idle")}, modifiers{join}, nil},
		"newNodes in Drain":                               {modifiers{withStage("Drain")}, modifiers{withStage("Drain"), join}, nil},
		"newNodes together with the step to Complete":     {modifiers{withStage("Drain")}, modifiers{withStage("Complete"), join}, nil},
		"newNodes in Complete":                            {modifiers{withStage("Complete")}, modifiers{withStage("Complete"), join}, []string{"spec.newNodes FieldValueForbidden"}},
		"newNodes while deleting":                         {modifiers{deleting}, modifiers{deleting, join}, []string{"spec.newNodes FieldValueForbidden"}},
		"a broken selector that was there already":        {modifiers{broken}, modifiers{broken}, nil},
		"the stage while deleting":                        {modifiers{deleting, withStage("Cordon")}, modifiers{deleting, withStage("Complete")}, []string{"spec.stage FieldValueForbidden"}},
		"an unknown stage is for the tags to refuse":      {modifiers{withStage("Drain")}, modifiers{withStage("Sleep")}, nil},
		"the plan": {modifiers{withPlan()}, modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5})}, []string{"spec.drainPlan FieldValueInvalid"}},
		"the plan, into one in the wrong order, is one mistake": {
			modifiers{withPlan()}, modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5}, v1alpha1.DrainPlanEntry{PodPriority: 4})},
			[]string{"spec.drainPlan FieldValueInvalid"},
		},
		"the plan left out": {modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5})}, nil, []string{"spec.drainPlan FieldValueInvalid"}},
		"the plan written whole": {
			nil, modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 1000000000}, v1alpha1.DrainPlanEntry{PodPriority: 2147483647, PodType: "Static"})}, nil,
		},
		"the plan in other words": {
			modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5, PodSelector: inLabels})},
			modifiers{withPlan(v1alpha1.DrainPlanEntry{PodPriority: 5, PodSelector: inExpressions})}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, ValidateNodeMaintenanceUpdate(nodeMaintenance(t, test.nm...), nodeMaintenance(t, test.old...)), test.want...)
		})
	}
}

func TestValidateStageTransitions(t *testing.T) {
	stages := []v1alpha1.NodeMaintenanceStage{"Idle", "Cordon", "Drain", "Complete"}
	allowed := map[string]bool{
		"Idle Cordon": true, "Idle Drain": true, "Idle Complete": true, "Cordon Drain": true, "Cordon Complete": true, "Drain Complete": true,
	}
	for _, from := range stages {
		for _, to := range stages {
			t.Run(string(from+" to "+to), func(t *testing.T) {
				errs := ValidateNodeMaintenanceUpdate(nodeMaintenance(t, withStage(to)), nodeMaintenance(t, withStage(from)))
				if from == to || allowed[string(from+" "+to)] {
					expect(t, errs)
					return
				}
				expect(t, errs, "spec.stage FieldValueInvalid")
			})
		}
	}
	t.Run("the error lists what is allowed", func(t *testing.T) {
		errs := ValidateNodeMaintenanceUpdate(nodeMaintenance(t, withStage("Idle")), nodeMaintenance(t, withStage("Cordon")))
		if text := errs.ToAggregate().Error(); !strings.Contains(text, "from Cordon the stage may stay or change to Drain or Complete") {
			t.Errorf("the error is %q", text)
		}
	})
}

func TestValidateNodeMaintenanceStatusUpdate(t *testing.T) {
	at := metav1.NewTime(time.Unix(1, 0))
	stage := func(name maintenance.NodeMaintenanceStage) maintenance.StageStatus {
		return maintenance.StageStatus{Name: name, StartTimestamp: at.DeepCopy()}
	}
	stages := func(s ...maintenance.StageStatus) maintenance.NodeMaintenanceStatus {
		return maintenance.NodeMaintenanceStatus{StageStatuses: s}
	}
	target := func(podType maintenance.PodType, priority int32, app ...string) maintenance.DrainPlanEntry {
		e := maintenance.DrainPlanEntry{PodType: podType, PodPriority: priority}
		if len(app) > 0 {
			e.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app[0]}}
		}
		return e
	}
	node := func(uid types.UID, targets ...maintenance.DrainPlanEntry) maintenance.NodeMaintenanceStatus {
		return maintenance.NodeMaintenanceStatus{NodeStatuses: []maintenance.NodeMaintenanceNodeStatus{{
			NodeRef: maintenance.NodeReference{Name: "n", UID: uid}, DrainTargets: targets,
		}}}
	}
	named := func(names ...string) maintenance.NodeMaintenanceStatus {
		var status maintenance.NodeMaintenanceStatus
		for _, name := range names {
			status.NodeStatuses = append(status.NodeStatuses, maintenance.NodeMaintenanceNodeStatus{NodeRef: maintenance.NodeReference{Name: name}})
		}
		return status
	}
	condition := func(modify func(*metav1.Condition)) maintenance.NodeMaintenanceStatus {
		c := metav1.Condition{Type: "Drained", Status: metav1.ConditionTrue, Reason: "DrainComplete", LastTransitionTime: at}
		modify(&c)
		return maintenance.NodeMaintenanceStatus{Conditions: []metav1.Condition{c}}
	}
	newest := func(seconds int64) maintenance.NodeMaintenanceStatus {
		return maintenance.NodeMaintenanceStatus{NewestNodeTimestamp: ptr.To(metav1.Unix(seconds, 0))}
	}
	progress := func(seconds int64) maintenance.NodeMaintenanceStatus {
		return maintenance.NodeMaintenanceStatus{LastProgressTimestamp: ptr.To(metav1.Unix(seconds, 0))}
	}
	const targets = "status.nodeStatuses[0].drainTargets"
	for name, test := range map[string]struct {
		old, status maintenance.NodeMaintenanceStatus
		want        []string
	}{
		"stages that stay":              {stages(stage("Cordon")), stages(stage("Cordon")), nil},
		"a stage more":                  {stages(stage("Cordon")), stages(stage("Cordon"), stage("Drain")), nil},
		"a stage less":                  {stages(stage("Cordon"), stage("Drain")), stages(stage("Cordon")), []string{"status.stageStatuses FieldValueInvalid"}},
		"another time":                  {stages(stage("Cordon")), stages(maintenance.StageStatus{Name: "Cordon", StartTimestamp: &metav1.Time{Time: time.Unix(9, 0)}}), []string{"status.stageStatuses FieldValueInvalid"}},
		"a stage twice":                 {stages(stage("Cordon")), stages(stage("Cordon"), stage("Cordon")), []string{"status.stageStatuses[1].name FieldValueDuplicate"}},
		"the newest node is recorded":   {stages(), newest(5), nil},
		"the newest node stays":         {newest(5), newest(5), nil},
		"the newest node changes":       {newest(5), newest(6), []string{"status.newestNodeTimestamp FieldValueInvalid"}},
		"the newest node falls":         {newest(5), newest(4), []string{"status.newestNodeTimestamp FieldValueInvalid"}},
		"the newest node is removed":    {newest(5), stages(), []string{"status.newestNodeTimestamp FieldValueInvalid"}},
		"progress moves on":             {progress(5), progress(6), nil},
		"progress falls":                {progress(5), progress(4), []string{"status.lastProgressTimestamp FieldValueInvalid"}},
		"progress is removed":           {progress(5), stages(), []string{"status.lastProgressTimestamp FieldValueInvalid"}},
		"a stage without time":          {stages(), stages(maintenance.StageStatus{Name: "Idle"}), []string{"status.stageStatuses[0].startTimestamp FieldValueRequired"}},
		"a node twice":                  {stages(), named("a", "b", "a"), []string{"status.nodeStatuses[2].nodeRef.name FieldValueDuplicate"}},
		"a name that no node can have":  {stages(), named("A_b"), []string{"status.nodeStatuses[0].nodeRef.name FieldValueInvalid"}},
		"a target twice":                {stages(), node("1", target("Default", 10, "x"), target("Default", 20, "x")), []string{targets + "[1] FieldValueDuplicate"}},
		"a selector that is none":       {stages(), node("1", target("Default", 10, "-")), []string{targets + "[0].podSelector.matchLabels FieldValueInvalid"}},
		"the same targets":              {node("1", target("Default", 10)), node("1", target("Default", 10)), nil},
		"a higher target":               {node("1", target("Default", 10)), node("1", target("Default", 20)), nil},
		"one target more":               {node("1", target("Default", 10)), node("1", target("Default", 10), target("Static", 1)), nil},
		"a lower target":                {node("1", target("Default", 10)), node("1", target("Default", 9)), []string{targets + " FieldValueInvalid"}},
		"a target less":                 {node("1", target("Default", 10), target("Static", 1)), node("1", target("Static", 1)), []string{targets + " FieldValueInvalid"}},
		"no target any more":            {node("1", target("Default", 10)), node("1"), []string{targets + " FieldValueInvalid"}},
		"all pods instead of some":      {node("1", target("Default", 10, "x")), node("1", target("Default", 10)), nil},
		"some pods instead of all":      {node("1", target("Default", 10)), node("1", target("Default", 10, "x")), []string{targets + " FieldValueInvalid"}},
		"all pods of less priority":     {node("1", target("Default", 10, "x")), node("1", target("Default", 9)), []string{targets + " FieldValueInvalid"}},
		"pods of another type":          {node("1", target("Default", 10)), node("1", target("Static", 10)), []string{targets + " FieldValueInvalid"}},
		"a node that was made again":    {node("1", target("Default", 10)), node("2"), nil},
		"a node that left":              {node("1", target("Default", 10)), stages(), nil},
		"a condition":                   {stages(), condition(func(*metav1.Condition) {}), nil},
		"a condition without reason":    {stages(), condition(func(c *metav1.Condition) { c.Reason = "" }), []string{"status.conditions[0].reason FieldValueRequired"}},
		"a condition of unknown status": {stages(), condition(func(c *metav1.Condition) { c.Status = "Maybe" }), []string{"status.conditions[0].status FieldValueNotSupported"}},
		"a condition without time":      {stages(), condition(func(c *metav1.Condition) { c.LastTransitionTime = metav1.Time{} }), []string{"status.conditions[0].lastTransitionTime FieldValueRequired"}},
	} {
		t.Run(name, func(t *testing.T) {
			nm, old := nodeMaintenance(t), nodeMaintenance(t)
			nm.Status, old.Status = test.status, test.old
			expect(t, ValidateNodeMaintenanceStatusUpdate(nm, old), test.want...)
		})
	}
	t.Run("a completed maintenance drops its targets", func(t *testing.T) {
		nm, old := nodeMaintenance(t), nodeMaintenance(t)
		nm.Status, old.Status = node("1"), node("1", target("Default", 10))
		nm.Spec.Stage, old.Spec.Stage = maintenance.NodeMaintenanceStageComplete, maintenance.NodeMaintenanceStageComplete
		expect(t, ValidateNodeMaintenanceStatusUpdate(nm, old))
		nm.Status = node("1", target("Default", 9))
		expect(t, ValidateNodeMaintenanceStatusUpdate(nm, old), targets+" FieldValueInvalid")
	})
}
