// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// quoteQueue copies the queue's message about a pod that waits and is not blocked. While an
// evacuator is active, the message belongs to the evacuator.
func (d *decision) quoteQueue(s situation) {
	if !d.evict || s.eviction.Message == "" || d.status.ActiveEvacuatorClass != maintenancev1alpha1.EvacuatorClassEviction {
		return
	}
	d.status.Message = wording.Cut(s.eviction.Message, maxMessage)
}
