// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"errors"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/agent/state"
)

// The tasks of the slots for kube-apiserver.
const (
	taskList     task = "list"
	taskCordon   task = "cordon"
	taskUncordon task = "uncordon"
	taskEvict    task = "evict"
)

const (
	// evictionTimeout limits the evictions that are sent at the same time: admission webhooks delay
	// each of them.
	evictionTimeout = 10 * time.Second
	evictionWorkers = 8
)

func (m *Manager) actHost(ctx context.Context, d *decision) {
	m.actList(ctx, d)
	wanted, call, retry := taskNone, func(context.Context) (bool, error) { return false, nil }, undoRetry
	switch {
	case d.cordon:
		wanted, call = taskCordon, func(ctx context.Context) (bool, error) { return m.config.Cluster.Cordon(ctx, m.config.BootID) }
	case d.uncordon && m.evicts.task == taskNone:
		wanted, call, retry = taskUncordon, func(ctx context.Context) (bool, error) { return false, m.config.Cluster.Uncordon(ctx) }, olderRetry
	default:
		m.cordonErr = nil
	}
	m.want(ctx, &m.cordons, wanted, m.requestTimeout(), func(ctx context.Context) func() {
		changed, err := call(ctx)
		return func() {
			now := time.Now()
			m.cordons.next = now.Add(retry)
			switch {
			case err != nil && wanted == taskCordon && m.host.cordoned.IsZero():
				m.cordonErr = err
				klog.FromContext(ctx).Error(err, "Failed to make the node unschedulable, retrying")
			case err != nil:
				// This is not an error: usually there is nothing to do, and a user can see a
				// remaining cordon on the node.
				klog.FromContext(ctx).V(2).Info("Failed to check or to undo the cordon of the agent, retrying", "err", err)
			case wanted == taskCordon:
				m.cordonErr = nil
				if changed || m.host.cordoned.IsZero() {
					m.host.cordoned = now
				}
			default:
				m.cordons.next = now.Add(sweepPeriod)
			}
		}
	})
	m.actEvict(ctx, d)
}

// actList lists the pods of the node repeatedly while kube-apiserver is needed.
func (m *Manager) actList(ctx context.Context, d *decision) {
	if !d.list {
		m.host = hostFacts{}
		m.want(ctx, &m.lists, taskNone, 0, nil)
		return
	}
	// kube-apiserver forwards the responses of Haulout, so these also prove that kube-apiserver
	// responds.
	if m.host.since.Before(m.api.since) {
		m.host.since = m.api.since
	}
	m.want(ctx, &m.lists, taskList, m.requestTimeout(), func(ctx context.Context) func() {
		asked := time.Now()
		pods, err := m.config.Cluster.Pods(ctx)
		return func() {
			if m.lists.abandoned {
				return
			}
			now := time.Now()
			m.lists.next = now.Add(m.pause(drainPeriod))
			if err != nil {
				m.host.ok, m.host.failure = false, err.Error()
				m.host.failures++
				return
			}
			m.host.apiFacts = apiFacts{ok: true, since: now}
			m.host.pods, m.host.listed = pods, asked
			there := map[types.UID]bool{}
			for i := range pods {
				there[pods[i].UID] = true
			}
			maps.DeleteFunc(m.host.refused, func(uid types.UID, _ refusal) bool { return !there[uid] })
		}
	})
}

func (m *Manager) actEvict(ctx context.Context, d *decision) {
	if d.next.Phase != state.Evicting {
		m.want(ctx, &m.evicts, taskNone, 0, nil)
		return
	}
	if len(d.evictions) == 0 {
		return
	}
	pods := d.evictions
	m.want(ctx, &m.evicts, taskEvict, evictionTimeout, func(ctx context.Context) func() {
		errs := make([]error, len(pods))
		// Do not cancel this with ctx: a skipped pod would count as evicted.
		workqueue.ParallelizeUntil(context.WithoutCancel(ctx), evictionWorkers, len(pods), func(i int) { errs[i] = m.config.Cluster.Evict(ctx, pods[i]) })
		return func() {
			now := time.Now()
			m.host.evicted = now
			// List the pods immediately: the result shows which pods are gone and which may follow.
			m.lists.next = time.Time{}
			refusals := maps.Clone(m.host.refused)
			if refusals == nil {
				refusals = map[types.UID]refusal{}
			}
			for i, err := range errs {
				if err == nil {
					continue
				}
				var refused *RefusedEvictionError
				retryAfter := time.Duration(0)
				if errors.As(err, &refused) {
					retryAfter = refused.RetryAfter
				}
				refusals[pods[i].UID] = refusals[pods[i].UID].after(now, retryAfter, err.Error())
				klog.FromContext(ctx).V(2).Info("A pod was not evicted", "pod", klog.KRef(pods[i].Namespace, pods[i].Name), "err", err)
			}
			m.host.refused = refusals
		}
	})
}

// grace returns the time for which requests to an API may fail at present before the API counts as
// lost.
func (m *Manager) grace() time.Duration {
	if m.deadline.IsZero() {
		return m.config.APIGracePeriod
	}
	return min(m.config.APIGracePeriod, max(time.Until(m.deadline)/4, minGrace))
}

// requestTimeout limits a request of a shutdown. Several requests must fit into the grace period.
func (m *Manager) requestTimeout() time.Duration {
	return min(maxRequestTimeout, m.grace()/4)
}

// pause returns the time until the next request, which is at most longest.
func (m *Manager) pause(longest time.Duration) time.Duration {
	if m.deadline.IsZero() {
		return longest
	}
	return min(longest, max(m.grace()/8, 100*time.Millisecond))
}
