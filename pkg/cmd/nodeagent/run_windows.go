// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/config"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/agent/windows"
	"haulout.dev/haulout/pkg/version"
)

const (
	// logName is the name of the log file. crashName is the name of the file for the stack trace of
	// a crash.
	logName, crashName = "agent.log", "crash.log"
	// clientRetry is the pause before the agent tries again to read the kubelet's kubeconfig.
	clientRetry = 5 * time.Second
	// journalPeriod is the interval at which new entries are written to the event log.
	journalPeriod = time.Second
)

// runner runs the agent as a service of Windows, or in a console.
type runner struct {
	// service is set if the service control manager started this process. A flag sets it, because a
	// process cannot detect its parent in every environment.
	service bool
	// controls receives the requests of Windows, and events writes to its event log. They are nil
	// in a console.
	controls *windows.Controls
	events   *windows.EventLog
}

func (r *runner) addFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&r.service, "windows-service", r.service, "The service control manager has started this process. Only 'install' sets it.")
}

// start calls run, which loads the configuration. A service must respond to Windows soon, so it
// responds while run executes.
func (r *runner) start(ctx context.Context, o *Options, run func(context.Context) error) error {
	if !r.service {
		r.controls = windows.NewControls()
		ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
		defer stop()
		return run(ctx)
	}
	events, err := windows.OpenEventLog()
	if err == nil {
		r.events = events
	}
	defer func() { _ = r.events.Close() }()
	handler := &windows.Handler{Log: r.events, Run: func(ctx context.Context, c *windows.Controls) error {
		r.controls = c
		closeLog, err := redirectLog(o)
		if err != nil {
			return fmt.Errorf("open the log: %w", err)
		}
		defer closeLog()
		if err := run(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "The agent failed")
			return err
		}
		return nil
	}}
	return windows.RunService(handler)
}

// redirectLog redirects the standard error to a file. It returns a function that flushes and closes
// the file.
func redirectLog(o *Options) (closeLog func(), err error) {
	dir := config.Default().StateDirectory
	if c, err := o.Load(); err == nil {
		dir = c.StateDirectory
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// Keep the trace of the last crash: Windows restarts the agent after it.
	crashPath := filepath.Join(dir, crashName)
	if info, err := os.Stat(crashPath); err == nil && info.Size() > 0 {
		_ = os.Rename(crashPath, crashPath+".old")
	}
	if crash, err := os.Create(crashPath); err == nil {
		_ = debug.SetCrashOutput(crash, debug.CrashOptions{})
		_ = crash.Close()
	}
	log, err := windows.OpenLogFile(filepath.Join(dir, logName))
	if err != nil {
		return nil, err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	before, copied := os.Stderr, make(chan struct{})
	os.Stderr = writer
	go func() {
		defer close(copied)
		_, _ = io.Copy(log, reader)
	}()
	return func() {
		klog.Flush()
		os.Stderr = before
		_ = writer.Close()
		<-copied
		_ = log.Close()
	}, nil
}

// run runs the agent until the context ends, or until the agent releases a shutdown.
func (r *runner) run(ctx context.Context, o *Options) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c, err := o.Load()
	if err != nil {
		return err
	}
	s, err := begin(ctx, c)
	if err != nil {
		return err
	}
	machine := windows.New(machineConfig(c, s, r.controls))
	h := &host{
		machine: machine, kubelet: windows.Service{Name: c.KubeletService}, final: true, pollingOnly: true, status: r.status(ctx),
	}
	config, node, err := r.waitForClient(ctx, c, h.status)
	if err != nil {
		return r.endErr(ctx, err)
	}
	files, err := clientFiles(c.Kubeconfig)
	if err != nil {
		return err
	}
	a, err := newAgent(ctx, c, s, h, config, node)
	if err != nil {
		return err
	}
	h.status("starting")
	go r.journal(ctx, a.manager.Status)
	go func() {
		changed := func(context.Context) (bool, error) {
			return clientChanged(c.Kubeconfig, files) && !machine.State().ShuttingDown, nil
		}
		if wait.PollUntilContextCancel(ctx, betterPeriod, false, changed) == nil {
			// Windows starts a service again only if that ends with an error.
			cancel(errors.New("the kubeconfig has changed; the service must restart"))
		}
	}()
	go func() {
		defer cancel(nil)
		// A process that has resumed the shutdown of an earlier process continues to run, because
		// Windows does not wait for this process.
		select {
		case <-ctx.Done():
			return
		case <-r.controls.Preshutdown():
		}
		select {
		case <-ctx.Done():
		case <-a.manager.Down():
		}
	}()
	return r.endErr(ctx, a.run(ctx))
}

// lastStateDirectory returns "": on Windows, the agent ends if its configuration cannot be loaded.
func lastStateDirectory(context.Context) string { return "" }

// lastConfiguration returns the defaults: on Windows, the agent ends if its configuration cannot be
// loaded.
func lastConfiguration(ctx context.Context, o *Options) *configv1alpha1.NodeAgentConfiguration {
	c := config.Default()
	c.StateDirectory = o.stateDirectory(ctx)
	return c
}

// nodeBootID returns "": on Windows, the kubelet writes a different boot ID to the Node.
func nodeBootID() string { return "" }

func bootIdentity(context.Context, string, time.Time) (string, error) { return state.BootID() }

// endErr returns nil if the agent ended because it was stopped, or because a shutdown need not wait
// for it.
func (r *runner) endErr(ctx context.Context, err error) error {
	if !errors.Is(err, context.Canceled) {
		return err
	}
	select {
	case <-r.controls.Preshutdown():
		return nil
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// waitForClient returns the configuration of the API client and the name of the node. On a machine
// that has not joined a cluster, it waits until the machine joins or shuts down.
func (r *runner) waitForClient(ctx context.Context, c *configv1alpha1.NodeAgentConfiguration, status func(string)) (config *rest.Config, node string, err error) {
	last := ""
	for {
		config, node, err := clientOf(ctx, c)
		if err == nil {
			return config, node, nil
		}
		if err.Error() != last {
			last = err.Error()
			klog.FromContext(ctx).Error(err, "Cannot create the API client, retrying", "retryAfter", clientRetry)
			status("cannot create the API client: " + last)
		}
		select {
		case <-ctx.Done():
			return nil, "", ctx.Err()
		case <-r.controls.Preshutdown():
			return nil, "", context.Canceled
		case <-time.After(clientRetry):
		}
	}
}

// machineConfig returns the configuration of the shutdown delay, with the state of an earlier
// process of this boot.
func machineConfig(c *configv1alpha1.NodeAgentConfiguration, s *start, controls *windows.Controls) windows.Config {
	m := windows.Config{
		Delay: c.MaxShutdownDelay.Duration, Controls: controls,
		Settings: windows.NewSettings(c.StateDirectory, c.KubeletService),
	}
	if s.stored.Phase.Pending() {
		m.Since, m.Deadline = shutdown.Resumed(s.stored.Signal, time.Now(), state.SinceBoot())
	}
	return m
}

// status returns a function that reports to Windows that the service has started, and logs the
// status.
func (r *runner) status(ctx context.Context) func(string) {
	return func(line string) {
		r.controls.Ready()
		klog.FromContext(ctx).V(1).Info("Status", "status", line)
	}
}

// journal writes new entries to the event log until the context ends.
func (r *runner) journal(ctx context.Context, status func() shutdown.Status) {
	r.events.Write(windows.Message{ID: windows.EventStarted, Text: "The node agent " + version.Get() + " has started."})
	var journal windows.Journal
	wait.UntilWithContext(ctx, func(context.Context) {
		s := status()
		for _, message := range journal.Next(&s) {
			r.events.Write(message)
		}
	}, journalPeriod)
}

func platformServices(o *Options) services {
	return services{
		note:      "\n\nOn Windows the agent is experimental: it has not been tested on a real Windows machine.",
		install:   installService,
		pending:   func(context.Context) (bool, error) { return windows.Pending() },
		uninstall: func(ctx context.Context) error { return windows.Uninstall(ctx, o.stateDirectory(ctx)) },
	}
}

func installService(ctx context.Context, i *installation) (bool, error) {
	w := windows.Installation{Binary: i.binary, Args: append([]string{i.args[0], "--windows-service"}, i.args[1:]...)}
	if i.content != nil {
		w.Files = []windows.File{{Path: i.path, Content: i.content}}
	}
	return windows.Install(ctx, w)
}
