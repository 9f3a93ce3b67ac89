// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/buckets"
	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
)

// run is one call of End.
type run struct {
	engine *Engine
	table  buckets.Table
	next   func(state.Local, []state.KilledPod) bool
	// deadline is the zero time if there is none.
	deadline time.Time
	// pods counts the pods that are being ended.
	pods sync.WaitGroup
	// wake receives a value after a pod has ended.
	wake chan struct{}

	// Only the goroutine of End uses progress, first and listed. first is the bucket with which End
	// began; listed is set once the runtime has responded.
	progress state.Local
	first    int
	listed   bool

	mu sync.Mutex
	// endings are the pods that are being ended or have been ended.
	endings map[types.UID]*ending
	// hooked are the containers whose preStop hook was started. untouchable are the sandboxes that
	// the runtime failed to stop. The engine retries neither.
	hooked, untouchable map[string]bool
	killed              []state.KilledPod
}

// ending is the record of a pod that is being ended or has been ended.
type ending struct {
	// bucket is the index of the priority bucket that waits for the end of the pod.
	bucket int
	began  time.Time
	active bool
	// retry is the earliest time for the next attempt after a failure.
	retry time.Time
	// ran is true if a container was running; ended if all have ended; recorded if the pod was or
	// will be passed to next.
	ran, ended, recorded bool
}

func newRun(e *Engine, resume state.Local, next func(state.Local, []state.KilledPod) bool) *run {
	// Limit the index: the table may be shorter than when the progress was stored.
	resume.Bucket = min(max(resume.Bucket, 0), len(e.config.Table)-1)
	return &run{
		engine: e, table: e.config.Table, next: next, progress: resume, first: resume.Bucket,
		wake: make(chan struct{}, 1), endings: map[types.UID]*ending{},
		hooked: map[string]bool{}, untouchable: map[string]bool{},
	}
}

func (r *run) buckets(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	last := len(r.table) - 1
	for i := r.first; i <= last; i++ {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		occupied, err := r.bucket(ctx, i)
		switch {
		case err != nil:
			return err
		case !occupied && i < last:
			continue
		}
		if i == last {
			r.awaitLast(ctx)
		}
		r.progress.Bucket, r.progress.Done = i+1, i == last
		if !r.report() {
			logger.Info("Not ending the later buckets: the API answers again", "bucket", i)
			r.awaitLast(ctx)
			return nil
		}
	}
	return nil
}

// bucket ends the pods of a bucket, and the pods of earlier buckets that still run. It reports
// whether the bucket had pods, and returns an error if the runtime did not answer.
func (r *run) bucket(ctx context.Context, index int) (occupied bool, err error) {
	list, err := r.awaitRuntime(ctx, index)
	if err != nil {
		return false, err
	}
	end := r.endOf(index, list)
	if !r.listed {
		r.listed = true
		occupied = r.recoverKilled(ctx, list)
	}
	logger := klog.FromContext(ctx).WithValues("bucket", index, "priority", r.table[index].Priority)
	over := time.NewTimer(time.Until(end))
	defer over.Stop()
	look := time.NewTicker(listInterval)
	defer look.Stop()
	for {
		due := r.due(list, index)
		r.begin(ctx, due, index, end)
		if r.active(index) == 0 && !r.awaited(due, index) {
			if occupied {
				logger.Info("Pods of the bucket have ended")
			}
			return occupied, nil
		}
		if !occupied {
			logger.Info("Ending the pods of the bucket", "pods", len(due), "time", time.Until(end).Round(time.Millisecond))
		}
		occupied = true
		list, err = r.lookAgain(ctx, index, look.C, over.C)
		switch {
		case err != nil:
			return true, err
		case list == nil:
			logger.Info("Time of the bucket is over, continuing without its pods", "pods", r.active(index))
			return true, nil
		}
	}
}

// lookAgain lists the pods again after all pods of the bucket have ended or some time has passed.
// It returns nil when the time of the bucket is over.
func (r *run) lookAgain(ctx context.Context, index int, look, over <-chan time.Time) ([]*pod, error) {
	for {
		select {
		case <-ctx.Done():
			if r.overdue() {
				return nil, nil
			}
			return nil, ctx.Err()
		case <-over:
			return nil, nil
		case <-r.wake:
			if r.active(index) > 0 {
				continue
			}
		case <-look:
		}
		list, err := r.list(ctx)
		if err == nil {
			return list, nil
		}
		klog.FromContext(ctx).V(2).Info("Runtime does not answer", "bucket", index, "err", err)
	}
}

// overdue reports whether the deadline has passed. The caller's context can have the same deadline,
// and its timer can fire a little earlier.
func (r *run) overdue() bool {
	return !r.deadline.IsZero() && time.Until(r.deadline) < 10*time.Millisecond
}

// keepStopped stops the kubelet each time a person, a tool or systemd starts it, until the context
// ends.
func (r *run) keepStopped(ctx context.Context) {
	last := ""
	for wait(ctx, kubeletInterval) {
		text := ""
		if err := r.engine.config.Kubelet.Stop(ctx); err != nil && ctx.Err() == nil {
			text = err.Error()
			if text != last {
				klog.FromContext(ctx).Error(err, "Kubelet was not stopped again, pods may restart")
			}
		}
		last = text
	}
}

// awaitRuntime returns the pods as soon as the runtime answers. It waits at most for the engine's
// patience, and only while this bucket and the later ones still have their minimum time.
func (r *run) awaitRuntime(ctx context.Context, index int) ([]*pod, error) {
	logger := klog.FromContext(ctx)
	limit := time.Now().Add(r.engine.patience)
	if !r.deadline.IsZero() {
		limit = earliest(limit, r.deadline.Add(-minimumGrace*time.Duration(len(r.table)-index)))
	}
	for logged := false; ; logged = true {
		list, err := r.list(ctx)
		if err == nil {
			return list, nil
		}
		if !logged {
			logger.Error(err, "Runtime does not answer, waiting for it", "bucket", index, "until", limit)
		}
		switch {
		case time.Until(limit) <= 0 && ctx.Err() == nil:
			return nil, fmt.Errorf("%w: the container runtime at %s does not answer: %w", shutdown.ErrNothingToEnd, r.engine.config.Endpoint(), err)
		case !wait(ctx, retryInterval):
			return nil, err
		}
	}
}

func (r *run) list(ctx context.Context) ([]*pod, error) {
	containers, sandboxes, err := r.engine.runtime.list(ctx)
	if err != nil {
		return nil, err
	}
	return group(containers, sandboxes, pods.NewIndex(r.engine.config.Pods()), r.table), nil
}

// endOf returns the time at which a bucket that begins now must end. If the remaining time is too
// short for this bucket and the later buckets that have pods, all of them are shortened in
// proportion. Each later bucket keeps its minimum time, so that every pod receives SIGTERM before
// the machine goes down.
func (r *run) endOf(index int, list []*pod) time.Time {
	now := time.Now()
	period := r.table[index].Period
	if r.deadline.IsZero() {
		return now.Add(period)
	}
	later := map[int]bool{}
	sum := period
	for _, p := range list {
		if p.bucket > index && r.lives(p) && !later[p.bucket] {
			later[p.bucket] = true
			sum += r.table[p.bucket].Period
		}
	}
	if left := r.deadline.Sub(now); left < sum {
		period = time.Duration(float64(period) * float64(max(left, 0)) / float64(sum))
	}
	end := earliest(now.Add(period), r.deadline.Add(-minimumGrace*time.Duration(len(later))))
	return now.Add(max(end.Sub(now), 0))
}

// due returns the pods that must end in this bucket or should have ended in an earlier one.
func (r *run) due(list []*pod, index int) []*pod {
	return slices.DeleteFunc(slices.Clone(list), func(p *pod) bool { return p.bucket > index || !r.lives(p) })
}

// lives reports whether a pod has containers or sandboxes to stop.
func (r *run) lives(p *pod) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(p.running) > 0 || slices.ContainsFunc(p.ready, func(s string) bool { return !r.untouchable[s] })
}

// begin starts the end of the due pods that are not being ended yet.
func (r *run) begin(ctx context.Context, due []*pod, index int, end time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, p := range due {
		e, found := r.endings[p.uid]
		if !found {
			e = &ending{bucket: index, began: now}
			r.endings[p.uid] = e
		}
		if e.active || now.Before(e.retry) {
			continue
		}
		e.active, e.ran = true, e.ran || len(p.running) > 0
		until := earliest(end, e.began.Add(p.grace))
		r.pods.Go(func() { r.end(ctx, p, e, until) })
	}
}

// end ends a pod. Its containers have time until the given time.
func (r *run) end(ctx context.Context, p *pod, e *ending, until time.Time) {
	logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(p.namespace, p.name), "podUID", p.uid)
	logger.V(1).Info("Ending pod", "priority", p.priority, "bucket", p.bucket, "time", time.Until(until).Round(time.Millisecond))
	err := r.stopContainers(ctx, p, until)
	if err == nil {
		r.record(p, e)
		r.stopSandboxes(ctx, p)
		logger.V(1).Info("Ended pod")
	} else {
		logger.Error(err, "Pod has not ended")
	}
	r.mu.Lock()
	e.active, e.ended = false, err == nil
	if err != nil {
		e.retry = time.Now().Add(listInterval)
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// active returns the number of pods that a bucket waits for.
func (r *run) active(index int) int {
	return r.count(func(e *ending) bool { return e.active && e.bucket == index })
}

// left returns the number of pods that are being ended and still run.
func (r *run) left() int {
	return r.count(func(e *ending) bool { return !e.ended })
}

func (r *run) count(matches func(*ending) bool) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.endings {
		if matches(e) {
			n++
		}
	}
	return n
}

// awaited reports whether a bucket waits for at least one of the pods. It does not wait for pods
// that exceeded the time of an earlier bucket.
func (r *run) awaited(due []*pod, index int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(due, func(p *pod) bool { return r.endings[p.uid].bucket == index })
}

// awaitLast waits a short time for the pods that the runtime is about to kill.
func (r *run) awaitLast(ctx context.Context) {
	over := time.NewTimer(lastWait)
	defer over.Stop()
	for r.count(func(e *ending) bool { return e.active }) > 0 {
		select {
		case <-r.wake:
		case <-over.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// record records a pod that ended because of this run. It omits static pods, and pods of which no
// container ran.
func (r *run) record(p *pod, e *ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.recorded || !e.ran || p.static || p.finished {
		return
	}
	e.recorded = true
	r.killed = append(r.killed, state.KilledPod{Namespace: p.namespace, Name: p.name, UID: p.uid})
}

// report calls next with the progress and the pods that have ended since the last report, and
// returns whether to continue.
func (r *run) report() bool {
	r.mu.Lock()
	killed := r.killed
	r.killed = nil
	r.mu.Unlock()
	return r.next(r.progress, killed)
}

// reportRest reports the pods that ended after the last report, if any.
func (r *run) reportRest() {
	r.mu.Lock()
	rest := len(r.killed)
	r.mu.Unlock()
	if rest > 0 {
		r.report()
	}
}

// recoverKilled records the pods that an earlier agent ended but could not report before it was
// killed. The kubelet is stopped, so these pods ended because of that agent, or by themselves after
// SIGTERM. The agent was killed in the lowest bucket that has pods; it had not begun with later
// buckets. recoverKilled reports whether there were such pods.
func (r *run) recoverKilled(ctx context.Context, list []*pod) bool {
	var ended []*pod
	bucket := math.MaxInt
	for _, p := range list {
		switch {
		case p.bucket < r.first:
		case len(p.running) > 0:
			bucket = min(bucket, p.bucket)
		case !p.static && !p.finished && r.endedSinceStart(ctx, p):
			bucket = min(bucket, p.bucket)
			ended = append(ended, p)
		}
	}
	found := false
	for _, p := range ended {
		if p.bucket != bucket {
			continue
		}
		found = true
		r.mu.Lock()
		e, known := r.endings[p.uid]
		if !known {
			e = &ending{bucket: bucket, ended: true}
			r.endings[p.uid] = e
		}
		e.ran = true
		r.mu.Unlock()
		r.record(p, e)
	}
	return found
}

// endedSinceStart reports whether a container of a pod without running containers has ended since
// the first agent began to end pods.
func (r *run) endedSinceStart(ctx context.Context, p *pod) bool {
	for _, id := range p.exited {
		finished, err := r.engine.runtime.finished(ctx, id)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("The end time of a container is unknown", "pod", klog.KRef(p.namespace, p.name), "container", id, "err", err)
			return false
		}
		if !finished.Before(r.progress.Started) && !finished.IsZero() {
			return true
		}
	}
	return false
}
