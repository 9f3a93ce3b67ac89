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

package docs

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	// readmeLines is how long README may be, columns how wide a line of prose on a page.
	readmeLines = 150
	columns     = 100
)

// written returns the pages that are written by hand, without those of decisions, which are notes
// of their day.
func written(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, text := range pages(t) {
		generated := strings.HasPrefix(text, "<!-- Written by")
		if !generated && !strings.HasPrefix(name, "docs/decisions/") {
			out[name] = text
		}
	}
	return out
}

// prose returns what is wrong with the lines of a page, tables and blocks of code aside, by their
// numbers.
func prose(text string, wrong func(line string) string) map[int]string {
	found := map[int]string{}
	inFence := false
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inFence = !inFence
			continue
		}
		if inFence || strings.HasPrefix(line, "|") {
			continue
		}
		if what := wrong(line); what != "" {
			found[i+1] = what
		}
	}
	return found
}

func isTooWide(line string) string {
	if utf8.RuneCountInString(line) > columns {
		return "the line is too long"
	}
	return ""
}

// riddles are words that style.md has plainer ones for.
var riddles = regexp.MustCompile(`(?i)\b(somebody|nobody|whoever|anew)\b`)

func isRiddle(line string) string {
	if word := riddles.FindString(line); word != "" {
		return "name the actor or the act instead of " + word
	}
	return ""
}

func TestPagesAreEasyToRead(t *testing.T) {
	for name, text := range written(t) {
		for what, wrong := range map[string]func(string) string{"width": isTooWide, "words": isRiddle} {
			for line, problem := range prose(text, wrong) {
				t.Errorf("%s:%d (%s): %s", name, line, what, problem)
			}
		}
	}
	if lines := strings.Count(read(t, "README.md"), "\n"); lines > readmeLines {
		t.Errorf("README.md has %d lines, more than %d", lines, readmeLines)
	}
}

func TestProseIsLookedAt(t *testing.T) {
	long := strings.Repeat("x", columns+1)
	for name, test := range map[string]struct {
		page  string
		wrong func(string) string
		want  int
	}{
		"a long line of prose":     {"# a\n" + long, isTooWide, 1},
		"a long line of a table":   {"| " + long, isTooWide, 0},
		"a long line of code":      {"```\n" + long + "\n```\n", isTooWide, 0},
		"a line of wide letters":   {strings.Repeat("é", columns), isTooWide, 0},
		"an actor without a name":  {"somebody did it", isRiddle, 1},
		"the same within a word":   {"Nobodyish", isRiddle, 0},
		"code that has such words": {"```\nsomebody\n```", isRiddle, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := prose(test.page, test.wrong); len(got) != test.want {
				t.Errorf("got %v, want %d", got, test.want)
			}
		})
	}
}
