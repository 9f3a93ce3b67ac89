// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// AppDown is a workload without a ready pod that lost a pod to a drain.
type AppDown struct {
	Kind, Namespace, Name string
}

// NothingBlocked shows that no pod is blocked or waiting, and how many pods the drains still have
// to move. While pods are left, it prints "Nothing is blocked", not "Nothing is in the way".
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

// AppsDown shows the workloads without a ready pod.
func AppsDown(down []AppDown) []screen.Line {
	var lines []screen.Line
	for _, app := range down {
		lines = append(lines, screen.Line{}, line(screen.Warning, "%s %s/%s: no pod is ready", app.Kind, app.Namespace, app.Name),
			plain("  A maintenance moved one of its pods, and no pod is ready now. Check why its pods do not start."))
		owner := Blocker{Namespace: app.Namespace, Reason: v1alpha1.ReasonUnhealthyPodsHoldBudget}
		lines = append(lines, whoAndLook("  ", owner.Who(), owner.Look())...)
	}
	return lines
}
