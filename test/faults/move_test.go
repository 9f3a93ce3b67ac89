// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

// TestMoveToAnEtcdCluster moves a server from its embedded etcd to a cluster of three with TLS, as
// docs/operations.md says, in the middle of a drain. The drain goes on where it was.
func TestMoveToAnEtcdCluster(t *testing.T) {
	c, err := framework.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	// It ends after the objects in it were removed.
	etcd := newEtcdCluster(t, c.Root(), newCertificates(t))
	pool, nodes := c.NewPool(t, 3, true)
	namespace := c.NewNamespace(t)
	c.Deployment(t, namespace, "app", pool, 6)
	c.Deployment(t, namespace, "stuck", pool, 3)
	c.Budget(t, namespace, "stuck", 0)
	drain := c.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes[0])
	}))
	c.Create(t, framework.Maintenance(pool+"-idle", v1alpha1.NodeMaintenanceStageIdle))
	evacuations := c.As(t).Haulout.MaintenanceV1alpha1().Evacuations(namespace)
	framework.Eventually(t, "a pod is blocked", func(ctx context.Context) (bool, error) {
		list, err := evacuations.List(ctx, metav1.ListOptions{FieldSelector: "status.blocked=true"})
		return err == nil && len(list.Items) > 0, err
	})
	before := stored(t, c)

	c.KillServer(t)
	to := append([]string{"--etcd-servers=" + etcd.servers()}, etcd.certificates.flags()...)
	copied := exec.CommandContext(t.Context(), filepath.Join(c.Root(), "bin", "haulout-apiserver"), //nolint:gosec // the program is that of the build
		append([]string{"etcd", "copy", "--data-dir=" + filepath.Join(c.Dir(), "haulout")}, to...)...)
	out, err := copied.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
	t.Setenv("HAULOUT_FLAGS", strings.Join(append(to, "--accept-restored-state"), " "))
	if err := c.Up(); err != nil {
		t.Fatal(err)
	}
	after := stored(t, c)
	for _, object := range before {
		if !slices.Contains(after, object) {
			t.Errorf("%s was in the embedded etcd and is not in the cluster, which has %q", object, after)
		}
	}
	// The controllers act: the budget's owner gives way.
	c.MustKubectl(t, "", "delete", "poddisruptionbudget", "--namespace="+namespace, "stuck")
	framework.EventuallyWithin(t, drainTime, "the node is drained", func(ctx context.Context) (bool, error) {
		nm, err := c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, drain.Name, metav1.GetOptions{})
		return err == nil && meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained), err
	})
}

// stored returns the names and UIDs of all objects of the server.
func stored(t *testing.T, c *framework.Cluster) []string {
	t.Helper()
	client := c.As(t).Haulout.MaintenanceV1alpha1()
	maintenances, err := client.NodeMaintenances().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	evacuations, err := client.Evacuations(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var objects []string
	for i := range maintenances.Items {
		objects = append(objects, maintenances.Items[i].Name+"/"+string(maintenances.Items[i].UID))
	}
	for i := range evacuations.Items {
		// Evacuations of pods that had left are removed after a while.
		if !meta.IsStatusConditionTrue(evacuations.Items[i].Status.Conditions, v1alpha1.ConditionComplete) {
			objects = append(objects, evacuations.Items[i].Name+"/"+string(evacuations.Items[i].UID))
		}
	}
	return objects
}
