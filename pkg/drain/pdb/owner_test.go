// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pdb

import (
	"strings"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestExplain covers budgets that allow no disruption. Only some of them allow one when more pods
// are healthy.
func TestExplain(t *testing.T) {
	const (
		opens   = "The pod leaves when more pods of the budget are healthy"
		never   = "cannot open by itself. The owner of the app can "
		command = "kubectl describe pdb web -n shop"
	)
	type modifiers = []func(*policyv1.PodDisruptionBudget)
	for name, test := range map[string]struct {
		budget modifiers
		says   string
		// opens is set if the message must say that the budget allows a disruption when more pods
		// are healthy.
		opens bool
	}{
		"maxUnavailable 0":                   {budget: modifiers{maxUnavailable("0"), computed(1, 1, 0)}, says: "never allows an eviction (maxUnavailable 0)"},
		"maxUnavailable 0, not computed yet": {budget: modifiers{maxUnavailable("0")}, says: "never allows an eviction"},
		"minAvailable 100%":                  {budget: modifiers{minAvailable("100%"), computed(3, 3, 0), healthy(2)}, says: "never allows an eviction (minAvailable 100%)"},
		"minAvailable of all pods":           {budget: modifiers{minAvailable("1"), computed(1, 1, 0)}, says: "never allows an eviction (minAvailable 1 of 1 pods)"},
		"maxUnavailable 1 that is used up":   {budget: modifiers{maxUnavailable("1"), computed(3, 2, 0)}, says: "2 of 3 pods are healthy and 2 must be", opens: true},
		"pods that have no controller":       {budget: modifiers{maxUnavailable("1"), computed(0, 0, 0), healthy(2)}, says: "its pods have no controller"},
	} {
		t.Run(name, func(t *testing.T) {
			closed := budget("web", test.budget...)
			closed.Namespace = "shop"
			got := Explain(closed, OwnerNone).Message
			if !strings.Contains(got, test.says) || strings.Contains(got, opens) != test.opens {
				t.Errorf("got %q, want %q in it; it says that healthy pods open the budget: want %v", got, test.says, test.opens)
			}
			if strings.Contains(got, never) == test.opens || strings.Contains(got, command) == test.opens {
				t.Errorf("got %q; it says that the budget cannot open by itself, and who can change it with which command: want %v", got, !test.opens)
			}
			if name, ok := wording.BudgetIn(got); !ok || name != "web" {
				t.Errorf("got %q, in which the budget is %q", got, name)
			}
		})
	}
}

// TestRemedies covers the remedies for a budget that never allows an eviction.
func TestRemedies(t *testing.T) {
	controller := func(apiVersion, kind string) *metav1.OwnerReference {
		return &metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: "web"}
	}
	const annotation, byHand, narrow = "surge: Always", "the pod can be deleted by hand", "the operator of a maintenance can remove the node"
	for name, test := range map[string]struct {
		owner   Owner
		want    []string
		mustNot string
	}{
		"a Deployment":              {OwnerDeployment, []string{annotation, narrow}, byHand},
		"no controller":             {OwnerOf(nil), []string{byHand, narrow}, annotation},
		"a StatefulSet":             {OwnerOf(controller("apps/v1", "StatefulSet")), []string{byHand, narrow}, annotation},
		"a ReplicationController":   {OwnerOf(controller("v1", "ReplicationController")), []string{byHand, narrow}, annotation},
		"an operator":               {OwnerOf(controller("postgresql.cnpg.io/v1", "Cluster")), []string{"Cluster web owns the pod", narrow, "Do not delete the pod by hand"}, "or " + byHand},
		"an operator with our kind": {OwnerOf(controller("example.com/v1", "StatefulSet")), []string{"StatefulSet web owns the pod"}, "or " + byHand},
	} {
		t.Run(name, func(t *testing.T) {
			got := Explain(budget("web", maxUnavailable("0"), computed(1, 1, 0)), test.owner).Message
			for _, want := range test.want {
				is.True(t, strings.Contains(got, want), "got %q, want %q in it", got, want)
			}
			is.True(t, !strings.Contains(got, test.mustNot), "got %q, do not want %q in it", got, test.mustNot)
		})
	}
}
