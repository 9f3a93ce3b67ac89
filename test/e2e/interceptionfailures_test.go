// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// TestEvictionsPassWithoutTheServer evicts pods with evacuators while the server hangs, while it
// does not run, and while it runs no controllers. A server that hangs delays an eviction by the
// three seconds of the webhook.
func TestEvictionsPassWithoutTheServer(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	for _, name := range []string{"hangs", "killed", "controllers"} {
		cluster.PodOn(t, namespace, name, pool, nodes[0], movable)
	}
	cluster.InterceptEvictions(t, pool, nodes[0], namespace)
	client, warnings := cluster.Evictor(t)
	evict := func(name string) (took time.Duration) {
		began := time.Now()
		err := client.Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		must.True(t, err == nil, "the eviction of pod %s is refused: %v", name, err)
		return time.Since(began)
	}
	// The limit is the timeout of the webhook, and twice as much on a busy machine.
	const limit = 9 * time.Second

	func() {
		cluster.Signal(t, "haulout-apiserver", syscall.SIGSTOP)
		defer cluster.Signal(t, "haulout-apiserver", syscall.SIGCONT)
		took := evict("hangs")
		t.Logf("allowed after %v while the server hangs", took)
		is.True(t, took < limit, "the eviction took %v while the server hangs", took)
	}()
	func() {
		cluster.KillServer(t)
		defer func() { must.Do(t, cluster.Up()) }()
		took := evict("killed")
		t.Logf("allowed after %v while the server does not run", took)
		is.True(t, took < limit, "the eviction took %v while the server does not run", took)
	}()
	defer cluster.WithServerFlags(t, "--controllers=false")()
	warnings.Take()
	evict("controllers")
	got := warnings.Take()
	is.True(t, len(got) == 1 && strings.Contains(got[0], "runs without controllers"), "got the warnings %q", got)
	framework.UntilGone(t, "the pod is gone", cluster.As(t).Pods(namespace), "controllers")
}
