// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	shutdownPrefix = "shutdown-"
	// bootDigits is the number of hexadecimal digits of the boot ID in that name.
	bootDigits = 8
	// nodeDigits is the number of hexadecimal digits of the hash that replaces the end of a long
	// node name.
	nodeDigits = 16
)

// ShutdownName returns the name of the NodeMaintenance for the shutdown that ends a boot of a node.
// The name is the same during one boot, so that a restarted agent finds its maintenance, and
// different in the next boot. It is a valid name for every valid node name.
func ShutdownName(node, bootID string) string {
	return ShutdownNamePrefix(node) + bootPart(bootID)
}

// ShutdownNamePrefix returns the part of ShutdownName that is the same for all boots of a node. The
// names for another node can begin with it, too: those of node a-b begin with the prefix of node a.
func ShutdownNamePrefix(node string) string {
	room := validation.DNS1123SubdomainMaxLength - len(shutdownPrefix) - len("-") - bootDigits
	if len(node) > room {
		hash := "-" + digest(node, nodeDigits)
		// A label of a DNS name must not end with a separator.
		node = strings.TrimRight(node[:room-len(hash)], ".-") + hash
	}
	return shutdownPrefix + node + "-"
}

// bootPart returns the digits for a boot ID: the first digits of a UUID as Linux writes it, or the
// first digits of a hash of any other ID, since, for example, two times can begin with the same
// digits.
func bootPart(bootID string) string {
	if digits, ok := digitsOf(bootID); ok {
		return digits[:bootDigits]
	}
	return digest(bootID, bootDigits)
}

func digitsOf(bootID string) (digits string, ok bool) {
	digits = strings.ReplaceAll(strings.ToLower(bootID), "-", "")
	if len(digits) != hex.EncodedLen(16) {
		return "", false
	}
	_, err := hex.DecodeString(digits)
	return digits, err == nil
}

// digest returns the first digits of the hash of a text.
func digest(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}

// NodeOfShutdown returns the node whose shutdown a NodeMaintenance announces, or "". Such a
// maintenance has the name of ShutdownName and the boot ID in its annotation, and selects exactly
// the node by name, so that only a user with the right to maintain the node can create such a
// maintenance. The result does not change when another user completes the maintenance.
func NodeOfShutdown(meta *metav1.ObjectMeta, selector *corev1.NodeSelector) string {
	bootID := meta.Annotations[v1alpha1.AnnotationBootID]
	if bootID == "" || !strings.HasPrefix(meta.Name, shutdownPrefix) || selector == nil || len(selector.NodeSelectorTerms) != 1 {
		return ""
	}
	term := &selector.NodeSelectorTerms[0]
	if len(term.MatchExpressions) > 0 || len(term.MatchFields) != 1 {
		return ""
	}
	by := &term.MatchFields[0]
	if by.Key != metav1.ObjectNameField || by.Operator != corev1.NodeSelectorOpIn || len(by.Values) != 1 || meta.Name != ShutdownName(by.Values[0], bootID) {
		return ""
	}
	return by.Values[0]
}

// HasBootedSince reports whether a node has booted since the boot that a shutdown ended. nodeBootID
// is status.nodeInfo.bootID of the Node, and shutdownBootID is the annotation of the
// NodeMaintenance. It returns false if this is unknown: a boot of userspace alone changes only the
// part of the annotation after the kernel's ID, and on Windows, the kubelet uses another kind of
// ID.
func HasBootedSince(nodeBootID, shutdownBootID string) bool {
	if _, ok := digitsOf(nodeBootID); !ok || len(shutdownBootID) < len(nodeBootID) {
		return false
	}
	_, ok := digitsOf(shutdownBootID[:len(nodeBootID)])
	return ok && !strings.EqualFold(shutdownBootID[:len(nodeBootID)], nodeBootID)
}
