// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

// touched is what a maintenance would change.
type touched struct {
	// Nodes are the marks of the nodes, Maintenances what was asked for, and Pods whether each pod
	// runs, all by name.
	Nodes        map[string]nodeMarks
	Maintenances map[string]maintenanceOrder
	Pods         map[string]bool
	Evacuations  int
}

type nodeMarks struct {
	Unschedulable bool
	Taints        []corev1.Taint
	Annotations   map[string]string
}

type maintenanceOrder struct {
	Generation int64
	Spec       v1alpha1.NodeMaintenanceSpec
	Finalizers []string
	Deleted    bool
}

// look reads what maintenances of a user could have changed on nodes and in a namespace.
func look(t *testing.T, user, namespace string, nodes []string) touched {
	t.Helper()
	clients := cluster.As(t)
	found := touched{
		Nodes: map[string]nodeMarks{}, Maintenances: map[string]maintenanceOrder{}, Pods: map[string]bool{},
	}
	for _, name := range nodes {
		node, err := clients.Kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// Kubernetes adds taints of its own to a cordoned node a moment later.
		taints := slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
			return strings.HasPrefix(taint.Key, "node.kubernetes.io/")
		})
		found.Nodes[name] = nodeMarks{
			Unschedulable: node.Spec.Unschedulable, Taints: taints, Annotations: node.Annotations,
		}
	}
	for _, name := range ownedBy(t, user) {
		nm, err := clients.Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		found.Maintenances[name] = maintenanceOrder{
			Generation: nm.Generation, Spec: nm.Spec, Finalizers: nm.Finalizers, Deleted: nm.DeletionTimestamp != nil,
		}
	}
	pods, err := clients.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		found.Pods[pods.Items[i].Name] = pods.Items[i].DeletionTimestamp == nil
	}
	evacuations, err := clients.Haulout.MaintenanceV1alpha1().Evacuations(namespace).List(t.Context(),
		metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found.Evacuations = len(evacuations.Items)
	return found
}

// TestPluginDryRun asks the server what each command would do: it answers with its warnings and
// refusals, and nothing changes.
func TestPluginDryRun(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	cluster.PodOn(t, namespace, "bare", pool, nodes[0])
	user := framework.Name("operator")
	cluster.Grant(t, user,
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"nodemaintenances"},
			Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"},
		},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list"}},
		rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: []string{nodes[0]},
			Verbs: []string{"delete"},
		},
	)
	s := newShell(t, user)
	announced := framework.Name("announced")
	start := s.start(t, "maintenance", "start", nodes[0], "--name="+announced, "--stage=Cordon", "--wait")
	start.ends(t, 0)
	// Conditions follow the cordon.
	framework.Eventually(t, nodes[0]+" says that it is under maintenance", func(ctx context.Context) (bool, error) {
		node, err := cluster.As(t).Kube.CoreV1().Nodes().Get(ctx, nodes[0], metav1.GetOptions{})
		return err == nil && node.Annotations[v1alpha1.AnnotationConditionsBy] != "", err
	})

	const dry = "(server dry run)"
	before := look(t, user, namespace, nodes)
	for name, test := range map[string]struct {
		line string
		code int
		// shows is what the answer contains, hides what it does not.
		shows, hides []string
	}{
		"start creates nothing": {line: "start " + nodes[0], code: 0, shows: []string{"created " + dry}},
		"start shows the object as it would be stored": {
			line: "start " + nodes[0] + " -o yaml", code: 0,
			shows: []string{"username: " + user, "podPriority: 2147483647", v1alpha1.FinalizerMaintenanceCompletion},
		},
		"start is refused as it would be in earnest": {
			line: "start " + nodes[1], code: 1, shows: []string{"forbidden", nodes[1]}, hides: []string{dry},
		},
		"drain does not wait": {
			line: "drain " + nodes[0] + " --force", code: 0, shows: []string{"Note: --force", "created " + dry},
			hides: []string{"PODS"},
		},
		"stage moves nothing": {line: "stage " + announced + " Drain", code: 0, shows: []string{"moved on " + dry}},
		"stage does not wait": {
			line: "stage " + announced + " Drain --wait", code: 0, shows: []string{"moved on " + dry},
			hides: []string{"PODS"},
		},
		"a stage that was reached stays": {
			line: "stage " + announced + " Cordon", code: 0, shows: []string{"moved on " + dry},
		},
		"complete changes nothing": {
			line: "complete " + announced, code: 0, shows: []string{"completed " + dry}, hides: []string{"Warning"},
		},
		"cancel changes nothing": {
			line: "cancel " + announced, code: 0, shows: []string{"cancelled " + dry}, hides: []string{"Warning"},
		},
		"what does not exist cannot be cancelled": {
			line: "cancel " + announced + "-not", code: 1, shows: []string{"not found"}, hides: []string{dry},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.start(
				t, append([]string{"maintenance"}, append(strings.Fields(test.line), "--dry-run=server")...)...,
			)
			p.ends(t, test.code)
			for _, text := range test.shows {
				if !strings.Contains(p.output(), text) {
					t.Errorf("%q is missing in\n%s", text, p.output())
				}
			}
			for _, text := range test.hides {
				if strings.Contains(p.output(), text) {
					t.Errorf("%q is in\n%s", text, p.output())
				}
			}
			if diff := cmp.Diff(before, look(t, user, namespace, nodes)); diff != "" {
				t.Errorf("something has changed (-before +after):\n%s", diff)
			}
		})
	}
	s.start(t, "maintenance", "cancel", announced).ends(t, 0)
	unschedulable(t, false, nodes...)
}
