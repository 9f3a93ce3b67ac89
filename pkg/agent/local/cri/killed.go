// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"math"

	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/state"
)

// record notes a pod that ended because of this run. A static pod, and one of which nothing ran, is
// not noted.
func (r *run) record(p *pod, e *ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.recorded || !e.ran || p.static || p.finished {
		return
	}
	e.recorded = true
	r.killed = append(r.killed, state.KilledPod{Namespace: p.namespace, Name: p.name, UID: p.uid})
}

// report passes the progress and the pods that have ended since the last report, and returns
// whether to go on.
func (r *run) report() bool {
	r.mu.Lock()
	killed := r.killed
	r.killed = nil
	r.mu.Unlock()
	return r.next(r.progress, killed)
}

// reportRest reports the pods that ended after the last report, if any did.
func (r *run) reportRest() {
	r.mu.Lock()
	rest := len(r.killed)
	r.mu.Unlock()
	if rest > 0 {
		r.report()
	}
}

// recoverKilled notes the pods that an agent ended which was killed before it could report them.
// The kubelet does not run, so they can only have ended because of that agent, or by themselves
// after they were asked to. The bucket in which the agent was killed is the lowest one with pods;
// pods of later ones were not asked. It reports whether there were any.
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

// endedSinceStart reports whether a container of a pod without running ones has ended since the
// first agent began to end pods.
func (r *run) endedSinceStart(ctx context.Context, p *pod) bool {
	for _, id := range p.exited {
		finished, err := r.engine.runtime.finished(ctx, id)
		if err != nil {
			klog.FromContext(ctx).V(2).Info("End of a container is not known", "pod", klog.KRef(p.namespace, p.name), "container", id, "err", err)
			return false
		}
		if !finished.Before(r.progress.Started) && !finished.IsZero() {
			return true
		}
	}
	return false
}
