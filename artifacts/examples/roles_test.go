// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/component-helpers/auth/rbac/validation"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// rulesOf returns the rules of the roles in a file, by the name of the role.
func rulesOf(t *testing.T, path string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	for _, object := range decode(t, newScheme(t), path) {
		switch role := object.(type) {
		case *rbacv1.ClusterRole:
			rules[role.Name] = role.Rules
		case *rbacv1.Role:
			rules[role.Name] = role.Rules
		}
	}
	must.True(t, len(rules) > 0, "%s has no roles", path)
	return rules
}

func right(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

func worker(verb, class string) rbacv1.PolicyRule {
	rule := right(v1alpha1.GroupName, "workers", verb)
	rule.ResourceNames = []string{class}
	return rule
}

// TestRolesOfTasks has the requests of each task of the users who maintain nodes. The roles for
// operators and administrators are sufficient. Some rights are in no role: the specs of pods may
// have secrets, and events are about objects of all kinds.
func TestRolesOfTasks(t *testing.T) {
	const group, none = v1alpha1.GroupName, ""
	maintainers := []string{"haulout-maintenance-operator", "haulout-maintenance-admin"}
	viewers := append([]string{"haulout-maintenance-view"}, maintainers...)
	holders := append([]string{"haulout-rollout-holder"}, maintainers...)
	roles := rulesOf(t, "../base/rbac-users.yaml")
	for task, test := range map[string]struct {
		requests []rbacv1.PolicyRule
		// may are the roles that are sufficient.
		may []string
	}{
		"preview": {
			[]rbacv1.PolicyRule{right(group, "nodemaintenances", "create"), right(group, "nodemaintenances/preview", "get"), right(none, "nodes", "get", "list")}, maintainers,
		},
		"start":                   {[]rbacv1.PolicyRule{right(group, "nodemaintenances", "create", "get"), right(none, "nodes", "get", "list")}, maintainers},
		"watch":                   {[]rbacv1.PolicyRule{right(group, "nodemaintenances", "get", "list", "watch"), right(group, "evacuations", "get", "list", "watch")}, viewers},
		"find the blockers":       {[]rbacv1.PolicyRule{right(group, "nodemaintenances", "get"), right(group, "evacuations", "list")}, viewers},
		"pause, resume, complete": {[]rbacv1.PolicyRule{right(group, "nodemaintenances", "get", "patch", "update")}, maintainers},
		"cancel":                  {[]rbacv1.PolicyRule{right(group, "nodemaintenances", "delete")}, maintainers},
		"history of the status":   {[]rbacv1.PolicyRule{right(group, "nodemaintenances", "get")}, viewers},
		"cancel all":              {[]rbacv1.PolicyRule{right(group, "nodemaintenances", "deletecollection")}, maintainers[1:]},
		"start a rollout":         {[]rbacv1.PolicyRule{right(group, "nodemaintenancerollouts", "create", "get")}, maintainers},
		"watch a rollout":         {[]rbacv1.PolicyRule{right(group, "nodemaintenancerollouts", "list", "watch"), right(group, "nodetasks", "list", "watch")}, viewers},
		"hold a rollout":          {[]rbacv1.PolicyRule{right(group, "nodemaintenancerollouts", "get", "patch")}, holders},
		"start the work again":    {[]rbacv1.PolicyRule{right(group, "nodetasks", "delete")}, maintainers},
		"take a node": {
			[]rbacv1.PolicyRule{right(group, "nodetasks/status", "patch"), worker("progress", v1alpha1.WorkerClassPerson), worker("assign", v1alpha1.WorkerClassPerson)}, maintainers,
		},
		"have nodes rebooted":   {[]rbacv1.PolicyRule{worker("assign", v1alpha1.WorkerClassReboot)}, maintainers},
		"pretend to reboot":     {[]rbacv1.PolicyRule{worker("progress", v1alpha1.WorkerClassReboot)}, nil},
		"work in all pools":     {[]rbacv1.PolicyRule{worker("progress", "flash.example.com")}, nil},
		"run a script":          {[]rbacv1.PolicyRule{worker("assign", "x"+v1alpha1.WorkerClassJobSuffix)}, nil},
		"create tasks of nodes": {[]rbacv1.PolicyRule{right(group, "nodetasks", "create")}, nil},
		"history of the events": {[]rbacv1.PolicyRule{right("events.k8s.io", "events", "list")}, nil},
		"read pods":             {[]rbacv1.PolicyRule{right(none, "pods", "get")}, nil},
		"write the status":      {[]rbacv1.PolicyRule{right(group, "nodemaintenances/status", "patch")}, nil},
		"maintain all nodes":    {[]rbacv1.PolicyRule{right(group, "nodes", "maintain")}, nil},
		"maintain all pools":    {[]rbacv1.PolicyRule{right(group, "nodepools", "maintain")}, nil},
		"delete nodes":          {[]rbacv1.PolicyRule{right(none, "nodes", "delete")}, nil},
	} {
		t.Run(task, func(t *testing.T) {
			want := map[string]bool{}
			for _, role := range test.may {
				want[role] = true
			}
			for role, rules := range roles {
				covers, missing := validation.Covers(rules, test.requests)
				is.True(t, covers == want[role], "role %s may do it: %t, want %t; it lacks %v", role, covers, want[role], missing)
			}
		})
	}
	t.Run("the example of the history has the events", func(t *testing.T) {
		covers, missing := validation.Covers(rulesOf(t, "rbac-maintenance-history.yaml")["maintenance-history"],
			[]rbacv1.PolicyRule{right("events.k8s.io", "events", "list")})
		is.True(t, covers, "it lacks %v", missing)
	})
}
