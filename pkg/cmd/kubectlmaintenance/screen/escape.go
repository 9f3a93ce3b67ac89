// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Escape replaces every non-printable character of a text: control characters, among them ESC, the
// C1 controls and newlines; bytes that are not UTF-8, since an 8-bit terminal takes 0x9b for a
// control sequence; and characters that change the order of other characters, such as U+202E. A
// user who writes a message or a reason into the API must not control the terminal of the user who
// reads it (CVE-2021-25743). printers.EscapeTerminal of cli-runtime only handles ESC and the
// carriage return.
//
// Escaping a text twice has the same result as escaping it once.
func Escape(text string) string { return escape(text, unicode.IsPrint) }

// EscapeASCII also replaces all characters beyond ASCII, for a terminal whose locale is not UTF-8.
// Such a terminal could take the bytes of a character for control characters: U+015B has the byte
// 0x9b.
func EscapeASCII(text string) string {
	return escape(strings.ReplaceAll(text, "…", "..."), func(r rune) bool { return r < utf8.RuneSelf && unicode.IsPrint(r) })
}

// escape escapes all characters for which keep returns false.
func escape(text string, keep func(rune) bool) string {
	var b strings.Builder
	for text != "" {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, text[0])
		case keep(r):
			b.WriteString(text[:size])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r <= 0xffff:
			// Use the JSON form, so that the document does not change.
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		text = text[size:]
	}
	return b.String()
}
