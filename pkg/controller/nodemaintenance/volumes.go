// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// attachedByNode is the index of VolumeAttachments by the node that the volume is attached to. It
// omits attachments that are only requested or already detached: they do not matter when a user
// switches the node off.
const attachedByNode = "haulout.dev/attached-volumes-by-node"

func indexAttachedByNode(obj any) ([]string, error) {
	if attachment, ok := obj.(*storagev1.VolumeAttachment); ok {
		if node := attachedTo(attachment); node != "" {
			return []string{node}, nil
		}
	}
	return nil, nil
}

// attachedTo returns the node that a volume is attached to, or "".
func attachedTo(attachment *storagev1.VolumeAttachment) string {
	if attachment == nil || !attachment.Status.Attached {
		return ""
	}
	return attachment.Spec.NodeName
}

func (c *Controller) volumeAttachmentChanged(old, attachment *storagev1.VolumeAttachment) {
	before, now := attachedTo(old), attachedTo(attachment)
	if before == now {
		return
	}
	c.enqueueNode(before)
	c.enqueueNode(now)
}

type attachedVolumes struct {
	volumes, nodes int
}

func (c *Controller) attachedVolumes(nodes []*corev1.Node) (attachedVolumes, error) {
	var out attachedVolumes
	for _, node := range nodes {
		keys, err := c.volumeIndexer.IndexKeys(attachedByNode, node.Name)
		if err != nil {
			return attachedVolumes{}, err
		}
		out.volumes += len(keys)
		out.nodes += min(len(keys), 1)
	}
	return out, nil
}

// remark returns the part of a message about volumes that are still attached, "" if there are none.
func (a attachedVolumes) remark() string {
	if a.volumes == 0 {
		return ""
	}
	are := "are"
	if a.volumes == 1 {
		are = "is"
	}
	return fmt.Sprintf("; %s %s still attached to %s", wording.Count(a.volumes, "volume"), are, wording.Count(a.nodes, "node"))
}
