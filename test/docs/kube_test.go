// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/testing/must"
)

// TestVersionsOfKubernetes compares the versions of Kubernetes in README and the chart with those
// that `make kube` builds.
func TestVersionsOfKubernetes(t *testing.T) {
	first := func(path, pattern string) string {
		t.Helper()
		match := regexp.MustCompile(pattern).FindStringSubmatch(read(t, path))
		must.True(t, match != nil, "%s: no line matches %s", path, pattern)
		return match[1]
	}
	versions := strings.Fields(first("Makefile", `(?m)^KUBE_VERSIONS := (.+)$`))
	must.True(t, len(versions) > 1, "Makefile: got KUBE_VERSIONS %q, want several", versions)
	var built []string
	for i, version := range versions {
		file, pattern := "test/cluster/kube/"+version+"/go.mod", `(?m)^\tk8s\.io/kubernetes v(\S+)`
		if i == len(versions)-1 {
			file, pattern = "Makefile", `(?m)^KUBE_VERSION := v(\S+)$`
		}
		built = append(built, first(file, pattern))
		if !strings.HasPrefix(built[i], version+".") {
			t.Errorf("%s: has Kubernetes %s, want a release of %s", file, built[i], version)
		}
	}
	named := strings.Fields(strings.ReplaceAll(first("README.md", `(?m)^\| Kubernetes \|(.+)\|$`), "|", " "))
	if !slices.Equal(named, built) {
		t.Errorf("README.md: names Kubernetes %q, `make kube` builds %q", named, built)
	}
	// A version of which nothing is known must not look as if it was tried.
	for _, result := range strings.Split(first("README.md", `(?m)^\| tests passed \|(.+)\|$`), "|") {
		if !regexp.MustCompile(`^\d+, \d+ skipped, 20\d\d-\d\d-\d\d$`).MatchString(strings.TrimSpace(result)) {
			t.Errorf("README.md: the result %q is not one that `make kube` prints after it has passed", result)
		}
	}
	if oldest := first("charts/haulout/Chart.yaml", `(?m)^kubeVersion: ">=(\S+)\.0-0"$`); oldest != versions[0] {
		t.Errorf("charts/haulout/Chart.yaml: allows Kubernetes %s, the oldest version with tests is %s", oldest, versions[0])
	}
}
