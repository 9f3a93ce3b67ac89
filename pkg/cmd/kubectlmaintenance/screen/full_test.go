// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestFull(t *testing.T) {
	var out strings.Builder
	s := terminal(&out, 10, 8)
	is.True(t, !s.FullScreen(), "10 columns are enough")
	s = terminal(&out, 20, 8)
	is.True(t, s.FullScreen(), "20 columns and 8 rows are not enough")
	f := s.Full()
	f.Show(text("a", strings.Repeat("x", 30), "\x1b[2J"))
	f.Show(text("1", "2", "3", "4", "5", "6", "7", "8", "9"))
	f.Close()
	f.Close()
	f.Show(text("late"))
	is.Equal(t, out.String(), "\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J"+
		"\x1b[Ha\x1b[K\r\n"+strings.Repeat("x", 18)+">\x1b[K\r\n\\u001b[2J\x1b[K\x1b[J"+
		"\x1b[H1\x1b[K\r\n2\x1b[K\r\n3\x1b[K\r\n4\x1b[K\r\n5\x1b[K\r\n6\x1b[K\r\n7\x1b[K\r\n8\x1b[K\x1b[J"+
		"\x1b[?25h\x1b[?1049l")
}

func TestReadKeys(t *testing.T) {
	for name, test := range map[string]struct {
		typed string
		want  []Key
	}{
		"letters":                          {"qQbBjk ", []Key{KeyQuit, KeyQuit, KeyBlockers, KeyBlockers, KeyDown, KeyUp, KeyPageDown}},
		"Ctrl-C":                           {"\x03", []Key{KeyInterrupt}},
		"arrows":                           {"\x1b[A\x1b[B", []Key{KeyUp, KeyDown}},
		"arrows of the application mode":   {"\x1bOA\x1bOB", []Key{KeyUp, KeyDown}},
		"page keys":                        {"\x1b[5~\x1b[6~", []Key{KeyPageUp, KeyPageDown}},
		"other letters":                    {"xyz\r\n\x00\xff", nil},
		"other keys":                       {"\x1b[Z\x1b[15~\x1b[1;5A", nil},
		"ESC before a key":                 {"\x1bq", []Key{KeyQuit}},
		"ESC alone":                        {"\x1b", nil},
		"a sequence that does not end":     {"\x1b[5", nil},
		"parameters without a final byte":  {"\x1b[11111111111111q", []Key{KeyQuit}},
		"the answer of a terminal":         {"\x1b[?62;c", nil},
		"a key after an unknown sequence":  {"\x1b[Zb", []Key{KeyBlockers}},
		"ESC twice before an arrow's rest": {"\x1b\x1b[A", []Key{KeyUp}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []Key
			ReadKeys(strings.NewReader(test.typed), func(key Key) bool {
				got = append(got, key)
				return true
			})
			is.Slices(t, got, test.want)
		})
	}
	count := 0
	ReadKeys(strings.NewReader("bqb"), func(key Key) bool {
		count++
		return key != KeyQuit
	})
	is.Equal(t, count, 2, "keys until the one that ends the reading")
}

func TestKeyboardNeedsATerminal(t *testing.T) {
	keys, restore := Keyboard(strings.NewReader("q"))
	is.True(t, keys == nil && restore == nil, "a reader is taken for a terminal")
}

func TestLocale(t *testing.T) {
	for name, test := range map[string]struct {
		env  map[string]string
		want bool
	}{
		"none":                         {nil, false},
		"UTF-8":                        {map[string]string{"LANG": "de_DE.UTF-8"}, true},
		"UTF-8 of the C locale":        {map[string]string{"LC_CTYPE": "C.utf8"}, true},
		"C":                            {map[string]string{"LANG": "C"}, false},
		"another charset":              {map[string]string{"LANG": "de_DE.ISO-8859-1"}, false},
		"LC_ALL is stronger than LANG": {map[string]string{"LC_ALL": "C", "LANG": "en_US.UTF-8"}, false},
		"with a modifier":              {map[string]string{"LANG": "de_DE.UTF-8@euro"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, isUTF8(func(key string) string { return test.env[key] }), test.want)
		})
	}
}

// TestASCIITerminal prints characters whose bytes are control characters for an 8-bit terminal.
func TestASCIITerminal(t *testing.T) {
	var out strings.Builder
	s := NewASCIITerminal(&out, 30, 8)
	s.Println(text("größe ś", "… 3 more")...)
	s.Draw(text("śśśśśś"))
	is.Equal(t, out.String(), `gr\u00f6\u00dfe \u015b`+"\n... 3 more\n"+`\u015b\u015b\u015b\u015b\u01>`+"\n")
}

func TestWidth(t *testing.T) {
	for text, want := range map[string]int{"": 0, "abc": 3, "größe": 5, "木曜日": 6, "e\u0301": 1, "👍": 2, "ｶﾅ": 2} {
		is.Equal(t, Width(text), want, text)
	}
	for text, want := range map[string]string{"abcdef": "abcd>", "木曜日木": "木曜>", "a木曜日": "a木>", "abcde": "abcde", "木曜x": "木曜x"} {
		is.Equal(t, Fit(text, 5), want, text)
	}
}
