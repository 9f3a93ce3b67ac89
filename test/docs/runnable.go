// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package docs finds in the pages what can be tried: the blocks of shell commands that are marked
// runnable. Its tests check the pages themselves.
package docs

import (
	"fmt"
	"regexp"
	"strings"
)

// Script is one or more runnable blocks of a page that belong together.
type Script struct {
	// Page is the path of the page, Line the line of its first command, counted from 1.
	Page string
	Line int
	// Text has each command on the line that it has in the page, so that a shell names the page's
	// lines in its errors. All other lines are empty.
	Text string
}

// A marker is a comment of HTML right before a block of shell commands:
//
//	<!-- runnable -->             a block that runs by itself
//	<!-- runnable, continued -->  a block that goes on where the one before it ended
//	<!-- runnable                 a block before which the commands of the comment run, which a
//	kubectl create ...            reader has no use for
//	-->
var (
	marker   = regexp.MustCompile(`(?s)^<!-- runnable(, continued)?(?: -->|\n(.*?)\n-->)\n` + "```sh\n(.*?)\n```(?:\n|$)")
	anything = regexp.MustCompile(`(?m)^<!-- *runnable`)
)

// Scripts returns what is marked runnable in a page. A marker that marks nothing is an error.
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
				"%s:%d: must be <!-- runnable -->, or <!-- runnable, continued -->, right before a block ```sh", page,
				line,
			)
		}
		continued := found[2] >= 0
		if continued && len(scripts) == 0 {
			return nil, fmt.Errorf("%s:%d: there is no runnable block before it that it could continue", page, line)
		}
		if !continued {
			flush()
			script = make([]string, lines)
			scripts = append(scripts, Script{Page: page})
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
