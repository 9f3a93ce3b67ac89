// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/agent/config"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// fakeMachine is a machine that shuts down when a test requests it.
type fakeMachine struct {
	mu       sync.Mutex
	state    shutdown.MachineState
	changed  func()
	released chan struct{}
}

func newFakeMachine() *fakeMachine {
	return &fakeMachine{
		state:    shutdown.MachineState{Known: true, LockHeld: true, LockPath: "/run/1.ref", Delay: time.Minute},
		released: make(chan struct{}),
	}
}

func (m *fakeMachine) Run(ctx context.Context, changed func()) error {
	m.mu.Lock()
	m.changed = changed
	m.mu.Unlock()
	changed()
	<-ctx.Done()
	return nil
}

func (m *fakeMachine) State() shutdown.MachineState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

func (m *fakeMachine) Release(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state.LockHeld {
		m.state.LockHeld = false
		close(m.released)
	}
	return nil
}

// shutDown requests a reboot, which happens after delay at the latest.
func (m *fakeMachine) shutDown(delay time.Duration) {
	m.mu.Lock()
	now := time.Now()
	m.state.ShuttingDown, m.state.Kind, m.state.Since, m.state.Deadline = true, "reboot", now, now.Add(delay)
	changed := m.changed
	m.mu.Unlock()
	if changed != nil {
		changed()
	}
}

// noKubelet fails the test if the agent starts or stops the kubelet.
type noKubelet struct{ t *testing.T }

func (k noKubelet) Stop(context.Context) error {
	k.t.Error("the kubelet was stopped")
	return nil
}

func (k noKubelet) Start(context.Context) error {
	k.t.Error("the kubelet was started")
	return nil
}

// testConfig returns a configuration with which any user can run an agent.
func testConfig(t *testing.T) *configv1alpha1.NodeAgentConfiguration {
	t.Helper()
	dir := t.TempDir()
	c := config.Default()
	c.NodeName = "node-1"
	c.Kubeconfig = kubeconfigFor(t, "http://"+unreachable(t), "")
	c.KubeletConfig = filepath.Join(dir, "kubelet.yaml")
	c.StateDirectory = filepath.Join(dir, "state")
	c.RuntimeEndpoint = "unix://" + filepath.Join(dir, "cri.sock")
	c.MetricsBindAddress = ptr.To(unreachable(t))
	c.LocalEngine = configv1alpha1.LocalEngineNone
	c.ShutdownGracePeriodByPodPriority = []configv1alpha1.ShutdownGracePeriodByPodPriority{{ShutdownGracePeriodSeconds: 1}}
	c.APIGracePeriod = metav1.Duration{Duration: time.Second}
	must.Do(t, os.WriteFile(c.KubeletConfig, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"), 0o600))
	return c
}

// statuses records the notifications to the service manager.
type statuses struct {
	mu    sync.Mutex
	lines []string
}

func (s *statuses) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

func (s *statuses) has(part string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(strings.Join(s.lines, "\n"), part)
}

// startAgent runs an agent until the test ends. The returned function stops the agent and returns
// the agent's error.
func startAgent(t *testing.T, c *configv1alpha1.NodeAgentConfiguration, h *host) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := must.Get(begin(ctx, c))(t)
	rest, node, err := clientOf(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	a := must.Get(newAgent(ctx, c, s, h, rest, node))(t)
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// eventually waits until a condition is true.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-timeout:
			t.Fatalf("not within 30s: %s", what)
		case <-tick.C:
		}
	}
}

// With a complete agent, but without an API and an engine, the machine goes down shortly before the
// deadline, the state is on the disk, and the command status shows the state.
func TestAgentGuidesAMachineThroughAShutdown(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	machine, told := newFakeMachine(), &statuses{}
	stop := startAgent(t, c, &host{machine: machine, kubelet: noKubelet{t}, status: told.add})
	var report *Report
	eventually(t, "the agent is armed", func() bool {
		var err error
		report, err = askAgent(t.Context(), *c.MetricsBindAddress)
		return err == nil && report.Shutdown.State.Phase == state.Armed && told.has("ready to delay a shutdown")
	})
	is.True(t, report.Node == "node-1" && report.Shutdown.LockHeld && report.Engine == "", "the report is %+v", report)
	machine.shutDown(8 * time.Second)
	eventually(t, "the shutdown is on the disk", func() bool {
		stored, err := state.Read(c.StateDirectory, state.RunDirectory)
		return err == nil && stored.Phase != state.Armed && stored.Signal.Kind == "reboot"
	})
	select {
	case <-machine.released:
	case <-time.After(30 * time.Second):
		t.Fatal("the shutdown was not released")
	}
	eventually(t, "the machine is down", func() bool {
		stored, err := state.Read(c.StateDirectory, state.RunDirectory)
		return err == nil && stored.Phase == state.Down && told.has("Down")
	})
	began := time.Now()
	if err := stop(); err != nil {
		t.Errorf("the agent ends with %v", err)
	}
	// The agent must stop soon, because a restart of the service starts the next agent only after
	// that.
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the agent takes %v to end", took)
	}
	if _, err := askAgent(t.Context(), *c.MetricsBindAddress); err == nil {
		t.Error("the endpoints are still there")
	}
}

// An agent that is restarted during a shutdown continues it.
func TestAgentContinuesAfterARestart(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	machine := newFakeMachine()
	h := &host{machine: machine, kubelet: noKubelet{t}, status: func(string) {}}
	machine.shutDown(time.Hour)
	stop := startAgent(t, c, h)
	eventually(t, "the shutdown is on the disk", func() bool {
		stored, err := state.Read(c.StateDirectory, state.RunDirectory)
		return err == nil && stored.Phase == state.Detected
	})
	must.Do(t, stop())
	// The directory is locked until the process ends, so the second agent gets a copy.
	second := *c
	second.StateDirectory = t.TempDir()
	data := must.Get(os.ReadFile(filepath.Join(c.StateDirectory, "state.json")))(t)
	must.Do(t, os.WriteFile(filepath.Join(second.StateDirectory, "state.json"), data, 0o600))
	s := must.Get(begin(t.Context(), &second))(t)
	if s.stored.Phase != state.Detected || s.stored.Signal.Kind != "reboot" {
		t.Errorf("the second agent begins with %+v", s.stored)
	}
}

func TestStateOfAnotherBootIsNotResumed(t *testing.T) {
	c := testConfig(t)
	store := must.Get(state.Open(c.StateDirectory, state.RunDirectory))(t)
	if err := store.Save(draining()); err != nil { // the state is of boot "b"
		t.Fatal(err)
	}
	s := must.Get(begin(t.Context(), c))(t)
	is.True(t, s.stored.Phase == "" && s.stored.LockPath == "", "the agent begins with %+v", s.stored)
}

func TestSecondAgentIsRefused(t *testing.T) {
	c := testConfig(t)
	must.Get(begin(t.Context(), c))(t)
	if _, err := begin(t.Context(), c); err == nil || !strings.Contains(err.Error(), "another haulout-node-agent") {
		t.Errorf("the error is %v", err)
	}
}

// The agent does not overwrite a state that a newer agent has stored: it ends.
func TestNewerStateEndsTheAgent(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	must.Do(t, os.MkdirAll(c.StateDirectory, 0o700))
	must.Do(t, os.WriteFile(filepath.Join(c.StateDirectory, "state.json"), []byte(`{"version":2}`), 0o600))
	ctx := t.Context()
	s := must.Get(begin(ctx, c))(t)
	rest, node, err := clientOf(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	a := must.Get(newAgent(ctx, c, s, &host{machine: newFakeMachine(), kubelet: noKubelet{t}, status: func(string) {}}, rest, node))(t)
	var version *state.VersionError
	if err := a.run(ctx); !errors.As(err, &version) {
		t.Errorf("the agent ends with %v", err)
	}
}

func TestEngines(t *testing.T) {
	for engine, want := range map[configv1alpha1.LocalEngine]string{configv1alpha1.LocalEngineCRI: "CRI", configv1alpha1.LocalEngineNone: ""} {
		t.Run(string(engine), func(t *testing.T) {
			c := testConfig(t)
			c.LocalEngine = engine
			s := must.Get(begin(t.Context(), c))(t)
			rest, node, err := clientOf(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			a := must.Get(newAgent(t.Context(), c, s, &host{machine: newFakeMachine(), kubelet: noKubelet{t}}, rest, node))(t)
			is.Equal(t, a.report().Engine, want, "the engine")
		})
	}
}

func TestStatusLine(t *testing.T) {
	armed := state.State{Phase: state.Armed}
	for name, test := range map[string]struct {
		status shutdown.Status
		want   string
	}{
		"at the start":   {shutdown.Status{}, "starting"},
		"armed":          {shutdown.Status{State: armed, LockHeld: true, Delay: time.Minute}, "ready to delay a shutdown by 1m0s"},
		"without a lock": {shutdown.Status{State: armed, Problems: []string{"a", "b", "c"}}, "no lock is held; the agent does not delay a shutdown; a (and 2 more)"},
		"a drain": {
			shutdown.Status{State: state.State{Phase: state.Maintaining, Maintenance: &state.MaintenanceRef{Name: "m"}}, Problems: []string{"a"}},
			"Maintaining: NodeMaintenance m; a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, statusLine(&test.status), test.want, "the line")
		})
	}
}
