// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestGrid(t *testing.T) {
	g := grid{
		indent: "  ", drop: []int{1, 2}, cut: true,
		rows: [][]string{{"NODE", "KEPT", "MESSAGE"}, {"node-1", "1", "waits for another maintenance"}, {"木", "", "ok\x1b"}},
	}
	for name, test := range map[string]struct {
		options Options
		want    string
	}{
		"no terminal": {Options{}, "  NODE    KEPT  MESSAGE\n  node-1  1     waits for another maintenance\n  木            ok\\u001b\n"},
		"a terminal with room": {
			Options{Columns: 45}, "  NODE    KEPT  MESSAGE\n  node-1  1     waits for another maintenance\n  木            ok\\u001b\n",
		},
		"a column is dropped": {Options{Columns: 44}, "  NODE    MESSAGE\n  node-1  waits for another maintenance\n  木      ok\\u001b\n"},
		"the last column is cut": {
			Options{Columns: 30}, "  NODE    MESSAGE\n  node-1  waits for another m>\n  木      ok\\u001b\n",
		},
		"the last column is dropped": {Options{Columns: 20}, "  NODE\n  node-1\n  木\n"},
		"the first column is cut":    {Options{Columns: 6}, "  NODE\n  nod>\n  木\n"},
		"ASCII":                      {Options{Columns: 20, ASCII: true}, "  NODE\n  node-1\n  \\u6728\n"},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, Text(g.lines(test.options)), test.want)
		})
	}
}

func TestFit(t *testing.T) {
	for name, test := range map[string]struct {
		text    string
		columns int
		want    string
	}{
		"no terminal":                        {"one two three four", 0, "one two three four\n"},
		"a line that fits":                   {"one two", 7, "one two\n"},
		"a heading":                          {"one two three", 9, "one two\n  three\n"},
		"an indented line":                   {"  one two three", 9, "  one two\n    three\n"},
		"a line of a cause":                  {"    one two three", 11, "    one two\n    three\n"},
		"a word that is too long":            {"look kubectl-describe", 10, "look\n  kubectl-\n  describe\n"},
		"wide characters":                    {"木曜日木曜日", 5, "木曜\n  日\n  木\n  曜\n  日\n"},
		"one column":                         {"木曜", 1, "木\n曜\n"},
		"escapes are measured":               {"a \x1bb", 6, "a \\u00\n  1bb\n"},
		"an indentation as wide as the line": {"          a b", 4, "  a\n  b\n"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Columns: test.columns}
			is.Equal(t, Text(o.Fit(screen.Line{Text: test.text})), test.want)
		})
	}
}

func TestShorten(t *testing.T) {
	o := Options{Columns: 12}
	lines := wrap("  ", "one two three four five", o.Columns, screen.Plain)
	is.Equal(t, Text(lines), "  one two\n  three four\n  five\n")
	is.Equal(t, Text(o.shorten(lines, 3)), Text(lines))
	is.Equal(t, Text(o.shorten(lines, 2)), "  one two\n  three …\n")
	is.Equal(t, Text(o.shorten(lines, 1)), "  one two …\n")
	is.Equal(t, Text(o.shorten(lines, 0)), "")
	is.Equal(t, Text(o.Truncate(lines)), Text(lines))
	o.Rows = 2
	is.Equal(t, strings.Count(Text(o.Truncate(lines)), "\n"), 2)
	is.True(t, strings.HasSuffix(Text(o.Truncate(lines)), "… 2 more li>\n"), "got %q", Text(o.Truncate(lines)))
}
