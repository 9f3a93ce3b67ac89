// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package docs finds the blocks of shell commands in the pages that are marked as runnable. Its
// tests check the pages.
package docs

import (
	"fmt"
	"regexp"
	"strings"
)

// Script is one or more runnable blocks of a page that belong together.
type Script struct {
	// Page is the path of the page, Line the line number of the first command.
	Page string
	Line int
	// Text has each command on the same line as in the page, so that errors of the shell have the
	// line numbers of the page. All other lines are empty.
	Text string
	// Twice is set if the commands must also work a second time, on what the first time has left.
	Twice bool
}

// A marker is an HTML comment immediately before a block of shell commands:
//
//	<!-- runnable -->             an independent block
//	<!-- runnable, twice -->      an independent block that users run again and again
//	<!-- runnable, continued -->  a block that continues the previous one
//	<!-- runnable                 a block that needs other commands first, which readers of the
//	kubectl create ...            page do not see
//	-->
//
// The words after the comma and the commands may be combined.
var (
	marker   = regexp.MustCompile(`(?s)^<!-- runnable(?:, (continued|twice))?(?: -->|\n(.*?)\n-->)\n` + "```sh\n(.*?)\n```(?:\n|$)")
	anything = regexp.MustCompile(`(?m)^<!-- *runnable`)
)

// Scripts returns the runnable blocks of a page. A marker without a block is an error.
func Scripts(page, text string) ([]Script, error) {
	var scripts []Script
	lines := strings.Count(text, "\n") + 1
	var script []string
	flush := func() {
		if script != nil {
			scripts[len(scripts)-1].Text = strings.Join(script, "\n") + "\n"
		}
	}
	for _, at := range anything.FindAllStringIndex(text, -1) {
		line := strings.Count(text[:at[0]], "\n") + 1
		found := marker.FindStringSubmatchIndex(text[at[0]:])
		if found == nil {
			return nil, fmt.Errorf(
				"%s:%d: must be <!-- runnable -->, perhaps with \", twice\" or \", continued\", immediately before a block ```sh",
				page, line,
			)
		}
		word := ""
		if found[2] >= 0 {
			word = text[at[0]+found[2] : at[0]+found[3]]
		}
		continued := word == "continued"
		if continued && len(scripts) == 0 {
			return nil, fmt.Errorf("%s:%d: no previous runnable block to continue", page, line)
		}
		if !continued {
			flush()
			script = make([]string, lines)
			scripts = append(scripts, Script{Page: page, Twice: word == "twice"})
		}
		for _, part := range [][2]int{{found[4], found[5]}, {found[6], found[7]}} {
			if part[0] < 0 {
				continue
			}
			first := strings.Count(text[:at[0]+part[0]], "\n")
			for i, command := range strings.Split(text[at[0]+part[0]:at[0]+part[1]], "\n") {
				script[first+i] = command
			}
			if last := &scripts[len(scripts)-1]; last.Line == 0 {
				last.Line = first + 1
			}
		}
	}
	flush()
	return scripts, nil
}
