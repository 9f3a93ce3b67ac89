// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// MaxTaskParameters is the maximum number of parameters of a task.
	MaxTaskParameters = 32
	// MaxTaskParameterBytes is the maximum length of all keys and values of parameters together.
	MaxTaskParameterBytes = 4096
)

// VolumePatience is how long the offer of a drained node waits for its volumes to be detached.
const VolumePatience = 10 * time.Minute

// MaxTaskMessage is the maximum length of messages in the entries of a status, in bytes.
const MaxTaskMessage = 128

// DefaultMaxUnavailableNodes is the default of --max-unavailable-nodes: the percentage of all nodes
// of the cluster that may be out of service when a rollout starts a unit.
const DefaultMaxUnavailableNodes = 20

const (
	// MaxUnitNodes is the maximum number of nodes in a unit of a rollout.
	MaxUnitNodes = 64
	// MaxCurrentUnits is the maximum number of units in status.current of a rollout.
	MaxCurrentUnits = 200
	// MaxCurrentNodes is the maximum number of nodes in all units of status.current together.
	MaxCurrentNodes = 2000
	// MaxRolloutName is the maximum length of the name of a rollout, in bytes: it is the value of a
	// label.
	MaxRolloutName = validation.LabelValueMaxLength
)

// IsInHands reports whether nobody may drain or take back a node whose task has this state: a
// worker works on it, or the result is being verified or waits for a user.
func IsInHands(state v1alpha1.NodeTaskState) bool {
	switch state {
	case v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskVerifying, v1alpha1.NodeTaskDone, v1alpha1.NodeTaskFailed:
		return true
	}
	return false
}

// DelaysRelease reports whether a node whose task has this state stays with a maintenance that is
// ending: a worker may have claimed it, or works on it, or the result is being verified.
func DelaysRelease(state v1alpha1.NodeTaskState) bool {
	switch state {
	case v1alpha1.NodeTaskOffered, v1alpha1.NodeTaskClaimed, v1alpha1.NodeTaskVerifying:
		return true
	}
	return false
}

// JobTemplateOf returns the name of the PodTemplate whose Jobs a worker class runs; "" for other
// classes.
func JobTemplateOf(class string) string {
	name, found := strings.CutSuffix(class, v1alpha1.WorkerClassJobSuffix)
	if !found {
		return ""
	}
	return name
}

// VersionsOf returns what runs on a node.
func VersionsOf(node *corev1.Node) v1alpha1.NodeVersions {
	info := &node.Status.NodeInfo
	return v1alpha1.NodeVersions{
		BootID: info.BootID, KernelVersion: info.KernelVersion, OSImage: info.OSImage,
		ContainerRuntimeVersion: info.ContainerRuntimeVersion, KubeletVersion: info.KubeletVersion,
	}
}

// RemovalOf returns why a node is about to be gone, as a phrase that follows its name: it is being
// deleted, or cluster-autoscaler or Karpenter removes it; "" if it stays. Neither of them cordons
// the node by default.
func RemovalOf(node *corev1.Node) string {
	if node.DeletionTimestamp != nil {
		return "is being deleted"
	}
	for i := range node.Spec.Taints {
		switch key := node.Spec.Taints[i].Key; key {
		case "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted":
			return "has the taint " + key
		}
	}
	return ""
}

// HasReadinessTaint reports whether a node has a taint of the Node Readiness Controller.
func HasReadinessTaint(node *corev1.Node) bool {
	for i := range node.Spec.Taints {
		if strings.HasPrefix(node.Spec.Taints[i].Key, v1alpha1.TaintReadinessPrefix) {
			return true
		}
	}
	return false
}
