// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"time"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
)

// stoppingShownAfter is how long a pod has to be stopping before its Evacuation says so. Most pods
// stop sooner, and then cost no write of the status.
const stoppingShownAfter = 5 * time.Second

// decideStopping explains a pod within its grace period. It is blocked when it has been stopping
// for longer than --long-grace. A shorter grace period is never Blocked, since its end is near and
// known.
func (d *decision) decideStopping(s situation) {
	grace := s.pod.DeletionGracePeriodSeconds
	if grace == nil {
		d.clearBlocked(s)
		return
	}
	ends := s.pod.DeletionTimestamp.Time
	since := ends.Add(-time.Duration(*grace) * time.Second)
	if shown := since.Add(stoppingShownAfter); s.now.Before(shown) {
		d.wakeAt(shown)
		d.clearBlocked(s)
		return
	}
	long := since.Add(s.longGrace)
	if long.Before(ends) && !s.now.Before(long) {
		d.setBlocked(s, &eviction.Blocker{
			Reason: maintenancev1alpha1.ReasonLongGracePeriod,
			Message: fmt.Sprintf("Pod %s is stopping until %s, %s after it was told to stop, which is longer than --long-grace (%s). "+
				"Check why it does not stop earlier; kubectl delete pod with a shorter --grace-period ends it sooner.",
				s.pod.Name, ends.UTC().Format(time.RFC3339), ends.Sub(since), s.longGrace),
		})
		return
	}
	if long.Before(ends) {
		d.wakeAt(long)
	}
	message := fmt.Sprintf("The pod is stopping until %s, the end of its grace period.", ends.UTC().Format(time.RFC3339))
	d.setNotBlocked(s, maintenancev1alpha1.ReasonPodStopping, message)
	if d.status.ActiveEvacuatorClass == maintenancev1alpha1.EvacuatorClassEviction {
		// The message of an evacuator belongs to the evacuator.
		d.status.Message = message
	}
}
