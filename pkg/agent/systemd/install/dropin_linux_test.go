// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"path/filepath"
	"testing"

	"haulout.dev/haulout/pkg/testing/must"
)

// TestRemoveDropIn removes a drop-in. It removes the folder only if it is empty and not a link.
func TestRemoveDropIn(t *testing.T) {
	for name, test := range map[string]struct{ linked, shared, gone bool }{
		"a folder with only the agent's drop-in":   {gone: true},
		"a folder with drop-ins of other programs": {shared: true},
		"a link to another folder":                 {linked: true, shared: true},
		"a link to an empty folder":                {linked: true},
	} {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(t.TempDir(), "kubelet.service.d")
			if test.linked {
				must.Do(t, os.Symlink(t.TempDir(), folder))
			} else if err := os.Mkdir(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			ours, others := filepath.Join(folder, "50-haulout-node-agent.conf"), filepath.Join(folder, "10-kubeadm.conf")
			for _, path := range []string{ours, others} {
				if path == ours || test.shared {
					must.Do(t, os.WriteFile(path, nil, 0o600))
				}
			}
			for range 2 {
				must.Do(t, removeDropIn(ours))
			}
			if _, err := os.Lstat(ours); err == nil {
				t.Error("the drop-in is left")
			}
			if _, err := os.Lstat(folder); (err != nil) != test.gone {
				t.Errorf("the folder: %v, want gone: %t", err, test.gone)
			}
			if _, err := os.Stat(others); (err == nil) != test.shared {
				t.Errorf("the drop-in of others: %v", err)
			}
		})
	}
}
