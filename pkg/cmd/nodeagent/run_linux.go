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

// askSystemdTimeout limits how long the agent asks why it has to stop.
const askSystemdTimeout = 5 * time.Second

// runService runs the agent until the context ends or the service is stopped. An agent that cannot
// do all of its work runs, too, see mode; when it can, or when its kubeconfig has changed, it ends,
// and systemd starts it again.
func runService(ctx context.Context, o *Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	defer signal.Stop(signals)

	notifier := systemd.NewNotifier()
	// First of all: until they are taken over, an error below would lose the lock that they hold.
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
		// Another agent, the state of another version or a broken disk must not keep the machine
		// up.
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
			klog.FromContext(ctx).Error(err, "Cannot find out whether static pods are parked")
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
	return stopErr(ctx, a.run(ctx))
}

// stopErr returns nil for an agent that was stopped.
func stopErr(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// logindConfig returns how the lock is held, with what an earlier process knew of it.
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

// notifyStatus returns a function that tells systemd what the agent does. The first call also says
// that the service has started: a start that waits for logind or the API must not fail the boot.
func notifyStatus(ctx context.Context, notifier *systemd.Notifier) func(string) {
	ready := false
	return func(line string) {
		tell := notifier.Status
		if !ready {
			tell = notifier.Ready
		}
		if err := tell(line); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot tell systemd the status")
			return
		}
		ready = true
	}
}

// bootIdentity returns what identifies this boot: the boot ID of the kernel, and after it that of
// userspace if systemd has booted that alone. last is the identity that was stored last, at the
// time stored. It counts while systemd cannot be asked. The result has at most 64 characters, which
// the server accepts.
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

// bootOf returns the identity of a boot. present: last was stored since userspace has booted. It is
// that of the kernel alone if an agent of an older version has stored it, or one that could not ask
// systemd.
func bootOf(kernel, userspace, last string, present bool, err error) string {
	switch {
	case err != nil && state.OfKernel(last, kernel), present && last == kernel:
		return last
	case err != nil || userspace == "":
		return kernel
	}
	return kernel + "-" + userspace
}

// whySystemdStops returns whether systemd stops this service because the system goes down, and how
// long it waits.
func whySystemdStops(ctx context.Context) (systemd.Ending, error) {
	ctx, cancel := context.WithTimeout(ctx, askSystemdTimeout)
	defer cancel()
	return systemd.Service{Unit: install.Unit}.Ending(ctx)
}

// runner runs the agent as a service of systemd, which needs to know nothing of it.
type runner struct{}

func (*runner) addFlags(*pflag.FlagSet) {}

// start calls the function that calls run.
func (*runner) start(ctx context.Context, _ *Options, run func(context.Context) error) error {
	return run(ctx)
}

// nodeBootID returns the boot ID that the kubelet writes to the Node, empty if it is not known.
func nodeBootID() string {
	id, err := state.BootID()
	if err != nil {
		return ""
	}
	return id
}

// lastStateDirectory returns the state directory of the last agent of this boot that could load its
// configuration, empty if there is none.
func lastStateDirectory(ctx context.Context) string { return lastDirectory(ctx, directoryFile) }

func (*runner) run(ctx context.Context, o *Options) error {
	return runService(ctx, o)
}

// stopper decides when a service that is asked to stop does so. If the whole system goes down, the
// agent is stopped before the kubelet (the order of their units), and this is the last chance to
// let the pods leave in order.
type stopper struct {
	// limit is the longest time that the agent may take.
	limit time.Duration
	// machine and notifier are told that the system goes down.
	machine interface {
		Stopping(kind string, limit time.Duration)
	}
	notifier interface{ Stopping(status string) error }
	// ask returns whether the system goes down, and how long systemd waits.
	ask func(context.Context) (systemd.Ending, error)
	// down returns a channel that is closed when the shutdown was released.
	down func() <-chan struct{}
}

// wait returns when the agent has to end.
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
	ending, err := s.ask(ctx)
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
	logger.Info("The system goes down, ending after the pods have left", "kind", ending.Kind, "limit", limit)
	s.machine.Stopping(ending.Kind, limit)
	if err := s.notifier.Stopping("the system goes down, the pods leave first"); err != nil {
		logger.Error(err, "Cannot tell systemd that the service stops")
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

// platformServices installs and removes the systemd unit.
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
