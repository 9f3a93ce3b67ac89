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

package v1alpha1

import corev1 "k8s.io/api/core/v1"

const (
	// FinalizerMaintenanceCompletion holds a NodeMaintenance until its nodes are released
	// (KEP-4212, "Finalizers and Deletion of the NodeMaintenance"). The server puts it on and takes
	// it off.
	FinalizerMaintenanceCompletion = "nodemaintenance.k8s.io/maintenance-completion"

	// FinalizerInstigatorPrefix starts the finalizer of an instigator on an Evacuation: the prefix
	// and the instigator's name.
	FinalizerInstigatorPrefix = "evacuation.coordination.k8s.io/instigator_"

	// InstigatorNodeMaintenance is the name of the node maintenance controller as an instigator.
	InstigatorNodeMaintenance = "nodemaintenance.k8s.io"

	// FinalizerInstigatorNodeMaintenance is the instigator finalizer of the node maintenance
	// controller.
	FinalizerInstigatorNodeMaintenance = FinalizerInstigatorPrefix + InstigatorNodeMaintenance

	// AnnotationEvacuatorPrefix starts the annotation with which a pod names an evacuator: the
	// prefix and the class; the value is "<priority>" or "<priority>/<role>".
	AnnotationEvacuatorPrefix = "evacuation.coordination.k8s.io/priority_"

	// EvacuatorClassDeployment is the built-in evacuator of pods that a Deployment owns through a
	// ReplicaSet.
	EvacuatorClassDeployment = "deployment.apps.k8s.io"
	// EvacuatorClassDaemonSet is the built-in evacuator of DaemonSet pods.
	EvacuatorClassDaemonSet = "daemonset.apps.k8s.io"
	// EvacuatorClassKubelet is the evacuator of static pods: the node agent.
	EvacuatorClassKubelet = "kubelet.k8s.io"
	// EvacuatorClassEviction is the active class once every evacuator is spent: the pod is evicted
	// within its budget.
	EvacuatorClassEviction = "eviction.maintenance.haulout.dev"

	// ControllerEvacuatorPriority is the priority of the evacuator with the role controller, and of
	// no other.
	ControllerEvacuatorPriority int32 = 10000

	// AnnotationCordonedBy is put on a node in the write that cordons it. Its value is a JSON
	// object of the names and UIDs of the maintenances that hold the cordon. A cordon without it
	// belongs to somebody else and is not lifted.
	AnnotationCordonedBy = "maintenance.haulout.dev/cordoned-by"

	// AnnotationConditionsBy is put on a node in the write that sets its conditions. Its value is a
	// JSON object: "conditions" lists the types of the conditions that are the server's,
	// "maintenances" holds the UIDs and stages of the maintenances that they are about, by name. A
	// condition that it does not list belongs to somebody else and is not touched.
	AnnotationConditionsBy = "maintenance.haulout.dev/conditions-by"

	// AnnotationTaintedBy is put on a node in the write that puts the taint TaintDrain on it. Its
	// value is a JSON object of the names and UIDs of the maintenances that hold the taint. A taint
	// without it belongs to somebody else and is not taken off.
	AnnotationTaintedBy = "maintenance.haulout.dev/tainted-by"

	// TaintDrain keeps new DaemonSet pods off a node whose DaemonSet pods are asked to leave.
	TaintDrain = "maintenance.haulout.dev/drain"

	// TaintHeld makes the scheduler prefer other nodes to one that a maintenance holds, for pods
	// that tolerate cordons. Its effect is PreferNoSchedule. It is added in the write that cordons
	// the node, or by itself where the node was cordoned before, and it is removed when no
	// maintenance holds the node any more. AnnotationCordonedBy names whose it is.
	TaintHeld = "maintenance.haulout.dev/held"

	// AnnotationLeavesFor is on the request with which the server creates an Evacuation. Its value
	// names, for people, the maintenance that the pod leaves for, with its reason. The value
	// becomes part of the first status.message. The annotation is not stored, and it is dropped
	// from the requests of others.
	AnnotationLeavesFor = "maintenance.haulout.dev/leaves-for"

	// AnnotationSurge on a Deployment decides whether the built-in evacuator may scale it up:
	// SurgeDisabled or SurgeAlways. Without it the Deployment is scaled up unless a budget of its
	// pods never allows an eviction.
	AnnotationSurge = "maintenance.haulout.dev/surge"
	// SurgeDisabled is the value of AnnotationSurge for a Deployment whose pods are only evicted.
	SurgeDisabled = "Disabled"
	// SurgeAlways is the value of AnnotationSurge for a Deployment whose pods may be replaced
	// although their budget never allows an eviction.
	SurgeAlways = "Always"

	// AnnotationSurgeTimeout on a Deployment overrides the server's --surge-timeout for its pods.
	// The value is a Go duration, such as "20m".
	AnnotationSurgeTimeout = "maintenance.haulout.dev/surge-timeout"

	// AnnotationOriginalPodDeletionCost is put on a pod in the write that gives it the lowest
	// deletion cost, so that a scale-down takes it before others (KEP-2255). Its value is the cost
	// that the pod had, empty if it had none; that comes back when the pod may stay.
	AnnotationOriginalPodDeletionCost = "maintenance.haulout.dev/original-pod-deletion-cost"

	// AnnotationSurgeRecord is put on a Deployment, or on the HorizontalPodAutoscaler that scales
	// it, in the write that scales it up so that pods can leave. Its value is a JSON object: the
	// numbers before and after, and the Evacuations that it is for. Whoever finds it can take the
	// scaling back.
	AnnotationSurgeRecord = "maintenance.haulout.dev/surge-record"
)

// The conditions of a node that say what maintenances do with it (KEP-4212, "Status"). None of them
// is on a node that no maintenance holds.
const (
	// NodeConditionMaintenancePlanned is True while a maintenance in stage Idle selects the node.
	// It is only set if the server is told to.
	NodeConditionMaintenancePlanned corev1.NodeConditionType = "MaintenancePlanned"
	// NodeConditionMaintenanceInProgress is True while a maintenance in stage Cordon or Drain holds
	// the node.
	NodeConditionMaintenanceInProgress corev1.NodeConditionType = "MaintenanceInProgress"
	// NodeConditionDrainInProgress is True while a maintenance in stage Drain holds the node and
	// waits for pods to leave it, and False when it waits for none.
	NodeConditionDrainInProgress corev1.NodeConditionType = "DrainInProgress"
	// NodeConditionDrained is True while maintenances in stage Drain hold the node and no pod is
	// left there that the plan of any of them covers, and False while some are.
	NodeConditionDrained corev1.NodeConditionType = "Drained"
)

// Reasons of the conditions of nodes. They all start with NodeReasonPrefix, so that whose they are
// can be seen.
const (
	// NodeReasonPrefix starts the reason of every condition that the server sets on nodes.
	NodeReasonPrefix = "Haulout"
	// NodeReasonPlanned (MaintenancePlanned=True): maintenances in stage Idle select the node.
	NodeReasonPlanned = NodeReasonPrefix + "MaintenancePlanned"
	// NodeReasonCordon (MaintenanceInProgress=True): maintenances keep the node cordoned, none of
	// them drains it.
	NodeReasonCordon = NodeReasonPrefix + "Cordon"
	// NodeReasonDrain (MaintenanceInProgress=True): maintenances are to drain the node.
	NodeReasonDrain = NodeReasonPrefix + "Drain"
	// NodeReasonPodsLeaving (DrainInProgress=True, Drained=False): pods are asked to leave, or may
	// still be bound to the node.
	NodeReasonPodsLeaving = NodeReasonPrefix + "PodsLeaving"
	// NodeReasonPodsReturned (Drained=False): the node was drained, and then a pod came or the node
	// was made schedulable.
	NodeReasonPodsReturned = NodeReasonPrefix + "PodsReturned"
	// NodeReasonNoPodsLeft (DrainInProgress=False, Drained=True): no covered pod is left.
	NodeReasonNoPodsLeft = NodeReasonPrefix + "NoPodsLeft"
	// NodeReasonNotAuthorized (DrainInProgress=False, Drained=False): the requester of a
	// maintenance has lost the right to delete the node, which therefore is not drained any
	// further.
	NodeReasonNotAuthorized = NodeReasonPrefix + "NotAuthorized"
)

// The priorities that every drain plan contains for every pod type (KEP-4212, "Pod Selection").
const (
	// HighestUserDefinablePriority is the highest priority of a priority class that users may make.
	HighestUserDefinablePriority int32 = 1000000000
	// SystemClusterCritical is the priority of the class system-cluster-critical.
	SystemClusterCritical int32 = 2000000000
	// SystemNodeCritical is the priority of the class system-node-critical.
	SystemNodeCritical int32 = 2000001000
	// MaxPodPriority is the highest priority there is.
	MaxPodPriority int32 = 2147483647
)

// MaxOwnDrainPlanEntries is the number of entries a user may put into a drain plan, the twelve of
// every plan aside.
const MaxOwnDrainPlanEntries = 100

// The limits of spec.nodeSelector. A selector is matched with every node of the cluster.
const (
	// MaxSelectorRequirements is how many requirements all terms may have together.
	MaxSelectorRequirements = 1000
	// MaxSelectorValues is how many values all requirements may have together.
	MaxSelectorValues = 10000
)
