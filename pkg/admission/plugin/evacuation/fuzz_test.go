// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// FuzzAdmit creates generated Evacuations for a pod with a generated annotation and label. It
// checks that no user can create an Evacuation without the right to delete the pod, that admission
// completes each Evacuation that it accepts, and that a second run changes nothing.
func FuzzAdmit(f *testing.F) {
	const valid = `{"apiVersion":"maintenance.haulout.dev/v1alpha1","kind":"Evacuation",` +
		`"metadata":{"namespace":"blue","name":"` + evacuationName + `","finalizers":["` + instigator + `"]},` +
		`"spec":{"podRef":{"name":"web-1","uid":"` + podUID + `"},"evacuators":[{"evacuatorClass":"a.example.com","priority":9000,"role":"Observer"}]}}`
	f.Add([]byte(valid), "movers.example.com", "5000/controller", "app", "web", true)
	f.Add([]byte(valid), "a.example.com", "9000", "app", "web", true)
	f.Add([]byte(valid), "movers.example.com", "5000/controller", "app", "web", false)
	f.Add([]byte(valid), v1alpha1.EvacuatorClassDeployment, "10000/controller", "", "", true)
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme).UniversalDecoder(maintenance.SchemeGroupVersion)
	f.Fuzz(func(t *testing.T, data []byte, class, value, key, label string, mayDelete bool) {
		obj, _, err := decoder.Decode(data, nil, nil)
		e, ok := obj.(*maintenance.Evacuation)
		if err != nil || !ok {
			return
		}
		e.Namespace, e.Status = "blue", maintenance.EvacuationStatus{}
		pod := newPod(annotated(class, value))
		pod.Labels[key] = label
		allowed := []string{useOurs, useA, assignA}
		if mayDelete {
			allowed = append(allowed, deletePod)
		}
		fixture := newFixture(t, nil, allowed, pod)
		create := request{object: e}
		if _, err := fixture.admit(create); err != nil {
			reject(t, err)
			return
		}
		if err := fixture.validate(create); err != nil {
			reject(t, err)
			return
		}
		if len(validation.ValidateEvacuation(e)) > 0 {
			return
		}
		if !mayDelete {
			t.Fatalf("%s may not delete the pod, but may create\n%+v", ann.Name, e)
		}
		is.True(t, e.Spec.NodeName == pod.Spec.NodeName, "the Evacuation names node %q", e.Spec.NodeName)
		for _, evacuator := range e.Spec.Evacuators {
			same := func(other maintenance.Evacuator) bool { return other.EvacuatorClass == evacuator.EvacuatorClass }
			if first := slices.IndexFunc(e.Spec.Evacuators, same); e.Spec.Evacuators[first] != evacuator {
				t.Errorf("class %s is named twice: %+v", evacuator.EvacuatorClass, e.Spec.Evacuators)
			}
		}
		once := e.DeepCopy()
		if _, err := fixture.admit(create); err != nil {
			t.Fatalf("a second run fails: %v", err)
		}
		must.True(t, equality.Semantic.DeepEqual(once, e), "a second run has changed\n%+v\nto\n%+v", once, e)
	})
}

// reject skips errors about an invalid request, and fails the test for all other errors.
func reject(t *testing.T, err error) {
	t.Helper()
	must.True(t, apierrors.IsForbidden(err) || apierrors.IsInvalid(err), "got %v, want Forbidden or Invalid", err)
}
