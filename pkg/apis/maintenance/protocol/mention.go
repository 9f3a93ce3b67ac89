// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"
	"unicode"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// NoLeaderWarning is the beginning of the warning in the server's responses about a NodeMaintenance
// while no replica leads, so that no controller acts on the NodeMaintenance. kubectl shows the
// warning to its user. For the node agent, the warning means that the server cannot drain the node
// at present.
const NoLeaderWarning = "no replica of haulout-apiserver acts on NodeMaintenances"

// maxMentionedReason is the maximum length, in bytes, of the part of spec.reason that messages and
// events repeat.
const maxMentionedReason = 128

// Mention returns the name of a NodeMaintenance for a message to users, with its reason if it has
// one: "NodeMaintenance kernel-2026-11 (kernel update)". The reason is one line of at most 128
// bytes.
func Mention(nm *v1alpha1.NodeMaintenance) string {
	reason := OneLine(nm.Spec.Reason, maxMentionedReason)
	if reason == "" {
		return "NodeMaintenance " + nm.Name
	}
	return "NodeMaintenance " + nm.Name + " (" + reason + ")"
}

// LeavesFor returns the last sentence of messages and events about a pod that leaves; it contains
// the mention.
func LeavesFor(mention string) string {
	return " The pod leaves for " + mention + "."
}

// AddLeavesFor adds the sentence of LeavesFor to a message of at most MaxMessage bytes, unless the
// message names the maintenance already: an evacuator may have named it in a report that the
// message quotes.
func AddLeavesFor(message string, nm *v1alpha1.NodeMaintenance) string {
	if names(message, nm.Name) {
		return message
	}
	suffix := LeavesFor(Mention(nm))
	return wording.Cut(message, MaxMessage-len(suffix)) + suffix
}

// names reports whether a message names a NodeMaintenance, and not only another one whose name
// begins in the same way.
func names(message, name string) bool {
	_, rest, found := strings.Cut(message, "NodeMaintenance "+name)
	if !found {
		return false
	}
	next := strings.TrimLeft(rest, ".")
	isNamed := next == "" || !strings.ContainsAny(next[:1], "abcdefghijklmnopqrstuvwxyz0123456789-")
	return isNamed || names(rest, name)
}

// maxUserName is the maximum length of the name of a user in a text, in bytes. Names of users have
// no limit, and a paused drain has one in three conditions.
const maxUserName = 128

// UserName returns the name of a user for a text: its beginning, safe to print to a terminal.
func UserName(name string) string { return OneLine(name, maxUserName) }

// OneLine converts a text that a user wrote to one line of at most limit bytes. It joins white
// space and removes control characters and invalid bytes, so the text is safe to print to a
// terminal.
func OneLine(text string, limit int) string {
	// Limit the work for long texts: this length is enough even if only every fourth byte is kept.
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
