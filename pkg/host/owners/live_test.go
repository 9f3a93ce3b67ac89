// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package owners

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"haulout.dev/haulout/pkg/testing/is"
)

// kindBy returns a Kind that reads by calling get.
func kindBy(get func(context.Context) (*appsv1.DaemonSet, error)) Kind[appsv1.DaemonSet] {
	return Kind[appsv1.DaemonSet]{
		name: "DaemonSet", Keep: func(full *appsv1.DaemonSet) *appsv1.DaemonSet { return full },
		Get: func(ctx context.Context, _, _ string) (*appsv1.DaemonSet, error) { return get(ctx) },
	}
}

// TestOwnersWithImpossibleNames: the API server accepts any name of an owner or a claim in a pod.
func TestOwnersWithImpossibleNames(t *testing.T) {
	host := kubernetes.NewForConfigOrDie(&rest.Config{Host: "127.0.0.1:1"})
	for _, name := range []string{"%!s(<nil>)-data", "a/b", ".."} {
		set, err := NewLive(host).ReplicaSet(t.Context(), "blue", name)
		is.True(t, set == nil && err == nil, "got %v, %v, want that it does not exist", set, err)
		claim, err := Claims(host).Get(t.Context(), "blue", name)
		is.True(t, claim == nil && err == nil, "got %v, %v, want that it does not exist", claim, err)
	}
}

func TestConcurrentRequestsReadTheOwnerOnce(t *testing.T) {
	const callers = 20
	var started, reads atomic.Int32
	all := make(chan struct{})
	recent := newMemory()
	owner := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "logs"}}
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			if started.Add(1) == callers {
				close(all)
			}
			got, err := read(t.Context(), recent, kindBy(func(context.Context) (*appsv1.DaemonSet, error) {
				reads.Add(1)
				<-all
				return owner, nil
			}), "blue", "logs")
			is.True(t, got == owner && err == nil, "got %v, %v, want the owner", got, err)
		})
	}
	wg.Wait()
	is.Equal(t, reads.Load(), 1, "reads")

	// If one caller cancels its request, the read continues for the other callers.
	ctx, cancel := context.WithCancel(t.Context())
	release, first := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := read(ctx, recent, kindBy(func(ctx context.Context) (*appsv1.DaemonSet, error) {
			cancel()
			<-release
			return owner, ctx.Err()
		}), "blue", "slow")
		first <- err
	}()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v for a cancelled request, want context.Canceled", err)
	}
	close(release)
	got, err := read(t.Context(), recent, kindBy(func(context.Context) (*appsv1.DaemonSet, error) { return owner, nil }), "blue", "slow")
	is.True(t, got == owner && err == nil, "got %v, %v, want the owner", got, err)
}
