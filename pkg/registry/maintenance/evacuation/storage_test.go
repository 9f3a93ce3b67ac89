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

package evacuation

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/registrytest"
)

// causes returns the "reason field" of what a refused request was refused for.
func causes(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) {
		t.Fatalf("got %v, want it to be invalid", err)
	}
	var got []string
	for _, cause := range status.Status().Details.Causes {
		got = append(got, string(cause.Type)+" "+cause.Field)
	}
	slices.Sort(got)
	return got
}

func expectCauses(t *testing.T, err error, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := causes(t, err); !slices.Equal(got, want) {
		t.Errorf("refused for %q, want %q (%v)", got, want, err)
	}
}

func TestCreate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	ctx, warnings := registrytest.WithWarnings(request(t, ann, "create", "", ""))
	in := newEvacuation(active("last.example.com"), message("mine"), forbid, condition("Complete", "PodDeleted"), func(e *maintenance.Evacuation) {
		e.Name = ""
		e.Spec.ProgressDeadlineSeconds = ptr.To[int32](30)
	})
	obj, err := r.Evacuation.Create(ctx, in, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := obj.(*maintenance.Evacuation)
	if got.Name != name {
		t.Errorf("the name is %q, want %q", got.Name, name)
	}
	if st := got.Status; st.ActiveEvacuatorClass != "first.example.com" || st.ActiveEvacuatorCompleted || st.EvacuationProgressTimestamp != nil ||
		!st.ActiveEvacuatorSince.Equal(ptr.To(metav1.NewTime(start).Rfc3339Copy())) || !strings.Contains(st.Message, "first.example.com is active") || st.EvacuationCancellationPolicy != "Allow" || len(st.Conditions) != 0 {
		t.Errorf("the status is %+v, want that of a new object whose first evacuator is active", st)
	}
	if got.Generation != 1 {
		t.Errorf("the generation is %d, want 1", got.Generation)
	}
	if got.Spec.NodeName != "node-7" || got.Labels["app"] != "web" {
		t.Errorf("what admission resolved is lost: node %q, labels %v", got.Spec.NodeName, got.Labels)
	}
	want := []maintenance.Evacuator{
		{EvacuatorClass: "first.example.com", Priority: 20000},
		{EvacuatorClass: "deployment.apps.k8s.io", Priority: 10000, Role: "controller"},
		{EvacuatorClass: "last.example.com", Priority: 5},
	}
	if !slices.Equal(got.Spec.Evacuators, want) {
		t.Errorf("the evacuators are %v, want them in the order of their turns", got.Spec.Evacuators)
	}
	if len(warnings.Texts()) != 1 {
		t.Errorf("warnings are %q, want one of the short deadline", warnings.Texts())
	}
	if _, err := r.create(ann, newEvacuation()); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second one for the same pod: got %v, want that it exists", err)
	}
}

func TestCreateKeepsManagedFields(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	for name, test := range map[string]struct {
		user       user.Info
		evacuators []maintenance.Evacuator
	}{
		"of the server, for a pod without evacuators": {server, nil},
		"of the server, for a pod with an evacuator":  {server, []maintenance.Evacuator{{EvacuatorClass: "a.example.com", Priority: 1}}},
		"of a user": {ann, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := newEvacuation(forPod("web-"+strconv.Itoa(len(name))), withEvacuators(test.evacuators...), func(e *maintenance.Evacuation) {
				e.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "haulout-controllers", Operation: metav1.ManagedFieldsOperationUpdate}}
			})
			got, err := r.create(test.user, in)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.ManagedFields) != 1 {
				t.Errorf("got managed fields %v, want the one entry that was sent", got.ManagedFields)
			}
		})
	}
}

func TestCreateRefuses(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	spec := func(change func(*maintenance.EvacuationSpec)) mod {
		return func(e *maintenance.Evacuation) { change(&e.Spec) }
	}
	one := func(class string, priority int32, role maintenance.EvacuatorRole) mod {
		return withEvacuators(maintenance.Evacuator{EvacuatorClass: class, Priority: priority, Role: role})
	}
	many := make([]maintenance.Evacuator, 17)
	for i := range many {
		many[i].EvacuatorClass = string(rune('a'+i)) + ".example.com"
	}
	tests := map[string]struct {
		mod  mod
		want []string
	}{
		"another name":              {func(e *maintenance.Evacuation) { e.Name = "other" }, []string{"FieldValueInvalid metadata.name"}},
		"generateName":              {func(e *maintenance.Evacuation) { e.Name, e.GenerateName = "", "web-" }, []string{"FieldValueInvalid metadata.generateName"}},
		"no pod name":               {func(e *maintenance.Evacuation) { e.Name, e.Spec.PodRef.Name = "", "" }, []string{"FieldValueRequired spec.podRef.name"}},
		"no pod UID":                {func(e *maintenance.Evacuation) { e.Name, e.Spec.PodRef.UID = "", "" }, []string{"FieldValueRequired spec.podRef.uid"}},
		"no pod at all":             {func(e *maintenance.Evacuation) { e.Name, e.Spec.PodRef = "", maintenance.PodReference{} }, []string{"FieldValueRequired spec.podRef.name", "FieldValueRequired spec.podRef.uid"}},
		"a pod name that is none":   {func(e *maintenance.Evacuation) { e.Name, e.Spec.PodRef.Name = "", "Web_1" }, []string{"FieldValueInvalid spec.podRef.name"}},
		"no instigator":             {finalizers(), []string{"FieldValueRequired metadata.finalizers"}},
		"only other finalizers":     {finalizers("example.com/other"), []string{"FieldValueRequired metadata.finalizers"}},
		"a deadline of nothing":     {spec(func(s *maintenance.EvacuationSpec) { s.ProgressDeadlineSeconds = ptr.To[int32](0) }), []string{"FieldValueInvalid spec.progressDeadlineSeconds"}},
		"a deadline beyond a day":   {spec(func(s *maintenance.EvacuationSpec) { s.ProgressDeadlineSeconds = ptr.To[int32](86401) }), []string{"FieldValueInvalid spec.progressDeadlineSeconds"}},
		"seventeen evacuators":      {withEvacuators(many...), []string{"FieldValueTooMany spec.evacuators"}},
		"a class of 55 characters":  {one(strings.Repeat("a", 43)+".example.com", 1, ""), []string{"FieldValueTooLong spec.evacuators[0].evacuatorClass"}},
		"a class that is no domain": {one("A_b", 1, ""), []string{"FieldValueInvalid spec.evacuators[0].evacuatorClass"}},
		"no class":                  {one("", 1, ""), []string{"FieldValueRequired spec.evacuators[0].evacuatorClass"}},
		"a negative priority":       {one("a.example.com", -1, ""), []string{"FieldValueInvalid spec.evacuators[0].priority"}},
		"a priority too high":       {one("a.example.com", 100001, ""), []string{"FieldValueInvalid spec.evacuators[0].priority"}},
		"an unknown role":           {one("a.example.com", 10000, "boss"), []string{"FieldValueNotSupported spec.evacuators[0].role"}},
		"the role elsewhere":        {one("a.example.com", 9999, "controller"), []string{"FieldValueInvalid spec.evacuators[0].priority"}},
		"10000 without the role":    {one("a.example.com", 10000, ""), []string{"FieldValueRequired spec.evacuators[0].role"}},
		"eviction as an evacuator":  {one(eviction, 1, ""), []string{"FieldValueInvalid spec.evacuators[0].evacuatorClass"}},
		"a class twice": {withEvacuators(maintenance.Evacuator{EvacuatorClass: "a.example.com", Priority: 1}, maintenance.Evacuator{EvacuatorClass: "a.example.com", Priority: 2}),
			[]string{"FieldValueDuplicate spec.evacuators[1]"}},
		"two controllers": {withEvacuators(maintenance.Evacuator{EvacuatorClass: "a.example.com", Priority: 10000, Role: "controller"},
			maintenance.Evacuator{EvacuatorClass: "b.example.com", Priority: 10000, Role: "controller"}),
			[]string{"FieldValueInvalid spec.evacuators[1].role"}},
		"priority 10050 in another domain": {withEvacuators(maintenance.Evacuator{EvacuatorClass: "a.example.com", Priority: 10050},
			maintenance.Evacuator{EvacuatorClass: "deployment.apps.k8s.io", Priority: 10000, Role: "controller"}),
			[]string{"FieldValueInvalid spec.evacuators[0].priority"}},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			_, err := r.create(ann, newEvacuation(tt.mod))
			expectCauses(t, err, tt.want...)
			if (desc == "another name" || desc == "generateName") && !strings.Contains(err.Error(), name) {
				t.Errorf("the canonical name is missing in %v", err)
			}
		})
	}
}

func TestUpdate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	tests := map[string]struct {
		mods []mod
		want []string
	}{
		"an instigator joins":                {mods: []mod{finalizers(instigator, "evacuation.coordination.k8s.io/instigator_a")}},
		"the last instigator goes":           {mods: []mod{finalizers()}},
		"labels change":                      {mods: []mod{func(e *maintenance.Evacuation) { e.Labels = nil }}},
		"the status is not for here":         {mods: []mod{active("first.example.com"), message("x"), condition("Complete", "PodDeleted")}},
		"the deadline changes":               {[]mod{func(e *maintenance.Evacuation) { e.Spec.ProgressDeadlineSeconds = ptr.To[int32](5) }}, []string{"FieldValueForbidden spec"}},
		"the node changes":                   {[]mod{func(e *maintenance.Evacuation) { e.Spec.NodeName = "node-8" }}, []string{"FieldValueForbidden spec"}},
		"an evacuator goes":                  {[]mod{func(e *maintenance.Evacuation) { e.Spec.Evacuators = e.Spec.Evacuators[1:] }}, []string{"FieldValueForbidden spec"}},
		"a finalizer that is none":           {[]mod{finalizers(instigator, "evacuation.coordination.k8s.io/instigator_")}, []string{"FieldValueInvalid metadata.finalizers"}},
		"another pod, for the server itself": {[]mod{func(e *maintenance.Evacuation) { e.Spec.PodRef.UID = "other" }}, []string{"FieldValueForbidden spec"}},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			created := r.mustCreate()
			got, err := r.update(server, tt.mods...)
			expectCauses(t, err, tt.want...)
			if err == nil && !equality.Semantic.DeepEqual(got.Status, created.Status) {
				t.Errorf("the status became %+v", got.Status)
			}
		})
	}
}

func TestUpdateNeedsTheResourceVersion(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	evacuation := r.mustCreate()
	evacuation.ResourceVersion = ""
	_, _, err := r.Status.Update(request(t, server, "update", "status", name), name, rest.DefaultUpdatedObjectInfo(evacuation),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	expectCauses(t, err, "FieldValueInvalid metadata.resourceVersion")
}

func TestStatusIsNotCreatedByUpdate(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	_, _, err := r.Status.Update(request(t, server, "update", "status", name), name, rest.DefaultUpdatedObjectInfo(newEvacuation()),
		rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want that it is not found", err)
	}
}

func TestStatusWritesKeepMetadataAndSpec(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	created := r.mustCreate()
	got := r.mustUpdateStatus(server, active("first.example.com"), finalizers(), func(e *maintenance.Evacuation) {
		e.Labels = map[string]string{"app": "other"}
		e.Spec.NodeName = "node-8"
	})
	if !equality.Semantic.DeepEqual(got.Spec, created.Spec) {
		t.Errorf("the spec became %+v", got.Spec)
	}
	if !slices.Equal(got.Finalizers, created.Finalizers) || got.Labels["app"] != "web" {
		t.Errorf("the metadata became %+v", got.ObjectMeta)
	}
	if got.Status.ActiveEvacuatorClass != "first.example.com" {
		t.Errorf("the status was not written: %+v", got.Status)
	}
}

func TestStatusTransitions(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	first, last := active("first.example.com"), active("last.example.com")
	mods := func(m ...mod) []mod { return m }
	// inTurn gives the turn to each, as the one before has completed.
	inTurn := func(classes ...string) []mod {
		var steps []mod
		for i, class := range classes {
			if i > 0 {
				steps = append(steps, completed)
			}
			steps = append(steps, active(class))
		}
		return steps
	}
	third := inTurn("first.example.com", "deployment.apps.k8s.io", "last.example.com")
	evicted := inTurn("first.example.com", "deployment.apps.k8s.io", "last.example.com", eviction)
	tests := map[string]struct {
		// before are writes of the server, one after the other.
		before []mod
		user   user.Info
		mods   []mod
		want   []string
	}{
		"the first evacuator reports at once":         {nil, ann, mods(message("x"), forbid), nil},
		"the server moves down":                       {mods(first, completed), server, mods(active("deployment.apps.k8s.io")), nil},
		"the server moves to eviction":                {append(slices.Clone(third), completed), server, mods(active(eviction)), nil},
		"the server leaves one out":                   {mods(first, completed), server, mods(last), []string{"FieldValueInvalid status.activeEvacuatorClass"}},
		"the server goes straight to eviction":        {mods(first, completed), server, mods(active(eviction)), []string{"FieldValueInvalid status.activeEvacuatorClass"}},
		"the server moves up":                         {third, server, mods(first), []string{"FieldValueInvalid status.activeEvacuatorClass"}},
		"the server moves up from eviction":           {evicted, server, mods(first), []string{"FieldValueInvalid status.activeEvacuatorClass"}},
		"the server names an unknown class":           {mods(first), server, mods(active("x.example.com")), []string{"FieldValueNotSupported status.activeEvacuatorClass"}},
		"the server takes the turn back":              {mods(first), server, mods(active("")), []string{"FieldValueInvalid status.activeEvacuatorClass"}},
		"the counter rises":                           {mods(first, counter(2)), server, mods(counter(3)), nil},
		"the counter falls":                           {mods(first, counter(2)), server, mods(counter(1)), []string{"FieldValueInvalid status.failedEvictionCounter"}},
		"the counter is negative":                     {mods(first), server, mods(counter(-1)), []string{"FieldValueInvalid status.failedEvictionCounter"}},
		"a policy that is none":                       {mods(first), server, mods(func(e *maintenance.Evacuation) { e.Status.EvacuationCancellationPolicy = "Perhaps" }), []string{"FieldValueNotSupported status.evacuationCancellationPolicy"}},
		"a message of 1025 bytes":                     {mods(first), ann, mods(message(strings.Repeat("x", 1025))), []string{"FieldValueTooLong status.message"}},
		"a condition twice":                           {mods(first), server, mods(condition("Blocked", "A"), condition("Blocked", "A")), []string{"FieldValueDuplicate status.conditions[1]"}},
		"a condition without reason":                  {mods(first), server, mods(condition("Blocked", "")), []string{"FieldValueRequired status.conditions[0].reason"}},
		"the server completes it":                     {mods(first), server, mods(condition("Complete", "PodDeleted")), nil},
		"the server changes a complete one":           {mods(first, condition("Complete", "PodDeleted")), server, mods(message("x")), []string{"FieldValueForbidden status"}},
		"the server moves a complete one on":          {mods(first, condition("Complete", "PodDeleted")), server, mods(last), []string{"FieldValueForbidden status"}},
		"an evacuator reports on a complete one":      {mods(first, condition("Complete", "PodDeleted")), ann, mods(message("x")), []string{"FieldValueForbidden status"}},
		"an evacuator beats on a complete one":        {mods(first, condition("Complete", "PodDeleted")), ann, nil, nil},
		"the active evacuator reports":                {mods(first), ann, mods(message("x"), forbid), nil},
		"an evacuator passes the turn on":             {mods(first), ann, mods(last), []string{"FieldValueInvalid status.activeEvacuatorClass"}},
		"an evacuator that lost its turn writes":      {third, ann, mods(first, message("x")), []string{"FieldValueInvalid status.activeEvacuatorClass"}},
		"somebody reports for eviction":               {evicted, ann, mods(message("x")), []string{"FieldValueForbidden status"}},
		"an evacuator counts evictions":               {mods(first), ann, mods(counter(1)), []string{"FieldValueForbidden status.failedEvictionCounter"}},
		"an evacuator completes the evacuation":       {mods(first), ann, mods(condition("Complete", "PodDeleted")), []string{"FieldValueForbidden status.conditions"}},
		"the server completes and hands over at once": {mods(first), server, mods(completed, active("deployment.apps.k8s.io")), []string{"FieldValueInvalid status.activeEvacuatorClass"}},
		"the server forbids for the eviction":         {evicted, server, mods(forbid), []string{"FieldValueInvalid status.evacuationCancellationPolicy"}},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			r.mustCreate()
			for _, m := range tt.before {
				r.mustUpdateStatus(server, m)
			}
			_, err := r.updateStatus(tt.user, tt.mods...)
			expectCauses(t, err, tt.want...)
		})
	}
}

func counter(n int32) mod {
	return func(e *maintenance.Evacuation) { e.Status.FailedEvictionCounter = n }
}

func TestWithoutEvacuatorsEvictionStarts(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate(withEvacuators())
	if got := r.mustUpdateStatus(server, active(eviction)); got.Status.ActiveEvacuatorClass != eviction {
		t.Errorf("the turn is with %q", got.Status.ActiveEvacuatorClass)
	}
}

func TestProgressTimestamp(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate()
	at := func(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(start.Truncate(time.Second).Add(d))) }
	expect := func(what string, got *maintenance.Evacuation, want *metav1.Time) {
		t.Helper()
		if !got.Status.EvacuationProgressTimestamp.Equal(want) {
			t.Errorf("%s: the progress timestamp is %v, want %v", what, got.Status.EvacuationProgressTimestamp, want)
		}
	}
	theirs := func(e *maintenance.Evacuation) {
		e.Status.EvacuationProgressTimestamp = ptr.To(metav1.NewTime(start.Add(240 * time.Hour)))
	}
	expect("the first evacuator has not reported yet", r.mustUpdateStatus(server, active("first.example.com")), nil)

	r.clock.SetTime(start.Add(time.Minute))
	expect("it writes without a change", r.mustUpdateStatus(ann), at(time.Minute))
	before := r.mustUpdateStatus(ann)
	if again := r.mustUpdateStatus(ann); again.ResourceVersion != before.ResourceVersion {
		t.Errorf("two reports in a second are two writes")
	}

	r.clock.SetTime(start.Add(2 * time.Minute))
	expect("it sends a time of its own", r.mustUpdateStatus(ann, theirs), at(2*time.Minute))
	expect("it removes the time", r.mustUpdateStatus(ann, func(e *maintenance.Evacuation) { e.Status.EvacuationProgressTimestamp = nil }), at(2*time.Minute))

	r.clock.SetTime(start.Add(3 * time.Minute))
	expect("the server writes the message", r.mustUpdateStatus(server, message("x")), at(2*time.Minute))
	expect("the server's own evacuator reports", r.mustUpdateStatus(server, func(e *maintenance.Evacuation) {
		e.Status.EvacuationProgressTimestamp = at(3 * time.Minute)
	}), at(3*time.Minute))

	r.clock.SetTime(start.Add(4 * time.Minute))
	expect("the server's own evacuator makes up a time", r.mustUpdateStatus(server, theirs), at(4*time.Minute))
	r.clock.SetTime(start.Add(5 * time.Minute))
	expect("the server removes the time", r.mustUpdateStatus(server, message("y"), func(e *maintenance.Evacuation) { e.Status.EvacuationProgressTimestamp = nil }), at(4*time.Minute))

	r.mustUpdateStatus(ann, completed)
	r.clock.SetTime(start.Add(6 * time.Minute))
	got := r.mustUpdateStatus(server, active("deployment.apps.k8s.io"), theirs)
	expect("the next one becomes active", got, nil)
	if !got.Status.ActiveEvacuatorSince.Equal(at(6 * time.Minute)) {
		t.Errorf("the next one is active since %v, want %v", got.Status.ActiveEvacuatorSince, at(6*time.Minute))
	}

	r.mustUpdateStatus(server, condition("Complete", "PodDeleted"))
	r.clock.SetTime(start.Add(7 * time.Minute))
	expect("it reports on a complete one", r.mustUpdateStatus(ann), nil)
}

func TestHandOverClearsWhatTheLastOneReported(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate()
	r.mustUpdateStatus(server, active("first.example.com"))
	r.mustUpdateStatus(ann, forbid, func(e *maintenance.Evacuation) {
		e.Status.ActiveEvacuatorCompleted = true
		e.Status.ExpectedEvacuationFinishTime = ptr.To(metav1.NewTime(start))
	})
	got := r.mustUpdateStatus(server, active("deployment.apps.k8s.io"), message("first.example.com said it completed"))
	want := maintenance.EvacuationStatus{
		ActiveEvacuatorClass:         "deployment.apps.k8s.io",
		ActiveEvacuatorSince:         ptr.To(metav1.NewTime(start).Rfc3339Copy()),
		EvacuationCancellationPolicy: maintenance.EvacuationCancellationPolicyAllow,
		Message:                      "first.example.com said it completed",
	}
	if !equality.Semantic.DeepEqual(got.Status, want) {
		t.Errorf("the status is %+v, want %+v", got.Status, want)
	}
}

func TestForbidAndTheInstigators(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	tests := map[string]struct {
		prepare func(*registry)
		want    []string
	}{
		"in time":                           {func(*registry) {}, nil},
		"after the last instigator is gone": {func(r *registry) { _, _ = r.update(ann, finalizers("example.com/other")) }, []string{"FieldValueInvalid status.evacuationCancellationPolicy"}},
		"after the deletion":                {func(r *registry) { r.delete() }, []string{"FieldValueInvalid status.evacuationCancellationPolicy"}},
		"before both": {func(r *registry) {
			r.mustUpdateStatus(ann, forbid)
			_, _ = r.update(ann, finalizers("example.com/other"))
			r.delete()
		}, nil},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			r.mustCreate()
			r.mustUpdateStatus(server, active("first.example.com"))
			tt.prepare(r)
			_, err := r.updateStatus(ann, forbid)
			expectCauses(t, err, tt.want...)
		})
	}
}

func TestDeletion(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	exists := func(r *registry) (*maintenance.Evacuation, bool) {
		obj, err := r.Evacuation.Get(request(r.t, server, "get", "", name), name, &metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, false
		}
		if err != nil {
			r.t.Fatal(err)
		}
		return obj.(*maintenance.Evacuation), true
	}
	tests := map[string]struct {
		prepare func(*registry)
		delete  func(*registry)
	}{
		"one that has just been made": {func(*registry) {}, (*registry).delete},
		"one that an evacuator works on": {func(r *registry) {
			r.mustUpdateStatus(server, active("first.example.com"))
			r.mustUpdateStatus(ann, forbid)
		}, (*registry).delete},
		"a complete one": {func(r *registry) { r.mustUpdateStatus(server, condition("Complete", "PodDeleted")) }, (*registry).delete},
		"all of a namespace": {func(*registry) {}, func(r *registry) {
			_, err := r.Evacuation.DeleteCollection(request(r.t, ann, "deletecollection", "", ""), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &metainternalversion.ListOptions{})
			if err != nil {
				r.t.Fatal(err)
			}
		}},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
			r.mustCreate()
			tt.prepare(r)
			tt.delete(r)
			got, ok := exists(r)
			if !ok || got.DeletionTimestamp == nil {
				t.Fatalf("with an instigator it should be marked as deleted, got %v", got)
			}
			if _, err := r.update(ann, finalizers(instigator, "evacuation.coordination.k8s.io/instigator_late")); !apierrors.IsInvalid(err) {
				t.Errorf("an instigator joins a deleted one: got %v", err)
			}
			if _, err := r.update(server, finalizers()); err != nil {
				t.Fatal(err)
			}
			if got, ok := exists(r); ok {
				t.Errorf("without finalizers it should be gone, got %v", got)
			}
		})
	}
}

func TestFieldSelectors(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.CachedRESTOptions(maintenance.Resource("evacuations")))
	r.mustCreate()
	r.mustUpdateStatus(server, completed)
	r.mustUpdateStatus(server, active("deployment.apps.k8s.io"))
	r.mustUpdateStatus(server, condition("Blocked", "PodDisruptionBudget"))
	r.mustCreate(forPod("web-2"), func(e *maintenance.Evacuation) { e.Spec.NodeName = "node-8" })
	r.mustCreate(forPod("web-3"))

	tests := map[string]struct {
		selector string
		want     []string
	}{
		"by name":                       {"metadata.name=" + name, []string{"web-1"}},
		"by namespace":                  {"metadata.namespace=blue", []string{"web-1", "web-2", "web-3"}},
		"by another namespace":          {"metadata.namespace=red", nil},
		"by node":                       {"spec.nodeName=node-7", []string{"web-1", "web-3"}},
		"by node, with nothing there":   {"spec.nodeName=node-9", nil},
		"by other nodes":                {"spec.nodeName!=node-7", []string{"web-2"}},
		"by pod":                        {"spec.podRef.name=web-2", []string{"web-2"}},
		"by active evacuator":           {"status.activeEvacuatorClass=deployment.apps.k8s.io", []string{"web-1"}},
		"by the first evacuator":        {"status.activeEvacuatorClass=first.example.com", []string{"web-2", "web-3"}},
		"by nobody's turn":              {"status.activeEvacuatorClass=", nil},
		"by blocked":                    {"status.blocked=true", []string{"web-1"}},
		"by not blocked":                {"status.blocked=false", []string{"web-2", "web-3"}},
		"by node and not blocked":       {"spec.nodeName=node-7,status.blocked=false", []string{"web-3"}},
		"by everything, with an answer": {"spec.nodeName=node-7,status.blocked=true,status.activeEvacuatorClass=deployment.apps.k8s.io", []string{"web-1"}},
	}
	for desc, tt := range tests {
		t.Run(desc, func(t *testing.T) {
			obj, err := r.Evacuation.List(request(t, ann, "list", "", ""), &metainternalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie(tt.selector)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, item := range obj.(*maintenance.EvacuationList).Items {
				got = append(got, item.Spec.PodRef.Name)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWatchByActiveEvacuator(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.CachedRESTOptions(maintenance.Resource("evacuations")))
	created := r.mustCreate()
	w, err := r.Evacuation.Watch(request(t, ann, "watch", "", ""), &metainternalversion.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(maintenance.FieldActiveEvacuatorClass, "first.example.com"),
		ResourceVersion: created.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func(want watch.EventType) {
		t.Helper()
		select {
		case event := <-w.ResultChan():
			if event.Type != want {
				t.Fatalf("got %v, want %v", event, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("no event, want %v", want)
		}
	}
	r.mustCreate(forPod("web-2"))
	r.mustUpdateStatus(server, active("first.example.com"))
	next(watch.Added)
	r.mustUpdateStatus(server, message("x"))
	next(watch.Modified)
	r.mustUpdateStatus(ann, completed)
	next(watch.Modified)
	r.mustUpdateStatus(server, active("deployment.apps.k8s.io"))
	next(watch.Deleted)
}

func TestResetFields(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	has := func(sets map[fieldpath.APIVersion]*fieldpath.Set, field string) bool {
		set := sets["maintenance.haulout.dev/v1alpha1"]
		return set != nil && set.Has(fieldpath.MakePathOrDie(field))
	}
	if sets := r.Evacuation.GetResetFields(); !has(sets, "status") || has(sets, "spec") {
		t.Errorf("the main endpoint resets %v", sets)
	}
	if sets := r.Status.GetResetFields(); has(sets, "status") || !has(sets, "spec") || !has(sets, "metadata") {
		t.Errorf("the status endpoint resets %v", sets)
	}
}

func TestNames(t *testing.T) {
	etcd := registrytest.RunEtcd(t)
	r := newRegistry(t, etcd.RESTOptions(maintenance.Resource("evacuations")))
	if got := r.Evacuation.ShortNames(); !slices.Equal(got, []string{"evac"}) {
		t.Errorf("short names are %q", got)
	}
	if got := r.Evacuation.GetSingularName(); got != "evacuation" {
		t.Errorf("the singular is %q", got)
	}
	if !r.Evacuation.NamespaceScoped() {
		t.Error("not namespaced")
	}
}
