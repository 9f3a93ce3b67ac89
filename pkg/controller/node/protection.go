// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/host/podcache"
)

// protected is the value of the annotations with which autoscalers keep a node.
const protected = "true"

// declined is the prefix of the key of an annotation that the server neither adds nor removes: it
// is of another client, or another client has changed or removed it.
const declined = "-"

// decideProtection adds the annotations that keep autoscalers from deleting the node while it is
// held, and removes them afterwards. It does not change an annotation that was there before. If
// another client changes or removes one of ours, that client wants autoscalers to decide otherwise,
// so it stays as it is, whatever that client does later. In both cases the key is recorded as
// declined, and neither added again nor removed at the end.
func (n *nodeChange) decideProtection(f facts) {
	if f.foreignProtection {
		return
	}
	wants := f.protect && len(f.holders) > 0
	mayAdd := wants && f.mayWork && !f.foreignTaint
	for _, key := range podcache.NodeProtections {
		value, has := f.node.Annotations[key]
		switch isOurs := slices.Contains(f.protections, key); {
		case wants && slices.Contains(f.protections, declined+key), wants && isOurs && value != protected:
			n.protections = append(n.protections, declined+key)
		case wants && isOurs:
			n.protections = append(n.protections, key)
		case mayAdd && has:
			n.protections = append(n.protections, declined+key)
		case mayAdd:
			n.protections = append(n.protections, key)
			n.protect = append(n.protect, key)
		case !wants && isOurs && value == protected:
			n.unprotect = append(n.unprotect, key)
		}
	}
	n.setProtections = !slices.Equal(n.protections, f.protections)
}

func (n nodeChange) changesProtection() bool { return len(n.protect)+len(n.unprotect) > 0 }

// withoutProtection returns the change without the annotations for autoscalers. Those that are
// recorded stay recorded, and are removed at a later attempt.
func (n nodeChange) withoutProtection() nodeChange {
	if n.changesProtection() {
		n.protect, n.unprotect, n.protections, n.setProtections = nil, nil, nil, false
	}
	return n
}

// protectionRetry is the time after which the annotations of a held node are written again, if they
// were refused.
const protectionRetry = 10 * time.Minute

// isProtectionRefused reports whether the annotations of a node were refused a short time ago. The
// write that releases the node tries to remove them nevertheless.
func (c *Controller) isProtectionRefused(f facts) bool {
	at, is := c.refusals.Get(f.node.UID)
	releases := len(f.holders) == 0 && len(f.taint) > 0
	return is && !releases && c.clock.Since(at) < protectionRetry
}

// protectionRefused records, and reports on the node, that the annotations for autoscalers were
// refused, and tries again after a while.
func (c *Controller) protectionRefused(f facts, change nodeChange, refusal error) {
	now := c.clock.Now()
	c.refusals.Sweep(func(at time.Time) bool { return now.Sub(at) >= protectionRetry })
	c.refusals.Set(f.node.UID, now)
	c.queue.AddAfter(f.node.Name, protectionRetry)
	nm := subjectOf(f, change)
	if nm == nil {
		return
	}
	said := protocol.OneLine(refusal.Error(), maxRefusal)
	switch {
	case len(change.protect) > 0:
		c.nodeEvent(f.node, nm, corev1.EventTypeWarning, EventNotProtected, actionCordon,
			"Autoscalers may delete the node while NodeMaintenance %s holds it, because the cluster refuses the annotations that prevent it: %s", nm.Name, said)
	case len(f.holders) > 0:
		c.nodeEvent(f.node, nm, corev1.EventTypeWarning, EventNotProtected, actionCordon,
			"The node keeps the annotations %s, because the cluster refuses their removal: %s", strings.Join(change.unprotect, ", "), said)
	default:
		c.nodeEvent(f.node, nm, corev1.EventTypeWarning, EventNotProtected, actionComplete,
			"NodeMaintenance %s has released the node, but autoscalers do not delete it while it has the annotations %s, because the cluster refuses their removal: %s",
			nm.Name, strings.Join(change.unprotect, ", "), said)
	}
}

// maxRefusal is the maximum length of a quoted refusal, in bytes.
const maxRefusal = 512
