// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientv1alpha1 "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

// rightCase is something that needs a right to a resource that only stands for it.
type rightCase struct {
	// base are the rights to the real resources that it needs as well.
	base []rbacv1.PolicyRule
	// resource, name and verb are the right.
	resource, name, verb string
	// attempt does it, with a pod of its own.
	attempt func(ctx context.Context, evacuations clientv1alpha1.EvacuationInterface) error
}

func rule(group, resource, name string, verbs ...string) rbacv1.PolicyRule {
	r := rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	if name != "" {
		r.ResourceNames = []string{name}
	}
	return r
}

// TestRightsOfEvacuations has service accounts do what takes a right to instigators or evacuators,
// in the namespace of the Evacuation: with exactly that right they can; without it, with that to
// another name, or with that in another namespace they cannot, and are told what is missing.
func TestRightsOfEvacuations(t *testing.T) {
	t.Parallel()
	const instigator, class = "mover.example.com", "mover.example.com"
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace, elsewhere := cluster.NewNamespace(t), cluster.NewNamespace(t)
	joined := evacuate(t, cluster.PodOn(t, namespace, "joined", pool, nodes[0], namesEvacuator(class)))
	assigned := cluster.PodOn(t, namespace, "assigned", pool, nodes[0])
	framework.Eventually(t, "it is the evacuator's turn", func(ctx context.Context) (bool, error) {
		e, err := cluster.As(t).Haulout.MaintenanceV1alpha1().Evacuations(namespace).Get(ctx, joined.Name,
			metav1.GetOptions{})
		return err == nil && e.Status.ActiveEvacuatorClass == class, err
	})
	for name, c := range map[string]rightCase{
		"speak for an instigator": {
			base:     []rbacv1.PolicyRule{rule(v1alpha1.GroupName, "evacuations", "", "get", "update")},
			resource: "instigators", name: instigator, verb: "use",
			attempt: func(ctx context.Context, evacuations clientv1alpha1.EvacuationInterface) error {
				e, err := evacuations.Get(ctx, joined.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				e.Finalizers = append(e.Finalizers, v1alpha1.FinalizerInstigatorPrefix+instigator)
				_, err = evacuations.Update(ctx, e, metav1.UpdateOptions{})
				return err
			},
		},
		"name an evacuator": {
			base: []rbacv1.PolicyRule{
				rule(v1alpha1.GroupName, "evacuations", "", "create"), rule("", "pods", "", "delete"),
				rule(v1alpha1.GroupName, "instigators",
					strings.TrimPrefix(testInstigator, v1alpha1.FinalizerInstigatorPrefix), "use"),
			},
			resource: "evacuators", name: class, verb: "assign",
			attempt: func(ctx context.Context, evacuations clientv1alpha1.EvacuationInterface) error {
				_, err := evacuations.Create(ctx,
					evacuationOf(assigned, withEvacuators(v1alpha1.Evacuator{EvacuatorClass: class, Priority: 7})),
					metav1.CreateOptions{})
				return err
			},
		},
		"report as an evacuator": {
			base:     []rbacv1.PolicyRule{rule(v1alpha1.GroupName, "evacuations/status", "", "patch")},
			resource: "evacuators", name: class, verb: "progress",
			attempt: func(ctx context.Context, evacuations clientv1alpha1.EvacuationInterface) error {
				_, err := evacuations.Patch(ctx, joined.Name, types.MergePatchType,
					[]byte(`{"status":{"message":"copying"}}`), metav1.PatchOptions{}, "status")
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tryRight(t, namespace, elsewhere, c)
		})
	}
}

func namesEvacuator(class string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationEvacuatorPrefix + class: "20000"}
	}
}

// tryRight tries with all that is not the right, and then with it.
func tryRight(t *testing.T, namespace, elsewhere string, c rightCase) {
	t.Helper()
	account := func(grants ...func(name string)) clientv1alpha1.EvacuationInterface {
		name := framework.Name("account")
		clients := cluster.ServiceAccount(t, namespace, name)
		cluster.GrantIn(t, namespace, namespace, name, c.base...)
		for _, grant := range grants {
			grant(name)
		}
		return clients.Haulout.MaintenanceV1alpha1().Evacuations(namespace)
	}
	grant := func(in, resource, name, verb string) func(string) {
		return func(account string) {
			cluster.GrantIn(t, in, namespace, account, rule(v1alpha1.GroupName, resource, name, verb))
		}
	}
	missing := c.verb + " " + c.resource + "." + v1alpha1.GroupName + ` "` + c.name + `" in namespace "` + namespace +
		`"`
	for without, evacuations := range map[string]clientv1alpha1.EvacuationInterface{
		"without it":                     account(),
		"with that to another name":      account(grant(namespace, c.resource, "other.example.com", c.verb)),
		"with another verb":              account(grant(namespace, c.resource, c.name, "get")),
		"with that in another namespace": account(grant(elsewhere, c.resource, c.name, c.verb)),
	} {
		framework.Eventually(t, without+", it is refused for that", func(ctx context.Context) (bool, error) {
			err := c.attempt(ctx, evacuations)
			if err == nil {
				t.Fatalf("%s, it was allowed", without)
			}
			// At first the rights to the real resources may not have arrived.
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), missing), nil
		})
	}
	with := account(grant(namespace, c.resource, c.name, c.verb))
	framework.Eventually(t, "with it, it is allowed", func(ctx context.Context) (bool, error) {
		err := c.attempt(ctx, with)
		return err == nil, err
	})
}
