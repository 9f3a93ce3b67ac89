// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// style is how a character is shown: parameters of the sequence "select graphic rendition".
type style struct {
	bold, faint bool
	// color is 31 to 37, or 0 for the default.
	color int
}

// cell is one character of the terminal, or 0 for a blank.
type cell struct {
	char  rune
	style style
}

// terminal understands the sequences that kubectl maintenance writes. Any other is an error: a
// picture must not be wrong without a notice.
type terminal struct {
	columns, rows int
	cells         [][]cell
	// main has the cells of the main screen while the alternate one is shown.
	main  [][]cell
	x, y  int
	style style
	// sequence is a sequence whose end has not been written yet.
	sequence []rune
}

func newTerminal(columns, rows int) *terminal {
	t := &terminal{columns: columns, rows: rows}
	t.cells = t.blank()
	return t
}

func (t *terminal) blank() [][]cell {
	cells := make([][]cell, t.rows)
	for y := range cells {
		cells[y] = make([]cell, t.columns)
	}
	return cells
}

// write shows a piece of output.
func (t *terminal) write(data string) error {
	for _, char := range data {
		if len(t.sequence) > 0 {
			if err := t.continueSequence(char); err != nil {
				return err
			}
			continue
		}
		switch {
		case char == '\x1b':
			t.sequence = []rune{char}
		case char == '\r':
			t.x = 0
		case char == '\n':
			t.newLine()
		case char < ' ' || char == '\x7f':
			return fmt.Errorf("unknown control character %q", char)
		default:
			if t.x == t.columns {
				t.x = 0
				t.newLine()
			}
			// A blank looks as a place without a character, in every style.
			t.cells[t.y][t.x] = cell{}
			if char != ' ' {
				t.cells[t.y][t.x] = cell{char: char, style: t.style}
			}
			t.x++
		}
	}
	return nil
}

func (t *terminal) newLine() {
	if t.y++; t.y == t.rows {
		t.y--
		t.cells = append(t.cells[1:], make([]cell, t.columns))
	}
}

// continueSequence adds a character to a sequence ESC [ PARAMETERS FINAL, and obeys it when it is
// complete.
func (t *terminal) continueSequence(char rune) error {
	t.sequence = append(t.sequence, char)
	if len(t.sequence) == 2 {
		if char != '[' {
			return fmt.Errorf("unknown sequence %q", string(t.sequence))
		}
		return nil
	}
	if char < '@' {
		return nil
	}
	text := string(t.sequence)
	t.sequence = nil
	if !t.obey(text[2:len(text)-1], char) {
		return fmt.Errorf("unknown sequence %q", text)
	}
	return nil
}

// obey returns false for an unknown sequence.
func (t *terminal) obey(parameters string, final rune) bool {
	switch string(final) + parameters {
	case "h?25", "l?25": // The cursor is never shown.
		return true
	case "h?1049":
		t.main, t.cells, t.x, t.y = t.cells, t.blank(), 0, 0
		return true
	case "l?1049":
		if t.main != nil {
			t.cells, t.main, t.x, t.y = t.main, nil, 0, 0
		}
		return true
	}
	var numbers []int
	for text := range strings.SplitSeq(parameters, ";") {
		n, err := strconv.Atoi("0" + text)
		if err != nil {
			return false
		}
		numbers = append(numbers, n)
	}
	switch final {
	case 'A':
		t.y = max(0, t.y-max(1, numbers[0]))
	case 'H':
		row, column := numbers[0], 1
		if len(numbers) > 1 {
			column = numbers[1]
		}
		t.y, t.x = min(max(1, row), t.rows)-1, min(max(1, column), t.columns)-1
	case 'K':
		clear(t.cells[t.y][min(t.x, t.columns):])
		return numbers[0] == 0
	case 'J':
		if numbers[0] == 2 {
			t.cells = t.blank()
			return true
		}
		clear(t.cells[t.y][min(t.x, t.columns):])
		for y := t.y + 1; y < t.rows; y++ {
			clear(t.cells[y])
		}
		return numbers[0] == 0
	case 'm':
		return t.restyle(numbers)
	default:
		return false
	}
	return true
}

// restyle sets the style of the characters that follow.
func (t *terminal) restyle(parameters []int) bool {
	for _, parameter := range parameters {
		switch {
		case parameter == 0:
			t.style = style{}
		case parameter == 1:
			t.style.bold = true
		case parameter == 2:
			t.style.faint = true
		case parameter == 22:
			t.style.bold, t.style.faint = false, false
		case parameter >= 31 && parameter <= 37:
			t.style.color = parameter
		case parameter == 39:
			t.style.color = 0
		default:
			return false
		}
	}
	return true
}

// snapshot returns a copy of what the terminal shows.
func (t *terminal) snapshot() [][]cell {
	cells := make([][]cell, t.rows)
	for y := range cells {
		cells[y] = slices.Clone(t.cells[y])
	}
	return cells
}
