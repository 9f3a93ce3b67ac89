// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeTaskStage is the stage of a maintenance in which its nodes are offered to workers.
type NodeTaskStage string

// NodeTaskStageCordon offers each node as soon as it is cordoned. Its pods stay.
const NodeTaskStageCordon NodeTaskStage = "Cordon"

// NodeTaskState is the state of the work on a node.
type NodeTaskState string

// The states in which a worker may claim a node or report the result of its work.
const (
	NodeTaskOffered NodeTaskState = "Offered"
	NodeTaskClaimed NodeTaskState = "Claimed"
	NodeTaskFailed  NodeTaskState = "Failed"
)

// NodeTaskReason is the reason why the work on a node has failed.
type NodeTaskReason string

// NodeTaskResult is what a worker reports at the end of its work.
type NodeTaskResult string

// NodeTaskResultDone means that the work has succeeded.
const NodeTaskResultDone NodeTaskResult = "Done"

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeTask offers a node that is out of service to a worker.
type NodeTask struct {
	metav1.TypeMeta
	metav1.ObjectMeta

	Spec   NodeTaskSpec
	Status NodeTaskStatus
}

// NodeTaskSpec is the work on a node. All of it is immutable.
type NodeTaskSpec struct {
	NodeUID                 types.UID
	Maintenance             NodeTaskMaintenance
	Worker                  string
	Parameters              map[string]string
	Reason                  string
	Before                  NodeVersions
	ClaimDeadlineSeconds    int32
	ProgressDeadlineSeconds int32
	VerifyDeadlineSeconds   int32
}

// NodeTaskMaintenance identifies the NodeMaintenance of a NodeTask.
type NodeTaskMaintenance struct {
	Name string
	UID  types.UID
}

// NodeVersions is what runs on a node.
type NodeVersions struct {
	BootID                  string
	KernelVersion           string
	OSImage                 string
	ContainerRuntimeVersion string
	KubeletVersion          string
}

// NodeTaskStatus is the progress of the work on a node.
type NodeTaskStatus struct {
	State              NodeTaskState
	StateTime          *metav1.Time
	ProgressTime       *metav1.Time
	ClaimedBy          string
	Holder             string
	Message            string
	ExpectedFinishTime *metav1.Time
	Result             NodeTaskResult
	Reason             NodeTaskReason
	ServerMessage      string
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeTaskList is a list of NodeTasks.
type NodeTaskList struct {
	metav1.TypeMeta
	metav1.ListMeta

	Items []NodeTask
}
