// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"bytes"
	"strings"
	"testing"
	"unicode"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// hostile has texts that could control a terminal, with the text that the plugin shows instead.
var hostile = map[string]struct{ text, want string }{
	"ESC that clears the screen":        {"a\x1b[2Jb", `a\u001b[2Jb`},
	"OSC that sets the title":           {"\x1b]0;root@host\x07", `\u001b]0;root@host\u0007`},
	"BEL":                               {"\a", `\u0007`},
	"C1 CSI as a character":             {"\u009b2J", `\u009b2J`},
	"C1 CSI as a byte":                  {"a\x9b2J", `a\x9b2J`},
	"a newline that forges a line":      {"ok\nall drained", `ok\nall drained`},
	"a carriage return that overwrites": {"blocked\rdrained", `blocked\rdrained`},
	"a tab":                             {"a\tb", `a\tb`},
	"backspace":                         {"a\b\b", `a\u0008\u0008`},
	"DEL":                               {"a\x7f", `a\u007f`},
	"text in the reverse direction":     {"a\u202edniarb", `a\u202edniarb`},
	"an isolate":                        {"\u2066x\u2069", `\u2066x\u2069`},
	"a line separator":                  {"a\u2028b", `a\u2028b`},
	"a tag character":                   {"\U000e0041", `\U000e0041`},
}

func TestEscape(t *testing.T) {
	for name, test := range hostile {
		t.Run(name, func(t *testing.T) {
			got := Escape(test.text)
			is.Equal(t, got, test.want)
			if again := Escape(got); again != got {
				t.Errorf("escaped twice it is %q", again)
			}
		})
	}
	for _, text := range []string{"", "shop/web-1", `C:\dir`, "größer, 木曜日, naïve, 👍", "0% of \"x\""} {
		if got := Escape(text); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

// TestNoTextControlsTheTerminal prints hostile texts with every method of the screen.
func TestNoTextControlsTheTerminal(t *testing.T) {
	for name, test := range hostile {
		t.Run(name, func(t *testing.T) {
			for way, show := range map[string]func(*Screen){
				"Println": func(s *Screen) { s.Println(Line{Text: test.text, Style: Bad}) },
				"Printf":  func(s *Screen) { s.Printf("%s", test.text) },
				"Draw":    func(s *Screen) { s.Draw([]Line{{Text: test.text}}) },
			} {
				var out strings.Builder
				show(terminal(&out, 80, 24))
				if got, want := out.String(), test.want+"\n"; got != want {
					t.Errorf("%s: got %q, want %q", way, got, want)
				}
			}
		})
	}
}

// TestEscapesAreCutToo checks that an escaped line, which is longer, still fits the terminal.
// Otherwise the line could not be redrawn.
func TestEscapesAreCutToo(t *testing.T) {
	var out strings.Builder
	terminal(&out, 10, 24).Draw(text(strings.Repeat("\x1b", 8)))
	is.Equal(t, out.String(), `\u001b\u>`+"\n")
}

func TestPrintfKeepsTheLinesOfItsFormat(t *testing.T) {
	var out strings.Builder
	terminal(&out, 80, 24).Printf("\nDone: %s (%d)", "a\nb", 1)
	is.Equal(t, out.String(), "\nDone: a\\nb (1)\n")
}

func TestWrite(t *testing.T) {
	const document = "{\n\t\"reason\": \"a\u009b2J \u202e\"\n}\n"
	for name, test := range map[string]struct {
		terminal bool
		want     string
	}{
		"a pipe gets the document unchanged":                    {false, document},
		"a terminal gets the document with the escapes of JSON": {true, "{\n\t\"reason\": \"a\\u009b2J \\u202e\"\n}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			must.Do(t, (&Screen{out: &out, terminal: test.terminal}).Write([]byte(document)))
			is.Equal(t, out.String(), test.want)
		})
	}
}

func TestError(t *testing.T) {
	var out bytes.Buffer
	NewASCIITerminal(&out, 80, 24).Error("error: ", "no \x1b[2J ś\nerror: all is well")
	got := out.String()
	if want := "error: no \\u001b[2J \\u015b\n       error: all is well\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzEscape(f *testing.F) {
	for _, test := range hostile {
		f.Add(test.text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range Escape(text) {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q becomes %q", text, Escape(text))
			}
		}
	})
}
