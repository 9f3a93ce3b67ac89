// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"testing"
	"testing/synctest"
)

// TestAPodThatStopsAfterItsEvacuation has a server that completes the Evacuation when the mirror
// pod is gone, before the evacuator notices that the pod has stopped.
func TestAPodThatStopsAfterItsEvacuation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
		w.add(evacuationOf("web"))
		w.untilReported("terminating static pod")
		w.editEvacuation("web", departed)
		w.until("the parked pod is stored as stopped", func() bool {
			entries, err := w.folder(osFiles{}).entries()
			return err == nil && len(entries) == 1 && entries[0].Stopped
		})
		w.wantHappened("run web", "TERM web", "stop web")
	})
}
