// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/agent/systemd/install"
	"haulout.dev/haulout/pkg/cmd/nodeagent"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func held(r record) bool { return r.State.LockHeld && len(r.State.Problems) == 0 }

func pending(r record) bool { return r.State.ShuttingDown }

func TestKilledAgentKeepsTheShutdownWaiting(t *testing.T) {
	for name, test := range map[string]struct {
		method string
		want   syscall.Signal
	}{
		// In a PID namespace, the kernel sends these signals to the init process instead of a
		// reboot or a power-off.
		"reboot":   {method: "Reboot", want: syscall.SIGHUP},
		"poweroff": {method: "PowerOff", want: syscall.SIGINT},
	} {
		t.Run(name, func(t *testing.T) {
			m := bootMachine(t)
			m.install(true)
			first := m.until("the lock is held", held)
			m.login(test.method, false)
			last := m.until("a shutdown is pending", pending)
			for range 2 {
				m.kill(syscall.SIGKILL)
				last = m.until("another process holds the lock", func(r record) bool { return r.PID != last.PID && pending(r) && held(r) })
				if pids := m.lockPIDs(); !slices.Equal(pids, []uint32{uint32(first.PID)}) {
					t.Errorf("logind has locks of the processes %d, want one of %d", pids, first.PID)
				}
			}
			// Update the agent at this moment.
			m.install(true, withFile("new"))
			m.until("the new agent holds the lock", func(r record) bool { return r.PID != last.PID && pending(r) && held(r) })
			m.mustRun()
			m.kill(syscall.SIGUSR1)
			m.mustEnd(test.want)
		})
	}
}

func TestRestartsOfLogindAndOfTheBus(t *testing.T) {
	for _, unit := range []string{"systemd-logind.service", "dbus.service"} {
		t.Run(unit, func(t *testing.T) {
			m := bootMachine(t)
			m.install(true)
			first := m.until("the lock is held", held)
			m.login("Reboot", false)
			m.until("a shutdown is pending", pending)
			// If the bus is restarted, the request fails because its own connection is closed.
			if err := m.client().RestartUnit(t.Context(), unit); err != nil && unit != "dbus.service" {
				t.Fatal(err)
			}
			last := m.until("the shutdown is forgotten, the lock held", func(r record) bool { return r.State.Forgotten && held(r) })
			// systemd must still have its copy of the lock after the old logind has closed the
			// pipe.
			m.kill(syscall.SIGKILL)
			last = m.until("another process holds the lock", func(r record) bool { return r.PID != last.PID && held(r) })
			// logind starts to number the locks again, but it knows which process took each lock.
			if pids := m.lockPIDs(); !slices.Equal(pids, []uint32{uint32(first.PID)}) {
				t.Errorf("logind has locks of the processes %d, want one of %d", pids, first.PID)
			}
			m.login("Reboot", false)
			m.until("the next shutdown is pending", pending)
			m.kill(syscall.SIGUSR1)
			m.mustEnd(syscall.SIGHUP)
		})
	}
}

func TestShutdownAroundLogind(t *testing.T) {
	for name, test := range map[string]struct {
		target    string
		delay     time.Duration
		wantKind  string
		wantLimit time.Duration
		want      syscall.Signal
	}{
		"reboot": {target: "reboot.target", delay: 10 * time.Minute, wantKind: "reboot", wantLimit: 10 * time.Minute, want: syscall.SIGHUP},
		"poweroff, with a delay above systemd's limit": {target: "poweroff.target", delay: time.Hour, wantKind: "poweroff", wantLimit: 28*time.Minute + 30*time.Second, want: syscall.SIGINT},
		"halt, which has no limit of its own":          {target: "halt.target", delay: time.Hour, wantKind: "poweroff", wantLimit: time.Hour, want: syscall.SIGINT},
	} {
		t.Run(name, func(t *testing.T) {
			m := bootMachine(t)
			must.Do(t, m.service("kubelet.service").Start(t.Context()))
			m.install(true, func(o *install.Options) { o.MaxDelay = test.delay })
			m.until("the lock is held", held)
			m.startTarget(test.target)
			stopped := m.until("systemd stops the agent", func(r record) bool { return r.Ending.Stopping && pending(r) })
			if stopped.Ending.Kind != test.wantKind || stopped.Ending.Limit != test.wantLimit || stopped.Kubelet != "active" {
				t.Errorf("the agent saw %+v and the kubelet %s, want %s within %s and the kubelet active",
					stopped.Ending, stopped.Kubelet, test.wantKind, test.wantLimit)
			}
			// The kubelet must run while the agent works, because the pods need it.
			if state, err := m.service("kubelet.service").State(t.Context()); err != nil || state.Active != "active" {
				t.Errorf("the kubelet is %s, %v, want active", state.Active, err)
			}
			m.kill(syscall.SIGUSR1)
			m.mustEnd(test.want)
		})
	}
}

// TestShutdownWithoutABus has no bus over which the agent could find out why systemd stops it.
func TestShutdownWithoutABus(t *testing.T) {
	m := bootMachine(t)
	m.install(true)
	m.until("the lock is held", held)
	client := m.client()
	m.startTarget("reboot.target", func() {
		must.Do(t, os.Remove(m.root+"/run/dbus/system_bus_socket"))
	})
	stopped := m.until("systemd stops the agent", func(r record) bool { return r.Ending.Stopping && pending(r) })
	if want := (systemd.Ending{Stopping: true, Kind: "reboot", Limit: 20 * time.Minute}); stopped.Ending != want {
		t.Errorf("the agent saw %+v, want %+v", stopped.Ending, want)
	}
	must.Do(t, client.KillUnit(t.Context(), install.Unit, syscall.SIGUSR1))
	m.mustEnd(syscall.SIGHUP)
}

// TestKubeletEndsWhileTheSystemStops checks that the agent can end the kubelet although the systemd
// job that stops the kubelet waits for the agent.
func TestKubeletEndsWhileTheSystemStops(t *testing.T) {
	m := bootMachine(t)
	kubelet := m.service(kubeletUnit)
	must.Do(t, kubelet.Start(t.Context()))
	// No job stops the kubelet now, so systemd would restart it after a signal.
	must.Do(t, kubelet.End(t.Context()))
	if state := m.unit(kubeletUnit); state.Active != "inactive" || state.MainPID != 0 {
		t.Errorf("the kubelet is %+v, want inactive", state)
	}
	must.Do(t, kubelet.Start(t.Context()))
	m.install(true, func(o *install.Options) { o.Args = []string{"run", endKubelet} })
	m.until("the lock is held", held)
	m.startTarget("reboot.target")
	ended := m.until("the agent has ended the kubelet", func(r record) bool { return r.Ended != "" })
	if want := "<nil>, then its process is 0, <nil>"; ended.Kubelet != "active" || ended.Ended != want {
		t.Errorf("the kubelet was %s and ended: %s, want active and %s", ended.Kubelet, ended.Ended, want)
	}
	m.kill(syscall.SIGUSR1)
	m.mustEnd(syscall.SIGHUP)
}

// TestAgentInSafeMode starts an agent in safe mode, which takes over the lock of an earlier agent.
// It must not delay a shutdown.
func TestAgentInSafeMode(t *testing.T) {
	for name, test := range map[string]struct {
		config  string
		pending bool
	}{
		"without a cluster":           {config: "kubeconfig: /no/such/kubelet.conf\n"},
		"with a broken file":          {config: "maxShutdownDelay: 7d\n"},
		"while a shutdown is pending": {config: "maxShutdownDelay: 7d\n", pending: true},
	} {
		t.Run(name, func(t *testing.T) {
			m := bootMachine(t)
			m.install(true)
			m.until("the lock is held", held)
			if test.pending {
				m.login("Reboot", false)
				m.until("a shutdown is pending", pending)
			}
			path := "/etc/haulout-node-agent/config.yaml"
			content := []byte("apiVersion: nodeagent.haulout.dev/v1alpha1\nkind: NodeAgentConfiguration\n" + test.config)
			_, err := install.Install(t.Context(), m.options(func(o *install.Options) {
				o.Args, o.Files = []string{realAgent, "run"}, []install.File{{Path: path, Content: content, Mode: 0o644}}
			}))
			if !test.pending {
				if err != nil {
					t.Fatal(err)
				}
				eventually(t, "the agent holds no lock", func() bool { return len(m.lockPIDs()) == 0 })
				m.reboot()
			}
			m.mustEnd(syscall.SIGHUP)
		})
	}
}

// TestAgentOfAMachineThatLeavesItsCluster removes the files that `kubeadm reset` removes while the
// agent runs.
func TestAgentOfAMachineThatLeavesItsCluster(t *testing.T) {
	m := bootMachine(t)
	const config, kubeconfig = "/etc/haulout-node-agent/config.yaml", "/etc/kubernetes/kubelet.conf"
	m.install(true, func(o *install.Options) {
		o.Args = []string{realAgent, "run"}
		o.Files = []install.File{
			{Path: config, Mode: 0o644, Content: []byte("apiVersion: nodeagent.haulout.dev/v1alpha1\nkind: NodeAgentConfiguration\nnodeName: node-1\n")},
			{Path: kubeconfig, Mode: 0o600, Content: []byte(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
`)},
		}
	})
	eventually(t, "the agent holds a lock", func() bool { return len(m.lockPIDs()) == 1 })
	must.Do(t, os.Remove(m.root+kubeconfig))
	eventually(t, "the agent holds no lock", func() bool { return len(m.lockPIDs()) == 0 })
}

func TestInstallUpdateUninstall(t *testing.T) {
	m := bootMachine(t)
	if status := m.status(); status.Exists() {
		t.Errorf("before the installation the status is %+v", status)
	}
	odd := []string{"run", "--text=100% of $HOME; \"it's\" \\ here", ""}
	withArgs := func(o *install.Options) { o.Args = odd }
	m.install(true, withArgs)
	first := m.until("the lock is held", held)
	if strings.Join(first.Args[1:], "|") != strings.Join(odd, "|") {
		t.Errorf("the agent got the arguments %q, want %q", first.Args[1:], odd)
	}
	status := m.status()
	if status.Active != "active" || status.File != "enabled" || status.MainPID == 0 || status.RestartPending {
		t.Errorf("status %+v, want an enabled unit that is active", status)
	}
	m.install(false, withArgs)
	if again := m.status(); again.MainPID != status.MainPID {
		t.Error("an installation without changes has restarted the agent")
	}
	last := first
	restarted := func(what string, modify ...func(*install.Options)) {
		t.Helper()
		m.install(true, modify...)
		last = m.until(what+" restarts the agent", func(r record) bool { return r.PID != last.PID && held(r) })
		if last.State.LockPath != first.State.LockPath {
			t.Errorf("%s: the agent holds the lock %s, want %s", what, last.State.LockPath, first.State.LockPath)
		}
	}
	restarted("another command line")
	restarted("a changed file", withFile("1"))
	program := otherProgram(t)
	withProgram := func(o *install.Options) { o.Source = program }
	restarted("another program", withFile("1"), withProgram)
	// Simulate an update that was interrupted before the restart.
	must.Do(t, os.WriteFile(m.root+"/run/haulout-node-agent.restart", nil, 0o644))
	restarted("the rest of an update", withFile("1"), withProgram)
	must.Do(t, m.service(install.Unit).End(t.Context()))
	m.install(true, withFile("1"), withProgram)
	last = m.until("a stopped agent is started", func(r record) bool { return r.PID != last.PID && held(r) })

	m.login("Reboot", false)
	m.until("a shutdown is pending", pending)
	if err := install.Uninstall(t.Context(), m.options()); !errors.Is(err, install.ErrShutdownPending) {
		t.Errorf("during a shutdown, Uninstall returned %v, want %v", err, install.ErrShutdownPending)
	}
	m.mustRun()
}

func TestUninstall(t *testing.T) {
	m := bootMachine(t)
	m.install(true, withFile("stays"))
	m.until("the lock is held", held)
	dropIn := filepath.Join(m.root, "etc", "systemd", "logind.conf.d", logind.DropInName)
	if _, err := os.Stat(dropIn); err != nil {
		t.Error(err)
	}
	for range 2 { // the second call finds no files
		must.Do(t, install.Uninstall(t.Context(), m.options()))
	}
	for _, path := range []string{
		m.root + install.UnitPath, m.root + install.DefaultBinary, dropIn, m.root + "/etc/systemd/system/multi-user.target.wants/" + install.Unit,
	} {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if _, err := os.Stat(m.root + configPath); err != nil {
		t.Errorf("the configuration is gone: %v", err)
	}
	if status := m.status(); status.Exists() || status.Active != "inactive" {
		t.Errorf("status %+v, want no unit", status)
	}
	// No lock delays the shutdown now, so the bus may end before it responds.
	m.reboot()
	m.mustEnd(syscall.SIGHUP)
}

func TestInstallOfABrokenProgram(t *testing.T) {
	m := bootMachine(t)
	if _, err := install.Install(t.Context(), m.options(func(o *install.Options) { o.Source = "/bin/false" })); err == nil {
		t.Fatal("installed a program that does not start")
	}
	is.True(t, m.status().RestartPending, "the failed installation is forgotten")
	m.install(true)
	m.until("the lock is held", held)
}

const configPath = "/etc/haulout/node agent.yaml"

func withFile(content string) func(*install.Options) {
	return func(o *install.Options) {
		o.Files = []install.File{{Path: configPath, Content: []byte(content), Mode: 0o600}}
	}
}

// otherProgram returns a program that behaves like this one but has a different content.
func otherProgram(t *testing.T) string {
	t.Helper()
	program := must.Get(os.ReadFile("/proc/self/exe"))(t)
	path := filepath.Join(t.TempDir(), "program")
	must.Do(t, os.WriteFile(path, append(program, "another version"...), 0o700))
	return path
}

// status is the state of the agent's unit, and whether the agent must be restarted after a change.
type status struct {
	systemd.UnitState
	RestartPending bool
}

func (m *machine) status() status {
	m.t.Helper()
	state, err := m.service(install.Unit).State(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	_, err = os.Stat(m.root + "/run/haulout-node-agent.restart")
	return status{UnitState: state, RestartPending: err == nil}
}

// TestInstallCommand runs the commands of the DaemonSet's pod, with a real systemd.
func TestInstallCommand(t *testing.T) {
	m := bootMachine(t)
	must.Do(t, m.service(kubeletUnit).Start(t.Context()))
	file := filepath.Join(t.TempDir(), "config.yaml")
	run := func(content string) (string, error) {
		t.Helper()
		content = "apiVersion: nodeagent.haulout.dev/v1alpha1\nkind: NodeAgentConfiguration\n" + content
		must.Do(t, os.WriteFile(file, []byte(content), 0o600))
		var out strings.Builder
		cmd := nodeagent.NewCommand()
		cmd.SetArgs([]string{"install", "--root=" + m.root, "--config=" + file})
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	for _, step := range []struct{ name, config, want string }{
		{"the first time", "maxShutdownDelay: 7m\n", "is installed and runs"},
		{"again", "maxShutdownDelay: 7m\n", "was up to date"},
		{"with another engine", "maxShutdownDelay: 7m\nlocalEngine: None\n", "is installed and runs"},
	} {
		out, err := run(step.config)
		if err != nil || !strings.Contains(out, step.want) {
			t.Fatalf("%s: %v, the output is %q, want %q", step.name, err, out, step.want)
		}
		m.until("the lock is held", held)
		installed, err := os.ReadFile(m.root + "/etc/haulout-node-agent/config.yaml")
		if err != nil || !strings.HasSuffix(string(installed), step.config) {
			t.Errorf("%s: the configuration is %q, %v", step.name, installed, err)
		}
	}
	// An invalid configuration must not change the running agent.
	for config, named := range map[string]string{"maxShutdownDelay: 7d\n": "7d", "localEngine: KubeletBus\n": `must be "CRI" or "None"`} {
		before := m.status()
		out, err := run(config)
		if after := m.status(); err == nil || !strings.Contains(err.Error(), named) || after.MainPID != before.MainPID {
			t.Errorf("a wrong configuration: %v, the output is %q, the status was %+v and is %+v", err, out, before, after)
		}
	}
}
