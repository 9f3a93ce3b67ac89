/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// World is all that a plan depends on. No order in it matters.
//
// A Planner tells what has changed since its last call by what it is handed: a Node, a plan and the
// targets of a status must not be changed after they were handed in, but replaced. What is equal to
// what was there before is recognised, at the price of a comparison; what is the same is recognised
// at once.
type World struct {
	// Maintenances are those in stage Drain that are not being deleted, each once.
	Maintenances []Maintenance
	// Nodes are at least the nodes of the maintenances, each once. The same pointer as in the call
	// before says that nothing of the node has changed.
	Nodes []*Node
}

// Maintenance is a drain as planning sees it.
type Maintenance struct {
	// Name is the name of the maintenance.
	Name string
	// Created is its creation time; where plans contradict each other the oldest wins.
	Created time.Time
	// Plan is the completed drain plan, in order. The same slice as in the call before says that it
	// has not changed.
	Plan []maintenancev1alpha1.DrainPlanEntry
	// Nodes are the names of the selected nodes that the requester may delete.
	Nodes []string
	// Uncordoned are those of Nodes that have not been seen cordoned. While there are any the
	// maintenance raises no targets: pods could still land behind a wave that has passed.
	Uncordoned []string
	// Before are the targets that its status holds for a node of the same UID, by node name. The
	// map may be used again by the caller, its slices may not.
	Before map[string][]maintenancev1alpha1.DrainPlanEntry
}

// Node is a node with its live pods: those that are neither finished nor left running on purpose.
type Node struct {
	Name string
	UID  types.UID
	Pods []Pod
}

// Pod is what planning needs to know of a pod.
type Pod struct {
	Type     maintenancev1alpha1.PodType
	Priority int32
	Labels   labels.Set
}

// Result is the answer to a World. It is valid until the next call of the Planner that gave it,
// which writes into the same maps.
type Result struct {
	// Targets are the drain targets by node name, for every node of a maintenance. Those of a node
	// that have not changed since the Planner's last call are the Same.
	Targets map[string]Targets
	// Messages are the drain messages by maintenance and node name.
	Messages map[string]map[string]string
	// Finished holds the maintenances of which no live pod is left that their plan covers.
	Finished map[string]bool
	// FastForwarded says which other maintenance had already taken a node further than the
	// maintenance's own plan, by maintenance and node. It is said when the maintenance joins, and
	// as long as pods leave because of an older one.
	FastForwarded map[string]map[string]string
	// Overrides are the contradictions between plans that were decided in favour of the oldest
	// maintenance.
	Overrides []Override
}

// Override tells that the plans of some maintenances contradict each other, so that nothing would
// move, and whose order was followed.
type Override struct {
	// Followed is the maintenance whose order was followed.
	Followed string
	// Overridden are the maintenances on the same nodes whose order was not, also where there is no
	// pod to suffer from it, sorted by name.
	Overridden []string
}
