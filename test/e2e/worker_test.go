// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
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
	right := func(resource, name string, verbs ...string) rbacv1.PolicyRule {
		rule := rbacv1.PolicyRule{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{resource}, Verbs: verbs}
		if name != "" {
			rule.ResourceNames = []string{name}
		}
		return rule
	}
	cluster.Grant(t, serviceaccount.MakeUsername(namespace, "flash"),
		right("nodetasks", "", "get", "list", "watch"), right("nodetasks/status", "", "patch"), right("workers", class, "progress"))

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
