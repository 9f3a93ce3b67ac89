/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package protocol

import (
	"strings"
	"unicode"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// maxMentionedReason is how much of spec.reason of a NodeMaintenance is repeated in messages and
// events, in bytes.
const maxMentionedReason = 128

// Mention names a NodeMaintenance in a message for people, with its reason if it has one:
// "NodeMaintenance kernel-2026-11 (kernel update)". The reason is one line of at most 128 bytes.
func Mention(nm *maintenancev1alpha1.NodeMaintenance) string {
	reason := OneLine(nm.Spec.Reason, maxMentionedReason)
	if reason == "" {
		return "NodeMaintenance " + nm.Name
	}
	return "NodeMaintenance " + nm.Name + " (" + reason + ")"
}

// LeavesFor is the sentence about a mention that ends messages and events of a pod that leaves.
func LeavesFor(mention string) string {
	return " The pod leaves for " + mention + "."
}

// OneLine returns a text of others as one line of at most limit bytes: white space is joined,
// control characters and invalid bytes are removed. The text may be printed to a terminal.
func OneLine(text string, limit int) string {
	// No more is looked at than can be kept if each character is removed or joined but for every
	// fourth byte.
	if len(text) > 4*limit {
		text = text[:4*limit]
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= limit {
		return text
	}
	return strings.TrimSpace(strings.ToValidUTF8(text[:limit], ""))
}
