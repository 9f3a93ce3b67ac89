// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeTaskStage is the stage of a maintenance in which its nodes are offered to workers.
// +enum
// +k8s:enum
type NodeTaskStage string

const (
	// NodeTaskStageDrain offers the nodes when the whole maintenance is drained.
	NodeTaskStageDrain NodeTaskStage = "Drain"
	// NodeTaskStageCordon offers each node as soon as it is cordoned. Its pods stay.
	NodeTaskStageCordon NodeTaskStage = "Cordon"
)

// NodeTaskState is the state of the work on a node.
// +enum
// +k8s:enum
type NodeTaskState string

const (
	// NodeTaskOffered means that a worker may claim the node.
	NodeTaskOffered NodeTaskState = "Offered"
	// NodeTaskClaimed means that the server has granted the node to a worker, which works on it.
	NodeTaskClaimed NodeTaskState = "Claimed"
	// NodeTaskVerifying means that the worker has reported Done, and the server waits until the
	// node is Ready and doneWhen is true.
	NodeTaskVerifying NodeTaskState = "Verifying"
	// NodeTaskDone means that the node is verified. The server deletes the NodeTask.
	NodeTaskDone NodeTaskState = "Done"
	// NodeTaskFailed means that the work or its verification has failed. The node stays cordoned
	// until a user acts.
	NodeTaskFailed NodeTaskState = "Failed"
	// NodeTaskGone means that the node no longer exists. Only nodeStatuses[].task of a
	// NodeMaintenance has it.
	NodeTaskGone NodeTaskState = "Gone"
)

// NodeTaskReason is the reason why the work on a node has failed.
// +enum
// +k8s:enum
type NodeTaskReason string

const (
	// NodeTaskWorkerFailed means that the worker has reported Failed.
	NodeTaskWorkerFailed NodeTaskReason = "WorkerFailed"
	// NodeTaskLost means that the worker has not reported for progressDeadlineSeconds.
	NodeTaskLost NodeTaskReason = "Lost"
	// NodeTaskNotVerified means that the node was not Ready, or doneWhen not true,
	// verifyDeadlineSeconds after the worker had reported Done.
	NodeTaskNotVerified NodeTaskReason = "NotVerified"
	// NodeTaskNoWorker means that no worker has claimed the node for claimDeadlineSeconds. The node
	// is released. Only nodeStatuses[].task of a NodeMaintenance has it.
	NodeTaskNoWorker NodeTaskReason = "NoWorker"
)

// NodeTaskResult is what a worker reports at the end of its work.
// +enum
// +k8s:enum
type NodeTaskResult string

const (
	// NodeTaskResultDone means that the work has succeeded.
	NodeTaskResultDone NodeTaskResult = "Done"
	// NodeTaskResultFailed means that the work has failed.
	NodeTaskResultFailed NodeTaskResult = "Failed"
)

// NodeMaintenanceTask is the work on each node of a maintenance.
type NodeMaintenanceTask struct {
	// worker is the class of the workers that may claim the nodes: a DNS subdomain of at most 63
	// characters with at least one dot.
	// +required
	// +k8s:required
	// +k8s:format=k8s-long-name
	// +k8s:maxLength=63
	Worker string `json:"worker" protobuf:"bytes,1,opt,name=worker"`

	// stage is the stage in which the nodes are offered to workers. Drain: all of them when the
	// whole maintenance is drained. Cordon: each as soon as it is cordoned; its pods stay. The
	// default is Drain.
	// +optional
	// +default="Drain"
	// +k8s:optional
	Stage NodeTaskStage `json:"stage,omitempty" protobuf:"bytes,2,opt,name=stage,casttype=NodeTaskStage"`

	// parameters are passed to the worker. Only the worker interprets them. At most 32, and 4096
	// bytes together.
	// +optional
	// +k8s:optional
	Parameters map[string]string `json:"parameters,omitempty" protobuf:"bytes,3,rep,name=parameters"`

	// doneWhen is a CEL expression of type bool over the variables node and before: a node needs no
	// work if it is true. node has metadata.name, metadata.uid, metadata.labels, spec, and of the
	// status conditions, nodeInfo and allocatable. before has bootID, kernelVersion, osImage,
	// containerRuntimeVersion and kubeletVersion at the time of the offer; for a node that was not
	// offered yet, the present ones. After the work the node is verified: it must be Ready, and the
	// expression true. An error counts as false. Rollouts leave nodes in service that meet it
	// already; a maintenance that a user has made drains them, too. At most 1024 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=1024
	DoneWhen string `json:"doneWhen,omitempty" protobuf:"bytes,4,opt,name=doneWhen"`

	// claimDeadlineSeconds is the time in seconds after which an offered node that no worker has
	// claimed is released, with the reason NoWorker. In a NodeMaintenance that a user has made it
	// does not count after a worker has worked on another node. From 60 to 604800; the default is
	// 1800.
	// +optional
	// +default=1800
	// +k8s:optional
	// +k8s:minimum=60
	// +k8s:maximum=604800
	ClaimDeadlineSeconds *int32 `json:"claimDeadlineSeconds,omitempty" protobuf:"varint,5,opt,name=claimDeadlineSeconds"`

	// progressDeadlineSeconds is the time in seconds that a worker may go without a heartbeat
	// before the work has failed, with the reason Lost. From 60 to 86400; the default is 1800.
	// +optional
	// +default=1800
	// +k8s:optional
	// +k8s:minimum=60
	// +k8s:maximum=86400
	ProgressDeadlineSeconds *int32 `json:"progressDeadlineSeconds,omitempty" protobuf:"varint,6,opt,name=progressDeadlineSeconds"`

	// verifyDeadlineSeconds is the time in seconds after the report Done of the worker after which
	// the work has failed if the node is not Ready or doneWhen is not true, with the reason
	// NotVerified. From 60 to 86400; the default is 900.
	// +optional
	// +default=900
	// +k8s:optional
	// +k8s:minimum=60
	// +k8s:maximum=86400
	VerifyDeadlineSeconds *int32 `json:"verifyDeadlineSeconds,omitempty" protobuf:"varint,7,opt,name=verifyDeadlineSeconds"`
}

// NodeMaintenanceNodeTask is the state of the work on one node of a maintenance.
type NodeMaintenanceNodeTask struct {
	// state is the state of the work: Offered, Claimed, Verifying, Done, Failed or Gone.
	// +required
	// +k8s:required
	State NodeTaskState `json:"state" protobuf:"bytes,1,opt,name=state,casttype=NodeTaskState"`

	// holder identifies the worker. Empty before a worker has claimed the node.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=128
	Holder string `json:"holder,omitempty" protobuf:"bytes,2,opt,name=holder"`

	// startTime is the time at which the server granted the node to the worker.
	// +optional
	// +k8s:opaqueType
	StartTime *metav1.Time `json:"startTime,omitempty" protobuf:"bytes,3,opt,name=startTime"`

	// endTime is the time at which the state became Done, Failed or Gone.
	// +optional
	// +k8s:opaqueType
	EndTime *metav1.Time `json:"endTime,omitempty" protobuf:"bytes,4,opt,name=endTime"`

	// message describes the state for people. At most 128 bytes.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=128
	Message string `json:"message,omitempty" protobuf:"bytes,5,opt,name=message"`

	// reason is the reason of the state Failed: WorkerFailed, Lost, NotVerified or NoWorker. It
	// stays in the state Verifying of work that has failed and was reported Done later.
	// +optional
	// +k8s:optional
	Reason NodeTaskReason `json:"reason,omitempty" protobuf:"bytes,6,opt,name=reason,casttype=NodeTaskReason"`
}

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +k8s:supportsSubresource="/status"

// NodeTask offers a node that is out of service to a worker. Its name is that of the node, so that
// there is at most one for each node. Only the Haulout server creates it. A worker claims it by
// setting status.holder, waits for status.state Claimed, works, and sets status.result.
type NodeTask struct {
	// +k8s:opaqueType
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata. The name is that of the node.
	// +optional
	// +k8s:opaqueType
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// spec is the work. Written by the Haulout server. Immutable.
	// +optional
	Spec NodeTaskSpec `json:"spec,omitempty" protobuf:"bytes,2,opt,name=spec"`

	// status is the progress of the work.
	// +optional
	Status NodeTaskStatus `json:"status,omitempty" protobuf:"bytes,3,opt,name=status"`
}

// NodeTaskSpec is the work on a node. All of it is immutable.
type NodeTaskSpec struct {
	// nodeUID is the UID of the node. A node that is recreated with the same name is a different
	// node.
	// +required
	// +k8s:required
	NodeUID types.UID `json:"nodeUID" protobuf:"bytes,1,opt,name=nodeUID,casttype=k8s.io/apimachinery/pkg/types.UID"`

	// maintenance identifies the NodeMaintenance that offers the node.
	// +required
	Maintenance NodeTaskMaintenance `json:"maintenance" protobuf:"bytes,2,opt,name=maintenance"`

	// worker is the class of the workers that may claim the node.
	// +required
	// +k8s:required
	Worker string `json:"worker" protobuf:"bytes,3,opt,name=worker"`

	// parameters are those of the task of the NodeMaintenance. Only the worker interprets them.
	// +optional
	// +k8s:optional
	Parameters map[string]string `json:"parameters,omitempty" protobuf:"bytes,4,rep,name=parameters"`

	// reason is the reason of the NodeMaintenance.
	// +optional
	// +k8s:optional
	Reason string `json:"reason,omitempty" protobuf:"bytes,5,opt,name=reason"`

	// before is what ran on the node when it was offered.
	// +optional
	Before NodeVersions `json:"before,omitempty" protobuf:"bytes,6,opt,name=before"`

	// claimDeadlineSeconds is the time in seconds after the offer after which the node is released
	// if no worker has claimed it, see NodeMaintenanceTask.
	// +required
	ClaimDeadlineSeconds int32 `json:"claimDeadlineSeconds" protobuf:"varint,7,opt,name=claimDeadlineSeconds"`

	// progressDeadlineSeconds is the time in seconds after the last write of the worker after which
	// the work has failed.
	// +required
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds" protobuf:"varint,8,opt,name=progressDeadlineSeconds"`

	// verifyDeadlineSeconds is the time in seconds after the report of the worker after which the
	// work has failed if the node is not verified.
	// +required
	VerifyDeadlineSeconds int32 `json:"verifyDeadlineSeconds" protobuf:"varint,9,opt,name=verifyDeadlineSeconds"`
}

// NodeTaskMaintenance identifies the NodeMaintenance of a NodeTask.
type NodeTaskMaintenance struct {
	// name of the NodeMaintenance.
	// +required
	// +k8s:required
	Name string `json:"name" protobuf:"bytes,1,opt,name=name"`

	// uid of the NodeMaintenance.
	// +required
	// +k8s:required
	UID types.UID `json:"uid" protobuf:"bytes,2,opt,name=uid,casttype=k8s.io/apimachinery/pkg/types.UID"`
}

// NodeVersions is what runs on a node, from its status.nodeInfo.
type NodeVersions struct {
	// bootID identifies the boot of the node.
	// +optional
	BootID string `json:"bootID,omitempty" protobuf:"bytes,1,opt,name=bootID"`
	// kernelVersion of the node.
	// +optional
	KernelVersion string `json:"kernelVersion,omitempty" protobuf:"bytes,2,opt,name=kernelVersion"`
	// osImage of the node.
	// +optional
	OSImage string `json:"osImage,omitempty" protobuf:"bytes,3,opt,name=osImage"`
	// containerRuntimeVersion of the node.
	// +optional
	ContainerRuntimeVersion string `json:"containerRuntimeVersion,omitempty" protobuf:"bytes,4,opt,name=containerRuntimeVersion"`
	// kubeletVersion of the node.
	// +optional
	KubeletVersion string `json:"kubeletVersion,omitempty" protobuf:"bytes,5,opt,name=kubeletVersion"`
}

// NodeTaskStatus is the progress of the work on a node.
type NodeTaskStatus struct {
	// state is the state of the work: Offered, Claimed, Verifying, Done or Failed. Written by the
	// Haulout server.
	// +optional
	// +k8s:optional
	State NodeTaskState `json:"state,omitempty" protobuf:"bytes,1,opt,name=state,casttype=NodeTaskState"`

	// stateTime is the time at which the state began. Written by the Haulout server.
	// +optional
	// +k8s:opaqueType
	StateTime *metav1.Time `json:"stateTime,omitempty" protobuf:"bytes,2,opt,name=stateTime"`

	// progressTime is the time of the last write of the worker: any write is a heartbeat. Set by
	// the server.
	// +optional
	// +k8s:opaqueType
	ProgressTime *metav1.Time `json:"progressTime,omitempty" protobuf:"bytes,3,opt,name=progressTime"`

	// claimedBy is the name of the user who set holder. Set by the server.
	// +optional
	// +k8s:optional
	ClaimedBy string `json:"claimedBy,omitempty" protobuf:"bytes,4,opt,name=claimedBy"`

	// holder identifies the worker that claims the node. It can be set once. At most 128 bytes.
	// Written by the worker.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=128
	Holder string `json:"holder,omitempty" protobuf:"bytes,5,opt,name=holder"`

	// message describes the work for people. At most 1024 bytes. Written by the worker.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=1024
	Message string `json:"message,omitempty" protobuf:"bytes,6,opt,name=message"`

	// expectedFinishTime is the time at which the worker expects to be done. Written by the worker.
	// +optional
	// +k8s:opaqueType
	ExpectedFinishTime *metav1.Time `json:"expectedFinishTime,omitempty" protobuf:"bytes,7,opt,name=expectedFinishTime"`

	// result is the result of the work: Done or Failed. Failed can become Done later. Written by
	// the worker.
	// +optional
	// +k8s:optional
	Result NodeTaskResult `json:"result,omitempty" protobuf:"bytes,8,opt,name=result,casttype=NodeTaskResult"`

	// reason is the reason of the state Failed: WorkerFailed, Lost or NotVerified. It stays in the
	// state Verifying of work that has failed and was reported Done later. Written by the Haulout
	// server.
	// +optional
	// +k8s:optional
	Reason NodeTaskReason `json:"reason,omitempty" protobuf:"bytes,9,opt,name=reason,casttype=NodeTaskReason"`

	// serverMessage describes for people what the server waits for, or why the state is Failed. At
	// most 1024 bytes. Written by the Haulout server.
	// +optional
	// +k8s:optional
	// +k8s:maxBytes=1024
	ServerMessage string `json:"serverMessage,omitempty" protobuf:"bytes,10,opt,name=serverMessage"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeTaskList is a list of NodeTasks.
type NodeTaskList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`

	// items are the NodeTasks.
	Items []NodeTask `json:"items" protobuf:"bytes,2,rep,name=items"`
}
