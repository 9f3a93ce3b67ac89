// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// World is all that a plan depends on. No order in it matters, and nothing in it is changed.
type World struct {
	// Maintenances are the maintenances in stage Drain that are not being deleted, each once.
	Maintenances []Maintenance
	// Nodes are at least the nodes of the maintenances, each once.
	Nodes []*Node
	// Subject is the name of the maintenance that Messages and FastForwarded of the result are for;
	// empty means all. What a message says depends on all maintenances of a node, so the messages
	// of all of them cost the square of their number.
	Subject string
}

// Maintenance is the planning input about one maintenance.
type Maintenance struct {
	// Name is the name of the maintenance.
	Name string
	// Created is its creation time; if plans contradict each other, the oldest maintenance takes
	// precedence.
	Created time.Time
	// Plan is the completed drain plan, in order.
	Plan []v1alpha1.DrainPlanEntry
	// Nodes are the names of the selected nodes that the requester may delete.
	Nodes []string
	// Uncordoned are those of Nodes that have not been seen cordoned. While there are any the
	// maintenance raises no targets: pods could still land behind a wave that has passed.
	Uncordoned []string
	// Before are the targets that its status has for a node of the same UID, by node name.
	Before map[string][]v1alpha1.DrainPlanEntry
}

// Node is a node with its live pods: the pods that are neither finished nor kept running on
// purpose.
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

// Result is the answer to a World.
type Result struct {
	// Targets are the drain targets by node name, for every node of a maintenance.
	Targets map[string]Targets
	// Messages are the drain messages by maintenance and node name.
	Messages map[string]map[string]string
	// Finished has the maintenances whose plan covers no remaining live pod.
	Finished map[string]bool
	// FastForwarded is the other maintenance that has already advanced a node beyond the
	// maintenance's own plan, by maintenance and node. It is set when the maintenance joins, and as
	// long as pods leave because of an older one.
	FastForwarded map[string]map[string]string
	// Overrides are the contradictions between plans that were resolved in favour of the oldest
	// maintenance.
	Overrides []Override
}

// Override is a contradiction between the plans of some maintenances that would stop their drains,
// with the maintenance whose order was followed.
type Override struct {
	// Followed is the maintenance whose order was followed.
	Followed string
	// Overridden are the maintenances on the same nodes whose order was not followed, even without
	// affected pods, sorted by name.
	Overridden []string
}
