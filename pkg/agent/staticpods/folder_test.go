// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/files"
	"haulout.dev/haulout/pkg/testing/must"
)

const node = "Node-7"

// at is the current time in the tests of folders.
var at = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// text returns a manifest; more has additional lines.
func text(name string, more ...string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata:\n  name: " + name + "\nspec:\n  containers:\n  - {name: app, image: example/app}\n" +
		strings.Join(more, "\n")
}

// mirror returns the mirror pod of a static pod.
func mirror(name string, mods ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name + "-node-7", UID: types.UID("api-" + name),
			Annotations:     map[string]string{corev1.MirrorPodAnnotationKey: "static-" + name, annotationConfigSource: "file"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node, UID: "node-uid", Controller: ptr.To(true)}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, Priority: ptr.To[int32](1000), TerminationGracePeriodSeconds: ptr.To[int64](5),
			Containers: []corev1.Container{{Name: "app", Image: "example/app"}},
		},
	}
	for _, mod := range mods {
		mod(pod)
	}
	return pod
}

var forUpdate = []Maintenance{{Name: "update", UID: "uid-update"}}

// tree is a static pod folder with its parent on a real file system.
type tree struct {
	*testing.T
	root string
}

// newTree returns a parent with the folder "manifests"; the keys are paths below the parent, and a
// text that begins with "-> " is a symbolic link.
func newTree(t *testing.T, files map[string]string) *tree {
	t.Helper()
	w := &tree{T: t, root: t.TempDir()}
	w.mkdir("manifests")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w.write(name, files[name])
	}
	return w
}

func (w *tree) mkdir(name string) {
	w.Helper()
	must.Do(w, os.MkdirAll(filepath.Join(w.root, name), 0o755))
}

func (w *tree) write(name, content string) {
	w.Helper()
	path := filepath.Join(w.root, name)
	w.mkdir(filepath.Dir(name))
	if target, ok := strings.CutPrefix(content, "-> "); ok {
		must.Do(w, os.Symlink(target, path))
		return
	}
	must.Do(w, os.WriteFile(path, []byte(content), 0o644))
}

func (w *tree) dir() string { return filepath.Join(w.root, "manifests") }

func (w *tree) folder(files fileSystem) *folder {
	return newFolder(files, w.dir(), node, func() time.Time { return at })
}

// list returns the files below the parent, without the lock and the index.
func (w *tree) list() []string {
	w.Helper()
	var found []string
	must.Do(w, filepath.WalkDir(w.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(w.root, path)
		if base := filepath.Base(name); base != lockName && base != indexName {
			found = append(found, filepath.ToSlash(name))
		}
		return err
	}))
	return found
}

func (w *tree) want(files ...string) {
	w.Helper()
	slices.Sort(files)
	if diff := gocmp.Diff(files, w.list()); diff != "" {
		w.Errorf("files (-want +got):\n%s", diff)
	}
}

func (w *tree) read(name string) string {
	w.Helper()
	data := must.Get(os.ReadFile(filepath.Join(w.root, name)))(w)
	return string(data)
}

// entries returns the files, origins and pods of the index.
func (w *tree) entries() []string {
	w.Helper()
	entries := must.Get(w.folder(osFiles{}).entries())(w)
	var found []string
	for _, e := range entries {
		origin := must.Get(filepath.Rel(w.root, e.Origin))(w)
		found = append(found, fmt.Sprintf("%s <- %s %s/%s", e.File, filepath.ToSlash(origin), e.Namespace, e.Name))
	}
	slices.Sort(found)
	return found
}

func (w *tree) wantEntries(want ...string) {
	w.Helper()
	if diff := gocmp.Diff(want, w.entries()); diff != "" {
		w.Errorf("entries (-want +got):\n%s", diff)
	}
}

func all(*Entry) bool { return true }

// each returns true for every pod.
func each(types.NamespacedName) bool { return true }

func always() (string, error) { return "instance-1", nil }

func TestPark(t *testing.T) {
	for name, tc := range map[string]struct {
		files       map[string]string
		pod         string
		want        []string
		wantEntries []string
	}{
		"the only manifest": {
			files:       map[string]string{"manifests/web.yaml": text("web"), "manifests/db.yaml": text("db")},
			want:        []string{".nm-parked/uid-update/web.yaml", "manifests/db.yaml"},
			wantEntries: []string{"uid-update/web.yaml <- manifests/web.yaml default/web-node-7"},
		},
		"several manifests, a backup among them": {
			files: map[string]string{"manifests/web.yaml": text("web"), "manifests/web.yaml.bak": text("web"), "manifests/old": text("web")},
			want:  []string{".nm-parked/uid-update/old", ".nm-parked/uid-update/web.yaml", ".nm-parked/uid-update/web.yaml.bak"},
			wantEntries: []string{
				"uid-update/old <- manifests/old default/web-node-7",
				"uid-update/web.yaml <- manifests/web.yaml default/web-node-7",
				"uid-update/web.yaml.bak <- manifests/web.yaml.bak default/web-node-7",
			},
		},
		"JSON": {
			files: map[string]string{
				"manifests/web.json": `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"a","image":"b"}]}}`,
			},
			want:        []string{".nm-parked/uid-update/web.json"},
			wantEntries: []string{"uid-update/web.json <- manifests/web.json default/web-node-7"},
		},
		"a link, and not the file that it points to": {
			files:       map[string]string{"manifests/web.yaml": "-> ../sources/web.yaml", "sources/web.yaml": text("web")},
			want:        []string{".nm-parked/uid-update/web.yaml", "sources/web.yaml"},
			wantEntries: []string{"uid-update/web.yaml <- manifests/web.yaml default/web-node-7"},
		},
		"not the files that the kubelet ignores": {
			files: map[string]string{
				"manifests/web.yaml": text("web"), "manifests/.web.yaml": text("web"), "manifests/sub/web.yaml": text("web"),
				"manifests/broken": "{", "manifests/service.yaml": "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n",
				"manifests/nameless": "apiVersion: v1\nkind: Pod\n", "manifests/dangling": "-> nowhere",
			},
			want: []string{
				".nm-parked/uid-update/web.yaml", "manifests/.web.yaml", "manifests/sub/web.yaml", "manifests/broken",
				"manifests/service.yaml", "manifests/nameless", "manifests/dangling",
			},
			wantEntries: []string{"uid-update/web.yaml <- manifests/web.yaml default/web-node-7"},
		},
		"not the pod of the same name in another namespace": {
			files: map[string]string{
				"manifests/a": text("web"), "manifests/b": strings.Replace(text("web"), "name: web", "name: web\n  namespace: other", 1),
			},
			want:        []string{".nm-parked/uid-update/a", "manifests/b"},
			wantEntries: []string{"uid-update/a <- manifests/a default/web-node-7"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t, tc.files)
			must.Get(w.folder(osFiles{}).park(mirror("web"), forUpdate, "instance-1", nil))(t)
			w.want(tc.want...)
			w.wantEntries(tc.wantEntries...)
			// All manifests return to their original paths.
			must.Get(w.folder(osFiles{}).restore(all))(t)
			w.want(slices.Collect(maps.Keys(tc.files))...)
			w.wantEntries()
			for name, content := range tc.files {
				if target, ok := strings.CutPrefix(content, "-> "); ok {
					if got, err := os.Readlink(filepath.Join(w.root, name)); err != nil || got != target {
						t.Errorf("%s links to %q, %v, want %q", name, got, err, target)
					}
				} else if got := w.read(name); got != content {
					t.Errorf("%s has the content %q, want %q", name, got, content)
				}
			}
		})
	}
}

func TestEntryOfAParkedManifest(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	pod := mirror("web", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"}; p.Spec.HostNetwork = true })
	f := w.folder(osFiles{})
	must.Get(f.park(pod, forUpdate, "instance-1", nil))(t)
	got := must.Get(f.entries())(t)
	want := []Entry{{
		File: "uid-update/web.yaml", Origin: filepath.Join(w.dir(), "web.yaml"), SHA256: hashOf([]byte(text("web"))), Mode: "-rw-r--r--",
		Namespace: "default", Name: "web-node-7", StaticUIDs: []types.UID{"static-web"}, Priority: 1000,
		Labels: map[string]string{"app": "web"}, GracePeriodSeconds: 5, Maintenances: forUpdate,
		ParkedAt: at, KubeletInstance: "instance-1",
	}}
	if diff := gocmp.Diff(want, got, gocmp.AllowUnexported(Maintenance{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	stored, err := parseIndex([]byte(w.read(".nm-parked/index.json")))
	if err != nil || len(stored.Entries) != 1 || stored.Entries[0].SHA256 != want[0].SHA256 {
		t.Errorf("got the index %+v, %v, want the same entry in it", stored, err)
	}
}

func TestParkingKeepsModeAndTheFolderIsPrivate(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	must.Do(t, os.Chmod(filepath.Join(w.dir(), "web.yaml"), 0o640))
	must.Get(w.folder(osFiles{}).park(mirror("web"), forUpdate, "", nil))(t)
	for name, want := range map[string]fs.FileMode{
		".nm-parked": fs.ModeDir | 0o700, ".nm-parked/uid-update": fs.ModeDir | 0o700,
		".nm-parked/index.json": 0o600, ".nm-parked/uid-update/web.yaml": 0o640,
	} {
		if info, err := os.Stat(filepath.Join(w.root, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", name, info.Mode(), err, want)
		}
	}
}

func TestParkRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		maintenances []Maintenance
		pod          string
		want         string
	}{
		"no maintenance":               {nil, "web", "a maintenance is required"},
		"a maintenance above":          {[]Maintenance{{UID: "../manifests"}}, "web", "must be the name of a folder"},
		"a maintenance in a subfolder": {[]Maintenance{{UID: "a/b"}}, "web", "must be the name of a folder"},
		"a maintenance without UID":    {[]Maintenance{{Name: "a"}}, "web", "must be the name of a folder"},
		"a maintenance of the archive": {[]Maintenance{{UID: "archive"}}, "web", "must be the name of a folder"},
		"a pod without a manifest":     {forUpdate, "db", errNoManifest.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
			_, err := w.folder(osFiles{}).park(mirror(tc.pod), tc.maintenances, "", nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
			w.want("manifests/web.yaml")
		})
	}
}

func TestHold(t *testing.T) {
	parked := map[string]string{"manifests/web.yaml": text("web"), "manifests/db.yaml": text("db")}
	for name, tc := range map[string]struct {
		// puts has the files that a program writes into the folder after the manifest of web is
		// parked.
		puts        map[string]string
		want        []string
		wantEntries []string
		wantContent string
	}{
		"nothing": {
			want:        []string{".nm-parked/uid-update/web.yaml", "manifests/db.yaml"},
			wantEntries: []string{"uid-update/web.yaml <- manifests/web.yaml default/web-node-7"},
			wantContent: text("web"),
		},
		"a newer manifest of the same path": {
			puts:        map[string]string{"manifests/web.yaml": text("web", "  priority: 5")},
			want:        []string{".nm-parked/uid-update/web.yaml", "manifests/db.yaml"},
			wantEntries: []string{"uid-update/web.yaml <- manifests/web.yaml default/web-node-7"},
			wantContent: text("web", "  priority: 5"),
		},
		"a manifest of another path": {
			puts: map[string]string{"manifests/other.yaml": text("web")},
			want: []string{".nm-parked/uid-update/other.yaml", ".nm-parked/uid-update/web.yaml", "manifests/db.yaml"},
			wantEntries: []string{
				"uid-update/other.yaml <- manifests/other.yaml default/web-node-7", "uid-update/web.yaml <- manifests/web.yaml default/web-node-7",
			},
			wantContent: text("web"),
		},
		"a manifest of another pod at the path": {
			puts:        map[string]string{"manifests/web.yaml": text("api")},
			want:        []string{".nm-parked/uid-update/web.yaml", "manifests/db.yaml", "manifests/web.yaml"},
			wantEntries: []string{"uid-update/web.yaml <- manifests/web.yaml default/web-node-7"},
			wantContent: text("web"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t, parked)
			f := w.folder(osFiles{})
			must.Get(f.park(mirror("web"), forUpdate, "instance-1", nil))(t)
			for name, content := range tc.puts {
				w.write(name, content)
			}
			must.Get(f.hold(each, always))(t)
			w.want(tc.want...)
			w.wantEntries(tc.wantEntries...)
			if got := w.read(".nm-parked/uid-update/web.yaml"); got != tc.wantContent {
				t.Errorf("got the content %q, want %q", got, tc.wantContent)
			}
		})
	}
}

func TestHoldNeedsTheCheck(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	f := w.folder(osFiles{})
	must.Get(f.park(mirror("web"), forUpdate, "", nil))(t)
	w.write("manifests/web.yaml", text("web"))
	errDown := errors.New("the kubelet is down")
	if _, err := f.hold(each, func() (string, error) { return "", errDown }); !errors.Is(err, errDown) {
		t.Errorf("got %v, want %v", err, errDown)
	}
	w.want(".nm-parked/uid-update/web.yaml", "manifests/web.yaml")
}

func TestParkedManifestOfAnotherPodGoesToTheArchive(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	f := w.folder(osFiles{})
	must.Get(f.park(mirror("web"), forUpdate, "", nil))(t)
	w.write("manifests/web.yaml", text("api"))
	must.Get(f.park(mirror("api"), forUpdate, "", nil))(t)
	w.want(".nm-parked/archive/web.yaml", ".nm-parked/uid-update/web.yaml")
	w.wantEntries("uid-update/web.yaml <- manifests/web.yaml default/api-node-7")
	if got := w.read(".nm-parked/archive/web.yaml"); got != text("web") {
		t.Errorf("got %q in the archive, want the manifest of web", got)
	}
}

func TestRestoreKeepsANewerManifest(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web"), ".nm-parked/archive/web.yaml": "older"})
	f := w.folder(osFiles{})
	must.Get(f.park(mirror("web"), forUpdate, "", nil))(t)
	w.write("manifests/web.yaml", text("web", "  priority: 5"))
	done, err := f.restore(all)
	if err != nil || len(done) != 1 || done[0].Archived != filepath.Join(w.root, ".nm-parked", "archive", "web.yaml.1") {
		t.Errorf("got %+v, %v, want one in the archive", done, err)
	}
	w.want(".nm-parked/archive/web.yaml", ".nm-parked/archive/web.yaml.1", "manifests/web.yaml")
	if got := w.read("manifests/web.yaml"); got != text("web", "  priority: 5") {
		t.Errorf("got %q, want the newer manifest", got)
	}
	if got := w.read(".nm-parked/archive/web.yaml.1"); got != text("web") {
		t.Errorf("got %q in the archive, want the parked manifest", got)
	}
}

func TestIndexFollowsTheFiles(t *testing.T) {
	const own = "uid-update/web.yaml <- manifests/web.yaml default/web-node-7"
	for name, tc := range map[string]struct {
		damage func(*tree)
		want   []string
	}{
		"a lost index":         {func(w *tree) { w.remove(".nm-parked/index.json") }, []string{own}},
		"a damaged index":      {func(w *tree) { w.write(".nm-parked/index.json", `{"version":1,"entries":[{"fi`) }, []string{own}},
		"an empty index":       {func(w *tree) { w.write(".nm-parked/index.json", "") }, []string{own}},
		"an index with a null": {func(w *tree) { w.write(".nm-parked/index.json", `{"version":1,"entries":[null]}`) }, []string{own}},
		"a lost manifest":      {func(w *tree) { w.remove(".nm-parked/uid-update/web.yaml") }, nil},
		"another manifest": {
			func(w *tree) { w.write(".nm-parked/uid-2/db.yaml", text("db")) },
			[]string{"uid-2/db.yaml <- manifests/db.yaml default/db-node-7", own},
		},
		"a file that is not a manifest": {
			func(w *tree) { w.write(".nm-parked/uid-2/notes", "{") },
			[]string{"uid-2/notes <- manifests/notes /", own},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
			must.Get(w.folder(osFiles{}).park(mirror("web"), forUpdate, "", nil))(t)
			tc.damage(w)
			w.wantEntries(tc.want...)
			w.wantEntries(tc.want...)
		})
	}
}

func (w *tree) remove(name string) {
	w.Helper()
	must.Do(w, os.Remove(filepath.Join(w.root, name)))
}

func TestADamagedIndexIsKept(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	must.Get(w.folder(osFiles{}).park(mirror("web"), forUpdate, "", nil))(t)
	w.write(".nm-parked/index.json", "damaged")
	w.entries()
	if got := w.read(".nm-parked/index.json.damaged-20260501T120000"); got != "damaged" {
		t.Errorf("got %q", got)
	}
}

func TestRebuiltEntryDescribesItsPod(t *testing.T) {
	for name, tc := range map[string]struct {
		file string
		want Entry
	}{
		"with a priority": {text("web", "  priority: 7\n  terminationGracePeriodSeconds: 3"), Entry{Priority: 7, GracePeriodSeconds: 3}},
		"with a class of the node": {
			text("web", "  priorityClassName: system-node-critical"), Entry{Priority: 2000001000, GracePeriodSeconds: 30},
		},
		"with a class of the cluster": {
			text("web", "  priorityClassName: system-cluster-critical\n  hostNetwork: true"),
			Entry{Priority: 2000000000, GracePeriodSeconds: 30},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t, map[string]string{".nm-parked/uid-2/web.yaml": tc.file})
			entries, err := w.folder(osFiles{}).entries()
			if err != nil || len(entries) != 1 {
				t.Fatalf("got %+v, %v, want one entry", entries, err)
			}
			got := Entry{Priority: entries[0].Priority, GracePeriodSeconds: entries[0].GracePeriodSeconds}
			if diff := gocmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := entries[0].Maintenances; len(got) != 1 || got[0].UID != "uid-2" {
				t.Errorf("got the maintenances %v, want uid-2", got)
			}
		})
	}
}

func TestALinkedStaticPodFolder(t *testing.T) {
	w := newTree(t, map[string]string{"data/real/web.yaml": text("web")})
	w.remove("manifests")
	w.write("manifests", "-> data/real")
	must.Get(w.folder(osFiles{}).park(mirror("web"), forUpdate, "", nil))(t)
	w.want("manifests", "data/.nm-parked/uid-update/web.yaml")
	must.Get(w.folder(osFiles{}).restore(all))(t)
	w.want("manifests", "data/real/web.yaml")
}

func TestProbe(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*tree)
		files   fileSystem
		want    string
	}{
		"a folder":           {prepare: func(*tree) {}},
		"no folder":          {prepare: func(w *tree) { w.remove("manifests") }},
		"a single file":      {prepare: func(w *tree) { w.remove("manifests"); w.write("manifests", text("web")) }, want: "single file"},
		"two mounts":         {prepare: func(*tree) {}, files: failing{rename: files.ErrCrossDevice}, want: "on one mount"},
		"a read-only folder": {prepare: func(*tree) {}, files: failing{rename: fs.ErrPermission}, want: fs.ErrPermission.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTree(t, nil)
			tc.prepare(w)
			before := w.list()
			err := w.folder(cmp.Or[fileSystem](tc.files, osFiles{})).probe()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			w.want(before...)
		})
	}
}

// failing has file operations of which the renames or the writes fail.
type failing struct {
	osFiles
	rename, write error
}

func (f failing) Rename(from, to string) error {
	if f.rename != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: f.rename}
	}
	return f.osFiles.Rename(from, to)
}

func (f failing) WriteFile(name string, data []byte, mode fs.FileMode) error {
	if f.write != nil {
		return &fs.PathError{Op: "write", Path: name, Err: f.write}
	}
	return f.osFiles.WriteFile(name, data, mode)
}
