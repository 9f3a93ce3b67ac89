// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
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

// immovable has file operations that cannot park the manifest web.yaml.
type immovable struct{ osFiles }

func (f immovable) Rename(from, to string) error {
	if filepath.Base(from) == "web.yaml" {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: fs.ErrPermission}
	}
	return f.osFiles.Rename(from, to)
}

// TestTheProblemOfAPodThatCannotBeParked checks that NodeAgentReady does not change with each
// attempt to park a pod: only the folder as a whole can make the agent unready.
func TestTheProblemOfAPodThatCannotBeParked(t *testing.T) {
	for name, tc := range map[string]struct {
		files fileSystem
		want  string
	}{
		"one manifest cannot be moved": {files: immovable{}},
		"the disk is full":             {files: full{}, want: "no space left on device"},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, map[string]string{"manifests/web.yaml": manifestOf("web")}, drain("update", 1000))
			w.stop()
			k := w.newKeeper()
			k.folder.files = tc.files
			w.runKeeper(k)
			w.add(evacuationOf("web"))
			w.untilReported("static pod default/web-node-7 cannot be stopped")
			for range 60 {
				w.pass(time.Second)
				if got := k.Problem(); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
					t.Fatalf("got the problem %q, want %q", got, tc.want)
				}
			}
			is.Equal(t, w.countEvents("Warning StaticPodNotStopped"), 1, "events")
			w.want("manifests/web.yaml")
		})
	}
}
