// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/files"
)

func TestTwoMountsAreNamed(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	_, err := w.folder(onlyManifests{}).park(mirror("web"), forUpdate, "", nil)
	if err == nil || !strings.Contains(err.Error(), "on one mount") || !errors.Is(err, files.ErrCrossDevice) {
		t.Errorf("got %v, want an error about mounts", err)
	}
	w.want("manifests/web.yaml")
	w.wantEntries()
}

// onlyManifests has file operations that fail to move manifests to another mount.
type onlyManifests struct{ osFiles }

func (f onlyManifests) Rename(from, to string) error {
	if filepath.Base(filepath.Dir(from)) == "manifests" {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: files.ErrCrossDevice}
	}
	return f.osFiles.Rename(from, to)
}
