// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

// The world is a machine with its node and its cluster. All fakes of the interfaces share this
// world, so that each action has the same consequences as on a node: a released lock takes the
// machine down, and a stopped kubelet delays the drain.

// apiMode is the behaviour of the API.
type apiMode int

const (
	apiUp apiMode = iota
	apiDown
	// apiHang: the API does not respond, but may execute the requests later.
	apiHang
	// apiRefuse: the API refuses the maintenance.
	apiRefuse
	// apiNoHaulout: kube-apiserver responds, Haulout does not.
	apiNoHaulout
	apiModes
)

var (
	errAPIDown = errors.New("connection refused")
	errKilled  = errors.New("the process was killed")
	errDisk    = errors.New("no space left on device")
)

type worldPod struct {
	pod      state.KilledPod
	priority int32
	// kept is set if the drain keeps the pod, alive if its containers run, known if it runs
	// according to the API, and leaving if it is terminating.
	kept, alive, known, leaving bool
	// owner is the owner of the pod, which has a budget; empty if the pod has no owner.
	owner   string
	started time.Time
}

type worldMaintenance struct {
	ref       state.MaintenanceRef
	boot      string
	completed bool
}

type world struct {
	t *testing.T

	mu     sync.Mutex
	random *rand.Rand
	// boot counts the boots of the machine; bootID is the current one.
	boot   int
	bootID string
	delay  time.Duration

	pending, forgotten bool
	vanished           time.Time
	// deadline is the real deadline. down is set if the machine goes down. lock is set if the agent
	// holds the lock.
	deadline   time.Time
	down, lock bool
	// downAt is the time at which the machine began to go down.
	downAt time.Time
	// byForce is set if the machine went down although the agent held the lock, so the agent may
	// still be at work.
	byForce                     bool
	released, forced, cancelled int

	mode apiMode
	// changed is the time at which mode or latency changed.
	changed      time.Time
	seenMode     apiMode
	seenLatency  time.Duration
	maintenances map[string]*worldMaintenance
	uids         int
	ghosts       []MaintenanceRequest
	latency      time.Duration

	// kubelet is set if the kubelet runs. noted is set if the agent has recorded that it stopped
	// the kubelet.
	kubelet, noted bool
	// stopping is set if systemd stops the system.
	stopping bool
	// reportsHang is set if reports of ended pods are not answered, and resumeTakes is how long the
	// start of the kubelet takes.
	reportsHang bool
	resumeTakes time.Duration
	// final is set if the kubelet cannot start again during a shutdown.
	final    bool
	pods     []*worldPod
	engineOK bool
	// ends are the arguments of the calls of the engine; ended are the pods that the engine has
	// ended, in order.
	ends  []state.Local
	ended []string
	// requests are the requests to create maintenances.
	requests []MaintenanceRequest

	disk     state.State
	diskFull bool
	// inMemory is a copy, valid for this boot, of a state that could not be stored.
	inMemory *state.State

	// cordoned is the boot whose agent has cordoned the node. disruptions is the time at which the
	// budget of an owner allows a disruption again. evicted are the evicted pods, in order; lists
	// is the number of list requests.
	cordoned    string
	disruptions map[string]time.Time
	evicted     []string
	lists       int
	// processStarted is the time at which the last process started.
	processStarted time.Time

	wallOffset time.Duration
	// crashes is the probability of a crash in each call; crashed is the time of the last crash.
	crashes float64
	// crashAfter is a phase. The process crashes once, after it has stored this phase.
	crashAfter state.Phase
	crashed    time.Time
	unsettled  bool
	process    *process
	// configure changes the configuration of new processes.
	configure func(c *Config)

	conditions map[corev1.NodeConditionType]corev1.NodeCondition
	written    []corev1.NodeCondition
	events     []event
	releases   []string
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), delay: 5 * time.Minute, lock: true, kubelet: true, engineOK: true,
		maintenances: map[string]*worldMaintenance{}, disruptions: map[string]time.Time{}, conditions: map[corev1.NodeConditionType]corev1.NodeCondition{},
	}
	w.nextBoot()
	return w
}

// nextBoot boots the machine. The kubelet starts the pods that the API server has.
func (w *world) nextBoot() {
	w.boot++
	w.inMemory = nil
	w.bootID = fmt.Sprintf("%08x-2fa1-11d2-883f-0016d3cca427", w.boot)
	w.pending, w.forgotten, w.down, w.lock = false, false, false, true
	w.startKubelet()
}

func (w *world) startKubelet() {
	w.kubelet = true
	for _, p := range w.pods {
		if p.known && !p.alive {
			p.alive, p.started = true, w.wall()
		}
	}
}

func (w *world) wall() time.Time {
	return time.Now().Add(w.wallOffset).Round(0)
}

// addPod binds a pod to the node, unless a maintenance keeps the node cordoned.
func (w *world) addPod(priority int32, kept bool) {
	if nm := w.own(); w.cordoned != "" || nm != nil && !nm.completed {
		return
	}
	name := fmt.Sprintf("pod-%d", len(w.pods))
	w.pods = append(w.pods, &worldPod{
		pod: state.KilledPod{Namespace: "default", Name: name, UID: types.UID(name)}, priority: priority, kept: kept,
		alive: w.kubelet && !w.down, known: true, started: w.wall(),
	})
}

func (w *world) violation(format string, args ...any) {
	w.t.Errorf("%s, boot %d: %s", time.Now().Format("15:04:05.000"), w.boot, fmt.Sprintf(format, args...))
}

// alive counts the pods with running containers: all pods, or only the pods that the drain
// does not keep.
func (w *world) alive(withKept bool) int {
	n := 0
	for _, p := range w.pods {
		if p.alive && (withKept || !p.kept) {
			n++
		}
	}
	return n
}

// own returns the maintenance of this boot, or nil.
func (w *world) own() *worldMaintenance {
	return w.maintenances[protocol.ShutdownName("worker-1", w.bootID)]
}

// seeChange records the time if the behaviour of the API has changed.
func (w *world) seeChange() {
	if w.mode != w.seenMode || w.latency != w.seenLatency {
		w.seenMode, w.seenLatency, w.changed = w.mode, w.latency, time.Now()
	}
}

// background drains the node, executes late requests, and forces the machine down after its
// deadline.
func (w *world) background(ctx context.Context) {
	for tick := 0; ; tick++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(500 * time.Millisecond):
		}
		w.mu.Lock()
		if w.pending && !w.down && !time.Now().Before(w.deadline) {
			w.forced++
			if !w.unsettled && time.Since(w.crashed) > 8*time.Second {
				w.violation("the machine was forced down, the state is %+v", w.disk)
			}
			w.goDown()
			w.byForce = true
		}
		w.seeChange()
		w.leave()
		if w.mode == apiUp && tick%6 == 0 {
			for _, r := range w.ghosts {
				w.create(protocol.ShutdownName("worker-1", r.BootID), r.BootID)
			}
			w.ghosts = nil
			w.drainOne()
		}
		w.mu.Unlock()
	}
}

// remove removes a pod from the API and from the node.
func (p *worldPod) remove() {
	p.known, p.alive, p.leaving = false, false, false
}

// leave ends the pods that are terminating.
func (w *world) leave() {
	for _, p := range w.pods {
		if p.leaving && w.kubelet && !w.down {
			p.remove()
		}
	}
}

// leavingOf counts the pods of an owner that are terminating.
func (w *world) leavingOf(owner string) int {
	n := 0
	for _, p := range w.pods {
		if p.leaving && p.owner == owner {
			n++
		}
	}
	return n
}

// drainOne drains one pod, as the server does. The server takes over the cordon of the agent.
func (w *world) drainOne() {
	nm := w.own()
	if nm == nil || nm.completed {
		return
	}
	w.cordoned = ""
	if !w.kubelet {
		return
	}
	for _, p := range w.pods {
		if p.known && !p.kept {
			p.remove()
			return
		}
	}
}

// goDown ends a boot: the process ends a moment later, and the machine boots again.
func (w *world) goDown() {
	w.down, w.lock, w.byForce, w.downAt = true, false, false, time.Now()
	go func() {
		<-time.After(2 * time.Second)
		w.mu.Lock()
		p := w.process
		w.mu.Unlock()
		p.kill()
		<-time.After(20 * time.Second)
		w.mu.Lock()
		w.nextBoot()
		w.unsettled = false
		w.mu.Unlock()
		w.start()
	}()
}

// request requests a shutdown.
func (w *world) request() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending || w.down {
		return
	}
	w.pending, w.forgotten, w.deadline = true, false, time.Now().Add(w.delay)
	w.unsettled = false
}

// vanish ends a pending shutdown: it is cancelled, or logind forgets it.
func (w *world) vanish(forgotten bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.pending || w.down {
		return
	}
	w.pending, w.forgotten, w.vanished = false, forgotten, time.Now()
	w.cancelled++
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// jump changes the wall clock.
func (w *world) jump(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wallOffset += d
}

// create stores a maintenance in stage Drain.
func (w *world) create(name, boot string) *worldMaintenance {
	if nm := w.maintenances[name]; nm != nil {
		return nm
	}
	w.uids++
	nm := &worldMaintenance{ref: state.MaintenanceRef{Name: name, UID: types.UID(fmt.Sprintf("nm-%d", w.uids))}, boot: boot}
	for _, other := range w.maintenances {
		if other.boot == boot && !other.completed {
			w.violation("two maintenances for one boot: %s and %s", other.ref.Name, name)
		}
	}
	w.maintenances[name] = nm
	return nm
}
