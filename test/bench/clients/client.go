// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenanceclient "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
)

const (
	// pause is what a client waits between two requests, patience how long it waits for an answer.
	pause    = 500 * time.Millisecond
	patience = 30 * time.Second
	// watchSeconds is how long a watch lasts.
	watchSeconds = 20
)

// latencies are how long the answers took, and the errors, by the kind of the request.
type latencies struct {
	mu     sync.Mutex
	took   map[string][]time.Duration
	failed map[string][]error
}

func (l *latencies) add(kind string, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed[kind] = append(l.failed[kind], err)
		return
	}
	l.took[kind] = append(l.took[kind], took)
}

func (l *latencies) summary() map[string]call {
	calls := map[string]call{}
	for kind, took := range l.took {
		slices.Sort(took)
		at := func(share float64) float64 {
			return float64(took[int(share*float64(len(took)-1))].Microseconds()) / 1000
		}
		calls[kind] = call{Count: len(took), Median: at(0.5), Most: at(0.99)}
	}
	for kind, failed := range l.failed {
		c := calls[kind]
		c.Errors, c.Example = len(failed), failed[0].Error()
		calls[kind] = c
	}
	return calls
}

// crowd has clients use the API until the context ends.
func crowd(ctx context.Context, config *rest.Config, clients int) (*latencies, error) {
	l := &latencies{took: map[string][]time.Duration{}, failed: map[string][]error{}}
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range clients {
		own := rest.CopyConfig(config)
		// Clients with the same configuration would share a connection.
		own.Dial = (&net.Dialer{Timeout: patience}).DialContext
		client, err := clientset.NewForConfig(own)
		if err != nil {
			return l, err
		}
		c := client.MaintenanceV1alpha1().NodeMaintenances()
		wg.Go(func() { watch(ctx, c, l) })
		wg.Go(func() { use(ctx, c, l, i) })
	}
	return l, nil
}

// watch begins one watch after another.
func watch(ctx context.Context, c maintenanceclient.NodeMaintenanceInterface, l *latencies) {
	for ctx.Err() == nil {
		begin := time.Now()
		w, err := c.Watch(ctx, metav1.ListOptions{ResourceVersion: "0", TimeoutSeconds: ptr.To[int64](watchSeconds)})
		if ctx.Err() != nil {
			return
		}
		l.add("watch", time.Since(begin), err)
		if err != nil {
			waitABit(ctx)
			continue
		}
		for range w.ResultChan() {
		}
	}
}

// use lists, creates and deletes. It ends without an object of its own.
func use(ctx context.Context, c maintenanceclient.NodeMaintenanceInterface, l *latencies, i int) {
	for turn := 0; ctx.Err() == nil; turn++ {
		name := fmt.Sprintf("client-%d-%d", i, turn)
		ask(l, "list", func(ctx context.Context) error {
			_, err := c.List(ctx, metav1.ListOptions{})
			return err
		})
		waitABit(ctx)
		ask(l, "create", func(ctx context.Context) error {
			_, err := c.Create(ctx, idle(name), metav1.CreateOptions{})
			return err
		})
		waitABit(ctx)
		ask(l, "delete", func(ctx context.Context) error { return c.Delete(ctx, name, metav1.DeleteOptions{}) })
		waitABit(ctx)
	}
}

// ask makes a request. The end of the load does not interrupt it.
func ask(l *latencies, kind string, request func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	begin := time.Now()
	err := request(ctx)
	l.add(kind, time.Since(begin), err)
}

// waitABit waits between two requests.
func waitABit(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

// idle returns a maintenance that selects no node.
func idle(name string) *v1alpha1.NodeMaintenance {
	return &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage: v1alpha1.NodeMaintenanceStageIdle,
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: "clients.haulout.dev/none", Operator: corev1.NodeSelectorOpExists},
				},
			}}},
		},
	}
}
