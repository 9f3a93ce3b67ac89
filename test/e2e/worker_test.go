// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/pkg/worker"
	"haulout.dev/haulout/test/workerconformance"
)

// TestWorkerFollowsTheProtocol checks a worker with the library, which has only the rights of
// artifacts/examples/rbac-worker.yaml.
func TestWorkerFollowsTheProtocol(t *testing.T) {
	t.Parallel() // the test mostly waits
	const class = "flash.example.com"
	_, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	account := cluster.ServiceAccount(t, namespace, "flash")
	content := must.Get(os.ReadFile(filepath.Join(cluster.Root(), "artifacts", "examples", "rbac-worker.yaml")))(t)
	first, _, _ := strings.Cut(string(content), "\n---\n")
	var role rbacv1.ClusterRole
	must.Do(t, yaml.UnmarshalStrict([]byte(first), &role))
	must.True(t, len(role.Rules) != 0, "the role in the file has no rules")
	cluster.Grant(t, serviceaccount.MakeUsername(namespace, "flash"), role.Rules...)

	w := must.Get(worker.New(worker.Config{
		Class: class, Holder: "flash", Client: account.Haulout,
		Handler: func(ctx context.Context, task *worker.Task) error {
			end := time.Now().Add(3 * time.Second)
			if err := task.Report(ctx, worker.Progress{Message: "Writing", ExpectedFinish: end}); err != nil {
				return err
			}
			select {
			case <-time.After(time.Until(end)):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
	}))(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	for _, result := range workerconformance.Run(t.Context(), workerconformance.Config{
		Class: class, Maintenance: cluster.As(t).Haulout, NodeName: nodes[0], Patience: 2 * time.Minute, Quiet: 3 * time.Second,
	}) {
		if result.Err != nil {
			t.Errorf("the worker %s: %v", result.Check, result.Err)
		}
	}
	stop()
	must.Do(t, <-done)
}
