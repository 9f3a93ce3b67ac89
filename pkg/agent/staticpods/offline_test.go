// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/testing/must"
)

func TestOffline(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web"), "manifests/db.yaml": text("db"), "manifests/api.yaml": text("api")})
	f := w.folder(osFiles{})
	for _, name := range []string{"web", "db", "api"} {
		must.Get(f.park(mirror(name), forUpdate, "", nil))(t)
	}
	list, err := List(w.dir())
	if err != nil || len(list) != 3 {
		t.Errorf("got %d entries, %v, want 3", len(list), err)
	}
	if _, err := Restore(w.dir(), []string{"web-node-7", "mail"}); err == nil || !strings.Contains(err.Error(), "default/db-node-7") {
		t.Errorf("got %v, want an error that names the parked pods", err)
	}
	w.want(".nm-parked/uid-update/api.yaml", ".nm-parked/uid-update/db.yaml", ".nm-parked/uid-update/web.yaml")
	done, err := Restore(w.dir(), []string{"default/web-node-7", "db.yaml"})
	if err != nil || len(done) != 2 {
		t.Errorf("got %+v, %v, want two", done, err)
	}
	w.want(".nm-parked/uid-update/api.yaml", "manifests/db.yaml", "manifests/web.yaml")
	if done, err := RestoreAll(w.dir()); err != nil || len(done) != 1 || done[0].Name != "api-node-7" || done[0].Archived != "" {
		t.Errorf("got %+v, %v, want api", done, err)
	}
	w.want("manifests/api.yaml", "manifests/db.yaml", "manifests/web.yaml")
	if list, err := List(w.dir()); err != nil || len(list) != 0 {
		t.Errorf("got %+v, %v, want nothing", list, err)
	}
}

func TestOfflineOnAMachineWithoutParkedPods(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	if list, err := List(w.dir()); err != nil || len(list) != 0 {
		t.Errorf("got %+v, %v, want nothing", list, err)
	}
	if done, err := RestoreAll(w.dir()); err != nil || len(done) != 0 {
		t.Errorf("got %+v, %v, want nothing", done, err)
	}
	if _, err := Restore(w.dir(), []string{"web"}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("got %v, want an error that no pod is parked", err)
	}
	w.want("manifests/web.yaml")
}

func TestRestoreWorksOnAFullDisk(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/a": text("web"), "manifests/b": text("web")})
	must.Get(w.folder(osFiles{}).park(mirror("web"), forUpdate, "", nil))(t)
	if _, err := w.folder(failing{write: errors.New("no space left on device")}).restore(all); err != nil {
		t.Error(err)
	}
	w.want("manifests/a", "manifests/b")
	w.wantEntries()
}

func TestNothingIsParkedOnAFullDisk(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/a": text("web")})
	full := failing{write: errors.New("no space left on device")}
	if _, err := w.folder(full).park(mirror("web"), forUpdate, "", nil); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("got %v, want an error about space", err)
	}
	w.want("manifests/a")
}

// refusing has file operations that cannot restore one of the files.
type refusing struct {
	osFiles
	name string
}

func (f refusing) RenameNew(from, to string) error {
	if filepath.Base(to) == f.name {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: fs.ErrPermission}
	}
	return f.osFiles.RenameNew(from, to)
}

func TestARestoreThatFailsHalfwayIsNotHeld(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/a": text("web"), "manifests/b": text("web")})
	must.Get(w.folder(osFiles{}).park(mirror("web"), forUpdate, "", nil))(t)
	if done, err := w.folder(refusing{name: "b"}).restore(all); !errors.Is(err, fs.ErrPermission) || len(done) != 1 {
		t.Errorf("got %+v, %v, want one and %v", done, err, fs.ErrPermission)
	}
	must.Get(w.folder(osFiles{}).hold(each, always))(t)
	w.want("manifests/a", ".nm-parked/uid-update/b")
	must.Get(w.folder(osFiles{}).restore(func(e *Entry) bool { return e.Restoring }))(t)
	w.want("manifests/a", "manifests/b")
}
