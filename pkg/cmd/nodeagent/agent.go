// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/buckets"
	"haulout.dev/haulout/pkg/agent/cluster"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/kubelet"
	"haulout.dev/haulout/pkg/agent/local/cri"
	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/agent/staticpods"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/pkg/version"
)

const (
	// stopTimeout is the time that an agent waits for its parts to end. An informer without a
	// connection to the API can take half a minute to end, but after a restart of the service a new
	// agent should run soon.
	stopTimeout = 2 * time.Second
	// statusPeriod is the interval at which the agent sends its status to the service manager.
	statusPeriod = 2 * time.Second
)

// host has the parts of the agent that differ between the operating systems.
type host struct {
	// machine delays the shutdown.
	machine shutdown.Machine
	// kubelet stops and starts the kubelet.
	kubelet cri.Kubelet
	// final is set if the kubelet cannot be started again once the machine shuts down.
	final bool
	// kubeletProblem returns the reason why the agent cannot stop the kubelet; empty if it can. ok
	// is false if this is unknown. The field is nil if the check does not apply.
	kubeletProblem func(context.Context) (problem string, ok bool)
	// safeMode is the reason why the agent is in safe mode; empty if it is not. offline is the
	// reason why it has no API client; empty if it has one.
	safeMode, offline string
	// lastFolder is the folder of static pods of an earlier agent; empty if unknown. An agent in
	// safe mode does not restore manifests from it.
	lastFolder string
	// pollingOnly is set if the operating system does not report changes of folders.
	pollingOnly bool
	// status sends one line about the agent to the service manager. The first call also reports
	// that the agent has started.
	status func(line string)
}

// agent is a node agent that is ready to run.
type agent struct {
	config  *configv1alpha1.NodeAgentConfiguration
	host    *host
	node    string
	bootID  string
	started time.Time

	engine     shutdown.Local
	manager    *shutdown.Manager
	static     *staticPods
	checkpoint *pods.Checkpoint
	// closers are called after all parts have stopped.
	closers []func() error
}

// start is the state that the agent has before it sends requests to systemd, the kubelet or the
// API.
type start struct {
	store  *state.Store
	bootID string
	// stored is the state of this boot, zero if there is none.
	stored state.State
}

// begin opens the state directory and locks it, so that no other agent uses it.
func begin(ctx context.Context, c *configv1alpha1.NodeAgentConfiguration) (*start, error) {
	store, err := state.Open(c.StateDirectory, state.RunDirectory)
	if err != nil {
		return nil, err
	}
	if err := store.Lock(); err != nil {
		return nil, err
	}
	// The manager loads the state itself and reports problems in it.
	stored, err := state.Read(c.StateDirectory, state.RunDirectory)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read the state of an earlier process")
	}
	bootID, err := bootIdentity(ctx, stored.BootID, state.Stored(c.StateDirectory, state.RunDirectory))
	if err != nil {
		return nil, err
	}
	if stored.BootID != bootID {
		stored = state.State{}
	}
	return &start{store: store, bootID: bootID, stored: stored}, nil
}

// newAgent creates all parts of the agent and starts none.
func newAgent(ctx context.Context, c *configv1alpha1.NodeAgentConfiguration, s *start, h *host, config *rest.Config, node string) (*agent, error) {
	a := &agent{config: c, host: h, node: node, bootID: s.bootID, started: time.Now()}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	maintenance, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	client, err := cluster.New(cluster.Config{
		NodeName: node, REST: config, Recorder: cluster.NewRecorder(ctx, kube, node),
	})
	if err != nil {
		return nil, err
	}
	if a.checkpoint, err = pods.New(c.StateDirectory, kube, node); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read the stored pods of the node, starting without them")
	}
	a.static = &staticPods{
		config: c, discover: kubelet.Discover, found: a.checkpoint.SetStaticPodPath, kubeletProblem: h.kubeletProblem,
	}
	if last := s.stored.Configuration; last != nil {
		// Use the values that an earlier process found: the kubelet may not run now.
		a.static.runtime = last.RuntimeEndpoint
		a.static.leave(last.StaticPodPath)
	}
	table := buckets.New(c.ShutdownGracePeriodByPodPriority)
	problem := a.static.KubeletProblem
	if c.LocalEngine != configv1alpha1.LocalEngineCRI {
		problem = func() string { return "safe mode, because " + h.safeMode }
	}
	runtime, err := cri.New(cri.Config{
		Endpoint: a.static.RuntimeEndpoint, Table: table, Pods: a.checkpoint.Pods, Kubelet: h.kubelet, Final: h.final, Problem: problem,
	})
	if err != nil {
		return nil, err
	}
	a.closers = append(a.closers, runtime.Close)
	// In safe mode, a shutdown would wait for its pods until the deadline if there were no engine.
	if c.LocalEngine == configv1alpha1.LocalEngineCRI || h.safeMode != "" {
		a.engine = runtime
	}
	a.static.newKeeper = func(dir string, facts kubelet.Facts) (keeper, error) {
		return staticpods.New(staticpods.Config{
			Dir: dir, NodeName: node, BootID: nodeBootID(), Kubelet: &limitedKubelet{kubelet.Health{Address: facts.HealthzAddress}, a.static}, Containers: runtime,
			Policy: staticpods.Policy{KeepAll: c.StaticPods == configv1alpha1.StaticPodsKeep, Keep: c.KeepStaticPods, Evacuate: c.EvacuateStaticPods},
			Server: ofKubelet(c, facts, func(api *rest.Config) (string, error) { return api.Host, nil }), CA: ofKubelet(c, facts, authoritiesIn),
			Static: a.staticPodNames, Kube: kube, Maintenance: maintenance,
			APILossRestorePeriod: c.APILossRestorePeriod.Duration, HauloutLossRestorePeriod: c.HauloutLossRestorePeriod.Duration,
			PollingOnly: h.pollingOnly,
			Leaving:     func() bool { return a.manager.Status().State.Phase.Pending() }, Event: client.Event,
		})
	}
	if h.safeMode != "" {
		a.static.leave(h.lastFolder)
		a.static.discover = func(context.Context, string) (kubelet.Facts, error) { return kubelet.Facts{}, errors.New("safe mode") }
		if last := s.stored.Configuration; last != nil {
			a.checkpoint.SetStaticPodPath(last.StaticPodPath)
		}
	}
	stopped, _ := h.kubelet.(shutdown.Kubelet)
	a.manager, err = shutdown.New(shutdown.Config{
		NodeName: node, BootID: s.bootID, Version: version.Get(),
		Machine: h.machine, Warnings: a.warnings, Limited: a.limited, Configuration: a.known, Cluster: client, Refused: a.static.Refused,
		Store: s.store, Local: a.engine, Kubelet: stopped, Priorities: a.checkpoint.Priorities, StaticPodProblem: a.static.Problem, Buckets: table,
		MaxShutdownDelay: c.MaxShutdownDelay.Duration, APIGracePeriod: c.APIGracePeriod.Duration,
		DrainBeforeShutdown: *c.DrainBeforeShutdown, Within: func() *state.Within { return readWithin(ctx, c) },
		CompleteAfterReboot: *c.CompleteAfterReboot, KeepForgotten: c.OnForgottenShutdown == configv1alpha1.ForgottenShutdownKeep,
	})
	return a, err
}

// limited returns the reason why the agent cannot do all of its work, for the conditions of the
// node.
func (a *agent) limited() (reason, message string) {
	if a.host.safeMode != "" {
		return shutdown.ReasonSafeMode, "safe mode, because " + a.host.safeMode
	}
	if problem := a.static.KubeletProblem(); problem != "" {
		return shutdown.ReasonKubeletUnit, problem
	}
	return "", ""
}

// warnings returns one sentence for each limitation of the agent.
func (a *agent) warnings() []string {
	list := a.static.Warnings()
	if _, limit := a.limited(); limit != "" {
		list = append([]string{limit}, list...)
	}
	if a.host.offline != "" {
		list = append([]string{a.host.offline}, list...)
	}
	return list
}

// known returns the configuration with the values that the agent has found, for a later process
// that cannot find them. In safe mode it is the configuration that an earlier process stored.
func (a *agent) known() *configv1alpha1.NodeAgentConfiguration {
	c := a.config.DeepCopy()
	c.NodeName, c.RuntimeEndpoint = a.node, a.static.RuntimeEndpoint()
	if folder := a.static.Folder(); folder != "" {
		c.StaticPodPath = folder
	}
	return c
}

// run runs all parts until the context ends or one of them fails.
func (a *agent) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	part := func(name string, run func(context.Context) error) {
		running.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", name, err))
			}
		})
	}
	part("shutdown", a.manager.Run)
	part("pods", a.checkpoint.Run)
	part("static pods", func(ctx context.Context) error { a.static.run(ctx); return nil })
	part("status", func(ctx context.Context) error { a.tellStatus(ctx); return nil })
	if address := *a.config.MetricsBindAddress; address != "" {
		part("endpoints", func(ctx context.Context) error { serve(ctx, address, endpoints(a.report)); return nil })
	}
	<-ctx.Done()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		running.Wait()
	}()
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		klog.FromContext(ctx).V(2).Info("Not all parts have stopped in time, ending anyway")
	}
	var errs []error
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		errs = append(errs, cause)
	}
	for _, closer := range a.closers {
		errs = append(errs, closer())
	}
	return errors.Join(errs...)
}

func (a *agent) report() Report {
	r := Report{
		Version: version.Get(), Node: a.node, BootID: a.bootID, Started: a.started,
		StaticPodProblem: a.static.Problem(), Shutdown: a.manager.Status(),
	}
	if a.engine != nil {
		r.Engine = a.engine.Name()
	}
	entries, err := a.static.Parked()
	r.Parked = originsOf(entries)
	if err != nil && r.StaticPodProblem == "" {
		r.StaticPodProblem = err.Error()
	}
	return r
}

// tellStatus sends the status to the service manager whenever it changes.
func (a *agent) tellStatus(ctx context.Context) {
	last := ""
	wait.UntilWithContext(ctx, func(context.Context) {
		status := a.manager.Status()
		if line := statusLine(&status); line != last {
			a.host.status(line)
			last = line
		}
	}, statusPeriod)
}

// statusLine is the status in `systemctl status`. It contains no times, since these would change
// the line constantly.
func statusLine(s *shutdown.Status) string {
	line := string(s.State.Phase)
	switch {
	case s.State.Phase == "":
		return "starting"
	case s.State.Phase == state.Armed && s.LockHeld:
		line = fmt.Sprintf("ready to delay a shutdown by %s", s.Delay)
	case s.State.Phase == state.Armed:
		line = "no lock is held; the agent does not delay a shutdown"
	case s.State.Maintenance != nil:
		line += ": NodeMaintenance " + s.State.Maintenance.Name
	}
	if len(s.Problems) > 0 {
		line += "; " + s.Problems[0]
		if more := len(s.Problems) - 1; more > 0 {
			line += fmt.Sprintf(" (and %d more)", more)
		}
	}
	return line
}
