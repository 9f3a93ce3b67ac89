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

const (
	// FinalizerMaintenanceCompletion holds a NodeMaintenance until its nodes are released (KEP-4212, "Finalizers and Deletion of the
	// NodeMaintenance"). The server puts it on and takes it off.
	FinalizerMaintenanceCompletion = "nodemaintenance.k8s.io/maintenance-completion"

	// FinalizerInstigatorPrefix starts the finalizer of an instigator on an Evacuation: the prefix and the instigator's name.
	FinalizerInstigatorPrefix = "evacuation.coordination.k8s.io/instigator_"

	// InstigatorNodeMaintenance is the name of the node maintenance controller as an instigator.
	InstigatorNodeMaintenance = "nodemaintenance.k8s.io"

	// FinalizerInstigatorNodeMaintenance is the instigator finalizer of the node maintenance controller.
	FinalizerInstigatorNodeMaintenance = FinalizerInstigatorPrefix + InstigatorNodeMaintenance

	// AnnotationEvacuatorPrefix starts the annotation with which a pod names an evacuator: the prefix and the class; the value is
	// "<priority>" or "<priority>/<role>".
	AnnotationEvacuatorPrefix = "evacuation.coordination.k8s.io/priority_"

	// EvacuatorClassDeployment is the built-in evacuator of pods that a Deployment owns through a ReplicaSet.
	EvacuatorClassDeployment = "deployment.apps.k8s.io"
	// EvacuatorClassDaemonSet is the built-in evacuator of DaemonSet pods.
	EvacuatorClassDaemonSet = "daemonset.apps.k8s.io"
	// EvacuatorClassKubelet is the evacuator of static pods: the node agent.
	EvacuatorClassKubelet = "kubelet.k8s.io"
	// EvacuatorClassEviction (added) is the active class once every evacuator is spent: the pod is evicted within its budget.
	EvacuatorClassEviction = "eviction.maintenance.haulout.dev"

	// ControllerEvacuatorPriority is the priority of the evacuator with the role controller, and of no other.
	ControllerEvacuatorPriority int32 = 10000

	// AnnotationCordonedBy is put on a node in the write that cordons it. Its value is a JSON object of the names and UIDs of the
	// maintenances that hold the cordon. A cordon without it belongs to somebody else and is not lifted.
	AnnotationCordonedBy = "maintenance.haulout.dev/cordoned-by"

	// TaintDrain keeps new DaemonSet pods off a node whose DaemonSet pods are asked to leave.
	TaintDrain = "maintenance.haulout.dev/drain"

	// AnnotationSurge on a Deployment with the value "Disabled" keeps the built-in evacuator from scaling it up.
	AnnotationSurge = "maintenance.haulout.dev/surge"
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

// MaxOwnDrainPlanEntries is the number of entries a user may put into a drain plan, the twelve of every plan aside.
const MaxOwnDrainPlanEntries = 100
