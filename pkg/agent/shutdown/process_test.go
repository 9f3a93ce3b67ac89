// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

// process is one process of the agent. It implements all interfaces that the Manager needs.
type process struct {
	*world
	manager *Manager
	cancel  context.CancelFunc
	done    chan struct{}
	bootID  string

	// The lock of the world guards the fields below.
	dead, known bool
	// seen is set once this process has recorded the shutdown in the following fields.
	seen            bool
	since, deadline time.Time
}

// start starts an agent process.
func (w *world) start() *process {
	w.mu.Lock()
	p := &process{world: w, done: make(chan struct{}), bootID: w.bootID}
	w.process, w.processStarted = p, time.Now()
	config := p.config()
	w.mu.Unlock()
	p.run(config)
	return p
}

// sinceBoot returns the time of a clock that no user can set.
func sinceBoot() time.Duration {
	return time.Since(time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC))
}

func (p *process) config() Config {
	c := Config{
		NodeName: "worker-1", BootID: p.world.bootID, Version: "v1", Machine: p, Cluster: p, Store: p, Local: p,
		Priorities: p.Priorities, StaticPodProblem: p.Problem, Buckets: testTable, MaxShutdownDelay: 30 * time.Minute, APIGracePeriod: 10 * time.Second,
		DrainBeforeShutdown: true, CompleteAfterReboot: true, KeepForgotten: true, Wall: func() time.Time {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.wall()
		}, SinceBoot: sinceBoot,
		Configuration: func() *configv1alpha1.NodeAgentConfiguration { return nil }, Limited: func() (string, string) { return "", "" },
		Warnings: func() []string { return nil }, Refused: func() int { return 0 }, Within: func() *state.Within { return nil },
	}
	if p.world.noted {
		c.Kubelet = p
	}
	if p.configure != nil {
		p.configure(&c)
	}
	return c
}

func (p *process) run(config Config) {
	manager, err := New(config)
	if err != nil {
		p.t.Fatal(err)
	}
	p.manager = manager
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		defer close(p.done)
		if err := manager.Run(ctx); err != nil {
			p.t.Error(err)
		}
	}()
}

// kill ends the process like kill -9: its later actions have no effect.
func (p *process) kill() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.cancel()
	<-p.done
}

// crash kills the process and starts another one, as the service manager does.
func (p *process) crash() {
	p.dead = true
	p.crashed = time.Now()
	go func() {
		p.kill()
		<-time.After(200 * time.Millisecond)
		p.mu.Lock()
		restart := p.process == p && !p.down
		p.mu.Unlock()
		if restart {
			p.start()
		}
	}()
}

// enter locks the world for an action of the process. It may crash the process before the action.
func (p *process) enter() error {
	p.mu.Lock()
	if !p.dead && p.crashes > 0 && p.random.Float64() < p.crashes {
		p.crash()
	}
	if p.dead {
		p.mu.Unlock()
		return errKilled
	}
	return nil
}

// call is like enter, for a request to the API server.
func (p *process) call(ctx context.Context) error {
	p.mu.Lock()
	mode, latency := p.mode, p.latency
	p.mu.Unlock()
	switch mode {
	case apiHang:
		<-ctx.Done()
		return ctx.Err()
	case apiDown:
		return errAPIDown
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(latency):
	}
	return p.enter()
}

// callHaulout is like call, for a request to the Haulout API.
func (p *process) callHaulout(ctx context.Context) error {
	p.mu.Lock()
	mode := p.mode
	p.mu.Unlock()
	if mode == apiNoHaulout {
		return errors.New("the server is currently unable to handle the request")
	}
	return p.call(ctx)
}

func (p *process) Run(ctx context.Context, changed func()) error {
	p.mu.Lock()
	wait := time.Duration(p.random.IntN(4000)) * time.Millisecond
	p.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = 100 * time.Millisecond
		p.mu.Lock()
		known, seen := p.known, p.seen
		p.known = true
		switch {
		case p.dead:
		case p.pending && !p.seen:
			p.seen, p.since, p.deadline = true, p.wall(), p.wall().Add(time.Until(p.world.deadline))
			if !known {
				// This is the deadline of a new process that has no stored deadline.
				p.deadline = p.wall().Add(p.delay)
				real := sinceBoot() + time.Until(p.world.deadline)
				p.unsettled = p.unsettled || !p.disk.Phase.Pending() || p.disk.BootID != p.world.bootID ||
					(p.disk.Signal.DeadlineSinceBoot-real).Abs() > time.Second
			}
		case !p.pending:
			p.seen, p.lock = false, p.lock || !p.down
		}
		same := known && seen == p.seen
		p.mu.Unlock()
		if !same {
			changed()
		}
	}
}

func (p *process) State() MachineState {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := MachineState{Known: p.known, LockHeld: p.lock, Delay: p.delay, LockPath: "/run/1.ref", Kind: "reboot"}
	if p.seen {
		s.ShuttingDown, s.Since, s.Deadline, s.Stopping = true, p.since, p.deadline, p.stopping
	} else {
		s.Forgotten = p.known && p.forgotten
	}
	return s
}

func (p *process) Release(context.Context) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.mu.Unlock()
	if !p.pending || p.down {
		return nil
	}
	p.released++
	left := time.Until(p.world.deadline)
	nm := p.own()
	drained := nm != nil && !nm.completed && p.alive(false) == 0
	p.releases = append(p.releases, fmt.Sprintf("%d alive, %s left", p.alive(true), left.Round(time.Second)))
	if !drained && p.alive(true) > 0 && left > 1500*time.Millisecond && !p.unsettled {
		p.violation("released with %d pods, %s before the deadline: %+v", p.alive(true), left, p.disk)
	}
	p.goDown()
	return nil
}

func (p *process) EnsureMaintenance(ctx context.Context, request MaintenanceRequest) (state.MaintenanceRef, error) {
	name := protocol.ShutdownName("worker-1", request.BootID)
	p.mu.Lock()
	// A request that was sent before the machine went down, or at the same moment, may arrive
	// later: see taskSweep.
	late := p.down && !p.byForce && time.Now().After(p.downAt)
	p.mu.Unlock()
	if err := p.callHaulout(ctx); err != nil {
		p.mu.Lock()
		if p.mode == apiHang && p.random.IntN(3) == 0 {
			p.ghosts = append(p.ghosts, request)
		}
		p.mu.Unlock()
		return state.MaintenanceRef{}, err
	}
	defer p.mu.Unlock()
	switch {
	case p.mode == apiRefuse:
		return state.MaintenanceRef{}, fmt.Errorf("%w: not your node", ErrRefused)
	case late:
		p.violation("EnsureMaintenance after the release")
	case request.BootID != p.world.bootID:
		p.violation("EnsureMaintenance for boot %s", request.BootID)
	}
	p.requests = append(p.requests, request)
	if nm := p.maintenances[name]; nm != nil && nm.completed {
		delete(p.maintenances, name)
	}
	return p.create(name, request.BootID).ref, nil
}

func (p *process) Drain(ctx context.Context, ref state.MaintenanceRef) (DrainState, error) {
	if err := p.callHaulout(ctx); err != nil {
		return DrainState{}, err
	}
	defer p.mu.Unlock()
	if p.mode == apiRefuse {
		return DrainState{}, fmt.Errorf("%w: not your node", ErrRefused)
	}
	nm := p.maintenances[ref.Name]
	if nm == nil || nm.completed || nm.ref.UID != ref.UID {
		return DrainState{Ended: true}, nil
	}
	d := DrainState{Message: "pods are leaving"}
	for _, pod := range p.pods {
		switch {
		case pod.known && pod.kept:
			d.PodsKept++
		case pod.known:
			d.PodsLeft++
		}
	}
	d.Drained = d.PodsLeft == 0
	return d, nil
}

func (p *process) Complete(ctx context.Context, ref state.MaintenanceRef) error {
	if err := p.callHaulout(ctx); err != nil {
		return err
	}
	defer p.mu.Unlock()
	if nm := p.maintenances[ref.Name]; nm != nil && (ref.UID == "" || ref.UID == nm.ref.UID) {
		nm.completed = true
	}
	return nil
}

func (p *process) CompleteOlder(ctx context.Context, bootID string) (int, error) {
	if err := p.callHaulout(ctx); err != nil {
		return 0, err
	}
	defer p.mu.Unlock()
	n := 0
	for _, nm := range p.maintenances {
		if nm.boot != bootID && !nm.completed {
			nm.completed = true
			n++
		}
	}
	return n, nil
}

func (p *process) DeleteOldest(ctx context.Context, _ string) error {
	if err := p.callHaulout(ctx); err != nil {
		return err
	}
	defer p.mu.Unlock()
	return nil
}

func (p *process) Pods(ctx context.Context) ([]Pod, error) {
	if err := p.call(ctx); err != nil {
		return nil, err
	}
	defer p.mu.Unlock()
	p.lists++
	var pods []Pod
	for _, pod := range p.pods {
		if pod.known {
			pods = append(pods, Pod{
				Namespace: pod.pod.Namespace, Name: pod.pod.Name, UID: pod.pod.UID, Priority: pod.priority, Owner: types.UID(pod.owner),
				Stays: pod.kept, Leaving: pod.leaving,
			})
		}
	}
	return pods, nil
}

// Evict responds as the API does for a node, and fails the test for requests that a node must not
// make.
func (p *process) Evict(ctx context.Context, evicted Pod) error {
	if err := p.call(ctx); err != nil {
		return err
	}
	defer p.mu.Unlock()
	if p.cordoned == "" && p.own() == nil {
		p.violation("%s is evicted from a node that takes new pods", evicted.Name)
	}
	for _, pod := range p.pods {
		if pod.pod.UID != evicted.UID {
			continue
		}
		switch {
		case pod.kept:
			p.violation("the eviction of %s has no effect", evicted.Name)
		case !pod.known:
			return &RefusedEvictionError{Message: "no relationship found between node and this object"}
		case pod.owner != "" && p.leavingOf(pod.owner) > 0:
			p.violation("%s is evicted while another pod of %s leaves", evicted.Name, pod.owner)
		case p.disruptions[pod.owner].After(time.Now()):
			return &RefusedEvictionError{Message: "Cannot evict pod as it would violate the pod's disruption budget."}
		}
		pod.leaving = true
		p.evicted = append(p.evicted, pod.pod.Name)
		if pod.owner != "" {
			// The replacement must become ready before the budget allows another disruption.
			p.disruptions[pod.owner] = time.Now().Add(20 * time.Second)
		}
	}
	return nil
}

func (p *process) Cordon(ctx context.Context, bootID string) (changed bool, err error) {
	if err := p.call(ctx); err != nil {
		return false, err
	}
	defer p.mu.Unlock()
	if nm := p.own(); nm == nil || nm.completed {
		changed, p.cordoned = p.cordoned == "", bootID
	}
	return changed, nil
}

func (p *process) Uncordon(ctx context.Context) error {
	if err := p.call(ctx); err != nil {
		return err
	}
	defer p.mu.Unlock()
	p.cordoned = ""
	return nil
}

func (p *process) SetCondition(ctx context.Context, condition corev1.NodeCondition) error {
	if err := p.call(ctx); err != nil {
		return err
	}
	defer p.mu.Unlock()
	p.conditions[condition.Type] = condition
	p.written = append(p.written, condition)
	return nil
}

func (p *process) ReportKilled(ctx context.Context, pods []state.KilledPod, since time.Time) ([]state.KilledPod, error) {
	p.mu.Lock()
	hangs := p.reportsHang
	p.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := p.call(ctx); err != nil {
		return nil, err
	}
	defer p.mu.Unlock()
	for _, reported := range pods {
		for _, pod := range p.pods {
			if pod.pod.UID != reported.UID || !since.IsZero() && pod.started.After(since) {
				continue
			}
			if pod.alive && p.wallOffset == 0 {
				p.violation("%s was reported and runs, since %s", pod.pod.Name, since)
			}
			pod.remove() // the kubelet ends a failed pod
		}
	}
	return pods, nil
}

func (p *process) Event(eventType, reason, message string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dead {
		p.events = append(p.events, event{eventType, reason, message})
	}
}

func (p *process) Name() string { return "fake" }

// End ends one bucket after the other; each takes at most its period.
func (p *process) End(ctx context.Context, resume state.Local, deadline time.Time, next func(state.Local, []state.KilledPod) bool) error {
	if err := p.enter(); err != nil {
		return err
	}
	if p.down && !p.byForce || !p.pending && time.Since(p.vanished) > time.Second {
		p.violation("the engine was started without a shutdown: %+v", p.disk)
	}
	if deadline.After(p.world.deadline) && !p.unsettled {
		p.violation("the engine may run until %s, the deadline is %s", deadline, p.world.deadline)
	}
	p.judgeEnd()
	p.kubelet = false
	p.ends = append(p.ends, resume)
	ok, quick := p.engineOK, p.random.IntN(2) == 0
	p.mu.Unlock()
	if !ok {
		return errors.New("the runtime does not answer")
	}
	for i := resume.Bucket; i < len(testTable); i++ {
		if err := p.endBucket(ctx, i, quick, &resume, next); err != nil || resume.Done {
			return err
		}
	}
	return nil
}

// judgeEnd fails the test if the agent ends pods locally, and so ignores their budgets, although it
// could have evicted them: kube-apiserver has responded for a long time, and enough time is left.
func (p *process) judgeEnd() {
	p.seeChange()
	answers := p.mode != apiDown && p.mode != apiHang && p.latency < time.Second
	left := time.Until(p.world.deadline) - testTable.LocalTime([]int32{0, 2000000000}) - localReserve
	if !answers || time.Since(p.changed) < 15*time.Second || time.Since(p.processStarted) < 15*time.Second || left < 15*time.Second || p.final || p.unsettled {
		return
	}
	for _, pod := range p.pods {
		if pod.known && pod.alive && !pod.kept && p.wall().Sub(pod.started) > 15*time.Second {
			p.violation("%s is ended on the node with %s left, although kube-apiserver has answered for %s", pod.pod.Name, left, time.Since(p.changed))
			return
		}
	}
}

// endBucket ends the pods of one bucket. It sets Done to stop the engine after this bucket.
func (p *process) endBucket(ctx context.Context, index int, quick bool, resume *state.Local, next func(state.Local, []state.KilledPod) bool) error {
	p.mu.Lock()
	var pods []*worldPod
	for _, pod := range p.pods {
		if pod.alive && testTable.Index(pod.priority) == index {
			pods = append(pods, pod)
		}
	}
	p.mu.Unlock()
	if len(pods) == 0 {
		return nil
	}
	wait := testTable[index].Period
	if quick {
		wait /= 10
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(wait):
	}
	if err := p.enter(); err != nil {
		return err
	}
	var killed []state.KilledPod
	for _, pod := range pods {
		pod.alive = false
		p.ended = append(p.ended, pod.pod.Name)
		killed = append(killed, pod.pod)
	}
	p.mu.Unlock()
	if !next(state.Local{Started: resume.Started, Bucket: index + 1, Done: index+1 == len(testTable)}, killed) {
		resume.Done = true
	}
	return nil
}

func (p *process) Resume(ctx context.Context) error {
	select {
	case <-time.After(p.resumeTakes):
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := p.enter(); err != nil {
		return err
	}
	defer p.mu.Unlock()
	// The agent may start the kubelet at the same moment.
	if p.down && !p.byForce && time.Now().After(p.downAt) {
		p.violation("the kubelet was started after the release")
	}
	if p.final && p.pending {
		return ErrFinal
	}
	p.startKubelet()
	return nil
}

// Stopped implements Kubelet: only an engine stops the kubelet of the world.
func (p *process) Stopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.kubelet
}

// Start implements Kubelet.
func (p *process) Start(ctx context.Context) error { return p.Resume(ctx) }

func (p *process) Priorities() []int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var priorities []int32
	for _, pod := range p.pods {
		if pod.alive {
			priorities = append(priorities, pod.priority)
		}
	}
	return priorities
}

func (p *process) Problem() string { return "" }

func (p *process) Load() (state.State, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inMemory != nil {
		return cloneState(p.inMemory), nil
	}
	return cloneState(&p.disk), nil
}

func (p *process) Save(s state.State) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.mu.Unlock()
	if p.diskFull {
		copied := cloneState(&s)
		p.inMemory = &copied
		return errDisk
	}
	p.disk, p.inMemory = cloneState(&s), nil
	// The process crashes right after the write, before it acts on its decision.
	if p.crashAfter != "" && s.Phase == p.crashAfter || p.crashes > 0 && p.random.Float64() < p.crashes {
		p.crashAfter = ""
		p.crash()
	}
	return nil
}
