// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package gitops runs the health checks and the comparisons of GitOps tools on objects of the
// maintenance API. It is a module of its own, since it needs the libraries of these tools. The
// objects in testdata are written by tests of the main module, from what the server answers and its
// controllers store (pkg/testing/golden). The configuration of the tools is read from
// docs/gitops.md, so that users get what was tested.
package gitops

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fluxcd/pkg/apis/kustomize"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	root = "../.."
	page = "docs/gitops.md"

	group = "maintenance.haulout.dev"
)

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// block returns the only block of YAML in the page that has the given kind.
func block(t *testing.T, kind string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	var found [][]byte
	for _, match := range yamlBlock.FindAllSubmatch(text, -1) {
		var object struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(match[1], &object); err != nil {
			t.Fatalf("%s: %v in\n%s", page, err, match[1])
		}
		if object.Kind == kind {
			found = append(found, match[1])
		}
	}
	if len(found) != 1 {
		t.Fatalf("%s has %d blocks of YAML of the kind %s, want one", page, len(found), kind)
	}
	return found[0]
}

// table returns the cells of the rows of a table in the page, whose first line has a prefix.
func table(t *testing.T, header string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "\n"+header)
	body, _, _ := strings.Cut(after, "\n\n")
	lines := strings.Split(body, "\n")
	if !found || len(lines) < 3 {
		t.Fatalf("%s has no table that begins with %s", page, header)
	}
	var rows [][]string
	for _, line := range lines[2:] {
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(line, "| "), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		rows = append(rows, cells)
	}
	return rows
}

// argoCD returns a key of the ConfigMap of Argo CD in the page.
func argoCD(t *testing.T, key string) string {
	t.Helper()
	var config struct {
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(block(t, "ConfigMap"), &config); err != nil {
		t.Fatal(err)
	}
	value := config.Data[key]
	if value == "" {
		t.Fatalf("%s: the ConfigMap of Argo CD has no %s", page, key)
	}
	return value
}

// fluxChecks returns the health checks of the Kustomization of Flux in the page.
func fluxChecks(t *testing.T) []kustomize.CustomHealthCheck {
	t.Helper()
	var kustomization struct {
		Spec struct {
			HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(block(t, "Kustomization"), &kustomization); err != nil {
		t.Fatal(err)
	}
	return kustomization.Spec.HealthCheckExprs
}

// load returns an object of the test data. Numbers without a fraction become int64, as in the
// clients of the tools.
func load(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	return object
}
