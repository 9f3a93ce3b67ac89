// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// AppDown is a workload without a ready pod, of which the drain has moved a pod.
type AppDown struct {
	Kind, Namespace, Name string
}

// NothingBlocked shows that no pod is blocked and none waits, with the pods that drains have left.
// A drain with pods left is never without anything in the way, however soon they leave.
func NothingBlocked(maintenances []v1alpha1.NodeMaintenance) []screen.Line {
	var left []screen.Line
	for i := range maintenances {
		nm := &maintenances[i]
		if c := drainedCondition(nm); nm.DeletionTimestamp == nil && c != nil && c.Status != metav1.ConditionTrue {
			left = append(left, plain("  %s: %s", nm.Name, c.Message))
		}
	}
	if len(left) == 0 {
		return []screen.Line{plain("Nothing is in the way.")}
	}
	return append([]screen.Line{plain("Nothing is blocked.")}, left...)
}

// AppsDown shows workloads without a ready pod.
func AppsDown(down []AppDown) []screen.Line {
	var lines []screen.Line
	for _, app := range down {
		lines = append(lines, screen.Line{}, line(screen.Warning, "%s %s/%s: no pod is ready", app.Kind, app.Namespace, app.Name),
			plain("  A pod of it has left for a maintenance, and none is ready since. See why its pods do not start."))
		owner := Blocker{Namespace: app.Namespace, Reason: v1alpha1.ReasonUnhealthyPodsHoldBudget}
		lines = append(lines, whoAndLook("  ", owner.Who(), owner.Look())...)
	}
	return lines
}
