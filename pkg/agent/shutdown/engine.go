// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/state"
)

// engineRun is the state of a call of Local.End.
type engineRun struct {
	pace
	// cancel is set while the engine runs. stopped is set if the manager stopped the engine early.
	cancel  context.CancelFunc
	stopped bool
	// asking is set while the engine waits for the decision whether to continue.
	asking chan bool
	err    error
}

func (r *engineRun) running() bool {
	return r.cancel != nil
}

func (r *engineRun) stop() {
	r.stopped = true
	r.answer(false)
	r.cancel()
}

func (r *engineRun) answer(proceed bool) {
	if r.asking == nil {
		return
	}
	r.stopped = r.stopped || !proceed
	r.asking <- proceed // never blocks: each request for a decision has its own buffered channel
	r.asking = nil
}

func (m *Manager) actLocal(ctx context.Context, d *decision) {
	switch {
	case m.engine.running() && d.local:
		m.engine.answer(d.proceed)
	case m.engine.running():
		// An engine that waits for a decision returns after the decision. An engine that ends pods
		// is interrupted only if the shutdown is cancelled or its time is over.
		if m.engine.asking != nil {
			m.engine.answer(d.proceed)
		} else if !m.engine.stopped {
			m.engine.stop()
		}
	case d.local && m.resumes.task == taskNone && m.engine.due(time.Now()):
		if time.Until(m.deadline) > engineReserve {
			m.startEngine(ctx, *d.next.Local)
		}
	case !d.local:
		m.engine.err = nil
	}
}

// startEngine makes the engine end the pods, beginning with the stored progress.
func (m *Manager) startEngine(ctx context.Context, resume state.Local) {
	deadline := m.deadline.Add(-engineReserve)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	m.engine = engineRun{cancel: cancel}
	next := func(progress state.Local, killed []state.KilledPod) bool {
		answer := make(chan bool, 1)
		asked := m.post(func() {
			m.news.progress = &progress
			m.news.killed = append(m.news.killed, killed...)
			m.engine.asking = answer
		})
		if !asked {
			return false
		}
		select {
		case proceed := <-answer:
			return proceed
		case <-ctx.Done():
			return false
		}
	}
	m.calls.Go(func() {
		defer cancel()
		err := m.config.Local.End(ctx, resume, deadline, next)
		interrupted := ctx.Err() != nil
		m.post(func() {
			run := m.engine
			m.engine = engineRun{err: err, pace: pace{time.Now().Add(engineRetry)}}
			switch {
			case run.stopped || interrupted:
				m.engine.err = nil
			case errors.Is(err, ErrNothingToEnd):
				m.news.ended = true
				m.config.Cluster.Event(corev1.EventTypeWarning, EventLocal, fmt.Sprintf("the engine cannot end pods; the pods end when the machine goes down: %v", err))
				klog.FromContext(ctx).Error(err, "The engine cannot end pods; the pods end when the machine goes down", "engine", m.config.Local.Name())
			case err == nil:
				m.news.ended = true
			default:
				klog.FromContext(ctx).Error(err, "The engine failed to end the pods, retrying", "engine", m.config.Local.Name())
			}
		})
	})
}
