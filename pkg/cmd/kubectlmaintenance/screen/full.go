// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package screen

import (
	"bufio"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"
)

// fullRows and fullColumns are the size of the smallest terminal for Full.
const (
	fullRows    = 8
	fullColumns = 20
)

// FullScreen reports whether the terminal is large enough for Full.
func (s *Screen) FullScreen() bool {
	if s.size == nil {
		return false
	}
	columns, rows := s.size()
	return columns >= fullColumns && rows >= fullRows
}

// Full shows lines on the alternate screen of a terminal, which leaves the previous output in
// place.
type Full struct {
	screen *Screen

	mu     sync.Mutex
	closed bool
}

// Full switches to the alternate screen and hides the cursor, until Close.
func (s *Screen) Full() *Full {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write("\x1b[?1049h\x1b[?25l\x1b[H\x1b[2J")
	return &Full{screen: s}
}

// Show replaces all lines; the first ones if the terminal has fewer rows.
func (f *Full) Show(lines []Line) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	lines = lines[:min(len(lines), f.screen.Rows()+1)]
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range lines {
		if i > 0 {
			// The terminal is in raw mode and adds no carriage return.
			b.WriteString("\r\n")
		}
		b.WriteString(f.screen.fit(line) + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	f.screen.mu.Lock()
	defer f.screen.mu.Unlock()
	f.screen.write(b.String())
}

// Close returns to the normal screen. Only the first call has an effect.
func (f *Full) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.closed = true
	f.screen.mu.Lock()
	defer f.screen.mu.Unlock()
	f.screen.write("\x1b[?25h\x1b[?1049l")
}

// Keyboard puts the terminal of a reader into raw mode, in which keys arrive immediately, Ctrl-C
// among them. Restore ends the raw mode. Keyboard returns nil if the reader is not the file of a
// terminal.
func Keyboard(in io.Reader) (keys io.Reader, restore func()) {
	file, ok := in.(*os.File)
	if !ok {
		return nil, nil
	}
	state, err := term.MakeRaw(int(file.Fd()))
	if err != nil {
		return nil, nil
	}
	return file, func() { _ = term.Restore(int(file.Fd()), state) }
}

// Key is a key that has a meaning for a view of the whole terminal.
type Key int

// The keys.
const (
	KeyNone Key = iota
	KeyQuit
	KeyInterrupt
	KeyBlockers
	KeyUp
	KeyDown
	KeyPageUp
	KeyPageDown
)

var keysByByte = map[byte]Key{
	'q': KeyQuit, 'Q': KeyQuit, 3: KeyInterrupt, 'b': KeyBlockers, 'B': KeyBlockers,
	'k': KeyUp, 'j': KeyDown, ' ': KeyPageDown,
}

// keysBySequence has the keys that a terminal sends as ESC and "[" or "O", then these characters.
var keysBySequence = map[string]Key{"A": KeyUp, "B": KeyDown, "5~": KeyPageUp, "6~": KeyPageDown}

// ReadKeys calls pressed for each key until the reader ends, or pressed returns false.
func ReadKeys(in io.Reader, pressed func(Key) bool) {
	const escape = 0x1b
	keys := bufio.NewReader(in)
	for {
		b, err := keys.ReadByte()
		if err != nil {
			return
		}
		key := keysByByte[b]
		if b == escape {
			if key, err = readSequence(keys); err != nil {
				return
			}
		}
		if key != KeyNone && !pressed(key) {
			return
		}
	}
}

// readSequence reads the rest of an escape sequence: parameters, then a final byte.
func readSequence(keys *bufio.Reader) (Key, error) {
	const introducers, firstFinal, maxSequence = "[O", '@', 8
	b, err := keys.ReadByte()
	if err != nil {
		return KeyNone, err
	}
	if strings.IndexByte(introducers, b) < 0 {
		// ESC alone; the next byte is a key.
		return KeyNone, keys.UnreadByte()
	}
	var sequence strings.Builder
	for {
		if b, err = keys.ReadByte(); err != nil {
			return KeyNone, err
		}
		sequence.WriteByte(b)
		if b >= firstFinal || sequence.Len() > maxSequence {
			return keysBySequence[sequence.String()], nil
		}
	}
}
