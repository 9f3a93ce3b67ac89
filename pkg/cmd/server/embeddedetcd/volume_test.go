// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package embeddedetcd

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// startIn is the environment variable with the folder in which a copy of this program starts a
// server, as another user, instead of running tests.
const startIn = "HAULOUT_TEST_START_IN"

// otherUser is the user and the group of the shipped Deployment.
const otherUser = 65532

func TestMain(m *testing.M) {
	for variable, run := range map[string]func(string) error{startIn: startAndStop, fillIn: fillDisk, checkIn: printKeys, diskIn: runOnDisk} {
		dir := os.Getenv(variable)
		if dir == "" {
			continue
		}
		if err := run(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func startAndStop(dir string) error {
	s, err := Start(context.Background(), Options{DataDir: dir, QuotaBytes: DefaultQuotaBytes})
	if err == nil {
		s.Stop()
	}
	return err
}

// TestStartsOnVolumesOfOthers starts the server on folders as storage drivers create them. As root,
// the test starts the server as the user of the shipped Deployment, who does not own the folder. As
// another user, it only checks that the mode of the folder is unchanged.
func TestStartsOnVolumesOfOthers(t *testing.T) {
	program := copyOfThisProgram(t)
	for name, tc := range map[string]struct {
		mode  os.FileMode
		group int
		// left is the mode of a folder that an earlier server has left there, after the kubelet has
		// made it accessible for the fsGroup; 0 means that there is none.
		left os.FileMode
	}{
		"a block volume with the fsGroup of the pod":     {mode: 0o775 | os.ModeSetgid, group: otherUser},
		"a folder of the node that all users can access": {mode: 0o777},
		"a volume whose files the kubelet has made accessible": {
			mode: 0o775 | os.ModeSetgid, group: otherUser, left: 0o770 | os.ModeSetgid,
		},
	} {
		t.Run(name, func(t *testing.T) {
			volume := filepath.Join(reachable(t), "volume")
			makeFolder(t, volume, tc.mode, 0, tc.group)
			if tc.left != 0 {
				makeFolder(t, filepath.Join(volume, privateName), tc.left, otherUser, tc.group)
			}
			before := owned(t, volume)
			cmd := exec.CommandContext(t.Context(), program)
			cmd.Env = append(os.Environ(), startIn+"="+volume)
			if os.Getuid() == 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if after := owned(t, volume); after != before {
				t.Errorf("the volume was %s and is %s", before, after)
			}
			info, err := os.Stat(filepath.Join(volume, privateName))
			is.True(t, err == nil && info.Mode().Perm() == 0o700, "the data is in %v, %v", info, err)
		})
	}
}

func TestFolderThatCannotBeNarrowedIsNamed(t *testing.T) {
	volume := t.TempDir()
	must.Do(t, os.Symlink(t.TempDir(), filepath.Join(volume, privateName)))
	s, err := Start(t.Context(), Options{DataDir: volume, QuotaBytes: DefaultQuotaBytes})
	if err == nil {
		s.Stop()
		t.Fatal("the server has followed a link")
	}
	is.True(t, strings.Contains(err.Error(), filepath.Join(volume, privateName)), "got %v, want an error that names the folder", err)
}

// makeFolder creates a folder as a storage driver does. Only root can change its owner.
func makeFolder(t *testing.T, path string, mode os.FileMode, user, group int) {
	t.Helper()
	must.Do(t, os.Mkdir(path, 0o700))
	if os.Getuid() == 0 {
		must.Do(t, os.Chown(path, user, group))
	}
	must.Do(t, os.Chmod(path, mode))
}

// owned returns a text with the mode and the owner of a folder.
func owned(t *testing.T, path string) string {
	t.Helper()
	info := must.Get(os.Stat(path))(t)
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("%T is no Stat_t", info.Sys())
	}
	return fmt.Sprintf("%v %d:%d", info.Mode(), stat.Uid, stat.Gid)
}

// reachable returns a temporary folder that every user can access.
func reachable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{filepath.Dir(dir), dir} {
		must.Do(t, os.Chmod(folder, 0o755))
	}
	return dir
}

// copyOfThisProgram copies the test binary to a folder in which every user can start it.
func copyOfThisProgram(t *testing.T) string {
	t.Helper()
	self := must.Get(os.Executable())(t)
	from := must.Get(os.Open(self))(t)
	defer from.Close()
	path := filepath.Join(reachable(t), "program")
	to := must.Get(os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o755))(t)
	must.Get(io.Copy(to, from))(t)
	must.Do(t, to.Close())
	return path
}
