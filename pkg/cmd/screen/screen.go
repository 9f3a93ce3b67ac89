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

// Package screen prints to a terminal, where the last lines may be redrawn in place, or to anything else, where they are not.
package screen

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/term"
)

// Style is how a line is shown on a terminal with colors.
type Style string

// The styles, as parameters of the terminal's sequence "select graphic rendition".
const (
	Plain   Style = ""
	Heading Style = "1"
	Faint   Style = "2"
	Good    Style = "32"
	Bad     Style = "31"
	Warning Style = "33"
)

// Line is one line of text.
type Line struct {
	Text  string
	Style Style
}

// Screen is where a program tells its story. Its methods may be called side by side.
type Screen struct {
	out io.Writer
	// size returns the columns and rows of the terminal; nil if out is none.
	size   func() (columns, rows int)
	colors bool

	mu sync.Mutex
	// drawn is how many of the last lines are to be redrawn.
	drawn int
}

// New returns the screen that a writer stands for: that of a terminal if it is the file of one. TERM=dumb and NO_COLOR
// (https://no-color.org) are honoured.
func New(out io.Writer, getenv func(string) string) *Screen {
	s := &Screen{out: out}
	file, ok := out.(*os.File)
	if !ok {
		return s
	}
	descriptor := int(file.Fd())
	if !term.IsTerminal(descriptor) || getenv("TERM") == "dumb" {
		return s
	}
	s.colors = getenv("NO_COLOR") == ""
	s.size = func() (int, int) {
		columns, rows, err := term.GetSize(descriptor)
		if err != nil || columns <= 0 || rows <= 0 {
			return 80, 24
		}
		return columns, rows
	}
	return s
}

// NewTerminal returns the screen of a terminal that is no file, of a fixed size and without colors.
func NewTerminal(out io.Writer, columns, rows int) *Screen {
	return &Screen{out: out, size: func() (int, int) { return columns, rows }}
}

// Live tells whether Draw shows anything.
func (s *Screen) Live() bool { return s.size != nil }

// Colors tells whether styles show.
func (s *Screen) Colors() bool { return s.colors }

// Columns returns how wide the terminal is; 0 if there is none.
func (s *Screen) Columns() int {
	if s.size == nil {
		return 0
	}
	columns, _ := s.size()
	return columns
}

// Println prints lines that stay.
func (s *Screen) Println(lines ...Line) {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(s.paint(line) + "\n")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(s.erase() + b.String())
	s.drawn = 0
}

// Printf prints plain text that stays.
func (s *Screen) Printf(format string, args ...any) {
	s.Println(Line{Text: fmt.Sprintf(format, args...)})
}

// Draw replaces what the last Draw has shown. Without a terminal it does nothing.
func (s *Screen) Draw(lines []Line) {
	if s.size == nil {
		return
	}
	columns, rows := s.size()
	// A line that wraps, or one that scrolls out, could not be redrawn any more.
	if len(lines) > rows-1 {
		lines = lines[:rows-1]
	}
	var b strings.Builder
	for _, line := range lines {
		line.Text = Fit(line.Text, columns-1)
		b.WriteString(s.paint(line) + "\n")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(s.erase() + b.String())
	s.drawn = len(lines)
}

// Keep lets what the last Draw has shown stay.
func (s *Screen) Keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drawn = 0
}

// erase returns what takes back the lines that are to be redrawn.
func (s *Screen) erase() string {
	if s.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\x1b[J", s.drawn)
}

func (s *Screen) paint(line Line) string {
	if !s.colors || line.Style == Plain || line.Text == "" {
		return line.Text
	}
	return "\x1b[" + string(line.Style) + "m" + line.Text + "\x1b[0m"
}

// write ignores errors: there is nobody left to tell them to. That the reader went away shows as SIGPIPE.
func (s *Screen) write(text string) { _, _ = io.WriteString(s.out, text) }

// Fit cuts a text to a number of columns, the last of which then says that something is missing.
func Fit(text string, columns int) string {
	if columns < 1 || utf8.RuneCountInString(text) <= columns {
		return text
	}
	return string([]rune(text)[:columns-1]) + ">"
}

// Bar shows how much of a whole is done.
func Bar(done, whole, columns int) string {
	filled := columns
	if whole > 0 {
		filled = min(max(done, 0)*columns/whole, columns)
	}
	return "[" + strings.Repeat("#", filled) + strings.Repeat(".", columns-filled) + "]"
}

// Shorten returns the first lines of a text and, as another line, how many were left out.
func Shorten(text string, limit int) []string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) <= limit {
		return lines
	}
	return append(lines[:limit:limit], fmt.Sprintf("... and %d more", len(lines)-limit))
}
