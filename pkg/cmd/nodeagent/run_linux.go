// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/kubelet"
	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/agent/systemd/install"
)

const (
	// askSystemdTimeout limits a request to systemd.
	askSystemdTimeout = 5 * time.Second
	// askAttempts is the number of requests for the reason why the agent must stop if systemd does
	// not answer in time.
	askAttempts = 12
)

// run runs the agent until the context ends or the service is stopped. It also runs an agent that
// cannot do all of its work, see mode. Such an agent ends when a new process would have fewer
// limitations or when the kubeconfig has changed, and systemd starts it again.
func (*runner) run(ctx context.Context, o *Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)

	notifier := systemd.NewNotifier()
	// Take over the files first: an error below would close them and lose the lock.
	files, err := systemd.ListenFDs()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot take over the files that systemd kept")
	}
	m := chooseMode(ctx, o, lastDirectory(ctx, directoryFile), notifier.Supervised() && crashes(ctx, startsFile, state.SinceBoot()))
	s, err := begin(ctx, m.config)
	if err == nil && m.safe {
		_, err = s.store.Load()
	}
	if err != nil && m.safe {
		// Run in spite of the error: neither another agent nor the state of another version nor a
		// broken disk may block a shutdown.
		klog.FromContext(ctx).Error(err, "Cannot use the state, running without it")
		m.config = releasing(m.config)
		s, err = begin(ctx, m.config)
	}
	if err != nil {
		return err
	}
	if !m.safe {
		noteDirectory(ctx, directoryFile, m.config.StateDirectory)
	}
	machine := logind.New(logindConfig(&m, s, files, notifier))
	kubeletUnit := kubelet.NewUnit(m.config.KubeletService)
	h := &host{
		machine: machine, kubelet: kubeletUnit, kubeletProblem: kubeletUnit.Problem, status: notifyStatus(ctx, notifier),
	}
	if m.safe {
		h.safeMode = m.why
		if h.lastFolder, err = o.lastFolder(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot check whether static pods are parked")
		}
	} else {
		h.offline = m.why
	}
	a, err := newAgent(ctx, m.config, s, h, m.client, m.node)
	if err != nil {
		return err
	}
	stopped := &stopper{limit: m.config.MaxShutdownDelay.Duration, machine: machine, notifier: notifier, ask: whySystemdStops, down: a.manager.Down}
	go func() {
		defer cancel()
		stopped.wait(ctx, signals)
	}()
	if m.why != "" {
		klog.FromContext(ctx).Error(nil, "The agent cannot do all of its work", "why", m.why, "safeMode", m.safe)
	}
	go func() {
		defer cancel()
		m.awaitBetter(ctx, o, func() bool { return machine.State().ShuttingDown })
	}()
	h.status("starting")
	return a.run(ctx)
}

// logindConfig returns the configuration of the lock, with the state of an earlier process.
func logindConfig(m *mode, s *start, files map[string][]*os.File, notifier *systemd.Notifier) logind.Config {
	config := logind.Config{
		Delay:  m.config.MaxShutdownDelay.Duration,
		GiveUp: m.safe,
		Stored: files[logind.StoreName],
		Resume: logind.Resume{LockPath: s.stored.LockPath},
	}
	if s.stored.Phase != state.Armed {
		config.Resume.Since, config.Resume.Deadline = shutdown.Resumed(s.stored.Signal, time.Now(), state.SinceBoot())
	}
	if notifier.Supervised() {
		config.Store = notifier
	}
	return config
}

// notifyStatus returns a function that sends the agent's status to systemd. The first call also
// reports that the service has started: if the start waited for logind or the API, the boot could
// fail.
func notifyStatus(ctx context.Context, notifier *systemd.Notifier) func(string) {
	ready := false
	return func(line string) {
		tell := notifier.Status
		if !ready {
			tell = notifier.Ready
		}
		if err := tell(line); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot send the status to systemd")
			return
		}
		ready = true
	}
}

// bootIdentity returns the identity of this boot: the boot ID of the kernel, followed by that of
// userspace if systemd rebooted userspace alone. last is the identity that was stored last, and
// stored is the time of that write. last is used if systemd does not respond. The result has at
// most 64 characters, the limit of the server.
func bootIdentity(ctx context.Context, last string, stored time.Time) (string, error) {
	kernel, err := state.BootID()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, askSystemdTimeout)
	defer cancel()
	client, err := systemd.Dial(ctx, "")
	if err != nil {
		return bootOf(kernel, "", last, false, err), nil
	}
	defer client.Close()
	userspace, err := client.Incarnation(ctx)
	if err != nil || userspace == "" {
		return bootOf(kernel, userspace, last, false, err), nil
	}
	age, err := client.UserspaceAge(ctx)
	return bootOf(kernel, userspace, last, err == nil && time.Since(stored) < age, nil), nil
}

// bootOf returns the identity of a boot. present is set if last was stored since userspace booted.
// last has only the boot ID of the kernel if it was stored by an older version of the agent, or by
// an agent that got no response from systemd.
func bootOf(kernel, userspace, last string, present bool, err error) string {
	switch {
	case err != nil && state.OfKernel(last, kernel), present && last == kernel:
		return last
	case err != nil || userspace == "":
		return kernel
	}
	return kernel + "-" + userspace
}

// whySystemdStops reports whether systemd stops this service because the system goes down, and how
// long systemd waits for the service.
func whySystemdStops(ctx context.Context) (systemd.Ending, error) {
	ctx, cancel := context.WithTimeout(ctx, askSystemdTimeout)
	defer cancel()
	ending, err := systemd.Service{Unit: install.Unit}.Ending(ctx)
	if err != nil {
		// Name the timeout: it can only close the connection.
		err = errors.Join(err, ctx.Err())
	}
	return ending, err
}

// runner runs the agent. As a service of systemd, it needs no state.
type runner struct{}

func (*runner) addFlags(*pflag.FlagSet) {}

func (*runner) start(ctx context.Context, _ *Options, run func(context.Context) error) error {
	return run(ctx)
}

// nodeBootID returns the boot ID that the kubelet writes to the Node, empty if it is not known.
func nodeBootID() string {
	id, _ := state.BootID()
	return id
}

// lastStateDirectory returns the state directory of the last agent of this boot that loaded its
// configuration; empty if there is none.
func lastStateDirectory(ctx context.Context) string { return lastDirectory(ctx, directoryFile) }

// stopper decides when the service stops after a signal. If the whole system goes down, systemd
// stops the agent before the kubelet. In this case the agent must first end the pods in order.
type stopper struct {
	// limit is the maximum time that the agent uses.
	limit time.Duration
	// machine and notifier are informed that the system goes down.
	machine interface {
		Stopping(kind string, limit time.Duration)
	}
	notifier interface{ Stopping(status string) error }
	// ask reports whether the system goes down, and how long systemd waits. If systemd does not
	// answer in time, the error wraps context.DeadlineExceeded.
	ask func(context.Context) (systemd.Ending, error)
	// down returns a channel that is closed when the agent has released the shutdown.
	down func() <-chan struct{}
}

// wait returns when the agent must end.
func (s *stopper) wait(ctx context.Context, signals <-chan os.Signal) {
	logger := klog.FromContext(ctx)
	select {
	case <-ctx.Done():
		return
	case received := <-signals:
		logger.Info("Received a signal to stop", "signal", received.String())
		if received != syscall.SIGTERM {
			return
		}
	}
	asked := time.Now()
	ending, err := s.ask(ctx)
	// systemd can be slow while the system goes down. If the agent ended without its answer, the
	// containers would end in no order.
	for n := 1; n < askAttempts && !ending.Stopping && errors.Is(err, context.DeadlineExceeded) && !s.isReleased() && ctx.Err() == nil; n++ {
		logger.Error(err, "systemd does not answer in time why the service stops, asking again")
		ending, err = s.ask(ctx)
	}
	if err != nil {
		logger.Error(err, "Cannot ask systemd why the service stops")
	}
	if !ending.Stopping {
		return
	}
	limit := s.limit
	if ending.Limit > 0 {
		limit = min(limit, ending.Limit)
	}
	limit -= time.Since(asked) // systemd counts from its signal
	logger.Info("The system goes down, ending after the pods have left", "kind", ending.Kind, "limit", limit)
	s.machine.Stopping(ending.Kind, limit)
	if err := s.notifier.Stopping("the system goes down, the pods leave first"); err != nil {
		logger.Error(err, "Cannot report to systemd that the service stops")
	}
	released := s.down()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-released:
			return
		case <-timer.C:
			return
		case received := <-signals:
			if received != syscall.SIGTERM {
				return
			}
		}
	}
}

// isReleased reports whether the agent has released the shutdown, so that no pods are left to end.
func (s *stopper) isReleased() bool {
	select {
	case <-s.down():
		return true
	default:
		return false
	}
}

func platformServices(*Options) services {
	return services{
		root:      true,
		install:   installUnit,
		pending:   func(ctx context.Context) (bool, error) { return install.Pending(ctx, "") },
		uninstall: func(ctx context.Context) error { return install.Uninstall(ctx, install.Options{}) },
	}
}

func installUnit(ctx context.Context, i *installation) (bool, error) {
	o := install.Options{
		Root: i.root, Binary: i.binary, Args: i.args, KubeletUnit: i.config.KubeletService, MaxDelay: i.config.MaxShutdownDelay.Duration,
	}
	if i.content != nil {
		o.Files = []install.File{{Path: i.path, Content: i.content, Mode: 0o644}}
	}
	return install.Install(ctx, o)
}
