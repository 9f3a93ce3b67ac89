// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/worker"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestWorkers checks the rights of the workers, that their commands have the flags, and that a
// drain keeps the pods that reboot.
func TestWorkers(t *testing.T) {
	claims := []string{
		" [maintenance.haulout.dev] [nodetasks/status] [] [patch]",
		" [maintenance.haulout.dev] [nodetasks] [] [get list watch]",
	}
	reboots := append([]string{" [maintenance.haulout.dev] [workers/node] [reboot.maintenance.haulout.dev] [progress]"}, claims...)
	for folder, test := range map[string]struct {
		rights []string
		kept   bool
	}{
		"worker-reboot":          {reboots, true},
		"worker-reboot-required": {append([]string{" [] [nodes/status] [] [patch]", " [] [nodes] [] [get]"}, reboots...), true},
		"worker-job": {append([]string{
			" [maintenance.haulout.dev] [workers] [] [progress]", " [] [nodes] [] [get]",
			"haulout-workers [] [pods] [] [list]", "haulout-workers [] [podtemplates] [] [get]", "haulout-workers [batch] [jobs] [] [list watch create]",
		}, claims...), false},
	} {
		t.Run(folder, func(t *testing.T) {
			var rights []string
			var pod *corev1.PodSpec
			accounts := map[string]bool{}
			for _, object := range built(t, "../../artifacts/"+folder) {
				for _, rule := range rulesOf(object) {
					rights = append(rights, fmt.Sprintf("%s %s %s %s %s", object.(metav1.Object).GetNamespace(), rule.APIGroups, rule.Resources, rule.ResourceNames, rule.Verbs))
				}
				switch o := object.(type) {
				case *rbacv1.ClusterRoleBinding:
					accounts[o.Subjects[0].Namespace+"/"+o.Subjects[0].Name] = true
				case *rbacv1.RoleBinding:
					accounts[o.Subjects[0].Namespace+"/"+o.Subjects[0].Name] = true
				case *appsv1.DaemonSet:
					pod = &o.Spec.Template.Spec
					is.True(t, accounts[o.Namespace+"/"+pod.ServiceAccountName], "the pods have no rights")
				case *appsv1.Deployment:
					pod = &o.Spec.Template.Spec
					is.True(t, accounts[o.Namespace+"/"+pod.ServiceAccountName], "the pods have no rights")
				}
			}
			slices.Sort(rights)
			slices.Sort(test.rights)
			is.Slices(t, rights, test.rights, "rights")
			must.True(t, pod != nil, "no pods found")
			args := pod.Containers[0].Args
			command, flags, err := worker.NewCommand().Find(args)
			must.True(t, err == nil && command.Name() == args[0], "%q is not a command of the worker: %v", args, err)
			must.Do(t, command.ParseFlags(flags))
			kept := drainplan.Kept(&corev1.Pod{Spec: *pod}, v1alpha1.PodTypeDaemonSet, &corev1.Node{}, sets.New(v1alpha1.EvacuatorClassDaemonSet))
			is.Equal(t, kept != "", test.kept, "that a drain keeps the pod")
		})
	}
}

func TestPolicyForTheRebootCondition(t *testing.T) {
	policy := policiesIn(t, "../worker-reboot-required/rights.yaml")["nodes/status"]
	must.True(t, policy != nil, "there is no policy")
	const by = "system:serviceaccount:haulout-worker-reboot:haulout-worker-reboot"
	required := corev1.NodeCondition{Type: v1alpha1.NodeConditionRebootRequired, Status: corev1.ConditionTrue}
	add := func(o runtime.Object) {
		node := o.(*corev1.Node)
		node.Status.Conditions = append(node.Status.Conditions, required)
	}
	for name, tt := range map[string]struct {
		by, node string
		change   func(*corev1.Node)
		denied   bool
	}{
		"allows the condition of the own node":  {node: "node-7"},
		"denies the condition of another node":  {node: "node-8", denied: true},
		"applies in another namespace":          {by: "system:serviceaccount:ops:haulout-worker-reboot", node: "node-8", denied: true},
		"denies a token without a node":         {denied: true},
		"denies another condition":              {node: "node-7", change: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }, denied: true},
		"denies the removal of a condition":     {node: "node-7", change: func(n *corev1.Node) { n.Status.Conditions = n.Status.Conditions[1:] }, denied: true},
		"denies another field":                  {node: "node-7", change: func(n *corev1.Node) { n.Status.NodeInfo.BootID = "x" }, denied: true},
		"denies a label":                        {node: "node-7", change: func(n *corev1.Node) { n.Labels = map[string]string{"pool": "x"} }, denied: true},
		"denies an annotation":                  {node: "node-7", change: func(n *corev1.Node) { n.Annotations = map[string]string{"a": "x"} }, denied: true},
		"does not apply to others, who may all": {by: "kubelet", change: func(n *corev1.Node) { n.Status.NodeInfo.BootID = "x" }},
	} {
		t.Run(name, func(t *testing.T) {
			u := update{
				resource: "nodes", subresource: "status", kind: corev1.SchemeGroupVersion.WithKind("Node"),
				old: &corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: "node-7"},
					Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
				},
				change: func(o runtime.Object) {
					add(o)
					if tt.change != nil {
						tt.change(o.(*corev1.Node))
					}
				},
			}
			if tt.node != "" {
				u.extra = map[string][]string{"authentication.kubernetes.io/node-name": {tt.node}}
			}
			name := by
			if tt.by != "" {
				name = tt.by
			}
			is.Equal(t, len(u.denied(t, policy, name)) > 0, tt.denied, "denied")
		})
	}
}
