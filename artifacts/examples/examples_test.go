// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package examples tests the manifests of this folder.
package examples

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/testing/must"
)

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	install.Install(scheme)
	must.Do(t, clientgoscheme.AddToScheme(scheme))
	return scheme
}

// decode returns the objects of a file. Unknown and repeated fields are errors.
func decode(t *testing.T, scheme *runtime.Scheme, path string) []runtime.Object {
	t.Helper()
	content := must.Get(os.ReadFile(path))(t)
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	var objects []runtime.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}

// validate returns the errors with which the server would refuse a Haulout object.
func validate(t *testing.T, scheme *runtime.Scheme, object runtime.Object) field.ErrorList {
	t.Helper()
	scheme.Default(object)
	errs := scheme.Validate(t.Context(), nil, object)
	internal := must.Get(scheme.ConvertToVersion(object, maintenance.SchemeGroupVersion))(t)
	switch typed := internal.(type) {
	case *maintenance.NodeMaintenance:
		return append(errs, validation.ValidateNodeMaintenance(typed)...)
	case *maintenance.NodeMaintenanceRollout:
		return append(errs, validation.ValidateNodeMaintenanceRollout(typed)...)
	case *maintenance.Evacuation:
		// Admission derives the name from the pod.
		if typed.Name == "" {
			typed.Name = string(typed.Spec.PodRef.UID) + "-" + typed.Spec.PodRef.Name
		}
		return append(errs, validation.ValidateEvacuation(typed)...)
	}
	t.Fatalf("cannot validate a %T", internal)
	return nil
}

func TestExamplesAreValid(t *testing.T) {
	scheme := newScheme(t)
	paths, err := filepath.Glob("*.yaml")
	must.True(t, err == nil && len(paths) != 0, "got no examples (error %v)", err)
	for _, path := range paths {
		t.Run(path, func(t *testing.T) {
			objects := decode(t, scheme, path)
			must.True(t, len(objects) != 0, "the file is empty")
			for _, object := range objects {
				switch object.(type) {
				case *v1alpha1.NodeMaintenance, *v1alpha1.NodeMaintenanceRollout, *v1alpha1.Evacuation:
					if errs := validate(t, scheme, object); len(errs) > 0 {
						t.Error(errs.ToAggregate())
					}
				}
			}
		})
	}
}

// TestPlansAreLeftOutOrWhole checks that the server adds no entries to the drain plans of the
// examples. Otherwise the stored plan differs from the sent one, and a second manager that uses
// server-side apply gets a conflict.
func TestPlansAreLeftOutOrWhole(t *testing.T) {
	scheme := newScheme(t)
	paths := must.Get(filepath.Glob("*.yaml"))(t)
	for _, path := range paths {
		for _, object := range decode(t, scheme, path) {
			nm, ok := object.(*v1alpha1.NodeMaintenance)
			if !ok || len(nm.Spec.DrainPlan) == 0 {
				continue
			}
			sent := nm.DeepCopy()
			scheme.Default(nm)
			if !reflect.DeepEqual(nm.Spec.DrainPlan, sent.Spec.DrainPlan) {
				t.Errorf("%s: the plan of %s is incomplete: with defaults it has %d entries, not %d", path, nm.Name,
					len(nm.Spec.DrainPlan), len(sent.Spec.DrainPlan))
			}
		}
	}
}

// TestThePageShowsTheEvacuator checks that the page contains the example, which other tests compile
// and run.
func TestThePageShowsTheEvacuator(t *testing.T) {
	page := must.Get(os.ReadFile(filepath.Join("..", "..", "docs", "evacuators.md")))(t)
	program := must.Get(os.ReadFile(filepath.Join("evacuator", "main.go")))(t)
	_, code, found := bytes.Cut(program, []byte("\n)\n\n"))
	if !found || !bytes.Contains(page, code) {
		t.Error("docs/evacuators.md does not contain the code after the imports of artifacts/examples/evacuator/main.go")
	}
}
