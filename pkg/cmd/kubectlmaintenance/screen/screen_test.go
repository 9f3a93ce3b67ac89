// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func terminal(out *strings.Builder, columns, rows int) *Screen {
	return &Screen{out: out, size: func() (int, int) { return columns, rows }}
}

func text(lines ...string) []Line {
	var result []Line
	for _, line := range lines {
		result = append(result, Line{Text: line})
	}
	return result
}

func TestScreen(t *testing.T) {
	for name, test := range map[string]struct {
		columns, rows int
		colors        bool
		tell          func(*Screen)
		want          string
	}{
		"the next Draw replaces the drawn lines": {
			columns: 80, rows: 24, tell: func(s *Screen) { s.Draw(text("a", "b")); s.Draw(text("c")) },
			want: "a\nb\n\x1b[2A\x1b[Jc\n",
		},
		"printed lines replace the drawn lines and stay": {
			columns: 80, rows: 24, tell: func(s *Screen) { s.Draw(text("a")); s.Printf("%s", "b"); s.Draw(text("c")) },
			want: "a\n\x1b[1A\x1b[Jb\nc\n",
		},
		"kept lines are not replaced": {
			columns: 80, rows: 24, tell: func(s *Screen) { s.Draw(text("a")); s.Keep(); s.Draw(text("b")) },
			want: "a\nb\n",
		},
		"a line that is too long is cut, so that it does not wrap": {
			columns: 6, rows: 24, tell: func(s *Screen) { s.Draw(text("abcde", "abcdef")) }, want: "abcde\nabcd>\n",
		},
		"lines that would scroll out of view are omitted": {
			columns: 80, rows: 3, tell: func(s *Screen) { s.Draw(text("a", "b", "c")) }, want: "a\nb\n",
		},
		"a styled line is reset at its end": {
			columns: 80, rows: 24, colors: true, tell: func(s *Screen) { s.Println(Line{"a", Good}, Line{"b", Plain}) },
			want: "\x1b[32ma\x1b[0m\nb\n",
		},
		"without colors, styles have no effect": {
			columns: 80, rows: 24, tell: func(s *Screen) { s.Println(Line{"a", Good}) }, want: "a\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			s := terminal(&out, test.columns, test.rows)
			s.colors = test.colors
			test.tell(s)
			is.Equal(t, out.String(), test.want)
		})
	}
}

// TestALineOfAllColumnsIsNotCut checks a line of the width at which text is wrapped.
func TestALineOfAllColumnsIsNotCut(t *testing.T) {
	var out strings.Builder
	s := terminal(&out, 20, 24)
	s.Draw(text(strings.Repeat("x", s.Columns())))
	if strings.Contains(out.String(), ">") {
		t.Errorf("%q is cut", out.String())
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	file := must.Get(os.Create(path))(t)
	defer file.Close()
	s := New(file, func(string) string { return "" })
	is.True(t, !s.Live(), "a file is taken for a terminal")
	s.Draw(text("drawn"))
	s.Println(Line{"printed", Good})
	content := must.Get(os.ReadFile(path))(t)
	if got := string(content); got != "printed\n" {
		t.Errorf("got %q, want the printed line alone, without sequences", got)
	}
}

func TestBar(t *testing.T) {
	for name, test := range map[string]struct {
		done, whole int
		want        string
	}{
		"nothing done":      {0, 8, "[....]"},
		"half done":         {4, 8, "[##..]"},
		"almost done":       {7, 8, "[###.]"},
		"all done":          {8, 8, "[####]"},
		"more than all":     {9, 8, "[####]"},
		"less than nothing": {-1, 8, "[....]"},
		"nothing to do":     {0, 0, "[....]"},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, Bar(test.done, test.whole, 4), test.want)
		})
	}
}
