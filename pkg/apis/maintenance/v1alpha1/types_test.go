// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"haulout.dev/haulout/pkg/apis/maintenance/fuzzer"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestCompatibility decodes what earlier versions have stored, in testdata, and compares what this
// version would store. A change of testdata/HEAD that is more than an addition breaks stored
// objects. To regenerate it, set UPDATE_COMPATIBILITY_FIXTURE_DATA=true; with a release, copy it to
// testdata/v<version>.
func TestCompatibility(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	options := roundtrip.NewCompatibilityTestOptions(scheme)
	for _, kind := range []string{"NodeMaintenance", "NodeMaintenancePreview", "Evacuation"} {
		options.Kinds = append(options.Kinds, schema.GroupVersionKind{
			Group: v1alpha1.SchemeGroupVersion.Group, Version: v1alpha1.SchemeGroupVersion.Version, Kind: kind,
		})
	}
	options.Complete(t).Run(t)
}

func TestRoundTrip(t *testing.T) {
	roundtrip.RoundTripTestForAPIGroup(t, install.Install, fuzzer.Funcs)
}

func TestRoundTripProtobuf(t *testing.T) {
	roundtrip.RoundTripProtobufTestForAPIGroup(t, install.Install, fuzzer.Funcs)
}

// TestReasonsAreInTheirLists reads the constants from the source and makes sure that a new reason
// is in every list of reasons that another package keeps.
func TestReasonsAreInTheirLists(t *testing.T) {
	declared := declaredReasons(t)
	for _, list := range []struct {
		file, name string
		// kinds are the kinds of reasons that belong into the list, but for the ones in except.
		kinds, except []string
	}{
		{file: "pkg/controller/evacuation/metrics.go", name: "completeReasons", kinds: []string{"Complete"}},
		{file: "pkg/controller/evacuation/metrics.go", name: "blockedReasons", kinds: []string{"Blocked"}},
		{file: "test/oracle/protocol.go", name: "reasons", kinds: []string{"Blocked"}},
		{
			file: "pkg/cmd/kubectlmaintenance/show/blockers.go", name: "actions", kinds: []string{"Blocked", "preview only"},
			// Such pods leave, only later: no user has to act.
			except: []string{"ReasonTurnsByOwner"},
		},
	} {
		listed := listedReasons(t, filepath.Join("..", "..", "..", "..", list.file), list.name)
		for _, kind := range list.kinds {
			must.True(t, len(declared[kind]) != 0, "no reason has a comment that begins with its name and (%s)", kind)
			for _, reason := range declared[kind] {
				if slices.Contains(listed, reason) == slices.Contains(list.except, reason) {
					t.Errorf("%s (%s): is in %s of %s: %t, want %t", reason, kind, list.name, list.file,
						slices.Contains(listed, reason), !slices.Contains(listed, reason))
				}
			}
		}
	}
}

// kindOf matches the comment of a reason, such as "ReasonRecreated (Blocked): a controller ...".
var kindOf = regexp.MustCompile(`^(\w+) \(([^)]+)\): `)

// declaredReasons returns the names of the reasons that this package declares, by the kind that
// their comments begin with. A reason without a kind would be in no list.
func declaredReasons(t *testing.T) map[string][]string {
	t.Helper()
	files := must.Get(filepath.Glob("types_*.go"))(t)
	reasons := map[string][]string{}
	for _, file := range files {
		for _, spec := range specs(t, file, token.CONST) {
			name := spec.Names[0].Name
			if !strings.HasPrefix(name, "Reason") {
				continue
			}
			comment := strings.Join(strings.Fields(spec.Doc.Text()), " ")
			match := kindOf.FindStringSubmatch(comment)
			if len(spec.Names) != 1 || match == nil || match[1] != name {
				t.Errorf(`the comment of %s is %q, want one like "ReasonRecreated (Blocked): a controller ..."`, name, comment)
				continue
			}
			reasons[match[2]] = append(reasons[match[2]], name)
		}
	}
	return reasons
}

// listedReasons returns the names of the reasons that a variable of a file lists.
func listedReasons(t *testing.T, file, variable string) []string {
	t.Helper()
	var reasons []string
	for _, spec := range specs(t, file, token.VAR) {
		if spec.Names[0].Name != variable {
			continue
		}
		ast.Inspect(spec, func(n ast.Node) bool {
			if name, ok := n.(*ast.SelectorExpr); ok && strings.HasPrefix(name.Sel.Name, "Reason") {
				reasons = append(reasons, name.Sel.Name)
			}
			return true
		})
	}
	must.True(t, len(reasons) != 0, "%s has no variable %s that lists reasons", file, variable)
	return reasons
}

// specs returns the constants or variables that a file declares outside of functions.
func specs(t *testing.T, file string, kind token.Token) []*ast.ValueSpec {
	t.Helper()
	parsed := must.Get(parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution))(t)
	var found []*ast.ValueSpec
	for _, d := range parsed.Decls {
		if d, ok := d.(*ast.GenDecl); ok && d.Tok == kind {
			for _, spec := range d.Specs {
				found = append(found, spec.(*ast.ValueSpec))
			}
		}
	}
	return found
}
