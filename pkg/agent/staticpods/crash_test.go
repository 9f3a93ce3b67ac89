// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/testing/must"
)

var errCrash = errors.New("crashed")

// crashing has the file operations of a process that dies: the operation at which the process dies
// and all later ones fail.
type crashing struct {
	osFiles
	// left is the number of operations before the process dies.
	left *int
}

func (c crashing) step() error {
	if *c.left == 0 {
		return errCrash
	}
	*c.left--
	return nil
}

func (c crashing) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := c.step(); err != nil {
		return nil, err
	}
	return c.osFiles.ReadDir(name)
}

func (c crashing) Lstat(name string) (fs.FileInfo, error) {
	if err := c.step(); err != nil {
		return nil, err
	}
	return c.osFiles.Lstat(name)
}

func (c crashing) Readlink(name string) (string, error) {
	if err := c.step(); err != nil {
		return "", err
	}
	return c.osFiles.Readlink(name)
}

func (c crashing) ReadFile(name string) ([]byte, error) {
	if err := c.step(); err != nil {
		return nil, err
	}
	return c.osFiles.ReadFile(name)
}

func (c crashing) MkdirAll(name string, mode fs.FileMode) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.osFiles.MkdirAll(name, mode)
}

// WriteFile writes only a half of the file if the process dies.
func (c crashing) WriteFile(name string, data []byte, mode fs.FileMode) error {
	if err := c.step(); err != nil {
		return errors.Join(err, os.WriteFile(name, data[:len(data)/2], mode))
	}
	return c.osFiles.WriteFile(name, data, mode)
}

func (c crashing) Rename(from, to string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.osFiles.Rename(from, to)
}

func (c crashing) RenameNew(from, to string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.osFiles.RenameNew(from, to)
}

func (c crashing) Remove(name string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.osFiles.Remove(name)
}

func (c crashing) Sync(dir string) error {
	if err := c.step(); err != nil {
		return err
	}
	return c.osFiles.Sync(dir)
}

// contents returns the number of occurrences of each text in the files below the parent, without
// the parking folder's own files.
func (w *tree) contents() map[string]int {
	found := map[string]int{}
	for _, name := range w.list() {
		if base := filepath.Base(name); base == indexName+".tmp" || strings.HasPrefix(base, indexName) {
			continue
		}
		if info, err := os.Lstat(filepath.Join(w.root, name)); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			target := must.Get(os.Readlink(filepath.Join(w.root, name)))(w)
			found["-> "+target]++
			continue
		}
		found[w.read(name)]++
	}
	return found
}

// TestCrashes ends a process at each of its file operations. The next process must reach the same
// result. Meanwhile no manifest may be lost or exist twice.
func TestCrashes(t *testing.T) {
	first := map[string]string{
		"manifests/a.yaml": text("web", "  priority: 1"), "manifests/b.yaml": text("web", "  priority: 2"),
		"manifests/c.yaml": "-> ../sources/web.yaml", "sources/web.yaml": text("web", "  priority: 3"), "manifests/db.yaml": text("db"),
	}
	parkedAll := func(w *tree) {
		must.Get(w.folder(osFiles{}).park(mirror("web"), forUpdate, "", nil))(w)
	}
	parked := []string{
		".nm-parked/uid-update/a.yaml", ".nm-parked/uid-update/b.yaml", ".nm-parked/uid-update/c.yaml", "manifests/db.yaml", "sources/web.yaml",
	}
	entries := []string{
		"uid-update/a.yaml <- manifests/a.yaml default/web-node-7", "uid-update/b.yaml <- manifests/b.yaml default/web-node-7",
		"uid-update/c.yaml <- manifests/c.yaml default/web-node-7",
	}
	for name, tc := range map[string]struct {
		prepare func(*tree)
		// run is the operation during which the process dies. again is the operation of the next
		// processes.
		run, again func(*folder) error
		// replaces has the texts that a newer text at the same path may replace.
		replaces []string
		want     []string
		entries  []string
	}{
		"park": {
			run:   func(f *folder) error { _, err := f.park(mirror("web"), forUpdate, "", nil); return err },
			again: parkAgain, want: parked, entries: entries,
		},
		"hold": {
			prepare: func(w *tree) {
				parkedAll(w)
				w.write("manifests/a.yaml", text("web", "  priority: 4"))
				w.write("manifests/d.yaml", text("web", "  priority: 5"))
			},
			run:      func(f *folder) error { _, err := f.hold(each, always); return err },
			again:    func(f *folder) error { _, err := f.hold(each, always); return err },
			replaces: []string{text("web", "  priority: 1")},
			want:     append(slices.Clone(parked), ".nm-parked/uid-update/d.yaml"),
			entries:  append(slices.Clone(entries), "uid-update/d.yaml <- manifests/d.yaml default/web-node-7"),
		},
		"restore": {
			prepare: parkedAll,
			run:     func(f *folder) error { _, err := f.restore(all); return err },
			again:   restoreAgain,
			want:    []string{"manifests/a.yaml", "manifests/b.yaml", "manifests/c.yaml", "manifests/db.yaml", "sources/web.yaml"},
		},
		"restore beside a newer manifest": {
			prepare: func(w *tree) {
				parkedAll(w)
				w.write("manifests/b.yaml", text("web", "  priority: 9"))
			},
			run: func(f *folder) error { _, err := f.restore(all); return err },
			// This does not use restoreAgain: the manifest may still be held if the process dies
			// before the first step.
			again: func(f *folder) error { _, err := f.restore(all); return err },
			want: []string{
				".nm-parked/archive/b.yaml", "manifests/a.yaml", "manifests/b.yaml", "manifests/c.yaml", "manifests/db.yaml", "sources/web.yaml",
			},
		},
		"park at the path of another pod": {
			prepare: func(w *tree) {
				parkedAll(w)
				w.write("manifests/a.yaml", text("api"))
			},
			run:   func(f *folder) error { _, err := f.park(mirror("api"), forUpdate, "", nil); return err },
			again: func(f *folder) error { return parkUnlessParked(f, "api") },
			want:  append(slices.Clone(parked), ".nm-parked/archive/a.yaml"),
			entries: []string{
				"uid-update/a.yaml <- manifests/a.yaml default/api-node-7", "uid-update/b.yaml <- manifests/b.yaml default/web-node-7",
				"uid-update/c.yaml <- manifests/c.yaml default/web-node-7",
			},
		},
		"a damaged index": {
			prepare: func(w *tree) {
				parkedAll(w)
				w.write(".nm-parked/index.json", "damaged")
			},
			run:   func(f *folder) error { _, err := f.entries(); return err },
			again: func(f *folder) error { _, err := f.entries(); return err },
			want:  append(slices.Clone(parked), ".nm-parked/index.json.damaged-20260501T120000"), entries: entries,
		},
	} {
		t.Run(name, func(t *testing.T) {
			crashed := 0
			for n := 0; ; n++ {
				over := false
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					w := newTree(t, first)
					if tc.prepare != nil {
						tc.prepare(w)
					}
					before := w.contents()
					left := n
					err := tc.run(w.folder(crashing{left: &left}))
					over = left > 0
					if over && err != nil {
						t.Fatal(err)
					}
					if left == 0 {
						crashed++
					}
					w.wantContents(before, tc.replaces)
					// The next process dies in the middle of the repair.
					for m := range 12 {
						again := m
						_ = tc.again(w.folder(crashing{left: &again}))
						w.wantContents(before, tc.replaces)
					}
					must.Do(t, tc.again(w.folder(osFiles{})))
					w.wantContents(before, tc.replaces)
					w.want(append(slices.Clone(tc.want), w.leftovers()...)...)
					w.wantEntries(tc.entries...)
				})
				if over || t.Failed() {
					break
				}
			}
			if crashed < 5 && !t.Failed() {
				t.Errorf("the process died at %d steps only", crashed)
			}
		})
	}
}

// leftovers returns the name of the partial index that a killed process left.
func (w *tree) leftovers() []string {
	return slices.DeleteFunc(w.list(), func(name string) bool { return name != ".nm-parked/index.json.tmp" })
}

// wantContents checks that each text occurs as often as before, except the texts in replaces.
func (w *tree) wantContents(before map[string]int, replaces []string) {
	w.Helper()
	now := w.contents()
	for content, count := range before {
		if now[content] != count && !(now[content] == 0 && slices.Contains(replaces, content)) && content != "damaged" {
			w.Errorf("the text %q is there %d times, want %d", content, now[content], count)
		}
	}
}

// parkAgain acts like the Keeper for a pod that must leave the node: it parks the manifest and
// holds it, unless a manifest of the pod is parked already.
func parkAgain(f *folder) error { return parkUnlessParked(f, "web") }

func parkUnlessParked(f *folder, name string) error {
	entries, err := f.entries()
	if err != nil {
		return err
	}
	if _, err := f.hold(each, always); err != nil {
		return err
	}
	if slices.ContainsFunc(entries, func(e Entry) bool { return e.Name == name+"-node-7" }) {
		return nil
	}
	_, err = f.park(mirror(name), forUpdate, "", nil)
	return err
}

// restoreAgain acts like the Keeper if the API is lost after a crash: it completes a restore that
// has begun and keeps other manifests parked. Then it restores all manifests.
func restoreAgain(f *folder) error {
	if _, err := f.restore(func(e *Entry) bool { return e.Restoring }); err != nil {
		return err
	}
	if _, err := f.hold(each, func() (string, error) { return "", errors.New("a restored manifest was about to be held") }); err != nil {
		return err
	}
	_, err := f.restore(all)
	return err
}
