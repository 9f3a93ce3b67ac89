/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodeagent

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/agent/systemd/install"
)

// askSystemdTimeout limits how long the agent asks why it has to stop.
const askSystemdTimeout = 5 * time.Second

// runService runs the agent until the context ends or the service is stopped.
func runService(ctx context.Context, c *v1alpha1.NodeAgentConfiguration) error {
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
	s, err := begin(ctx, c)
	if err != nil {
		return err
	}
	machine := logind.New(logindConfig(c, s, files, notifier))
	stopped := &stopper{limit: c.MaxShutdownDelay.Duration, machine: machine, notifier: notifier, ask: whySystemdStops}
	go func() {
		defer cancel()
		stopped.wait(ctx, signals)
	}()

	h := &host{machine: machine, kubelet: systemd.Service{Unit: c.KubeletService}, status: notifyStatus(ctx, notifier)}
	config, node, err := waitForClient(ctx, c, h.status)
	if err != nil {
		return stopErr(ctx, err)
	}
	a, err := newAgent(ctx, c, s, h, config, node)
	if err != nil {
		return err
	}
	h.status("starting")
	down := a.manager.Down()
	stopped.down.Store(&down)
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
func logindConfig(c *v1alpha1.NodeAgentConfiguration, s *start, files map[string][]*os.File, notifier *systemd.Notifier) logind.Config {
	config := logind.Config{
		Delay:  c.MaxShutdownDelay.Duration,
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

// whySystemdStops returns whether systemd stops this service because the system goes down, and how
// long it waits.
func whySystemdStops(ctx context.Context) (systemd.Ending, error) {
	ctx, cancel := context.WithTimeout(ctx, askSystemdTimeout)
	defer cancel()
	client, err := systemd.Dial(ctx, "")
	if err != nil {
		return systemd.Ending{}, err
	}
	ending, err := client.Ending(ctx, install.Unit)
	return ending, errors.Join(err, client.Close())
}
