// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// breakers is the number of concurrent faults.
	breakers = 2
	// longest is the longest time that a fault lasts.
	longest = 6 * time.Second
	// repairTime is the time that the cluster may take to run again after a fault.
	repairTime          = 2 * time.Minute
	pauseBetweenRepairs = 500 * time.Millisecond
)

// processes are the processes of the development cluster that fail. kwok acts for all kubelets. It
// is not killed, because the next kwok waits until the leases of the first one have expired.
var processes = []string{
	"haulout-apiserver", "haulout-apiserver", "kube-apiserver", "etcd",
	"kube-controller-manager", "kube-scheduler", "kwok",
}

// fault is a temporary failure.
type fault struct {
	name string
	// on names the component that fails. Each component has at most one fault at the same time.
	on string
	// begin starts the fault, and returns a function that ends the fault.
	begin func() (end func())
}

// breakage makes the cluster fail in a random order.
type breakage struct {
	*rig

	t *testing.T
	// begun is the time at which the faults began. denied is the denial of the webhook that is
	// active now, or nil.
	begun  time.Time
	denied atomic.Pointer[denial]
	// hanging is the resource for whose requests the webhook does not answer now, or nil.
	hanging atomic.Pointer[hang]

	mu   sync.Mutex
	busy map[string]bool
	// repairing is locked while processes are started.
	repairing sync.Mutex
}

// denial is the answer of a webhook about a resource.
type denial struct {
	resource string
	code     int32
}

// denials has the writes of the server that a webhook may deny.
var denials = []string{"pods/eviction", "deployments", "pods", "events"}

// hang is a resource about which a webhook does not answer before over is closed. The clients wait
// until their own timeout.
type hang struct {
	resource string
	over     chan struct{}
}

// hangs are the resources about whose writes a webhook does not answer. The server itself calls the
// webhook about Evacuations.
var hangs = []string{"pods/eviction", "deployments", "pods", "evacuations", "evacuations/status"}

func newBreakage(t *testing.T, r *rig, namespace string) *breakage {
	t.Helper()
	b := &breakage{rig: r, t: t, busy: map[string]bool{}}
	r.Webhook(t, namespace, admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: append(slices.Clone(denials), "evacuations", "evacuations/status"),
		},
	}, b.decide)
	return b
}

// decide denies requests of the server during a fault of the webhook.
func (b *breakage) decide(r *admissionv1.AdmissionRequest) *metav1.Status {
	resource := r.Resource.Resource
	if r.SubResource != "" {
		resource += "/" + r.SubResource
	}
	if h := b.hanging.Load(); h != nil && h.resource == resource {
		<-h.over
	}
	d := b.denied.Load()
	if d == nil || d.resource != resource || r.UserInfo.Username != serverUser {
		return nil
	}
	return &metav1.Status{Status: metav1.StatusFailure, Code: d.code, Message: "denied by the faults test"}
}

// rage causes faults for a time. When it returns, all components run again.
func (b *breakage) rage(seed uint64, lasts time.Duration) {
	b.t.Helper()
	b.begun = time.Now()
	var wg sync.WaitGroup
	for i := range breakers {
		random := rand.New(rand.NewPCG(seed, uint64(i)+1)) //nolint:gosec // nothing here is secret
		wg.Go(func() {
			for time.Since(b.begun) < lasts {
				b.breakOne(random)
			}
		})
	}
	wg.Wait()
	b.repair()
}

// breakOne begins a fault and ends it after a while.
func (b *breakage) breakOne(random *rand.Rand) {
	faults := b.faults(random)
	// Make all choices before any read, so that a seed repeats the choices.
	f := one(random, faults)
	lasts := time.Duration(random.Int64N(int64(longest)))
	pause := time.Duration(random.Int64N(int64(time.Second)))
	if b.claim(f.on) {
		b.logf("%s for %s", f.name, lasts.Round(time.Millisecond))
		end := f.begin()
		<-time.After(lasts)
		end()
		b.logf("%s: over", f.name)
		b.release(f.on)
	}
	<-time.After(pause)
}

func (b *breakage) logf(format string, args ...any) {
	b.t.Helper()
	b.t.Logf("%6.2f s: %s", time.Since(b.begun).Seconds(), fmt.Sprintf(format, args...))
}

func (b *breakage) claim(thing string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy[thing] {
		return false
	}
	b.busy[thing] = true
	return true
}

func (b *breakage) release(thing string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.busy, thing)
}

// faults returns the possible faults. Each kind has the same probability.
func (b *breakage) faults(random *rand.Rand) []fault {
	process := one(random, processes)
	links := []*link{b.toHost, b.toServer}
	if b.etcd != nil {
		links = append(links, b.etcd.links[:]...)
	}
	l := one(random, links)
	delay := 20*time.Millisecond + time.Duration(random.Int64N(int64(400*time.Millisecond)))
	deny := &denial{one(random, denials), one(random, []int32{
		http.StatusForbidden, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusUnprocessableEntity,
	})}
	silent := one(random, hangs)
	faults := []fault{
		{"have the webhook hang about " + silent, "webhook", func() func() {
			h := &hang{resource: silent, over: make(chan struct{})}
			b.hanging.Store(h)
			return func() {
				b.hanging.Store(nil)
				close(h.over)
			}
		}},
		{"delete the Lease", "lease", b.deleteLease},
		{"drop the connections of " + l.name, l.name, func() func() {
			l.drop()
			return func() {}
		}},
		{"stop " + process, process, func() func() {
			b.signal(process, syscall.SIGSTOP)
			return func() { b.signal(process, syscall.SIGCONT) }
		}},
		{"slow " + process, process, func() func() { return b.slow(process) }},
		{"cut " + l.name, l.name, func() func() {
			l.set(refuses, 0)
			return func() { l.set(passes, 0) }
		}},
		{"silence " + l.name, l.name, func() func() {
			l.set(isSilent, 0)
			return func() { l.set(passes, 0) }
		}},
		{fmt.Sprintf("delay %s by %s", l.name, delay.Round(time.Millisecond)), l.name, func() func() {
			l.set(passes, delay)
			return func() { l.set(passes, 0) }
		}},
		{fmt.Sprintf("deny %s with %d", deny.resource, deny.code), "webhook", func() func() {
			b.denied.Store(deny)
			return func() { b.denied.Store(nil) }
		}},
	}
	if process != "kwok" {
		faults = append(faults, fault{"kill " + process, process, func() func() {
			b.signal(process, syscall.SIGKILL)
			return b.repair
		}})
	}
	if b.disk != nil {
		faults = append(faults, fault{"fill the disk", "haulout-apiserver", b.fillDisk})
	}
	if b.etcd != nil {
		faults = append(faults,
			fault{"kill etcd's leader", "member", func() func() { return b.loseMember(random, syscall.SIGKILL) }},
			fault{"stop etcd's leader", "member", func() func() { return b.loseMember(random, syscall.SIGSTOP) }})
	}
	return faults
}

// signal sends a signal to a process of the cluster, which may have ended.
func (b *breakage) signal(process string, signal syscall.Signal) {
	state, err := stateOf(b.Cluster)
	if err != nil {
		b.t.Error(err)
		return
	}
	if pid := state.Processes[process].PID; pid > 1 {
		_ = syscall.Kill(pid, signal)
	}
}

// deleteLease deletes the Lease of the server, as users do when a server seems to hang.
func (b *breakage) deleteLease() (end func()) {
	ctx, cancel := context.WithTimeout(b.t.Context(), writeTime)
	defer cancel()
	// The Lease may not exist, or kube-apiserver may not respond.
	if err := b.observer.Kube.CoordinationV1().Leases("haulout-system").Delete(ctx, "haulout-apiserver", metav1.DeleteOptions{}); err != nil {
		b.logf("the Lease was not deleted: %v", err)
	}
	return func() {}
}

// slow limits a process to a fifth of the processor time.
func (b *breakage) slow(process string) (end func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			b.signal(process, syscall.SIGSTOP)
			<-time.After(80 * time.Millisecond)
			b.signal(process, syscall.SIGCONT)
			<-time.After(20 * time.Millisecond)
		}
	}()
	return func() { cancel(); <-done }
}

// fillDisk leaves no space for the embedded etcd. The server may end.
func (b *breakage) fillDisk() (end func()) {
	empty, err := b.disk.fill()
	if err != nil {
		b.t.Errorf("fill the disk: %v", err)
		return func() {}
	}
	return func() {
		if err := empty(); err != nil {
			b.t.Errorf("empty the disk: %v", err)
		}
		b.repair()
	}
}

// loseMember kills or stops the leader of the etcd cluster.
func (b *breakage) loseMember(random *rand.Rand, signal syscall.Signal) (end func()) {
	member := b.etcd.leaderOrAny(b.t.Context(), random)
	if signal == syscall.SIGKILL {
		b.etcd.kill(member)
		return func() { b.etcd.start(member) }
	}
	process := b.etcd.run[member].Process
	_ = process.Signal(syscall.SIGSTOP)
	return func() { _ = process.Signal(syscall.SIGCONT) }
}

// repair starts the processes that have ended. It may fail during another fault.
func (b *breakage) repair() {
	b.repairing.Lock()
	defer b.repairing.Unlock()
	end := time.Now().Add(repairTime)
	for {
		err := b.Up()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			b.t.Errorf("the cluster does not run again: %v", err)
			return
		}
		<-time.After(pauseBetweenRepairs)
	}
}
