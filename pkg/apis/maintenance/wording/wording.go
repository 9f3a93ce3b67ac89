// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package wording formats the messages of statuses, conditions and events.
package wording

import (
	"fmt"
	"strings"
)

// Cut truncates a text to at most limit bytes, at a character boundary.
func Cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:limit], "")
}

// FirstOf joins the first three names, and counts the others.
func FirstOf(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

// Sentence returns a text that ends with exactly one full stop.
func Sentence(text string) string {
	return strings.TrimRight(text, ". ") + "."
}

// StaticPodsKept returns a phrase with the number of static pods that a drain keeps.
func StaticPodsKept(n int) string {
	if n == 1 {
		return "1 static pod keeps running until the machine goes down"
	}
	return fmt.Sprintf("%d static pods keep running until the machine goes down", n)
}

// Count returns a number with its noun: "1 pod", "2 pods".
func Count[N int | int32 | int64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
