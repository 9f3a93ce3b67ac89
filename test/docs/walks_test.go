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

// stop is an item of a list in CONTRIBUTING.md that walks through the code. Each item names a file.
type stop struct {
	depth int
	// file is the path of the file, relative to pkg. by is an identifier that is both in this file
	// and in the file that passes the value to it.
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

// before returns the stops that may pass the value to stop i. For a nested item, this is its
// parent. For an item at the top level, it is the previous item at the top level and the items
// nested in that one.
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

// follow returns the mistakes in a walk. names returns the identifiers in the code of a file.
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
			wrong = append(wrong, fmt.Sprintf("%s: the item has no name after \"by\"", s.file))
		case !own.Has(s.by):
			wrong = append(wrong, fmt.Sprintf("%s does not have the name %s", s.file, s.by))
		case !mentioned:
			wrong = append(wrong, fmt.Sprintf("%s does not use %s of the next file, %s", senders[0].file, s.by, s.file))
		}
	}
	return wrong
}

// namesIn returns the identifiers in the code of a file below pkg, without comments.
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

// walks returns the sections of CONTRIBUTING.md that walk through the code, by their headings.
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
		"each file uses a name of the next":        {"- `a.go`: x\n- `b.go`, by `Next`: y\n  - `c.go`, by `Leaf`: z\n", nil},
		"after a nested file its caller continues": {"- `b.go`: x\n  - `c.go`, by `Leaf`: y\n- `a.go`, by `Next`: z\n", nil},
		"a nested file passes the value on":        {"- `b.go`: x\n  - `a.go`, by `Next`: y\n- `d.go`, by `Other`: z\n", nil},
		"a wrapped line":                           {"- `a.go`: x\n- `b.go`, by\n  `Next`: y\n", nil},
		"a missing file":                           {"- `a.go`: x\n- `gone.go`, by `Next`: y\n", []string{"gone.go: file does not exist"}},
		"a name that the next file does not have":  {"- `a.go`: x\n- `c.go`, by `Next`: y\n", []string{"c.go does not have the name Next"}},
		"a name that the previous file does not use": {"- `a.go`: x\n- `c.go`, by `Leaf`: y\n",
			[]string{"a.go does not use Leaf of the next file, c.go"}},
		"a nested file that its caller does not use": {"- `a.go`: x\n- `b.go`, by `Next`: y\n  - `d.go`, by `Other`: z\n",
			[]string{"b.go does not use Other of the next file, d.go"}},
		"a file without a name": {"- `a.go`: x\n- `b.go`: y\n", []string{"b.go: the item has no name after \"by\""}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := follow(walkOf(test.list), names); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
