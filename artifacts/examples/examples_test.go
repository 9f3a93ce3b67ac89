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
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/testing/is"
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
	return decodeText(t, scheme, must.Get(os.ReadFile(path))(t))
}

// decodeText returns the objects in a text, and those in the data of its ConfigMaps.
func decodeText(t *testing.T, scheme *runtime.Scheme, content []byte) []runtime.Object {
	t.Helper()
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
		if configMap, ok := object.(*corev1.ConfigMap); ok {
			for _, text := range configMap.Data {
				objects = append(objects, decodeText(t, scheme, []byte(text))...)
			}
		}
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
		// The server generates the name.
		if typed.Name == "" {
			typed.Name = typed.GenerateName + "x"
		}
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

// TestRolloutsAreRepeated runs the script of the CronJob with a kubectl that only notes its
// arguments: a new rollout is created if there is none, or the former one has ended.
func TestRolloutsAreRepeated(t *testing.T) {
	const list, create = "get NMR --selector=app=reboots --output=name", "create --filename=/rollout/rollout.yaml"
	const wait, remove = "wait NMR --selector=app=reboots --for=condition=Ready --timeout=30s", "delete NMR --selector=app=reboots"
	objects := decode(t, newScheme(t), "reboots.yaml")
	at := slices.IndexFunc(objects, func(o runtime.Object) bool { _, ok := o.(*batchv1.CronJob); return ok })
	must.True(t, at >= 0, "the file has no CronJob")
	container := objects[at].(*batchv1.CronJob).Spec.JobTemplate.Spec.Template.Spec.Containers[0]
	for name, test := range map[string]struct {
		found, waited string
		want          []string
	}{
		"none":                {"", "0", []string{list, create}},
		"one that has ended":  {"nmr/reboots-1", "0", []string{list, wait, remove, create}},
		"one that has halted": {"nmr/reboots-1", "1", []string{list, wait}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			kubectl := "#!/bin/sh\necho \"$*\" >>" + dir + "/calls\ncase $1 in get) echo " + test.found + " ;; wait) exit " + test.waited + " ;; esac\n"
			must.Do(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o700))
			cmd := exec.CommandContext(t.Context(), container.Command[0], slices.Concat(container.Command[1:], container.Args)...)
			cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			must.True(t, err == nil, "%v: %s", err, out)
			calls := string(must.Get(os.ReadFile(filepath.Join(dir, "calls")))(t))
			calls = strings.ReplaceAll(calls, "nodemaintenancerollouts.maintenance.haulout.dev", "NMR")
			is.Slices(t, strings.Split(strings.TrimSpace(calls), "\n"), test.want, "calls of kubectl")
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

// TestThePageShowsTheWorker checks that the code of a worker on the page is that of the example,
// which other tests compile. The page leaves out lines where it has "...".
func TestThePageShowsTheWorker(t *testing.T) {
	page := must.Get(os.ReadFile(filepath.Join("..", "..", "docs", "workers.md")))(t)
	program := must.Get(os.ReadFile(filepath.Join("..", "..", "pkg", "worker", "example_test.go")))(t)
	_, rest, found := bytes.Cut(page, []byte("```go\n"))
	code, _, closed := bytes.Cut(rest, []byte("```\n"))
	parts := bytes.Split(code, []byte("\t...\n"))
	must.True(t, found && closed && len(parts) == 2, "docs/workers.md has no example of a worker with one line %q", "...")
	for _, part := range parts {
		if !bytes.Contains(program, part) {
			t.Errorf("pkg/worker/example_test.go does not contain what docs/workers.md shows:\n%s", part)
		}
	}
}
