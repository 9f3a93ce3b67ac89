// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
)

// stop is a file of a walk through the code, as CONTRIBUTING lists it.
type stop struct {
	depth int
	// file is below pkg. by is the name that it shares with the file which hands the value on to
	// it.
	file, by string
}

var (
	walkItem = regexp.MustCompile("(?m)^( *)- `([^`]+\\.go)`(?:, by\\s+`([^`]+)`)?:")
	goFile   = regexp.MustCompile("`([\\w./]+/[\\w.]+\\.go)`")
)

// walkOf returns the stops of a list.
func walkOf(list string) []stop {
	var out []stop
	for _, match := range walkItem.FindAllStringSubmatch(list, -1) {
		out = append(out, stop{depth: len(match[1]), file: match[2], by: match[3]})
	}
	return out
}

// before returns the stops that may hand the value on to stop i: the one that its item is nested in
// or, if it is not nested, the last one that is not nested either and those nested in that one.
func before(stops []stop, i int) []stop {
	for k := i - 1; k >= 0; k-- {
		switch {
		case stops[k].depth < stops[i].depth:
			return stops[k : k+1]
		case stops[i].depth == 0 && stops[k].depth == 0:
			return stops[k:i]
		}
	}
	return nil
}

// follow returns what is wrong with a walk. names returns the identifiers in the code of a file.
func follow(stops []stop, names func(file string) (sets.Set[string], error)) []string {
	var wrong []string
	for i, s := range stops {
		own, err := names(s.file)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", s.file, err))
			continue
		}
		senders := before(stops, i)
		if len(senders) == 0 {
			continue
		}
		mentioned := slices.ContainsFunc(senders, func(sender stop) bool {
			theirs, err := names(sender.file)
			return err == nil && theirs.Has(s.by)
		})
		switch {
		case s.by == "":
			wrong = append(wrong, fmt.Sprintf("%s: the list does not say by which name it is reached", s.file))
		case !own.Has(s.by):
			wrong = append(wrong, fmt.Sprintf("%s does not have the name %s", s.file, s.by))
		case !mentioned:
			wrong = append(wrong, fmt.Sprintf("%s does not mention %s of the next file, %s", senders[0].file, s.by, s.file))
		}
	}
	return wrong
}

// namesIn returns the identifiers in the code of a file below pkg. Comments do not count.
func namesIn(file string) (sets.Set[string], error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "pkg", file), nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	names := sets.New[string]()
	ast.Inspect(parsed, func(node ast.Node) bool {
		if ident, ok := node.(*ast.Ident); ok {
			names.Insert(ident.Name)
		}
		return true
	})
	return names, nil
}

// walks returns the sections of CONTRIBUTING that walk through the code, by their headings.
func walks(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, section := range strings.Split(read(t, "CONTRIBUTING.md"), "\n### ")[1:] {
		title, text, _ := strings.Cut(section, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		if strings.HasPrefix(title, "Walk: ") {
			out[title] = text
		}
	}
	if len(out) != 2 {
		t.Fatalf("CONTRIBUTING has %d walks, want 2", len(out))
	}
	return out
}

func TestWalksThroughTheCodeAreTrue(t *testing.T) {
	for title, text := range walks(t) {
		stops := walkOf(text)
		if items := strings.Count(text, "- `"); len(stops) != items || items < 8 {
			t.Errorf("%s: %d of %d items name a file", title, len(stops), items)
		}
		for _, problem := range follow(stops, namesIn) {
			t.Errorf("%s: %s", title, problem)
		}
		for _, match := range goFile.FindAllStringSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(root, "pkg", match[1])); err != nil {
				t.Errorf("%s: file not found: pkg/%s", title, match[1])
			}
		}
		files := sets.New[string]()
		for _, s := range stops {
			files.Insert(s.file)
		}
		t.Logf("%s: %d files", title, len(files))
	}
}

func TestWalkChecksFindMistakes(t *testing.T) {
	code := map[string][]string{"a.go": {"Next", "Other"}, "b.go": {"Next", "Leaf"}, "c.go": {"Leaf"}, "d.go": {"Other"}}
	names := func(file string) (sets.Set[string], error) {
		known, ok := code[file]
		if !ok {
			return nil, os.ErrNotExist
		}
		return sets.New(known...), nil
	}
	for name, test := range map[string]struct {
		list string
		want []string
	}{
		"each file mentions the next":              {"- `a.go`: x\n- `b.go`, by `Next`: y\n  - `c.go`, by `Leaf`: z\n", nil},
		"after a nested file its caller continues": {"- `b.go`: x\n  - `c.go`, by `Leaf`: y\n- `a.go`, by `Next`: z\n", nil},
		"a nested file hands on":                   {"- `b.go`: x\n  - `a.go`, by `Next`: y\n- `d.go`, by `Other`: z\n", nil},
		"a line is wrapped":                        {"- `a.go`: x\n- `b.go`, by\n  `Next`: y\n", nil},
		"a file that is gone":                      {"- `a.go`: x\n- `gone.go`, by `Next`: y\n", []string{"gone.go: file does not exist"}},
		"a name that the next file does not have":  {"- `a.go`: x\n- `c.go`, by `Next`: y\n", []string{"c.go does not have the name Next"}},
		"a name that the file before does not mention": {"- `a.go`: x\n- `c.go`, by `Leaf`: y\n",
			[]string{"a.go does not mention Leaf of the next file, c.go"}},
		"a nested file that its caller does not mention": {"- `a.go`: x\n- `b.go`, by `Next`: y\n  - `d.go`, by `Other`: z\n",
			[]string{"b.go does not mention Other of the next file, d.go"}},
		"a file without a name": {"- `a.go`: x\n- `b.go`: y\n", []string{"b.go: the list does not say by which name it is reached"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := follow(walkOf(test.list), names); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
