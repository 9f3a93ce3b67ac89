// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

type attachedVolumes struct {
	volumes, nodes int
}

func (c *Controller) attachedVolumes(nodes []*corev1.Node) attachedVolumes {
	var out attachedVolumes
	for _, node := range nodes {
		volumes := c.state.VolumesOn(node.Name)
		out.volumes += volumes
		out.nodes += min(volumes, 1)
	}
	return out
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
