// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// SetCondition writes a condition of the node. It does not write NodeAgentReady if the node has it
// like that, and its heartbeat is not due.
func (c *Client) SetCondition(ctx context.Context, condition corev1.NodeCondition) error {
	node, err := c.host.CoreV1().Nodes().Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get node %s: %w", c.node, err)
	}
	now := metav1.NewTime(time.Now())
	if condition.Type == maintenancev1alpha1.NodeConditionAgentReady && slices.ContainsFunc(node.Status.Conditions, func(old corev1.NodeCondition) bool {
		age := now.Sub(old.LastHeartbeatTime.Time) // negative if the clock was set back
		return old.Type == condition.Type && old.Status == condition.Status && old.Reason == condition.Reason && old.Message == condition.Message &&
			age >= 0 && age < protocol.AgentHeartbeatOf(node)
	}) {
		return nil
	}
	condition.LastHeartbeatTime = now
	if condition.LastTransitionTime.IsZero() {
		condition.LastTransitionTime = now
		for _, old := range node.Status.Conditions {
			if old.Type == condition.Type && old.Status == condition.Status && !old.LastTransitionTime.IsZero() {
				condition.LastTransitionTime = old.LastTransitionTime
			}
		}
	}
	// The kubelet writes its own conditions: the patch merges by type, and changes only this one. A
	// node that was recreated in the meantime is another one.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status":   map[string]any{"conditions": []corev1.NodeCondition{condition}},
	})
	if err != nil {
		return err
	}
	_, err = c.host.CoreV1().Nodes().Patch(ctx, c.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write condition %s of node %s: %w", condition.Type, c.node, err)
	}
	return nil
}
