// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
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

// TestEvictionsPassWithoutALeader prevents the server from renewing its Lease. It goes on serving
// its API. Evictions are held while another replica could still lead, and pass afterwards.
func TestEvictionsPassWithoutALeader(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.PodOn(t, namespace, "guarded", pool, nodes[0], movable)
	cluster.InterceptEvictions(t, pool, nodes[0], namespace)
	client, warnings := cluster.Evictor(t)
	evict := func(ctx context.Context) error {
		return client.Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "guarded"}})
	}
	is.True(t, apierrors.IsTooManyRequests(evict(t.Context())), "the eviction passes while the server leads")

	leases := cluster.As(t).Kube.CoordinationV1().Leases("haulout-system")
	defer refuseRenewals(t)()
	warnings.Take()
	framework.Eventually(t, "the eviction passes", func(ctx context.Context) (bool, error) {
		switch err := evict(ctx); {
		case err == nil:
			return true, nil
		case apierrors.IsTooManyRequests(err):
			return false, nil
		default:
			return false, err
		}
	})
	lease := must.Get(leases.Get(t.Context(), "haulout-apiserver", metav1.GetOptions{}))(t)
	silence := time.Since(lease.Spec.RenewTime.Time)
	t.Logf("passes %v after the last renewal", silence.Round(time.Second))
	is.True(t, silence > 20*time.Second, "the eviction passes %v after the last renewal: another replica could lead", silence)
	got := warnings.Take()
	is.True(t, slices.ContainsFunc(got, func(text string) bool { return strings.Contains(text, protocol.NoLeaderWarning) }), "got the warnings %q", got)
}

// refuseRenewals refuses the server's writes to its Lease. The returned function allows them, and
// waits until the server leads.
func refuseRenewals(t *testing.T) (restore func()) {
	t.Helper()
	allow := refuse(t, admissionregistrationv1.Update,
		admissionregistrationv1.Rule{APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"}},
		fmt.Sprintf("request.userInfo.username == %q", serverUser))
	return func() {
		allow()
		allowed := time.Now()
		framework.Until(t, "the server leads", cluster.As(t).Kube.CoordinationV1().Leases("haulout-system"), "haulout-apiserver",
			func(lease *coordinationv1.Lease) bool { return lease.Spec.RenewTime.After(allowed) })
	}
}
