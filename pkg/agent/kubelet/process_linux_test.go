// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/must"
)

// envKubelet is the environment variable that makes the test binary run as a process that only
// waits.
const envKubelet = "HAULOUT_TEST_AS_KUBELET"

func TestMain(m *testing.M) {
	if os.Getenv(envKubelet) != "" {
		_, _ = os.Stdout.WriteString("running\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	os.Exit(m.Run())
}

// runKubelet runs a process with the name and the arguments of a kubelet, until end is called or
// the test ends.
func runKubelet(t *testing.T, dir string, args ...string) (pid int, end func()) {
	t.Helper()
	self := must.Get(os.Executable())(t)
	command := &exec.Cmd{Path: self, Args: append([]string{"/usr/bin/kubelet"}, args...), Env: []string{envKubelet + "=1"}, Dir: dir}
	stdin := must.Get(command.StdinPipe())(t)
	stdout := must.Get(command.StdoutPipe())(t)
	must.Do(t, command.Start())
	ended := false
	end = func() {
		if !ended {
			ended = true
			_ = stdin.Close()
			_ = command.Wait()
		}
	}
	t.Cleanup(end)
	must.Get(bufio.NewReader(stdout).ReadString('\n'))(t)
	return command.Process.Pid, end
}

// only returns a folder like /proc that has only the given processes, without other kubelets of the
// machine.
func only(t *testing.T, pids ...int) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"self", "stat", "sys"} {
		link(t, "/proc/"+name, filepath.Join(dir, name))
	}
	for _, pid := range pids {
		link(t, "/proc/"+strconv.Itoa(pid), filepath.Join(dir, strconv.Itoa(pid)))
	}
	return dir
}

func link(t *testing.T, target, name string) {
	t.Helper()
	must.Do(t, os.Symlink(target, name))
}

func TestARealProcessIsFound(t *testing.T) {
	dir := write(t, map[string]string{"config.yaml": header + "staticPodPath: manifests\n"})
	before := time.Now()
	pid, end := runKubelet(t, dir, "--config=config.yaml", "--hostname-override=node-7")
	proc := only(t, os.Getpid(), pid)
	got := must.Get(findIn(proc, os.Getuid()))(t)
	wantArgs := []string{"/usr/bin/kubelet", "--config=config.yaml", "--hostname-override=node-7"}
	if got.PID != pid || got.Dir != dir || !slices.Equal(got.Args, wantArgs) {
		t.Errorf("got %+v, want the process %d in %s with %q", got, pid, dir, wantArgs)
	}
	if d := got.Started.Sub(before).Abs(); d > 5*time.Second {
		t.Errorf("got the start %v, want about %v", got.Started, before)
	}
	facts, err := discover("", got.Args, got.Dir)
	if err != nil || facts.StaticPodPath != filepath.Join(dir, "manifests") || facts.NodeName != "node-7" {
		t.Errorf("got %+v, %v", facts, err)
	}

	// A kubelet that is started again is a different instance.
	again, _ := runKubelet(t, dir, "--config=config.yaml")
	end()
	next, err := findIn(only(t, again), os.Getuid())
	if err != nil || next.ID == got.ID || next.PID != again {
		t.Errorf("got %+v, %v, want another instance than %s", next, err, got.ID)
	}
	if _, err := findIn(proc, os.Getuid()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("got %v after its end, want %v", err, ErrNotRunning)
	}
}

func TestTheOldestKubeletIsFound(t *testing.T) {
	first, _ := runKubelet(t, t.TempDir())
	proc := only(t, first)
	started := func() uint64 {
		ticks := must.Get(startOf(filepath.Join(proc, strconv.Itoa(first))))(t)
		return ticks
	}()
	// The second process must start in a later tick of 10 ms to count as younger.
	for deadline := time.Now().Add(20 * time.Second); ; {
		second, end := runKubelet(t, t.TempDir())
		ticks := must.Get(startOf("/proc/" + strconv.Itoa(second)))(t)
		if ticks > started {
			link(t, "/proc/"+strconv.Itoa(second), filepath.Join(proc, strconv.Itoa(second)))
			break
		}
		end()
		must.True(t, !time.Now().After(deadline), "time does not pass")
	}
	got, err := findIn(proc, os.Getuid())
	if err != nil || got.PID != first {
		t.Errorf("got %d, %v, want %d", got.PID, err, first)
	}
}

func TestKubeletsOfOthersAreIgnored(t *testing.T) {
	pid, _ := runKubelet(t, t.TempDir())
	t.Run("of another user", func(t *testing.T) {
		if got, err := findIn(only(t, pid), os.Getuid()+1); !errors.Is(err, ErrNotRunning) {
			t.Errorf("got %+v, %v, want %v", got, err, ErrNotRunning)
		}
	})
	t.Run("of a pod in the PID namespace of the node", func(t *testing.T) {
		proc := t.TempDir()
		for _, name := range []string{"stat", "sys"} {
			link(t, "/proc/"+name, filepath.Join(proc, name))
		}
		// Each process has its own folder here, with the same files except for the cgroup.
		process := func(name, source, cgroup string) {
			dir := filepath.Join(proc, name)
			must.Do(t, os.RemoveAll(dir))
			must.Do(t, os.Mkdir(dir, 0o755))
			for _, file := range []string{"cmdline", "stat", "cwd", "ns"} {
				link(t, fmt.Sprintf("/proc/%s/%s", source, file), filepath.Join(dir, file))
			}
			must.Do(t, os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup+"\n"), 0o600))
		}
		const pod, service = "0::/kubepods.slice/kubepods-besteffort.slice/cri-containerd-0.scope", "0::/system.slice/kubelet.service"
		process("self", "self", "0::/system.slice/haulout-node-agent.service")
		process(strconv.Itoa(pid), strconv.Itoa(pid), pod)
		if got, err := findIn(proc, os.Getuid()); !errors.Is(err, ErrNotRunning) {
			t.Errorf("got %+v, %v, want %v", got, err, ErrNotRunning)
		}
		process(strconv.Itoa(pid), strconv.Itoa(pid), service)
		if got, err := findIn(proc, os.Getuid()); got.PID != pid {
			t.Errorf("got %+v, %v, want the kubelet of a service", got, err)
		}
		// The node runs in a pod.
		process("self", "self", pod+"/system.slice/haulout-node-agent.service")
		process(strconv.Itoa(pid), strconv.Itoa(pid), pod+"/system.slice/kubelet.service")
		if got, err := findIn(proc, os.Getuid()); got.PID != pid {
			t.Errorf("got %+v, %v, want the kubelet of a node in a pod", got, err)
		}
	})
	t.Run("of another PID namespace", func(t *testing.T) {
		proc := t.TempDir()
		for _, name := range []string{"stat", "sys", strconv.Itoa(pid)} {
			link(t, "/proc/"+name, filepath.Join(proc, name))
		}
		must.Do(t, os.MkdirAll(filepath.Join(proc, "self", "ns"), 0o755))
		link(t, "pid:[1]", filepath.Join(proc, "self", "ns", "pid"))
		if got, err := findIn(proc, os.Getuid()); !errors.Is(err, ErrNotRunning) {
			t.Errorf("got %+v, %v, want %v", got, err, ErrNotRunning)
		}
	})
}

func TestStartOfAProcessWithAStrangeName(t *testing.T) {
	dir := write(t, map[string]string{
		"stat":   "1 (a) b) (c) S " + strings.Repeat("0 ", 18) + "4711 " + strings.Repeat("0 ", 30) + "\n",
		"2/stat": "1 (a) S 0 0\n",
	})
	if got, err := startOf(dir); err != nil || got != 4711 {
		t.Errorf("got %d, %v, want 4711", got, err)
	}
	if _, err := startOf(filepath.Join(dir, "2")); err == nil {
		t.Error("got no error of a line that is too short")
	}
}

func TestFindLooksIntoProc(t *testing.T) {
	runKubelet(t, t.TempDir())
	if got, err := Find(t.Context()); err != nil || got.PID == 0 {
		t.Errorf("got %+v, %v, want a kubelet", got, err)
	}
	if id, err := (Health{}).Instance(t.Context()); err != nil || id == "" {
		t.Errorf("got the instance %q, %v", id, err)
	}
}
