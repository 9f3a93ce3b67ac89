// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// sentinelPeriod is the time between two checks of the file.
	sentinelPeriod = 30 * time.Second
	// conditionPeriod is the time after which the Node is read again although the file has not
	// changed. Another Node with the same name does not have the condition.
	conditionPeriod = time.Hour
)

// sentinel sets the condition RebootRequired of a node from a file of its operating system.
type sentinel struct {
	kube       kubernetes.Interface
	node, file string
	// written is the status that the condition had at the time read; "" if unknown.
	written corev1.ConditionStatus
	read    time.Time
}

// run checks the file until the context ends.
func (s *sentinel) run(ctx context.Context) {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if err := s.sync(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot set the condition of the node, will retry", "condition", v1alpha1.NodeConditionRebootRequired)
		}
	}, sentinelPeriod)
}

// sync writes the condition if it differs from the file. If the file has not changed, it reads the
// Node once per conditionPeriod, so that a node at rest costs little.
func (s *sentinel) sync(ctx context.Context) error {
	condition, err := s.condition()
	if err != nil || condition.Status == s.written && time.Since(s.read) < conditionPeriod {
		return err
	}
	node, err := s.kube.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if _, old := nodeutil.GetNodeCondition(&node.Status, condition.Type); old == nil || old.Status != condition.Status {
		condition.LastHeartbeatTime = metav1.NewTime(time.Now())
		condition.LastTransitionTime = condition.LastHeartbeatTime
		// The patch merges by type and leaves the conditions of others unchanged.
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": node.UID},
			"status":   map[string]any{"conditions": []corev1.NodeCondition{condition}},
		})
		if err != nil {
			return err
		}
		if _, err := s.kube.CoreV1().Nodes().Patch(ctx, s.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	s.written, s.read = condition.Status, time.Now()
	return nil
}

// condition returns the condition that the file asks for. If it cannot be read, the condition stays
// as it is.
func (s *sentinel) condition() (corev1.NodeCondition, error) {
	c := corev1.NodeCondition{Type: v1alpha1.NodeConditionRebootRequired}
	_, err := os.Stat(s.file)
	switch {
	case err == nil:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "FileExists", "The operating system asks for a reboot"
	case errors.Is(err, fs.ErrNotExist):
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, "NoFile", "The operating system does not ask for a reboot"
	default:
		return c, err
	}
	return c, nil
}
