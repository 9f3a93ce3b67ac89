// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeexpr

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Node has the values of a node that expressions can read. It can be used for any number of
// expressions.
type Node struct {
	values map[string]any
}

// Of returns the values of a node. Labels, taints, conditions and allocatable exist even if they
// are empty, and so does spec.unschedulable, so that expressions need not ask for them.
func Of(node *corev1.Node) Node {
	return Node{map[string]any{
		"metadata": map[string]any{"name": node.Name, "uid": string(node.UID), "labels": node.Labels},
		"spec":     spec(&node.Spec),
		"status": map[string]any{
			"conditions":  conditions(node.Status.Conditions),
			"nodeInfo":    nodeInfo(&node.Status.NodeInfo),
			"allocatable": quantities(node.Status.Allocatable),
		},
	}}
}

func spec(spec *corev1.NodeSpec) map[string]any {
	taints := make([]any, len(spec.Taints))
	for i := range spec.Taints {
		taint := &spec.Taints[i]
		taints[i] = map[string]string{"key": taint.Key, "value": taint.Value, "effect": string(taint.Effect)}
	}
	values := map[string]any{"unschedulable": spec.Unschedulable, "taints": taints}
	if spec.PodCIDR != "" {
		values["podCIDR"], values["podCIDRs"] = spec.PodCIDR, spec.PodCIDRs
	}
	if spec.ProviderID != "" {
		values["providerID"] = spec.ProviderID
	}
	return values
}

func conditions(conditions []corev1.NodeCondition) []any {
	values := make([]any, len(conditions))
	for i := range conditions {
		c := &conditions[i]
		values[i] = map[string]string{
			"type": string(c.Type), "status": string(c.Status), "reason": c.Reason, "message": c.Message,
			"lastHeartbeatTime": timestamp(c.LastHeartbeatTime), "lastTransitionTime": timestamp(c.LastTransitionTime),
		}
	}
	return values
}

func timestamp(t metav1.Time) string { return t.UTC().Format(time.RFC3339) }

func nodeInfo(info *corev1.NodeSystemInfo) map[string]string {
	return map[string]string{
		"machineID": info.MachineID, "systemUUID": info.SystemUUID, "bootID": info.BootID,
		"kernelVersion": info.KernelVersion, "osImage": info.OSImage, "containerRuntimeVersion": info.ContainerRuntimeVersion,
		"kubeletVersion": info.KubeletVersion, "operatingSystem": info.OperatingSystem, "architecture": info.Architecture,
	}
}

func quantities(list corev1.ResourceList) map[string]string {
	values := make(map[string]string, len(list))
	for name, quantity := range list {
		values[string(name)] = quantity.String()
	}
	return values
}

func versions(v v1alpha1.NodeVersions) map[string]string {
	return map[string]string{
		"bootID": v.BootID, "kernelVersion": v.KernelVersion, "osImage": v.OSImage,
		"containerRuntimeVersion": v.ContainerRuntimeVersion, "kubeletVersion": v.KubeletVersion,
	}
}
