// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// lines returns the text of what a terminal shows, without empty lines at the end.
func lines(cells [][]cell) string {
	var out []string
	for _, line := range cells {
		text := ""
		for _, r := range runs(line) {
			text += strings.Repeat(" ", r.column-len([]rune(text))) + r.text
		}
		out = append(out, text)
	}
	return strings.TrimRight(strings.Join(out, "\n"), "\n")
}

func TestTerminal(t *testing.T) {
	for name, test := range map[string]struct{ data, want string }{
		"lines":                          {"one\r\ntwo", "one\ntwo"},
		"a carriage return":              {"one\rtwo", "two"},
		"the last line scrolls":          {"1\r\n2\r\n3\r\n4", "2\n3\n4"},
		"a long line wraps":              {"1234567890x", "1234567890\nx"},
		"lines that are redrawn":         {"one\r\ntwo\r\n\x1b[2A\x1b[Jnew", "new"},
		"the rest of a line":             {"old text\rnew\x1b[K", "new"},
		"a place":                        {"\x1b[2;3Hx", "\n  x"},
		"an empty screen":                {"one\x1b[H\x1b[2J\x1b[Htwo", "two"},
		"the alternate screen, and back": {"main\x1b[?1049h\x1b[?25lother\x1b[?25h\x1b[?1049l", "main"},
		"the alternate screen":           {"main\x1b[?1049hother", "other"},
		"a sequence that has not ended":  {"\x1b[3", ""},
		"characters that are not ASCII":  {"▏▌█ é", "▏▌█ é"},
	} {
		t.Run(name, func(t *testing.T) {
			terminal := newTerminal(10, 3)
			must.Do(t, terminal.write(test.data))
			is.Equal(t, lines(terminal.snapshot()), test.want)
		})
	}
}

func TestTerminalKnowsItsLimits(t *testing.T) {
	for _, data := range []string{"\x1b]0;title\x07", "\x1b[5n", "\x1b[38;5;1m", "\x1b[?2004h", "\a", "\x1b[1K", "\x1bM"} {
		is.True(t, newTerminal(10, 3).write(data) != nil, "no error for %q", data)
	}
}

func TestStyles(t *testing.T) {
	terminal := newTerminal(20, 1)
	must.Do(t, terminal.write("a\x1b[1mb\x1b[31mc\x1b[0m d\x1b[2me"))
	got := fmt.Sprint(runs(terminal.snapshot()[0]))
	want := fmt.Sprint([]run{
		{0, "a", style{}}, {1, "b", style{bold: true}}, {2, "c", style{bold: true, color: 31}}, {4, "d", style{}},
		{5, "e", style{faint: true}},
	})
	is.Equal(t, got, want)
}

func TestFrames(t *testing.T) {
	events := []event{
		{0, "start"},
		{time.Second, "\r\x1b[K"},
		{time.Second + time.Millisecond, "half"},
		{2 * time.Second, "\rhalf"},
		{time.Minute, "\rdone"},
		{time.Minute + time.Second, "\x1b[H\x1b[2J"},
	}
	all := must.Get(frames(&recording{columns: 10, rows: 2, events: events}))(t)
	var got []string
	for _, f := range all {
		got = append(got, fmt.Sprintf("%s %v", lines(f.cells), f.lasts))
	}
	is.Slices(t, got, []string{"start 1s", "half 2s", "done 4s"})
	_, err := frames(&recording{columns: 10, rows: 2})
	is.True(t, err != nil, "no error for a recording without output")
}

func TestRecordingIsReadAsItWasWritten(t *testing.T) {
	r := &recording{columns: 80, rows: 24, events: []event{{0, "a<\x1b[1m"}, {1500 * time.Millisecond, "é\r\n"}}}
	var out strings.Builder
	must.Do(t, r.write(&out))
	is.Equal(t, out.String(), "{\"version\":2,\"width\":80,\"height\":24}\n[0.000,\"o\",\"a<\\u001b[1m\"]\n[1.500,\"o\",\"é\\r\\n\"]\n")
	got := must.Get(read(strings.NewReader(out.String())))(t)
	is.Equal(t, fmt.Sprint(got), fmt.Sprint(r))
}

func TestBadRecordings(t *testing.T) {
	const head = `{"version":2,"width":80,"height":24}` + "\n"
	for name, text := range map[string]string{
		"empty": "", "another version": `{"version":3,"width":80,"height":24}`, "no size": `{"version":2}`,
		"a huge terminal": `{"version":2,"width":100000,"height":24}`, "no event": head + "[1]\nx\n", "a time of words": head + `["1","o","x"]`,
		"back in time": head + `[2,"o","x"]` + "\n" + `[1,"o","y"]`, "before the beginning": head + `[-1,"o","x"]`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(strings.NewReader(text))
			is.True(t, err != nil, "no error")
		})
	}
}

// TestPicture checks that the picture is XML whose texts are those of the terminal, each line once.
func TestPicture(t *testing.T) {
	r := &recording{columns: 20, rows: 2, events: []event{
		{0, "<b>&\"\r\n\x1b[31mred"}, {time.Second, "\x1b[1;1Hnext\x1b[K"}, {2 * time.Second, " "},
	}}
	var out strings.Builder
	all := must.Get(frames(r))(t)
	must.Do(t, writeSVG(&out, "a & b", r.columns, r.rows, all))
	var texts []string
	used := 0
	decoder := xml.NewDecoder(strings.NewReader(out.String()))
	for inside := ""; ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		must.Do(t, err)
		switch token := token.(type) {
		case xml.StartElement:
			inside = token.Name.Local
			if inside == "use" {
				used++
			}
			is.True(t, inside != "script", "the picture has a script")
		case xml.CharData:
			if inside == "tspan" || inside == "title" {
				texts = append(texts, string(token))
			}
		case xml.EndElement:
			inside = ""
		}
	}
	is.Slices(t, texts, []string{"a & b", `<b>&"`, "red", "next"})
	is.Equal(t, used, 4)
	is.True(t, strings.Contains(out.String(), `fill="#ff7b72">red`), "no color: %s", out.String())
}

func TestRecord(t *testing.T) {
	command := exec.CommandContext(t.Context(), "sh", "-c", `test -t 1 && stty size && printf '\033[1mbold\303\251'`)
	r := must.Get(record(command, 40, 10))(t)
	all := must.Get(frames(r))(t)
	is.Equal(t, lines(all[len(all)-1].cells), "10 40\nboldé")
	_, err := record(exec.CommandContext(t.Context(), "sh", "-c", "exit 3"), 40, 10)
	is.True(t, err != nil, "no error for a command that fails")
}
