// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import corev1 "k8s.io/api/core/v1"

const (
	// FinalizerMaintenanceCompletion keeps a NodeMaintenance until its nodes are released
	// (KEP-4212, "Finalizers and Deletion of the NodeMaintenance"). The server adds and removes it.
	FinalizerMaintenanceCompletion = "nodemaintenance.k8s.io/maintenance-completion"

	// FinalizerInstigatorPrefix is the prefix of an instigator's finalizer on an Evacuation; the
	// instigator's name follows it.
	FinalizerInstigatorPrefix = "evacuation.coordination.k8s.io/instigator_"

	// InstigatorNodeMaintenance is the name of the node maintenance controller as an instigator.
	InstigatorNodeMaintenance = "nodemaintenance.k8s.io"

	// FinalizerInstigatorNodeMaintenance is the instigator finalizer of the node maintenance
	// controller.
	FinalizerInstigatorNodeMaintenance = FinalizerInstigatorPrefix + InstigatorNodeMaintenance

	// InstigatorRawEviction is the name of the API server as an instigator for clients that evict
	// pods, such as kubectl drain. No role includes the right to use it.
	InstigatorRawEviction = "raw-eviction." + GroupName

	// FinalizerInstigatorRawEviction is the instigator finalizer of an Evacuation that the server
	// created because of an eviction.
	FinalizerInstigatorRawEviction = FinalizerInstigatorPrefix + InstigatorRawEviction

	// AnnotationEvictionAsked is set on an Evacuation that the server created because of an
	// eviction. Its value is the time of the last eviction of the pod, in RFC 3339; the server
	// does not record each one. Only the server can change it.
	AnnotationEvictionAsked = "maintenance.haulout.dev/eviction-asked"

	// AnnotationEvacuatorPrefix is the prefix of the annotation with which a pod names an
	// evacuator; the class follows it. The value is "<priority>" or "<priority>/<role>".
	AnnotationEvacuatorPrefix = "evacuation.coordination.k8s.io/priority_"

	// AnnotationEvacuatorStartDeadline on a pod is the minimum time that the evacuators which the
	// pod names have for their first report. The value is a Go duration, such as "20m", from 1s to
	// 24h. A value below the server's --evacuator-start-deadline has no effect, and
	// spec.progressDeadlineSeconds of the Evacuation limits it.
	AnnotationEvacuatorStartDeadline = "maintenance.haulout.dev/evacuator-start-deadline"

	// EvacuatorClassDeployment is the built-in evacuator of pods that a Deployment owns through a
	// ReplicaSet.
	EvacuatorClassDeployment = "deployment.apps.k8s.io"
	// EvacuatorClassDaemonSet is the built-in evacuator of DaemonSet pods.
	EvacuatorClassDaemonSet = "daemonset.apps.k8s.io"
	// EvacuatorClassKubelet is the evacuator of static pods: the node agent.
	EvacuatorClassKubelet = "kubelet.k8s.io"
	// EvacuatorClassEviction is the active class once no evacuator is left: the server evicts the
	// pod as its budget allows.
	EvacuatorClassEviction = "eviction.maintenance.haulout.dev"

	// ControllerEvacuatorPriority is reserved for the evacuator with the role controller.
	ControllerEvacuatorPriority int32 = 10000

	// AnnotationCordonedBy is added to a node in the write that cordons it. Its value is a JSON
	// object of the names and UIDs of the maintenances that hold the cordon. The server does not
	// lift a cordon without this annotation: a user or another component added it.
	AnnotationCordonedBy = "maintenance.haulout.dev/cordoned-by"

	// AnnotationCordonedByAgent is added to a node in the write with which its agent makes it
	// unschedulable, in a shutdown during which no server answers. Its value is the ID of the boot.
	// The server takes over such a cordon: AnnotationCordonedBy replaces the annotation.
	AnnotationCordonedByAgent = "maintenance.haulout.dev/cordoned-by-agent"

	// AnnotationEvictNow marks an Eviction for which only the budget decides. Its value names the
	// client.
	AnnotationEvictNow = "maintenance.haulout.dev/evict-now"

	// AnnotationConditionsBy is added to a node in the write that sets its conditions. Its value is
	// a JSON object: "conditions" lists the types of the conditions that the server owns,
	// "maintenances" maps the names of their maintenances to UIDs and stages. The server does not
	// change conditions that are not listed.
	AnnotationConditionsBy = "maintenance.haulout.dev/conditions-by"

	// AnnotationTaintedBy is added to a node in the write that adds the taint TaintHeld. Its value
	// is a JSON object of the names and UIDs of the maintenances that hold the node, and of the
	// taints that the server has added. The server does not remove others: a user or another
	// component added them.
	AnnotationTaintedBy = "maintenance.haulout.dev/tainted-by"

	// AnnotationProtectedBy is added to a node in the write that adds annotations for autoscalers.
	// Its value is a JSON object of the keys that the server has added, and removes when no
	// maintenance holds the node any longer.
	AnnotationProtectedBy = "maintenance.haulout.dev/protected-by"

	// TaintDrain keeps new DaemonSet pods off a node whose DaemonSet pods are being evacuated.
	TaintDrain = "maintenance.haulout.dev/drain"

	// TaintHeld makes the scheduler prefer other nodes to one that a maintenance holds, for pods
	// that tolerate cordons. Its effect is PreferNoSchedule. The server adds it in the write that
	// cordons the node, or in a separate write if the node was cordoned before. It removes the
	// taint when no maintenance holds the node any longer. AnnotationCordonedBy names its owners.
	TaintHeld = "maintenance.haulout.dev/held"

	// AnnotationLeavesFor is set in the request with which the server creates an Evacuation. Its
	// value names, for users, the maintenance for which the pod leaves, and its reason. The value
	// becomes part of the first status.message. The server does not store the annotation, and
	// removes it from the requests of other users.
	AnnotationLeavesFor = "maintenance.haulout.dev/leaves-for"

	// AnnotationSurge on a Deployment defines whether the built-in evacuator may scale it up:
	// SurgeDisabled or SurgeAlways. Without it, the evacuator scales the Deployment up unless a
	// budget of its pods never allows an eviction.
	AnnotationSurge = "maintenance.haulout.dev/surge"
	// SurgeDisabled is the value of AnnotationSurge for a Deployment whose pods are only evicted.
	SurgeDisabled = "Disabled"
	// SurgeAlways is the value of AnnotationSurge for a Deployment whose pods may be replaced
	// although their budget never allows an eviction.
	SurgeAlways = "Always"

	// AnnotationSurgeTimeout on a Deployment overrides the server's --surge-timeout for its pods.
	// The value is a Go duration, such as "20m".
	AnnotationSurgeTimeout = "maintenance.haulout.dev/surge-timeout"

	// AnnotationOriginalPodDeletionCost is added to a pod in the write that sets the lowest
	// deletion cost, so that a scale-down deletes this pod first (KEP-2255). Its value is the
	// previous cost of the pod, empty if it had none. The server restores that cost when the pod
	// may stay.
	AnnotationOriginalPodDeletionCost = "maintenance.haulout.dev/original-pod-deletion-cost"

	// AnnotationDeletionCost on a pod defines whether the server may lower its deletion cost while
	// it waits for its replacement or eviction. The only value is DeletionCostKeep.
	AnnotationDeletionCost = "maintenance.haulout.dev/deletion-cost"
	// DeletionCostKeep is the value of AnnotationDeletionCost for a pod whose deletion cost another
	// client manages.
	DeletionCostKeep = "Keep"

	// AnnotationSurgeRecord is added to a Deployment, or to the HorizontalPodAutoscaler that scales
	// it, in the write that scales it up so that pods can leave. Its value is a JSON object: the
	// replica counts before and after, and the Evacuations that need the surge. The server, or a
	// user, can undo the surge with it.
	AnnotationSurgeRecord = "maintenance.haulout.dev/surge-record"

	// AnnotationBootID is set by the node agent on the NodeMaintenance that it creates when its
	// node shuts down. Its value identifies the boot of the node that ends with this shutdown. The
	// agent of a later boot completes the maintenance. It is immutable for node agents.
	AnnotationBootID = "maintenance.haulout.dev/boot-id"

	// AnnotationKeptStaticPods is set by the node agent on its own Node: the static pods that it
	// does not stop for a maintenance, with the reasons. Its value is a JSON object with the boot
	// ID of the node, the pods, and whether one of them makes the node a control-plane node for
	// rollouts. Without a value of the current boot, the server keeps all static pods of the node.
	AnnotationKeptStaticPods = "maintenance.haulout.dev/kept-static-pods"

	// LabelRollout is set by the server on the NodeMaintenances that it creates for a
	// NodeMaintenanceRollout. Its value is the name of the rollout. Only the server can set it.
	LabelRollout = "maintenance.haulout.dev/rollout"

	// AnnotationRolloutUnit is set by the server on the NodeMaintenances of a rollout. Its value is
	// the name of the unit. Only the server can set it.
	AnnotationRolloutUnit = "maintenance.haulout.dev/rollout-unit"

	// AnnotationWithdrawn is set by the server on a NodeMaintenance of a rollout in the write with
	// which it completes it before the work on all its nodes is done. Its value is the reason. Only
	// the server can set it.
	AnnotationWithdrawn = "maintenance.haulout.dev/withdrawn"

	// AnnotationRetried on a completed NodeMaintenance of a rollout lets its unit start again as if
	// it were new, with any value: "kubectl maintenance rollout retry" sets it. Nodes whose work is
	// done stay done. Users who set it need the right to maintain the nodes.
	AnnotationRetried = "maintenance.haulout.dev/retried"

	// AnnotationSkipRollouts on a node keeps rollouts from taking it out of service, with any
	// value.
	AnnotationSkipRollouts = "maintenance.haulout.dev/skip-rollouts"

	// TaintReadinessPrefix is the prefix of the taints with which the Node Readiness Controller
	// keeps pods off a node that is not ready for them. A node with such a taint is out of service.
	TaintReadinessPrefix = "readiness.k8s.io/"
)

// The classes of the workers that Haulout has.
const (
	// WorkerClassReboot is the class of the worker that reboots nodes.
	WorkerClassReboot = "reboot." + GroupName
	// WorkerClassPerson is the class of users who do the work themselves.
	WorkerClassPerson = "person." + GroupName
	// WorkerClassJobSuffix is the suffix of the classes of the worker that runs a Job on the node.
	// The name of the PodTemplate of the Job precedes it.
	WorkerClassJobSuffix = ".job." + GroupName
)

// NodeConditionRebootRequired is True while the node needs a reboot, according to a file of its
// operating system. The reboot worker sets it if configured to.
const NodeConditionRebootRequired corev1.NodeConditionType = "RebootRequired"

// NodeConditionAgentReady is True while the node agent of the node can stop and restart static
// pods. The server evacuates static pods only on nodes where it is True, and keeps them elsewhere.
// The node agent sets it with its heartbeats, and sets it to False when it is uninstalled. If the
// agent has missed three heartbeats, the condition counts as False, see protocol.HasNodeAgent.
const NodeConditionAgentReady corev1.NodeConditionType = "maintenance.haulout.dev/NodeAgentReady"

// NodeConditionAgentRunning is True while the node agent of the node runs and delays shutdowns,
// regardless of whether it can stop static pods. The server only reads whether it has heartbeats:
// an older agent sends none.
const NodeConditionAgentRunning corev1.NodeConditionType = "maintenance.haulout.dev/NodeAgentRunning"

// The reasons that a node agent may set in spec.reason of its maintenance. Admission accepts no
// other reason from a node.
const (
	// ShutdownReason is the reason of a shutdown whose kind is unknown.
	ShutdownReason = "node shutdown"
	// ShutdownReasonReboot is the reason of a reboot.
	ShutdownReasonReboot = "node shutdown (reboot)"
	// ShutdownReasonPowerOff is the reason of a shutdown after which the node stays off.
	ShutdownReasonPowerOff = "node shutdown (poweroff)"
)

// The conditions of a node that report the effects of maintenances on it (KEP-4212, "Status"). A
// node that no maintenance holds has none of them.
const (
	// NodeConditionMaintenancePlanned is True while a maintenance in stage Idle selects the node.
	// The server sets it only if configured to.
	NodeConditionMaintenancePlanned corev1.NodeConditionType = "MaintenancePlanned"
	// NodeConditionMaintenanceInProgress is True while a maintenance in stage Cordon or Drain holds
	// the node.
	NodeConditionMaintenanceInProgress corev1.NodeConditionType = "MaintenanceInProgress"
	// NodeConditionDrainInProgress is True while a maintenance in stage Drain holds the node and
	// waits for pods to leave it, and False when it no longer waits for pods.
	NodeConditionDrainInProgress corev1.NodeConditionType = "DrainInProgress"
	// NodeConditionDrained is True while maintenances in stage Drain hold the node and it has no
	// pod that the plan of any of them covers. It is False while the node still has such pods.
	NodeConditionDrained corev1.NodeConditionType = "Drained"
)

// Reasons of the conditions of nodes. They all start with NodeReasonPrefix, so that users can see
// which component set the condition.
const (
	// NodeReasonPrefix is the prefix of the reason of every condition that the server sets on
	// nodes.
	NodeReasonPrefix = "Haulout"
	// NodeReasonPlanned (MaintenancePlanned=True): maintenances in stage Idle select the node.
	NodeReasonPlanned = NodeReasonPrefix + "MaintenancePlanned"
	// NodeReasonCordon (MaintenanceInProgress=True): maintenances keep the node cordoned, and none
	// of them drains it.
	NodeReasonCordon = NodeReasonPrefix + "Cordon"
	// NodeReasonDrain (MaintenanceInProgress=True): a maintenance in stage Drain holds the node.
	NodeReasonDrain = NodeReasonPrefix + "Drain"
	// NodeReasonPodsLeaving (DrainInProgress=True, Drained=False): pods are being evacuated, or may
	// still be bound to the node.
	NodeReasonPodsLeaving = NodeReasonPrefix + "PodsLeaving"
	// NodeReasonPodsReturned (Drained=False): the node was drained; after that, a pod was bound to
	// it or it became schedulable.
	NodeReasonPodsReturned = NodeReasonPrefix + "PodsReturned"
	// NodeReasonNoPodsLeft (DrainInProgress=False, Drained=True): no covered pod is left.
	NodeReasonNoPodsLeft = NodeReasonPrefix + "NoPodsLeft"
	// NodeReasonNotAuthorized (DrainInProgress=False, Drained=False): the user who requested a
	// maintenance is no longer allowed to maintain the node, so its drain has stopped.
	NodeReasonNotAuthorized = NodeReasonPrefix + "NotAuthorized"
)

// The priorities that every drain plan contains for every pod type (KEP-4212, "Pod Selection").
const (
	// HighestUserDefinablePriority is the highest priority of a priority class that users can
	// create.
	HighestUserDefinablePriority int32 = 1000000000
	// SystemClusterCritical is the priority of the class system-cluster-critical.
	SystemClusterCritical int32 = 2000000000
	// SystemNodeCritical is the priority of the class system-node-critical.
	SystemNodeCritical int32 = 2000001000
	// MaxPodPriority is the highest possible priority.
	MaxPodPriority int32 = 2147483647
)

// MaxOwnDrainPlanEntries is the maximum number of entries in a drain plan, not counting the twelve
// that every plan has.
const MaxOwnDrainPlanEntries = 100

// The limits of spec.nodeSelector. The server matches a selector with every node of the cluster.
const (
	// MaxSelectorRequirements is the maximum number of requirements in all terms together.
	MaxSelectorRequirements = 1000
	// MaxSelectorValues is the maximum number of values in all requirements together.
	MaxSelectorValues = 10000
)
