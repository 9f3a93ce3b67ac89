// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/controller/loop"
)

// failingAfter is how long the writes of an Evacuation have to fail before the failure is reported
// outside of the log.
const failingAfter = time.Minute

// failures records which Evacuations cannot be reconciled, since when and why. It may be dropped at
// any time: a persistent failure is found again.
type failures struct {
	mu  sync.Mutex
	all map[types.NamespacedName]failing
}

type failing struct {
	since time.Time
	// text is the last error, told the one in the last event.
	text, told string
	// hangs: the last reconciliation took long before it failed.
	hangs bool
}

// note records the outcome of a reconciliation, and whether it took long, and returns the error to
// report now; "" if there is none.
func (f *failures) note(key types.NamespacedName, err error, tookLong bool, now time.Time) (tell string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.all, key)
		return ""
	}
	entry, known := f.all[key]
	if !known {
		entry.since = now
	}
	entry.hangs = tookLong
	entry.text = protocol.OneLine(err.Error(), maxMessage/2)
	if now.Sub(entry.since) >= failingAfter && entry.text != entry.told {
		entry.told, tell = entry.text, entry.text
	}
	f.all[key] = entry
	return tell
}

// of returns the error with which an Evacuation has failed for a while; "" if there is none.
func (f *failures) of(key types.NamespacedName, now time.Time) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if entry, known := f.all[key]; known && now.Sub(entry.since) >= failingAfter {
		return entry.text
	}
	return ""
}

// hangs reports whether the last reconciliation of an Evacuation took long before it failed.
func (f *failures) hangs(key types.NamespacedName) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all[key].hangs
}

// noteOutcome reports, once per text, an error that prevents the reconciliation of an Evacuation. A
// conflict is neither a failure nor a success.
func (c *Controller) noteOutcome(ctx context.Context, key types.NamespacedName, err error, tookLong bool) {
	if err != nil && (ctx.Err() != nil || loop.IsOnlyConflict(err)) {
		return
	}
	tell := c.failures.note(key, err, tookLong, c.clock.Now())
	if tell == "" {
		return
	}
	evacuation, getErr := c.evacuationLister.Evacuations(key.Namespace).Get(key.Name)
	if getErr != nil {
		if apierrors.IsNotFound(getErr) {
			c.failures.note(key, nil, false, c.clock.Now())
		}
		return
	}
	c.send(evacuation, []event{{corev1.EventTypeWarning, EventBlocked, actionEvacuate,
		fmt.Sprintf("Evacuation of pod %s failed and will be retried: %s", evacuation.Spec.PodRef.Name, tell)}})
}

// notReleased returns the blocker of a withdrawn Evacuation whose finalizers cannot be removed.
func notReleased(failure string) *eviction.Blocker {
	return &eviction.Blocker{
		Reason: maintenancev1alpha1.ReasonEvictionError,
		Message: fmt.Sprintf("The Evacuation is cancelled and cannot be released: %s. The server retries. "+
			"Check which policy or webhook refuses the writes of the server.", failure),
	}
}
