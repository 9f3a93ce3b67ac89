// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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

// VolumesOn returns how many volumes are attached to a node.
func (s *State) VolumesOn(node string) int {
	keys, err := s.volumeIndexer.IndexKeys(attachedByNode, node)
	if err != nil {
		utilruntime.HandleError(fmt.Errorf("list attached volumes by node from the cache: %w", err))
	}
	return len(keys)
}

func (s *State) volumeAttachmentChanged(old, attachment *storagev1.VolumeAttachment) {
	before, now := attachedTo(old), attachedTo(attachment)
	if before == now {
		return
	}
	for _, node := range []string{before, now} {
		if node != "" {
			s.tell(func(sub Subscriber) func(string) { return sub.Changed }, node)
		}
	}
}
