// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// World is the input of Plan. Plan does not change it. The order of maintenances and nodes does not
// matter.
type World struct {
	// Maintenances are the maintenances in stage Drain that are not being deleted, each once.
	Maintenances []Maintenance
	// Nodes has at least the nodes and the excluded nodes of the maintenances, each once.
	Nodes []*Node
	// Subject is the name of the maintenance for which the result has Messages and FastForwarded;
	// empty means all. Each message depends on all maintenances of a node, so the cost of the
	// messages for all maintenances grows with the square of their number.
	Subject string
}

// Maintenance is the planning input about one maintenance.
type Maintenance struct {
	// Name is the name of the maintenance.
	Name string
	// Created is the creation time of the maintenance. If plans contradict each other, the oldest
	// maintenance takes precedence.
	Created time.Time
	// Plan is the completed drain plan, in order.
	Plan []v1alpha1.DrainPlanEntry
	// Nodes are the names of the selected nodes that the requester may maintain.
	Nodes []string
	// Uncordoned are the Nodes that have not been observed as cordoned. While there are any, the
	// maintenance raises no targets, since the scheduler could still bind a pod to one of them
	// after the wave of the pod is over.
	Uncordoned []string
	// Excluded are the selected nodes that are not among Nodes and for whose pods the waves wait
	// nevertheless. The maintenance asks none of these pods to leave.
	Excluded []string
	// Before has the targets in the status of the maintenance for a node with the same UID, by node
	// name.
	Before map[string][]v1alpha1.DrainPlanEntry
}

// Node is a node with its live pods, without the pods that are kept running on purpose.
type Node struct {
	Name string
	UID  types.UID
	Pods []Pod
}

// Pod has the fields of a pod that planning needs.
type Pod struct {
	Type     v1alpha1.PodType
	Priority int32
	Labels   labels.Set
}

// Result is the result of Plan.
type Result struct {
	// Targets has the drain targets by node name, for every node of a maintenance.
	Targets map[string]Targets
	// Messages has the drain messages by maintenance and node name.
	Messages map[string]map[string]string
	// Finished reports, by name, whether the plan of a maintenance covers no remaining live pod.
	Finished map[string]bool
	// FastForwarded has, by maintenance and node, the other maintenance that has already drained
	// the node further than the maintenance's own plan. It is set when the maintenance joins, and
	// as long as pods leave because of an older maintenance.
	FastForwarded map[string]map[string]string
	// Overrides are the contradictions between plans that were resolved in favour of the oldest
	// maintenance.
	Overrides []Override
}

// Override describes how Plan resolved a contradiction between plans that would have stopped their
// drains.
type Override struct {
	// Followed is the maintenance whose order Plan followed.
	Followed string
	// Overridden are the maintenances on the same nodes whose order Plan did not follow, sorted by
	// name. They are listed even if no pod is affected.
	Overridden []string
}
