// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package size limits the size of objects that clients write, so that the API server refuses a
// large object with a clear error before etcd does.
package size

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// MaxBytes is the limit for metadata and spec of a NodeMaintenance or a NodeMaintenanceRollout
	// together, in bytes of protobuf. A selector that names 5,000 nodes one by one takes about half
	// of it.
	MaxBytes = 512 << 10
	// MaxStatusBytes is the limit for the estimate of StatusBytes. MaxBytes and MaxStatusBytes
	// together are etcd's default limit for one write, 1.5 MiB.
	MaxStatusBytes = 1 << 20
	// MaxEvacuationMetadataBytes is the limit for the labels, annotations, ownerReferences and
	// finalizers of an Evacuation together, in bytes of protobuf; many short labels take more than
	// their keys and values. Namespace administrators write Evacuations, and the server keeps every
	// version in memory for more than a minute.
	MaxEvacuationMetadataBytes = 16 << 10
	// MaxEvacuationBytes is the limit for metadata and spec of an Evacuation together, in bytes of
	// protobuf. It includes the data of field managers and evacuators.
	MaxEvacuationBytes = 64 << 10

	// fixedBytes is the size of what does not depend on nodes and plan: the totals, the pause with
	// the longest name of a user, and five conditions with messages of 400 bytes.
	fixedBytes = 4 << 10
	// nodeBytes is the size of a node in a stored status without its targets and its message. It
	// assumes a name of 63 characters, about the maximum at cloud providers, and the longest reason
	// of a node that has targets.
	nodeBytes = 127 + 20
	// taskBytes is the maximum size of the state of the work on a node, without its message. It
	// leaves room for about 2,700 nodes with the default plan.
	taskBytes = 184
	// waitingBytes is the maximum size of the number of waiting pods of a node, which only a plan
	// with the behavior WaitCompleted has.
	waitingBytes = 4
	// waveBytes is the maximum size of a wave.
	waveBytes = 48
	// entryBytes is the number of bytes that protobuf adds to a target in a list.
	entryBytes = 4
	// labelBytes is the maximum number of bytes that protobuf adds to the key and the value of a
	// label: a tag and a length of up to two bytes for each of them and for both together.
	labelBytes = 9
)

var (
	emptyMetadataBytes = (&metav1.ObjectMeta{}).Size()
	emptyNodeBytes     = (&v1alpha1.NodeMaintenanceNodeStatus{}).Size()
	emptyStatusBytes   = (&v1alpha1.NodeMaintenanceStatus{}).Size()
)

// StatusBytes estimates the stored size of the status of a maintenance when the given number of
// nodes have reached all targets of the plan. Each node then has one target for each pod type and
// selector of the plan. It does not count messages, since the controller omits them if they do not
// fit.
func StatusBytes(plan []v1alpha1.DrainPlanEntry, nodes int) int {
	targets := map[string]int{}
	perNode, waiting := nodeBytes, 0
	for i := range plan {
		key := string(plan[i].PodType) + " " + planorder.CanonicalSelector(plan[i].PodSelector)
		target := plan[i]
		target.Behavior, target.WaitSeconds = nil, nil // targets have none
		size := target.Size() + entryBytes
		perNode += max(0, size-targets[key])
		targets[key] = max(size, targets[key])
		if ptr.Deref(plan[i].Behavior, "") == v1alpha1.DrainBehaviorWaitCompleted {
			waiting = waitingBytes
		}
	}
	perNode += waiting
	return fixedBytes + perNode*nodes + waveBytes*len(plan)
}

// TaskBytes returns how many bytes the state of the work adds to the stored status of a maintenance
// with the given number of nodes, without messages. task is spec.task.
func TaskBytes(task *v1alpha1.NodeMaintenanceTask, nodes int) int {
	if task == nil {
		return 0
	}
	return taskBytes * nodes
}

// MaxNodes returns for how many nodes the status of a maintenance with its task has room.
func MaxNodes(nm *v1alpha1.NodeMaintenance) int {
	fixed := StatusBytes(nm.Spec.DrainPlan, 0)
	return (MaxStatusBytes - fixed) / (StatusBytes(nm.Spec.DrainPlan, 1) + TaskBytes(nm.Spec.Task, 1) - fixed)
}

// PoolsBytes returns how many bytes pools add to the stored status of a maintenance in which each
// of the given number of nodes refers to one of them. It is an upper bound if some nodes have no
// pool, or an index that takes fewer bytes than the last one.
func PoolsBytes(pools []string, nodes int) int {
	if len(pools) == 0 {
		return 0
	}
	last := int32(len(pools) - 1)
	perNode := (&v1alpha1.NodeMaintenanceNodeStatus{PoolIndex: &last}).Size() - emptyNodeBytes
	return (&v1alpha1.NodeMaintenanceStatus{Pools: pools}).Size() - emptyStatusBytes + perNode*nodes
}

// EvacuationMetadataBytes returns the size to which MaxEvacuationMetadataBytes applies.
func EvacuationMetadataBytes(meta *metav1.ObjectMeta) int {
	limited := metav1.ObjectMeta{
		Labels: meta.Labels, Annotations: meta.Annotations, OwnerReferences: meta.OwnerReferences, Finalizers: meta.Finalizers,
	}
	return limited.Size() - emptyMetadataBytes
}

// LabelBytes returns an upper bound of the size that a label adds.
func LabelBytes(key, value string) int { return len(key) + len(value) + labelBytes }

// Validate returns an error if the metadata and the spec of an internal object are too large
// together, or if the metadata of an Evacuation is too large.
func Validate(scheme *runtime.Scheme, obj runtime.Object) field.ErrorList {
	if evacuation, ok := obj.(*maintenance.Evacuation); ok {
		if errs := validateEvacuation(evacuation); len(errs) > 0 {
			return errs
		}
	}
	return validateTotal(scheme, obj)
}

func validateTotal(scheme *runtime.Scheme, obj runtime.Object) field.ErrorList {
	versioned, err := scheme.ConvertToVersion(obj, v1alpha1.SchemeGroupVersion)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	var metadata, spec int
	limit := MaxBytes
	switch o := versioned.(type) {
	case *v1alpha1.NodeMaintenance:
		metadata, spec = o.ObjectMeta.Size(), o.Spec.Size()
	case *v1alpha1.NodeMaintenanceRollout:
		metadata, spec = o.ObjectMeta.Size(), o.Spec.Size()
	case *v1alpha1.Evacuation:
		limit = MaxEvacuationBytes
		metadata, spec = o.ObjectMeta.Size(), o.Spec.Size()
	}
	if metadata+spec <= limit {
		return nil
	}
	larger := "metadata"
	if spec > metadata {
		larger = "spec"
	}
	// Do not use field.Invalid, which would quote the value.
	return field.ErrorList{field.Forbidden(field.NewPath(larger),
		fmt.Sprintf("too large: metadata takes %d KiB and spec %d KiB, at most %d KiB are allowed together", metadata>>10, spec>>10, limit>>10))}
}

// ValidateGrowth does the same as Validate for an update, but it accepts an object that was stored
// too large by an older version and does not grow. The spec of an Evacuation never changes.
func ValidateGrowth(scheme *runtime.Scheme, evacuation, old *maintenance.Evacuation) field.ErrorList {
	if EvacuationMetadataBytes(&evacuation.ObjectMeta) > EvacuationMetadataBytes(&old.ObjectMeta) {
		if errs := validateEvacuation(evacuation); len(errs) > 0 {
			return errs
		}
	}
	if evacuation.ObjectMeta.Size() > old.ObjectMeta.Size() {
		return validateTotal(scheme, evacuation)
	}
	return nil
}

var metadataPath = field.NewPath("metadata")

func validateEvacuation(evacuation *maintenance.Evacuation) field.ErrorList {
	size := EvacuationMetadataBytes(&evacuation.ObjectMeta)
	if size <= MaxEvacuationMetadataBytes {
		return nil
	}
	return field.ErrorList{field.Forbidden(metadataPath,
		fmt.Sprintf("too large: labels, annotations, ownerReferences and finalizers take %d bytes, at most %d bytes are allowed together",
			size, MaxEvacuationMetadataBytes))}
}
