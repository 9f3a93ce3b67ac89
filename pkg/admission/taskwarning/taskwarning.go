// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package taskwarning finds what is probably unintended in the task of a maintenance or of a
// rollout, before any node is drained for it.
package taskwarning

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/nodeexpr"
)

// nodesAtMost is for how many nodes doneWhen is evaluated.
const nodesAtMost = 100

// Of returns warnings about a task, nil for no task. path is the field of the task, such as
// "spec.task", and nodes are the selected nodes.
func Of(path string, task *v1alpha1.NodeMaintenanceTask, nodes []*corev1.Node) []string {
	if task == nil {
		return nil
	}
	return append(ofWorker(path, task), ofDoneWhen(path, task, nodes)...)
}

// NodeAtGoal returns the name of a node that meets doneWhen of a task already, "" if none of the
// first 100 does.
func NodeAtGoal(task *v1alpha1.NodeMaintenanceTask, nodes []*corev1.Node) string {
	if node, _ := first(task, nodes, func(met bool, err error) bool { return met && err == nil }); node != nil {
		return node.Name
	}
	return ""
}

// ofWorker warns of classes of Haulout that do not exist, and of parameters that its worker of Jobs
// refuses after the drain.
func ofWorker(path string, task *v1alpha1.NodeMaintenanceTask) []string {
	switch {
	case !strings.HasSuffix(task.Worker, "."+v1alpha1.GroupName):
	case task.Worker == v1alpha1.WorkerClassReboot || task.Worker == v1alpha1.WorkerClassPerson:
	case protocol.JobTemplateOf(task.Worker) == "":
		return []string{fmt.Sprintf("%s.worker: Haulout has no class %s; it has reboot, person and NAME.job", path, task.Worker)}
	default:
		for _, key := range slices.Sorted(maps.Keys(task.Parameters)) {
			if len(validation.IsCIdentifier(key)) > 0 {
				return []string{fmt.Sprintf("%s.parameters: %q must consist of letters, digits and underscores, and not begin with a digit", path, key)}
			}
		}
	}
	return nil
}

// ofDoneWhen warns if the expression cannot be evaluated for a node that exists.
func ofDoneWhen(path string, task *v1alpha1.NodeMaintenanceTask, nodes []*corev1.Node) []string {
	if node, err := first(task, nodes, func(_ bool, err error) bool { return err != nil }); node != nil {
		return []string{fmt.Sprintf("%s.doneWhen: fails on node %s, which counts as false: %v", path, node.Name, err)}
	}
	return nil
}

// first returns the first node for which the result of doneWhen is as wanted, and its error; nil if
// none of the first 100 is, without an expression, and for one that validation refuses.
func first(task *v1alpha1.NodeMaintenanceTask, nodes []*corev1.Node, wanted func(met bool, err error) bool) (*corev1.Node, error) {
	if task == nil || task.DoneWhen == "" {
		return nil, nil
	}
	program, err := nodeexpr.Compile(task.DoneWhen)
	if err != nil {
		return nil, nil
	}
	for _, node := range nodes[:min(len(nodes), nodesAtMost)] {
		if met, err := program.Eval(nodeexpr.Of(node), protocol.VersionsOf(node)); wanted(met, err) {
			return node, err
		}
	}
	return nil, nil
}
