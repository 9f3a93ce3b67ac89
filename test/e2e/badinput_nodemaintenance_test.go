// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

func entry(priority int32, podType v1alpha1.PodType) v1alpha1.DrainPlanEntry {
	return v1alpha1.DrainPlanEntry{PodPriority: priority, PodType: podType}
}

func withPlan(plan ...v1alpha1.DrainPlanEntry) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.DrainPlan = plan }
}

// hasCause reports whether an error is a refusal of the given field that contains all the words.
func hasCause(err error, field string, words ...string) bool {
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == field &&
			!slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(c.Message, w) })
	})
}

func TestNodeMaintenanceThatIsRefusedAtCreation(t *testing.T) {
	t.Parallel()
	maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	cases := map[string]struct {
		modify func(*v1alpha1.NodeMaintenance)
		field  string
		words  []string
	}{
		"a plan whose priorities descend": {
			modify: withPlan(entry(2000, v1alpha1.PodTypeDefault), entry(1000, v1alpha1.PodTypeDefault)),
			field:  "spec.drainPlan[1]", words: []string{"ascend"},
		},
		"no selector": {
			modify: func(nm *v1alpha1.NodeMaintenance) { nm.Spec.NodeSelector = nil }, field: "spec.nodeSelector",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			nm := framework.Maintenance("none", v1alpha1.NodeMaintenanceStageIdle, c.modify)
			_, err := maintenances.Create(t.Context(), nm, metav1.CreateOptions{})
			if !apierrors.IsInvalid(err) || !hasCause(err, c.field, c.words...) {
				t.Errorf("got %v, want a refusal of %s that says %q", err, c.field, c.words)
			}
		})
	}
}

func TestNodeMaintenanceUpdateThatIsRefused(t *testing.T) {
	t.Parallel()
	maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	cases := map[string]struct {
		from   v1alpha1.NodeMaintenanceStage
		modify func(*v1alpha1.NodeMaintenance)
		field  string
		words  []string
	}{
		"Drain to Cordon": {
			from: v1alpha1.NodeMaintenanceStageDrain, field: "spec.stage", words: []string{"Complete"},
			modify: func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = v1alpha1.NodeMaintenanceStageCordon },
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			nm := cluster.Create(t, framework.Maintenance(framework.Name("none"), c.from))
			framework.Eventually(
				t, "the update is refused for what it says, not for a conflict",
				func(ctx context.Context) (bool, error) {
					fresh, err := maintenances.Get(ctx, nm.Name, metav1.GetOptions{})
					if err != nil {
						return false, err
					}
					c.modify(fresh)
					_, err = maintenances.Update(ctx, fresh, metav1.UpdateOptions{})
					if apierrors.IsConflict(err) {
						return false, err
					}
					if !apierrors.IsInvalid(err) || !hasCause(err, c.field, c.words...) {
						t.Errorf("got %v, want a refusal of %s that says %q", err, c.field, c.words)
					}
					return true, nil
				},
			)
		})
	}
}

func TestWhatTheServerWritesIsDroppedFromClients(t *testing.T) {
	t.Parallel()
	maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	nm := cluster.Create(t, framework.Maintenance(
		framework.Name("none"), v1alpha1.NodeMaintenanceStageIdle,
		func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.RequestedBy = &authenticationv1.UserInfo{Username: "somebody-else"}
			nm.Status.Conditions = []metav1.Condition{
				{
					Type: v1alpha1.ConditionDrained, Status: metav1.ConditionTrue, Reason: "Lie",
					LastTransitionTime: metav1.Now(),
				},
			}
			nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{
				{NodeRef: v1alpha1.NodeReference{Name: "no-such-node"}},
			}
		},
	))
	check := func(when string, nm *v1alpha1.NodeMaintenance) {
		if by := nm.Spec.RequestedBy; by == nil || by.Username != "cluster-admin" {
			t.Errorf("%s: requestedBy is %v, want the user who asked", when, by)
		}
		if len(nm.Status.NodeStatuses) != 0 ||
			slices.ContainsFunc(nm.Status.Conditions, func(c metav1.Condition) bool { return c.Reason == "Lie" }) {
			t.Errorf("%s: the client's status was taken: %+v", when, nm.Status)
		}
	}
	check("at creation", nm)
	updated, err := maintenances.Patch(t.Context(), nm.Name, types.MergePatchType,
		[]byte(
			`{"spec":{"requestedBy":{"username":"somebody-else"}},`+
				`"status":{"nodeStatuses":[{"nodeRef":{"name":"no-such-node"}}]}}`,
		),
		metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	check("at an update", updated)
}

func TestNodeMaintenanceStatusIsTheServersAlone(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string]framework.Clients{
		"an administrator":                   cluster.As(t),
		"a user who takes the server's name": cluster.As(t, "system:apiserver", "system:masters"),
		"the server's own account in the cluster": cluster.As(t,
			"system:serviceaccount:haulout-system:haulout-apiserver", "system:masters"),
	} {
		t.Run(name, func(t *testing.T) {
			nm := cluster.Create(t, framework.Maintenance(framework.Name("none"), v1alpha1.NodeMaintenanceStageIdle))
			_, err := clients.Haulout.MaintenanceV1alpha1().NodeMaintenances().Patch(t.Context(), nm.Name,
				types.MergePatchType, []byte(`{"status":{"observedGeneration":99}}`), metav1.PatchOptions{}, "status")
			if !apierrors.IsForbidden(err) {
				t.Errorf("got %v, want Forbidden", err)
			}
		})
	}
}

func TestRightsOnNodes(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, false)
	user := framework.Name("half-operator")
	cluster.Grant(t, user,
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"nodemaintenances"}, Verbs: []string{"*"},
		},
		rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: nodes[:1], Verbs: []string{"delete"},
		})
	theirs := cluster.As(t, user).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	onlyFirst := framework.Select(corev1.LabelHostname, nodes[0])

	t.Run(
		"a maintenance over a node the user may not delete is refused, and names no node that they may not get",
		func(t *testing.T) {
			_, err := theirs.Create(t.Context(), framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle),
				metav1.CreateOptions{})
			if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), nodes[0]) ||
				strings.Contains(err.Error(), nodes[1]) {
				t.Errorf("got %v, want Forbidden without the name of a node", err)
			}
		},
	)
	t.Run("it names the node to a user who may get it", func(t *testing.T) {
		reader := framework.Name("reading-operator")
		cluster.Grant(t, reader,
			rbacv1.PolicyRule{
				APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"nodemaintenances"},
				Verbs: []string{"create"},
			},
			rbacv1.PolicyRule{
				APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: nodes, Verbs: []string{"get"},
			},
			rbacv1.PolicyRule{
				APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: nodes[:1],
				Verbs: []string{"delete"},
			})
		_, err := cluster.As(t, reader).Haulout.MaintenanceV1alpha1().NodeMaintenances().Create(
			t.Context(), framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), nodes[1]) ||
			strings.Contains(err.Error(), nodes[0]) {
			t.Errorf("got %v, want Forbidden because of %s", err, nodes[1])
		}
	})
	t.Run("a maintenance over their own node is taken", func(t *testing.T) {
		nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle, func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.NodeSelector = onlyFirst
		})
		if _, err := theirs.Create(t.Context(), nm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := theirs.Delete(t.Context(), nm.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	admins := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon))
	t.Run("nor may they delete it", func(t *testing.T) {
		if err := theirs.Delete(t.Context(), admins.Name, metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("got %v, want Forbidden", err)
		}
	})
}

// crowd creates maintenances NAME-000, NAME-001 and so on, and removes all of them with the test.
func crowd(
	t *testing.T, name string, count int, stage v1alpha1.NodeMaintenanceStage, selector *corev1.NodeSelector,
) {
	t.Helper()
	maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	t.Cleanup(func() {
		all := metav1.ListOptions{LabelSelector: "crowd=" + name}
		if err := maintenances.DeleteCollection(context.Background(), metav1.DeleteOptions{}, all); err != nil {
			t.Error(err)
		}
		// The context of the test has ended.
		err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, framework.Timeout, true, func(ctx context.Context) (bool, error) {
			left, err := maintenances.List(ctx, all)
			return err == nil && len(left.Items) == 0, nil
		})
		if err != nil {
			t.Errorf("maintenances %s are left: %v", name, err)
		}
	})
	for i := range count {
		nm := framework.Maintenance(name, stage, func(nm *v1alpha1.NodeMaintenance) {
			nm.Name, nm.Labels = fmt.Sprintf("%s-%03d", name, i), map[string]string{"crowd": name}
			nm.Spec.NodeSelector = selector
		})
		if _, err := maintenances.Create(t.Context(), nm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// hasNoPlace waits until the status of a maintenance says that its only node has no place for it.
func hasNoPlace(t *testing.T, name string) {
	t.Helper()
	framework.Eventually(t, "the status of "+name+" names the limit", func(ctx context.Context) (bool, error) {
		nm, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
		return err == nil && len(nm.Status.NodeStatuses) == 1 &&
			strings.Contains(nm.Status.NodeStatuses[0].DrainMessage, v1alpha1.ReasonTooManyMaintenances), err
	})
}

// isNamed waits until the annotation of a node has a number of texts.
func isNamed(t *testing.T, node, text string, times int) {
	t.Helper()
	framework.Eventually(t, fmt.Sprintf("node %s names %s %d times", node, text, times), func(ctx context.Context) (bool, error) {
		node, err := cluster.As(t).Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		return err == nil && strings.Count(node.Annotations[v1alpha1.AnnotationTaintedBy], text) == times, err
	})
}

// TestMoreMaintenancesThanMayHoldANode has 50 maintenances hold a node, and adds one by a write and
// one by the labels of the node.
func TestMoreMaintenancesThanMayHoldANode(t *testing.T) {
	t.Parallel()
	const most = 50
	pool, nodes := cluster.NewPool(t, 1, true)
	maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	// The oldest of all: creation times have seconds, and of the same time the first by name.
	oldest := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageCordon,
		func(nm *v1alpha1.NodeMaintenance) {
			nm.Name, nm.Spec.NodeSelector = "a-"+pool, framework.Select(pool, "yes")
		}))
	crowd(t, pool, most, v1alpha1.NodeMaintenanceStageCordon, framework.Select(framework.Pool, pool))
	waiting := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle))
	framework.Eventually(t, "the 51st is refused when it leaves Idle", func(ctx context.Context) (bool, error) {
		_, err := maintenances.Patch(ctx, waiting.Name, types.MergePatchType, []byte(`{"spec":{"stage":"Cordon"}}`),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "at most 50") &&
			strings.Contains(err.Error(), pool+"-000, "+pool+"-001, "+pool+"-002"), nil
	})
	isNamed(t, nodes[0], `"`+pool+"-", most)
	// The oldest one takes the place of the youngest.
	merge(t, "", "node", nodes[0], fmt.Sprintf(`{"metadata":{"labels":{%q:"yes"}}}`, pool))
	youngest := fmt.Sprintf("%s-%03d", pool, most-1)
	hasNoPlace(t, youngest)
	setStage(t, oldest.Name, v1alpha1.NodeMaintenanceStageComplete)
	isNamed(t, nodes[0], youngest, 1)
}

// TestFourHundredMaintenancesOfANode brings a node to 400 maintenances by its labels, and drains
// another node beside it.
func TestFourHundredMaintenancesOfANode(t *testing.T) {
	t.Parallel()
	const many = 400
	crowded, nodes := cluster.NewPool(t, 1, true)
	pool, others := cluster.NewPool(t, 1, true)
	crowd(t, crowded, many, v1alpha1.NodeMaintenanceStageDrain, framework.Select(crowded, "yes"))
	merge(t, "", "node", nodes[0], fmt.Sprintf(`{"metadata":{"labels":{%q:"yes"}}}`, crowded))
	unschedulable(t, true, nodes...)
	namespace := cluster.NewNamespace(t)
	cluster.PodOn(t, namespace, "web", pool, others[0])
	drained(t, drainNodes(t, pool, others...).Name)
	hasNoPlace(t, fmt.Sprintf("%s-%03d", crowded, many-1))
	isNamed(t, nodes[0], `"`+crowded+"-", 50)
}

func TestObjectsThatAreTooLargeAreRefused(t *testing.T) {
	t.Parallel()
	maintenances := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances()
	values := make([]string, 40000)
	for i := range values {
		values[i] = framework.Name("a-node-with-quite-a-long-name-that-goes-on-and-on")
	}
	nm := framework.Maintenance("none", v1alpha1.NodeMaintenanceStageIdle, func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, values...)
	})
	_, err := maintenances.Create(t.Context(), nm, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !hasCause(err, "spec", "too large", "512 KiB") {
		t.Errorf("got %v, want it to be refused as too large", err)
	}
}

func TestUnknownFieldsAreRefusedOnRequest(t *testing.T) {
	t.Parallel()
	body := []byte(
		`{"apiVersion":"maintenance.haulout.dev/v1alpha1","kind":"NodeMaintenance","metadata":{"name":"` +
			framework.Name("strict") + `"},` +
			`"spec":{"nodeSelector":{"nodeSelectorTerms":[` +
			`{"matchExpressions":[{"key":"pool","operator":"Exists"}]}]},` +
			`"drainPlann":[]}}`,
	)
	result := cluster.As(t).Haulout.MaintenanceV1alpha1().RESTClient().Post().Resource("nodemaintenances").
		Param("fieldValidation", "Strict").Param("dryRun", "All").SetHeader("Content-Type",
		"application/json").Body(body).Do(t.Context())
	err := result.Error()
	if status, ok := err.(apierrors.APIStatus); !ok || status.Status().Code != http.StatusBadRequest ||
		!strings.Contains(err.Error(), "spec.drainPlann") {
		t.Errorf("got %v, want a bad request that names spec.drainPlann", err)
	}
}
