// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// List returns the parked manifests of a static pod folder. It needs neither the API nor an agent.
func List(dir string) ([]Entry, error) {
	return newFolder(osFiles{}, dir, "", time.Now).entries()
}

// Restore restores the parked manifests of the named pods: each name is <pod>, <namespace>/<pod> or
// the name of the file. It needs neither the API nor an agent. A running agent parks the pods again
// if a NodeMaintenance in stage Drain still targets them.
func Restore(dir string, names []string) ([]Restored, error) {
	f := newFolder(osFiles{}, dir, "", time.Now)
	entries, err := f.entries()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !slices.ContainsFunc(entries, func(e Entry) bool { return e.isNamed(name) }) {
			return nil, fmt.Errorf("parked static pod or manifest %q not found; parked pods: %s", name, cmp.Or(strings.Join(namesOf(entries), ", "), "none"))
		}
	}
	return f.restore(func(e *Entry) bool { return slices.ContainsFunc(names, e.isNamed) })
}

// RestoreAll restores all parked manifests, see Restore.
func RestoreAll(dir string) ([]Restored, error) {
	return newFolder(osFiles{}, dir, "", time.Now).restore(func(*Entry) bool { return true })
}

// RestoreForeign restores the manifests that were parked in another cluster and set aside. If the
// path of a manifest is in use, the manifest stays set aside.
func RestoreForeign(dir string) ([]Restored, error) {
	f := newFolder(osFiles{}, dir, "", time.Now)
	_, unlock, err := f.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	from := filepath.Join(f.parking, foreignName)
	files, err := f.files.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var done []Restored
	errs := []error{err}
	for _, file := range files {
		to := filepath.Join(f.dir, file.Name())
		if err := f.files.RenameNew(filepath.Join(from, file.Name()), to); err != nil {
			errs = append(errs, fmt.Errorf("restore the manifest %s: %w", to, err))
			continue
		}
		done = append(done, Restored{Entry: Entry{Origin: to}})
	}
	return done, errors.Join(append(errs, f.files.Sync(f.dir), f.files.Sync(from))...)
}

func (e *Entry) isNamed(name string) bool {
	return name == e.Name || name == e.Namespace+"/"+e.Name || name == path.Base(e.File)
}

func namesOf(entries []Entry) []string {
	var names []string
	for _, e := range entries {
		name := e.Namespace + "/" + e.Name
		if e.Name == "" {
			name = path.Base(e.File)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
