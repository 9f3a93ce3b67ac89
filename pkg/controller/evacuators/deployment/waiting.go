// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/drain/surge"
)

// attachmentsByVolume is the index of VolumeAttachments by the name of their PersistentVolume.
const attachmentsByVolume = "haulout.dev/deployment-evacuator-by-volume"

func indexByVolume(obj any) ([]string, error) {
	if attachment, ok := obj.(*storagev1.VolumeAttachment); ok && attachment.Spec.Source.PersistentVolumeName != nil {
		return []string{*attachment.Spec.Source.PersistentVolumeName}, nil
	}
	return nil, nil
}

// readWaiting reads from the API server what surge pods wait for that are on a node and not ready,
// since the cache does not have it. The result is used until the next report is due.
func (c *Controller) readWaiting(ctx context.Context, s *situation) error {
	if s.deployment == nil {
		return nil
	}
	const enough = 3
	s.waiting = s.memory.waiting
	if s.now.Before(s.memory.first.at.Add(sayEvery)) || s.now.Before(s.memory.waitingAt.Add(sayEvery)) {
		return nil
	}
	waiting := map[string]string{}
	read := 0
	for _, p := range s.replacements() {
		if _, ready := s.availableAt(p); ready || p.Spec.NodeName == "" {
			continue
		}
		if read++; read > enough {
			break
		}
		live, err := c.host.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		why := waitsFor(live)
		if !hasStarted(live) {
			volume, err := c.waitsForVolume(ctx, live)
			if err != nil {
				return err
			}
			if volume != "" {
				why = volume
			}
		}
		if why != "" {
			waiting[p.Name] = why
		}
	}
	if read > 0 {
		s.memory.waiting, s.memory.waitingAt = waiting, s.now
		s.waiting = waiting
	}
	return nil
}

// hasStarted reports whether any container has started: none does before all volumes are mounted.
func hasStarted(p *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), func(status corev1.ContainerStatus) bool {
		return status.State.Waiting == nil && (status.State.Running != nil || status.State.Terminated != nil) || status.RestartCount > 0
	})
}

// waitsForVolume returns which volume prevents a pod from starting, and where it is attached; "" if
// none is known. A volume that only one node can use is not attached to the next node while it is
// attached to another one; the VolumeAttachment has the error of a failed attempt.
func (c *Controller) waitsForVolume(ctx context.Context, p *corev1.Pod) (string, error) {
	for i := range p.Spec.Volumes {
		name := claimOf(p, &p.Spec.Volumes[i])
		if name == "" {
			continue
		}
		claim, err := c.host.CoreV1().PersistentVolumeClaims(p.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("get the volume of claim %s: %w", name, err)
		}
		if claim.Spec.VolumeName == "" {
			continue
		}
		objects, err := c.attachments.ByIndex(attachmentsByVolume, claim.Spec.VolumeName)
		if err != nil {
			return "", err
		}
		if why := whereAttached(p.Spec.NodeName, surge.OneNode(claim), objects); why != "" {
			return fmt.Sprintf("volume %s: %s", name, why), nil
		}
	}
	return "", nil
}

// claimOf returns the name of a volume's claim, or "".
func claimOf(p *corev1.Pod, volume *corev1.Volume) string {
	switch {
	case volume.PersistentVolumeClaim != nil:
		return volume.PersistentVolumeClaim.ClaimName
	case volume.Ephemeral != nil:
		return p.Name + "-" + volume.Name
	}
	return ""
}

// whereAttached returns why a volume is not attached to a node; "" if it is, or if the cause is not
// known.
func whereAttached(node string, forOneNode bool, attachments []any) string {
	elsewhere := ""
	for _, object := range attachments {
		attachment, ok := object.(*storagev1.VolumeAttachment)
		switch {
		case !ok:
		case attachment.Spec.NodeName == node && attachment.Status.Attached:
			return ""
		case attachment.Spec.NodeName == node && attachment.Status.AttachError != nil:
			return fmt.Sprintf("cannot be attached to %s: %s", node, attachment.Status.AttachError.Message)
		case attachment.Spec.NodeName != node && forOneNode:
			elsewhere = "still attached to " + attachment.Spec.NodeName
		}
	}
	return elsewhere
}

// waitsFor returns why a pod's containers do not run, or that they run but are not ready.
func waitsFor(p *corev1.Pod) string {
	for _, statuses := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range statuses {
			status := &statuses[i]
			if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing" {
				why := fmt.Sprintf("container %s waits (%s)", status.Name, waiting.Reason)
				if waiting.Message != "" {
					why += ": " + waiting.Message
				}
				return why
			}
		}
	}
	for i := range p.Status.ContainerStatuses {
		if status := &p.Status.ContainerStatuses[i]; status.State.Running != nil && !status.Ready {
			return fmt.Sprintf("container %s runs but does not become ready", status.Name)
		}
	}
	return ""
}
