// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package wording

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// CordonFought is the text about a node that the server cannot keep cordoned.
const CordonFought = "another client keeps removing its cordon"

// PodsLeft begins the message about a drain in progress with the numbers of its pods.
func PodsLeft(left, evacuating, blocked int) string {
	return fmt.Sprintf("%s left, %d of them evacuating, %d blocked", Count(left, "pod"), evacuating, blocked)
}

var podsLeft = regexp.MustCompile(`^\d+ pods? left, \d+ of them evacuating, \d+ blocked(?:; )?`)

// BesidePodsLeft returns what a message has after the numbers of PodsLeft; the whole message if it
// does not begin with them.
func BesidePodsLeft(message string) string { return podsLeft.ReplaceAllString(message, "") }

const (
	stoppingBefore = "The pod is stopping until "
	stoppingAfter  = ", the end of its grace period."
)

// Stopping is the message about a pod within its grace period.
func Stopping(until time.Time) string {
	return stoppingBefore + until.UTC().Format(time.RFC3339) + stoppingAfter
}

// StoppingUntil returns the end of the grace period in a message of Stopping.
func StoppingUntil(message string) (time.Time, bool) {
	text, begins := strings.CutPrefix(message, stoppingBefore)
	text, ends := strings.CutSuffix(text, stoppingAfter)
	until, err := time.Parse(time.RFC3339, text)
	return until, begins && ends && err == nil
}
