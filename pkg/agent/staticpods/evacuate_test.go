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

package staticpods

import (
	"testing"
	"testing/synctest"
)

// TestAPodThatStopsAfterItsEvacuation: the server completes the Evacuation when the mirror pod is
// gone, and the handler does not see the pod stopped.
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
