// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/must"
)

// envParent is the parent of a static pod folder that is a separate mount.
const envParent = "HAULOUT_TEST_PARENT"

// TestABindMountIsNamed runs in a separate mount namespace, in which the static pod folder is
// another mount of the same file system.
func TestABindMountIsNamed(t *testing.T) {
	if parent := os.Getenv(envParent); parent != "" {
		w := &tree{T: t, root: parent}
		must.Do(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		must.Do(t, unix.Mount(w.dir(), w.dir(), "", unix.MS_BIND, ""))
		f := w.folder(osFiles{})
		for name, err := range map[string]error{
			"probe": f.probe(),
			"park":  func() error { _, err := f.park(mirror("web"), forUpdate, "", nil); return err }(),
		} {
			if !errors.Is(err, unix.EXDEV) || !strings.Contains(err.Error(), "must be on one mount") {
				t.Errorf("%s: got %v, want an error about mounts", name, err)
			}
		}
		w.want("manifests/web.yaml")
		return
	}
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	self := must.Get(os.Executable())(t)
	command := exec.Command(self, "-test.run=^TestABindMountIsNamed$", "-test.v")
	command.Env = append(os.Environ(), envParent+"="+w.root)
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	output, err := command.CombinedOutput()
	if errors.Is(err, unix.EPERM) {
		must.True(t, os.Getenv("CI") == "", "mount namespaces are not allowed: %v", err)
		t.Skipf("mount namespaces are not allowed: %v", err) //nolint:forbidigo // with CI set, it fails
	}
	if err != nil || !strings.Contains(string(output), "--- PASS: TestABindMountIsNamed") {
		t.Fatalf("%v:\n%s", err, output)
	}
}

// TestAManifestThatIsPutBackIsSeen depends on the file events of the real file system.
func TestAManifestThatIsPutBackIsSeen(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	must.Get(w.folder(osFiles{}).park(mirror("web"), forUpdate, "", nil))(t)
	kubelet := &fakeKubelet{}
	k, err := New(Config{
		Dir: w.dir(), NodeName: node, Kubelet: kubelet, Containers: kubelet, Kube: kubefake.NewClientset(ownNode()),
		Server: func() (string, error) { return "https://192.0.2.1:6443", nil }, CA: func() ([]byte, error) { return nil, nil },
		Static:  func() []types.NamespacedName { return nil },
		Leaving: func() bool { return false }, Event: func(string, string, string) {},
		Maintenance: fake.NewClientset(drain("update", 1000)), APILossRestorePeriod: time.Hour, HauloutLossRestorePeriod: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	// With this interval, only a file event makes the agent read the folder in time.
	k.relist = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- k.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for name, put := range map[string]func(string) error{
		"written in place": func(path string) error {
			file, err := os.Create(path)
			if err != nil {
				return err
			}
			for _, part := range strings.SplitAfter(text("web"), "\n") {
				if _, err := file.WriteString(part); err != nil {
					return err
				}
			}
			return file.Close()
		},
		"moved": func(path string) error {
			if err := os.WriteFile(path+".new", []byte(text("web")), 0o600); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
		"linked": func(path string) error { return os.Symlink(filepath.Join(w.root, "source.yaml"), path) },
	} {
		w.write("source.yaml", text("web"))
		path := filepath.Join(w.dir(), "again.yaml")
		must.Do(t, put(path))
		err := wait.PollUntilContextTimeout(ctx, time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
			entries, err := os.ReadDir(w.dir())
			return len(entries) == 0, err
		})
		if err != nil {
			t.Errorf("a manifest that was %s was not parked: %v; files: %v", name, err, w.list())
		}
	}
}

func TestAWatchOfAFolderThatIsRemovedEnds(t *testing.T) {
	w := newTree(t, nil)
	started := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() { done <- watchOnce(t.Context(), w.dir(), func() { wake(started) }) }()
	<-started
	w.remove("manifests")
	if err := <-done; err == nil {
		t.Error("got no error")
	}
	if err := watchOnce(t.Context(), w.dir(), func() {}); err == nil {
		t.Error("got no error of a missing folder")
	}
}

func TestANamedPipeDoesNotBlock(t *testing.T) {
	w := newTree(t, map[string]string{"manifests/web.yaml": text("web")})
	must.Do(t, unix.Mkfifo(filepath.Join(w.dir(), "pipe"), 0o600))
	if _, err := w.folder(osFiles{}).park(mirror("web"), forUpdate, "", nil); err != nil {
		t.Error(err)
	}
	w.want(".nm-parked/uid-update/web.yaml", "manifests/pipe")
}

func TestProcessesWaitForEachOther(t *testing.T) {
	name := filepath.Join(t.TempDir(), lockName)
	unlock, err := lock(name)
	if err != nil {
		t.Fatal(err)
	}
	taken := make(chan func(), 1)
	go func() {
		second, err := lock(name)
		if err != nil {
			t.Error(err)
		}
		taken <- second
	}()
	file := must.Get(os.OpenFile(name, os.O_RDWR, 0o600))(t)
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("got %v, want %v", err, unix.EWOULDBLOCK)
	}
	select {
	case <-taken:
		t.Fatal("two have the lock")
	default:
	}
	unlock()
	(<-taken)()
}

func TestALargeFileIsNotRead(t *testing.T) {
	w := newTree(t, nil)
	path := filepath.Join(w.dir(), "large")
	must.Do(t, os.WriteFile(path, nil, 0o600))
	must.Do(t, os.Truncate(path, pods.MaxManifest+1))
	if _, err := (osFiles{}).ReadFile(path); err == nil || !strings.Contains(err.Error(), "larger") {
		t.Errorf("got %v, want an error about its size", err)
	}
}
