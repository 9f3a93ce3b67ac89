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
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTwoMountsAreNamed(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	_, err := w.folder(onlyManifests{}).park(mirror("web"), forUpdate, "", nil)
	if err == nil || !strings.Contains(err.Error(), "on one mount") || !isCrossDevice(err) {
		t.Errorf("got %v, want an error about mounts", err)
	}
	w.want("manifests/web.yaml")
	w.wantEntries()
}

// onlyManifests fails to move manifests to another mount.
type onlyManifests struct{ osFiles }

func (f onlyManifests) Rename(from, to string) error {
	if filepath.Base(filepath.Dir(from)) == "manifests" {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: errCrossDevice}
	}
	return f.osFiles.Rename(from, to)
}
