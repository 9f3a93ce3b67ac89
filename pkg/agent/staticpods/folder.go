// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/files"
)

// Names in the parent of the static pod folder.
const (
	// parkingName is the name of the parking folder. It begins with a dot because the parent may
	// itself be the static pod folder of another kubelet.
	parkingName = ".nm-parked"
	// indexName, lockName and archiveName are in the parking folder.
	indexName, lockName, archiveName = "index.json", ".lock", "archive"
	// foreignName is the folder for manifests of other clusters.
	foreignName = "foreign"
	// probeName is the name of the file for the test rename. The kubelet ignores names that begin
	// with a dot.
	probeName = ".haulout-probe"
)

// errNoManifest is the error for a pod without a manifest in the folder.
var errNoManifest = errors.New("the static pod folder has no manifest of the pod")

// folder is the static pod folder and its parking folder. Its methods are safe for concurrent use,
// even by several processes.
type folder struct {
	files fileSystem
	// dir is the static pod folder without symbolic links; empty if there is none.
	dir     string
	parking string
	// node is the name of the node; empty if unknown. If it is unknown, new entries have no pod.
	node string
	now  func() time.Time
}

// newFolder returns the folder of a path. If the path is a symbolic link, the parking folder is
// beside the target, since it must be on the same mount.
func newFolder(files fileSystem, dir, node string, now func() time.Time) *folder {
	f := &folder{files: files, node: node, now: now}
	if dir == "" {
		return f
	}
	if resolved, err := filepath.EvalSymlinks(dir); err == nil {
		dir = resolved
	}
	f.dir = filepath.Clean(dir)
	f.parking = filepath.Join(filepath.Dir(f.dir), parkingName)
	return f
}

// manifest is a file of the static pod folder that the kubelet runs.
type manifest struct {
	path string
	pod  *corev1.Pod
}

// manifests returns the manifests in the static pod folder. Like the kubelet, it ignores names that
// begin with a dot, subfolders and files that are not pods. Every other file is a manifest, even a
// backup file.
func (f *folder) manifests() ([]manifest, error) {
	if f.dir == "" {
		return nil, nil
	}
	entries, err := f.files.ReadDir(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []manifest
	for _, entry := range entries {
		if pods.IsIgnored(entry.Name()) || entry.IsDir() {
			continue
		}
		path := filepath.Join(f.dir, entry.Name())
		data, err := f.files.ReadFile(path)
		if err != nil {
			continue // the kubelet cannot read it either, or it was just removed
		}
		if pod, err := pods.ParseManifest(data, f.node); err == nil {
			found = append(found, manifest{path, pod})
		}
	}
	return found, nil
}

// manifestsOf returns the manifests of a pod. If there are several, the kubelet runs one of them.
func (f *folder) manifestsOf(key types.NamespacedName) ([]manifest, error) {
	all, err := f.manifests()
	return slices.DeleteFunc(all, func(m manifest) bool { return m.pod.Namespace != key.Namespace || m.pod.Name != key.Name }), err
}

// begin locks the parking folder and returns the index that is on the disk.
func (f *folder) begin() (*index, func(), error) {
	if f.parking == "" {
		return &index{}, func() {}, nil
	}
	if _, err := f.files.Lstat(f.parking); errors.Is(err, fs.ErrNotExist) {
		return &index{}, func() {}, nil
	}
	unlock, err := lock(filepath.Join(f.parking, lockName))
	if err != nil {
		return nil, nil, fmt.Errorf("lock the parking folder: %w", err)
	}
	i, err := f.load()
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return i, unlock, nil
}

// load reads the index and corrects it according to the parking folder.
func (f *folder) load() (*index, error) {
	name := filepath.Join(f.parking, indexName)
	i := &index{}
	data, err := f.files.ReadFile(name)
	if err == nil {
		if i, err = parseIndex(data); err != nil {
			// Keep the damaged file so that a user can examine it. The entries are recreated from
			// the parked files.
			aside := name + ".damaged-" + f.now().UTC().Format("20060102T150405")
			if err := f.files.Rename(name, aside); err != nil {
				return nil, err
			}
			i = &index{}
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	parked, err := f.parked()
	if err != nil {
		return nil, err
	}
	before := len(i.Entries)
	// Drop the entries of manifests that were never moved or are already restored.
	i.Entries = slices.DeleteFunc(i.Entries, func(e *Entry) bool { return !slices.Contains(parked, e.File) })
	changed := before != len(i.Entries)
	for _, file := range parked {
		e := i.file(file)
		if e == nil {
			e = &Entry{
				File: file, Origin: filepath.Join(f.dir, filepath.Base(file)), ParkedAt: f.now(),
				Maintenances: []Maintenance{{UID: types.UID(filepath.Dir(filepath.FromSlash(file)))}},
			}
			i.Entries = append(i.Entries, e)
			changed = true
		}
		changed = f.refresh(e) || changed
	}
	if changed {
		// Ignore the error: a full disk must not prevent a restore, and the next process can
		// recreate the entries.
		_ = f.save(i)
	}
	return i, nil
}

// parked returns the files in the subfolders of the parking folder.
func (f *folder) parked() ([]string, error) {
	folders, err := f.files.ReadDir(f.parking)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, below := range folders {
		if !below.IsDir() || below.Name() == archiveName || below.Name() == foreignName {
			continue
		}
		files, err := f.files.ReadDir(filepath.Join(f.parking, below.Name()))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if !file.IsDir() {
				found = append(found, below.Name()+"/"+file.Name())
			}
		}
	}
	return found, nil
}

// refresh reads a parked manifest again if it differs from the description in the entry.
func (f *folder) refresh(e *Entry) bool {
	data, link, mode, err := f.content(e)
	if err != nil {
		return false
	}
	hash := hashOf(data)
	if hash == e.SHA256 && link == e.Link && (e.Name != "" || f.node == "") {
		return false
	}
	changed := hash != e.SHA256 || link != e.Link
	e.SHA256, e.Link, e.Mode = hash, link, mode.String()
	// Prefer data from the mirror pod, in which the API server has set the priority.
	if e.Name == "" && f.node != "" {
		if pod, err := pods.ParseManifest(data, f.node); err == nil {
			e.describe(pod)
			changed = true
		}
	}
	return changed
}

// content reads a parked manifest. If the manifest is a symbolic link, content resolves the link
// relative to its original folder, and also returns the link.
func (f *folder) content(e *Entry) (data []byte, link string, mode fs.FileMode, err error) {
	path := f.path(e)
	info, err := f.files.Lstat(path)
	if err != nil {
		return nil, "", 0, err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		if link, err = f.files.Readlink(path); err != nil {
			return nil, "", 0, err
		}
		if path = link; !filepath.IsAbs(link) {
			path = filepath.Join(filepath.Dir(e.Origin), link)
		}
	}
	data, err = f.files.ReadFile(path)
	return data, link, info.Mode(), err
}

func (f *folder) path(e *Entry) string {
	return filepath.Join(f.parking, filepath.FromSlash(e.File))
}

func (f *folder) save(i *index) error {
	data, err := i.bytes()
	if err != nil {
		return err
	}
	if err := save(f.files, filepath.Join(f.parking, indexName), data); err != nil {
		return fmt.Errorf("write the index of the parked manifests: %w", err)
	}
	return nil
}

func (f *folder) entries() ([]Entry, error) {
	i, unlock, err := f.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	found := make([]Entry, 0, len(i.Entries))
	for _, e := range i.Entries {
		found = append(found, *e)
	}
	return found, nil
}

func (f *folder) change(key types.NamespacedName, mod func(*Entry)) error {
	i, unlock, err := f.begin()
	if err != nil {
		return err
	}
	defer unlock()
	entries := i.pod(key)
	if len(entries) == 0 {
		return nil
	}
	for _, e := range entries {
		mod(e)
	}
	return f.save(i)
}

// park moves all manifests of a pod to the folder of the first of the maintenances. The given pod
// is the mirror pod.
func (f *folder) park(pod *corev1.Pod, maintenances []Maintenance, instance string, cluster *Cluster) ([]string, error) {
	if len(maintenances) == 0 {
		return nil, errors.New("a maintenance is required")
	}
	to := string(maintenances[0].UID)
	if !isFolderName(to) {
		return nil, fmt.Errorf("the UID %q of the maintenance must be the name of a folder", to)
	}
	if err := f.files.MkdirAll(f.parking, 0o700); err != nil {
		return nil, err
	}
	i, unlock, err := f.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	manifests, err := f.manifestsOf(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	if err != nil {
		return nil, err
	}
	if len(manifests) == 0 {
		return nil, fmt.Errorf("%w %s/%s", errNoManifest, pod.Namespace, pod.Name)
	}
	return f.move(i, to, manifests, func(e *Entry) {
		e.describe(pod)
		e.Maintenances, e.ParkedAt, e.KubeletInstance, e.Stopped, e.Cluster = maintenances, f.now(), instance, false, cluster
	})
}

// parkedPods returns the pods of the readable parked manifests.
func (f *folder) parkedPods() ([]*corev1.Pod, error) {
	entries, err := f.entries()
	var found []*corev1.Pod
	for i := range entries {
		data, _, _, err := f.content(&entries[i])
		if err != nil {
			continue
		}
		if pod, err := pods.ParseManifest(data, f.node); err == nil {
			found = append(found, pod)
		}
	}
	return found, err
}

// reappeared returns the manifests in the static pod folder that belong to parked pods.
func (f *folder) reappeared(i *index) (map[types.NamespacedName][]manifest, error) {
	held := map[types.NamespacedName][]manifest{}
	if len(i.Entries) == 0 {
		return held, nil
	}
	all, err := f.manifests()
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		key := types.NamespacedName{Namespace: m.pod.Namespace, Name: m.pod.Name}
		entries := i.pod(key)
		if len(entries) > 0 && !slices.ContainsFunc(entries, func(e *Entry) bool { return e.Restoring }) {
			held[key] = append(held[key], m)
		}
	}
	return held, nil
}

// hold parks manifests that have reappeared, unless due excludes their pods or check returns an
// error. The newest manifest replaces a parked manifest with the same path.
func (f *folder) hold(due func(types.NamespacedName) bool, check func() (instance string, err error)) ([]Entry, error) {
	i, unlock, err := f.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	held, err := f.reappeared(i)
	maps.DeleteFunc(held, func(key types.NamespacedName, _ []manifest) bool { return !due(key) })
	if err != nil || len(held) == 0 {
		return nil, err
	}
	instance, err := check()
	if err != nil {
		return nil, err
	}
	var done []Entry
	var errs []error
	for key, manifests := range held {
		first := *i.pod(key)[0]
		_, err := f.move(i, filepath.Dir(filepath.FromSlash(first.File)), manifests, func(e *Entry) {
			e.describe(manifests[0].pod)
			e.StaticUIDs, e.Priority, e.Maintenances, e.Cluster = first.StaticUIDs, first.Priority, first.Maintenances, first.Cluster
			e.ParkedAt, e.KubeletInstance, e.Stopped = f.now(), instance, false
		})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, first)
	}
	return done, errors.Join(errs...)
}

// move moves manifests of one pod to a folder of the parking folder and returns their names. It
// adds the entries to the index before it moves the first manifest.
func (f *folder) move(i *index, to string, manifests []manifest, describe func(*Entry)) ([]string, error) {
	if err := f.files.MkdirAll(filepath.Join(f.parking, to), 0o700); err != nil {
		return nil, err
	}
	if err := f.files.Sync(f.parking); err != nil {
		return nil, err
	}
	for _, m := range manifests {
		file := to + "/" + filepath.Base(m.path)
		e := i.file(file)
		if e != nil && (e.Namespace != m.pod.Namespace || e.Name != m.pod.Name) {
			// The path belonged to another pod, whose manifest was replaced in the folder.
			if _, err := f.archive(i, e, archiveName); err != nil {
				return nil, err
			}
			e = nil
		}
		if e == nil {
			e = &Entry{File: file, Origin: m.path}
			i.Entries = append(i.Entries, e)
		}
		describe(e)
	}
	if err := f.save(i); err != nil {
		return nil, err
	}
	var names []string
	for _, m := range manifests {
		name := filepath.Base(m.path)
		switch err := f.files.Rename(m.path, filepath.Join(f.parking, to, name)); {
		case errors.Is(err, files.ErrCrossDevice):
			return names, f.crossDevice(err)
		case errors.Is(err, fs.ErrNotExist):
			continue // the manifest was just removed
		case err != nil:
			return names, fmt.Errorf("park the manifest %s: %w", m.path, err)
		}
		names = append(names, name)
	}
	return names, errors.Join(f.files.Sync(f.dir), f.files.Sync(filepath.Join(f.parking, to)))
}

func (f *folder) crossDevice(err error) error {
	return fmt.Errorf("%s and %s must be on one mount; mount their parent folder instead of the static pod folder: %w", f.dir, f.parking, err)
}

// Restored is the result of a restore.
type Restored struct {
	Entry
	// Archived is the new place of the manifest if a newer one uses its path; otherwise empty.
	Archived string
}

// restore moves the selected manifests back to their paths.
func (f *folder) restore(selected func(*Entry) bool) ([]Restored, error) {
	i, unlock, err := f.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	var todo []*Entry
	for _, e := range i.Entries {
		if selected(e) {
			e.Restoring = true
			todo = append(todo, e)
		}
	}
	if len(todo) == 0 {
		return nil, nil
	}
	// Save the index first: after a crash, the next process then continues the restore, and hold
	// does not park manifests that are already restored. Ignore the error, since a restore must
	// work even if the disk is full.
	_ = f.save(i)
	var done []Restored
	var errs []error
	for _, e := range todo {
		archived, err := f.restoreOne(i, e)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, Restored{*e, archived})
	}
	errs = append(errs, f.syncAll(done))
	_ = f.save(i)
	for _, e := range done {
		// This fails while the folder has other files.
		_ = f.files.Remove(filepath.Dir(f.path(&e.Entry)))
	}
	return done, errors.Join(errs...)
}

// restoreOne restores a manifest. If its path is in use, it archives the manifest and returns the
// new place.
func (f *folder) restoreOne(i *index, e *Entry) (archived string, err error) {
	switch err := f.files.RenameNew(f.path(e), e.Origin); {
	case errors.Is(err, fs.ErrExist):
		// The path has a newer manifest.
		return f.archive(i, e, archiveName)
	case errors.Is(err, files.ErrCrossDevice):
		return "", f.crossDevice(err)
	case err != nil:
		return "", fmt.Errorf("restore the manifest %s: %w", e.Origin, err)
	}
	i.Entries = slices.DeleteFunc(i.Entries, func(other *Entry) bool { return other == e })
	return "", nil
}

// archive moves a parked manifest to the archive, or to another folder that restores ignore.
func (f *folder) archive(i *index, e *Entry, to string) (string, error) {
	dir := filepath.Join(f.parking, to)
	if err := f.files.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	name := filepath.Join(dir, filepath.Base(f.path(e)))
	for n := 0; ; n++ {
		target := name
		if n > 0 {
			target += "." + strconv.Itoa(n)
		}
		err := f.files.RenameNew(f.path(e), target)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil {
			i.Entries = slices.DeleteFunc(i.Entries, func(other *Entry) bool { return other == e })
		}
		return target, err
	}
}

func (f *folder) syncAll(done []Restored) error {
	dirs := map[string]struct{}{}
	for _, e := range done {
		dirs[filepath.Dir(f.path(&e.Entry))] = struct{}{}
		dirs[filepath.Dir(e.Origin)] = struct{}{}
		if e.Archived != "" {
			dirs[filepath.Dir(e.Archived)] = struct{}{}
		}
	}
	var errs []error
	for dir := range dirs {
		errs = append(errs, f.files.Sync(dir))
	}
	return errors.Join(errs...)
}

// probe checks with a test rename that manifests can be moved.
func (f *folder) probe() error {
	if f.dir == "" {
		return nil
	}
	switch info, err := f.files.Lstat(f.dir); {
	case errors.Is(err, fs.ErrNotExist):
		return nil // no static pods
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("the static pod path %s is a single file; must be a folder", f.dir)
	}
	if err := f.files.MkdirAll(f.parking, 0o700); err != nil {
		return err
	}
	from, to := filepath.Join(f.parking, probeName), filepath.Join(f.dir, probeName)
	if err := f.files.WriteFile(from, nil, 0o600); err != nil {
		return err
	}
	if err := f.files.Rename(from, to); err != nil {
		err = errors.Join(err, f.files.Remove(from))
		if errors.Is(err, files.ErrCrossDevice) {
			return f.crossDevice(err)
		}
		return err
	}
	return f.files.Remove(to)
}

// isFolderName reports whether a text is safe as the name of a maintenance's folder.
func isFolderName(name string) bool {
	return name != archiveName && name != foreignName && !pods.IsIgnored(name) && !strings.ContainsAny(name, `/\`) && filepath.IsLocal(name)
}
