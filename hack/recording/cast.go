// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// recording is the output of a command in a terminal, over time.
type recording struct {
	columns, rows int
	events        []event
}

// event is a piece of output, and the time since the beginning.
type event struct {
	at   time.Duration
	data string
}

// header is the first line of an asciicast. It has no time and no environment, which would tell
// about the machine.
type header struct {
	Version int `json:"version"`
	Width   int `json:"width"`
	Height  int `json:"height"`
}

// maxSize limits the columns and rows of a terminal that is read.
const maxSize = 500

// write writes a recording as an asciicast.
func (r *recording) write(w io.Writer) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	if err := out.Encode(header{Version: 2, Width: r.columns, Height: r.rows}); err != nil {
		return err
	}
	for _, e := range r.events {
		seconds := json.Number(fmt.Sprintf("%.3f", e.at.Seconds()))
		if err := out.Encode([]any{seconds, "o", e.data}); err != nil {
			return err
		}
	}
	return nil
}

// read reads an asciicast. It ignores events other than output.
func read(in io.Reader) (*recording, error) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		return nil, errors.Join(errors.New("line 1: the header is missing"), lines.Err())
	}
	var head header
	if err := json.Unmarshal(lines.Bytes(), &head); err != nil {
		return nil, fmt.Errorf("line 1: %w", err)
	}
	if head.Version != 2 || head.Width < 1 || head.Width > maxSize || head.Height < 1 || head.Height > maxSize {
		return nil, fmt.Errorf("line 1: version must be 2, width and height 1 to %d", maxSize)
	}
	r := &recording{columns: head.Width, rows: head.Height}
	for number := 2; lines.Scan(); number++ {
		var seconds float64
		var kind, data string
		if err := json.Unmarshal(lines.Bytes(), &[]any{&seconds, &kind, &data}); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		at := time.Duration(seconds * float64(time.Second))
		if last := len(r.events) - 1; at < 0 || last >= 0 && at < r.events[last].at {
			return nil, fmt.Errorf("line %d: the time must not be before that of the previous event", number)
		}
		if kind == "o" {
			r.events = append(r.events, event{at: at, data: data})
		}
	}
	return r, lines.Err()
}
