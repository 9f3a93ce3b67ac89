// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/test/oracle"
)

// change is the moment at which a watch showed that a node went out of service, or came back.
type change struct {
	at   time.Time
	node string
	out  bool
}

// trip is how the nodes of a pool went out of service and came back, each once.
type trip struct {
	// Seconds is the time from the first node out of service to the last one back.
	Seconds float64 `json:"seconds"`
	// RampSeconds is the time until as many nodes were back as may be out at the same time, and
	// AfterSeconds the rest.
	RampSeconds  float64 `json:"rampSeconds"`
	AfterSeconds float64 `json:"afterRampSeconds"`
	// InUse is the mean share of the places that nodes took, from the end of the ramp until the
	// last node was taken.
	InUse float64 `json:"placesInUse"`
	// Most is the maximum number of nodes that were out at the same time.
	Most int `json:"mostOut"`
	// PerNode is the median time for which a node was out, in seconds.
	PerNode float64 `json:"secondsPerNode"`
}

// tripOf computes a trip from the changes in their order. places is the number of nodes that may be
// out at the same time; at least one node more must have been out.
func tripOf(changes []change, nodes, places int) (trip, error) {
	var t trip
	since := map[string]time.Time{}
	var took []float64
	var ramp, lastTaken, lastBack, before time.Time
	var used, usedAtLast time.Duration
	back := 0
	for _, c := range changes {
		if _, isOut := since[c.node]; isOut == c.out {
			continue // something else about the node has changed
		}
		if !ramp.IsZero() {
			used += c.at.Sub(before) * time.Duration(len(since))
		}
		before = c.at
		if c.out {
			since[c.node] = c.at
			t.Most = max(t.Most, len(since))
			lastTaken, usedAtLast = c.at, used
			continue
		}
		took = append(took, c.at.Sub(since[c.node]).Seconds())
		delete(since, c.node)
		lastBack = c.at
		if back++; back == places {
			ramp = c.at
		}
	}
	if back != nodes || len(since) > 0 {
		return trip{}, fmt.Errorf("%d of %d nodes came back, and %d are out", back, nodes, len(since))
	}
	if !lastTaken.After(ramp) {
		return trip{}, fmt.Errorf("no node was taken after %d were back: there are too few nodes", places)
	}
	begin := changes[0].at
	t.Seconds, t.RampSeconds, t.AfterSeconds = lastBack.Sub(begin).Seconds(), ramp.Sub(begin).Seconds(), lastBack.Sub(ramp).Seconds()
	t.InUse = usedAtLast.Seconds() / lastTaken.Sub(ramp).Seconds() / float64(places)
	t.PerNode = median(took)
	return t, nil
}

// recorder records the changes of all nodes.
type recorder struct {
	mu      sync.Mutex
	out     map[string]bool
	changes []change
	err     error
}

// record records until the context ends.
func record(ctx context.Context, kube kubernetes.Interface) (*recorder, error) {
	r := &recorder{out: map[string]bool{}}
	return r, oracle.Follow(ctx, oracle.Resource{
		Client: kube.CoreV1().RESTClient(), Name: "nodes",
		See: func(event watch.Event, _ bool) { r.see(event) },
		Fail: func(err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.err = errors.Join(r.err, err)
		},
	})
}

func (r *recorder) see(event watch.Event) {
	node, ok := event.Object.(*corev1.Node)
	if !ok {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.out[node.Name] != node.Spec.Unschedulable {
		r.out[node.Name] = node.Spec.Unschedulable
		r.changes = append(r.changes, change{at: time.Now(), node: node.Name, out: node.Spec.Unschedulable})
	}
}

// isIdle reports whether no node is out of service.
func (r *recorder) isIdle() (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.Contains(slices.Collect(maps.Values(r.out)), true), r.err
}

// trip returns what was recorded so far.
func (r *recorder) trip(nodes, places int) (trip, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return trip{}, r.err
	}
	return tripOf(r.changes, nodes, places)
}
