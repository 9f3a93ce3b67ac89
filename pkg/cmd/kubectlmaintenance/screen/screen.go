// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package screen prints lines to a terminal or another writer. On a terminal it can redraw the last
// lines in place, or show lines on the whole terminal.
package screen

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// Style is the style of a line on a terminal with colors.
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

// Screen is a terminal or another writer. Its methods are safe for concurrent use.
type Screen struct {
	out io.Writer
	// size returns the columns and rows of the terminal; nil if out is not a terminal.
	size   func() (columns, rows int)
	colors bool
	// terminal is set if out is a terminal, even one that cannot redraw lines.
	terminal bool
	// ascii is set if out is a terminal whose locale is not UTF-8.
	ascii bool

	mu sync.Mutex
	// drawn is the number of lines that the next Draw replaces.
	drawn int
}

// New returns the screen of a writer. It is a terminal if the writer is the file of a terminal. New
// honours TERM=dumb and NO_COLOR (https://no-color.org).
func New(out io.Writer, getenv func(string) string) *Screen {
	s := &Screen{out: out}
	file, ok := out.(*os.File)
	if !ok {
		return s
	}
	descriptor := int(file.Fd())
	s.terminal = term.IsTerminal(descriptor)
	s.ascii = s.terminal && !isUTF8(getenv)
	if !s.terminal || getenv("TERM") == "dumb" {
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

// NewTerminal returns the screen of a terminal that is not a file, with a fixed size and without
// colors. Its locale is UTF-8.
func NewTerminal(out io.Writer, columns, rows int) *Screen {
	return &Screen{out: out, terminal: true, size: func() (int, int) { return columns, rows }}
}

// NewASCIITerminal is NewTerminal with the locale C.
func NewASCIITerminal(out io.Writer, columns, rows int) *Screen {
	s := NewTerminal(out, columns, rows)
	s.ascii = true
	return s
}

// isUTF8 reports whether the variables of the locale select UTF-8.
func isUTF8(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := getenv(name); locale != "" {
			_, charset, _ := strings.Cut(strings.ToLower(locale), ".")
			return strings.HasPrefix(charset, "utf-8") || strings.HasPrefix(charset, "utf8")
		}
	}
	return false
}

// Live reports whether Draw has an effect.
func (s *Screen) Live() bool { return s.size != nil }

// Colors reports whether the screen shows styles.
func (s *Screen) Colors() bool { return s.colors }

// ASCII reports whether the screen is a terminal that shows only ASCII characters.
func (s *Screen) ASCII() bool { return s.ascii }

// Rows returns the maximum number of lines of Draw: all rows of the terminal except the last one,
// which has the cursor. It is 0 without a terminal.
func (s *Screen) Rows() int {
	if s.size == nil {
		return 0
	}
	_, rows := s.size()
	return rows - 1
}

// Columns returns the maximum width of a line: all columns of the terminal except the last one, at
// which some terminals wrap. It is 0 without a terminal.
func (s *Screen) Columns() int {
	if s.size == nil {
		return 0
	}
	columns, _ := s.size()
	return columns - 1
}

// Println prints lines that Draw does not replace.
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

// Printf prints plain text that Draw does not replace. A newline in the format starts a new line. A
// newline in an argument is escaped like every other control character, since arguments may come
// from the API.
func (s *Screen) Printf(format string, args ...any) {
	escaped := make([]any, len(args))
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			escaped[i] = Escape(arg)
		case error:
			escaped[i] = Escape(arg.Error())
		default:
			escaped[i] = arg
		}
	}
	var lines []Line
	for text := range strings.SplitSeq(fmt.Sprintf(format, escaped...), "\n") {
		lines = append(lines, Line{Text: text})
	}
	s.Println(lines...)
}

// Error prints the text of an error after a prefix. Each line after the first is indented, so that
// a newline within a message of the API cannot start a line that looks like a line of the program.
func (s *Screen) Error(prefix, text string) {
	indent := strings.Repeat(" ", len(prefix))
	var lines []Line
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, Line{Text: prefix + strings.TrimRight(line, " \r")})
		prefix = indent
	}
	s.Println(lines...)
}

// Ask prints a question, and leaves the cursor behind it.
func (s *Screen) Ask(question string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(s.erase() + s.Escape(question))
	s.drawn = 0
}

// Escape escapes a text as Println does.
func (s *Screen) Escape(text string) string {
	if s.ascii {
		return EscapeASCII(text)
	}
	return Escape(text)
}

// Write writes a document for programs, such as JSON. On a terminal it escapes control characters;
// a file or a pipe receives the document unchanged.
func (s *Screen) Write(document []byte) error {
	if s.terminal {
		document = []byte(escape(string(document), func(r rune) bool {
			return r == '\n' || r == '\t' || unicode.IsPrint(r) && (!s.ascii || r < utf8.RuneSelf)
		}))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.out.Write(document)
	return err
}

// Draw replaces the lines of the last Draw. Without a terminal it does nothing.
func (s *Screen) Draw(lines []Line) {
	if s.size == nil {
		return
	}
	// A line that wraps or scrolls out of view cannot be redrawn.
	lines = lines[:min(len(lines), s.Rows())]
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(s.fit(line) + "\n")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(s.erase() + b.String())
	s.drawn = len(lines)
}

// Keep makes the lines of the last Draw permanent.
func (s *Screen) Keep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drawn = 0
}

// erase returns the sequence that removes the lines to redraw.
func (s *Screen) erase() string {
	if s.drawn == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\x1b[J", s.drawn)
}

// fit returns a line with its style, cut to the columns of the terminal.
func (s *Screen) fit(line Line) string {
	// Escape before the cut, since escapes take columns.
	line.Text = Fit(s.Escape(line.Text), s.Columns())
	return s.paint(line)
}

// paint returns a line with its style. All lines pass through it, so that no text can control the
// terminal.
func (s *Screen) paint(line Line) string {
	text := s.Escape(line.Text)
	if !s.colors || line.Style == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(line.Style) + "m" + text + "\x1b[0m"
}

// write ignores errors: there is no other stream to report them on. If the reader of a pipe is
// gone, SIGPIPE ends the program.
func (s *Screen) write(text string) { _, _ = io.WriteString(s.out, text) }

// Width returns the number of columns that a text takes: two for a wide character of East Asia,
// none for a combining one.
func Width(text string) int {
	columns := 0
	for _, r := range text {
		columns += widthOf(r)
	}
	return columns
}

func widthOf(r rune) int {
	switch {
	case r < utf8.RuneSelf:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Fit truncates a text to a number of columns, and marks the cut with ">" in the last one.
func Fit(text string, columns int) string {
	if columns < 1 || Width(text) <= columns {
		return text
	}
	used := 0
	for i, r := range text {
		if used += widthOf(r); used >= columns {
			return text[:i] + ">"
		}
	}
	return text
}

// Bar returns a progress bar. A bar of nothing to do is empty.
func Bar(done, whole, columns int) string {
	filled := 0
	if whole > 0 {
		filled = min(max(done, 0)*columns/whole, columns)
	}
	return "[" + strings.Repeat("#", filled) + strings.Repeat(".", columns-filled) + "]"
}
