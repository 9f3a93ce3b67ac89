// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestHeartbeatOfNodeAgentReady(t *testing.T) {
	ready := corev1.NodeCondition{Type: v1alpha1.NodeConditionAgentReady, Status: corev1.ConditionTrue, Reason: "Ready", Message: "v1"}
	held := corev1.NodeCondition{
		Type: v1alpha1.NodeConditionMaintenanceInProgress, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now()),
	}
	for name, tt := range map[string]struct {
		age    time.Duration
		held   bool
		change func(c *corev1.NodeCondition)
		want   bool
	}{
		"idle":                           {age: 4 * time.Minute},
		"idle for 5 minutes":             {age: 5 * time.Minute, want: true},
		"held":                           {age: time.Minute, held: true, want: true},
		"held, and written a moment ago": {age: 10 * time.Second, held: true},
		"the clock was set back":         {age: -time.Hour, want: true},
		"another status":                 {age: 4 * time.Minute, change: func(c *corev1.NodeCondition) { c.Status = corev1.ConditionFalse }, want: true},
		"another reason":                 {age: 4 * time.Minute, change: func(c *corev1.NodeCondition) { c.Reason = "SafeMode" }, want: true},
		"another message":                {age: 4 * time.Minute, change: func(c *corev1.NodeCondition) { c.Message = "v2" }, want: true},
		"another condition type":         {age: 4 * time.Minute, change: func(c *corev1.NodeCondition) { c.Type = "x" }, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			old := ready
			old.LastHeartbeatTime = metav1.NewTime(time.Now().Add(-tt.age).Truncate(time.Second))
			status := corev1.NodeStatus{Conditions: []corev1.NodeCondition{old}}
			if tt.held {
				status.Conditions = append(status.Conditions, held)
			}
			a := newAPI(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "n"}, Status: status})
			next := ready
			if tt.change != nil {
				tt.change(&next)
			}
			must.Do(t, a.client.SetCondition(t.Context(), next))
			conditions := a.node().Status.Conditions
			i := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == next.Type })
			if written := !conditions[i].LastHeartbeatTime.Equal(&old.LastHeartbeatTime); written != tt.want {
				t.Errorf("written: %t, want %t", written, tt.want)
			}
		})
	}
}
