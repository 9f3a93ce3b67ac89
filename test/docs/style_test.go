// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// readmeLines is how long README may be, columns how wide a line of prose on a page.
	readmeLines = 150
	columns     = 100
)

// written returns all pages, and the manifests, rules and examples of artifacts.
func written(t *testing.T) map[string]string {
	t.Helper()
	out := pages(t)
	err := fs.WalkDir(os.DirFS(root), "artifacts", func(name string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			out[name] = read(t, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// check returns what is wrong with the lines of a file, by their numbers. Code blocks of pages are
// left out.
func check(text string, wrong func(line string) string) map[int]string {
	found := map[int]string{}
	inFence := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inFence = !inFence
			continue
		}
		if inFence {
			continue
		}
		if what := wrong(line); what != "" {
			found[i+1] = what
		}
	}
	return found
}

// isTooWide returns what is wrong with a line that is not of a table.
func isTooWide(line string) string {
	if utf8.RuneCountInString(line) > columns && !strings.HasPrefix(line, "|") {
		return "the line is too long"
	}
	return ""
}

// riddles are words for which the Kubernetes documentation has plainer ones: it names the actor and
// the act.
var riddles = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	// Actors without a name.
	"somebody", "nobody", "whoever", "those (that|who)",
	// Immediately, or at the same time; again, or recreated; since then, or until then.
	"at once", "anew", "again and again", "meanwhile",
	// Reconciled; removed, added; has, is in; heartbeat; converges, is blocked, makes progress.
	"look(s|ed)? at again", "(took|taken|takes?|taking) off", "puts? on", "bears?", "stands? in", "signs? of life",
	"comes? to rest", "st(an|oo)ds? still", "mov(es?|ed) on", "mends?",
	// Reports whether; reports; cancels; not found; too late for what.
	"says? whether", "tells? of", "call(s|ed|ing)? off", "there is no (node|pod|such)", "comes? too late", "is away",
}, "|") + `)\b`)

func isRiddle(line string) string {
	if word := riddles.FindString(line); word != "" {
		return "name the actor or the act instead of " + strconv.Quote(word)
	}
	return ""
}

func TestPagesAreEasyToRead(t *testing.T) {
	for name, text := range written(t) {
		for line, problem := range check(text, isRiddle) {
			t.Errorf("%s:%d: %s", name, line, problem)
		}
		if !strings.HasSuffix(name, ".md") {
			continue
		}
		for line, problem := range check(text, isTooWide) {
			t.Errorf("%s:%d: %s", name, line, problem)
		}
	}
	if lines := strings.Count(read(t, "README.md"), "\n"); lines > readmeLines {
		t.Errorf("README.md has %d lines, more than %d", lines, readmeLines)
	}
}

func TestStyleChecksFindMistakes(t *testing.T) {
	long := strings.Repeat("x", columns+1)
	for name, test := range map[string]struct {
		page  string
		wrong func(string) string
		want  int
	}{
		"a long line of prose":      {"# a\n" + long, isTooWide, 1},
		"a long line of a table":    {"| " + long, isTooWide, 0},
		"a long line of code":       {"```\n" + long + "\n```\n", isTooWide, 0},
		"a line of wide letters":    {strings.Repeat("é", columns), isTooWide, 0},
		"an actor without a name":   {"somebody did it", isRiddle, 1},
		"the same in a table":       {"| at once |", isRiddle, 1},
		"an act that is a metaphor": {"the drain stood still", isRiddle, 1},
		"the same within a word":    {"Nobodyish", isRiddle, 0},
		"code that has such words":  {"```\nsomebody\n```", isRiddle, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := check(test.page, test.wrong); len(got) != test.want {
				t.Errorf("got %v, want %d", got, test.want)
			}
		})
	}
}

// TestSamplesAreWhatThePluginPrints compares each line of a sample with the files that the tests of
// the plugin compare its output with.
func TestSamplesAreWhatThePluginPrints(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "pkg", "cmd", "kubectlmaintenance", "testdata", "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	printed := sets.New("...")
	for _, file := range files {
		for line := range strings.Lines(read(t, strings.TrimPrefix(file, root+"/"))) {
			printed.Insert(strings.TrimSpace(line))
		}
	}
	samples := 0
	for _, match := range fence.FindAllStringSubmatch(read(t, "docs/kubectl-plugin.md"), -1) {
		if !strings.HasPrefix(match[2], "$ kubectl maintenance") {
			continue
		}
		samples++
		for line := range strings.Lines(match[2]) {
			if line = strings.TrimSpace(line); line != "" && !printed.Has(line) {
				t.Errorf("the plugin does not print %q", line)
			}
		}
	}
	if samples < 5 {
		t.Errorf("found %d samples only", samples)
	}
}
