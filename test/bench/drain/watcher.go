// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/test/oracle"
)

// watchDrain begins to record a drain.
func (c *cluster) watchDrain(ctx context.Context, w workload) (*oracle.Recorder, error) {
	return oracle.Start(ctx, c.kube, c.haulout, oracle.Scope{
		Namespaces: []string{namespace}, Only: []string{"pods", "poddisruptionbudgets"}, Budgets: w.watched(),
		AuditLog: c.AuditLog(),
	})
}

// waitEmpty waits until no pod is left on the nodes of the drain.
func (c *cluster) waitEmpty(ctx context.Context, recorder *oracle.Recorder) error {
	nodes := sets.New(c.drained...)
	return recorder.Wait(ctx, func(v *oracle.View) string {
		if left := v.PodsOn(nodes); left > 0 {
			return fmt.Sprintf("%d pods are left", left)
		}
		return ""
	})
}

// enterLog counts what a drain did. It returns when the last pod had left the nodes.
func (r *result) enterLog(log oracle.Log, nodes []string, begin time.Time) (emptied time.Time) {
	r.enterCalls(log.Calls, begin)
	toClosed, probes := oracle.SentToClosed(log)
	r.ToClosed, r.Probes = len(toClosed), probes
	for _, h := range oracle.HealthOf(log) {
		r.Budgets = append(r.Budgets, budget{
			Name: h.Name, Expected: h.Expected, Needed: h.Floor, Lowest: h.Lowest, Below: len(h.Broken()),
		})
	}
	drained, left := sets.New(nodes...), sets.New[types.UID]()
	for o, pod := range oracle.Each[*corev1.Pod](log) {
		finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if o.Type == watch.Deleted || finished {
			left.Delete(pod.UID)
		} else if drained.Has(pod.Spec.NodeName) {
			left.Insert(pod.UID)
		}
		if o.Initial {
			continue
		}
		if o.Type == watch.Added {
			r.Created++
		}
		if emptied.IsZero() && left.Len() == 0 {
			emptied = o.Seen
		}
	}
	r.Left = left.Len()
	return emptied
}
