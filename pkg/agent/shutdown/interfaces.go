// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Errors that the implementations of the interfaces return, possibly wrapped.
var (
	// ErrFinal is returned by Local.Resume if the node cannot run pods before the machine has
	// restarted.
	ErrFinal = errors.New("the pods of this node cannot run again before the machine has restarted")
	// ErrNothingToEnd is returned by Local.End if no pods of this machine can be ended, and waiting
	// would not help: the agent then releases the shutdown as if all pods had ended.
	ErrNothingToEnd = errors.New("no pods can be ended on the node")
	// ErrRefused marks an error with which the API rejected the maintenance: the API responds, but
	// cannot help with this shutdown.
	ErrRefused = errors.New("refused")
)

// Machine reports and delays shutdowns of the machine.
type Machine interface {
	// Run watches the machine until the context ends. It calls changed after every change of the
	// State, and at least once as soon as the state is known. It never gives up: it reconnects
	// after it has lost the connection to the service manager.
	Run(ctx context.Context, changed func()) error
	// State returns the last known state. It does not block.
	State() MachineState
	// Release lets the shutdown continue. It is idempotent. After it has returned nil, LockHeld is
	// false until a new lock is taken, which happens only when no shutdown is pending.
	Release(ctx context.Context) error
}

// MachineState is the known state of a machine.
type MachineState struct {
	// Known is true once the machine has reported whether a shutdown is pending, and stays true.
	// While it is false, ShuttingDown=false has no meaning: otherwise an agent that restarts during
	// a shutdown would treat the shutdown as cancelled until it is connected to the machine.
	Known bool
	// ShuttingDown is true from the request of a shutdown until it is cancelled or forgotten. It
	// stays unchanged while the connection is lost.
	ShuttingDown bool
	// Kind is "reboot", "poweroff", or empty if unknown.
	Kind string
	// Since is the time at which the shutdown was noticed. Deadline is the time at which the
	// machine goes down regardless of the agent. Both stay the same during one shutdown.
	Since, Deadline time.Time
	// Forgotten is true after a pending shutdown vanished without a cancellation, because logind
	// was restarted, until the next shutdown.
	Forgotten bool
	// Stopping is true when systemd stops the system: stopped services cannot start again.
	Stopping bool
	// LockHeld is true while the agent delays shutdowns. LockPath is the path of the lock's FIFO,
	// with which a restarted agent takes over the lock. Delay is the maximum delay that the machine
	// allows.
	LockHeld bool
	LockPath string
	Delay    time.Duration
	// Problems are sentences for the node condition, for example that the delay is too short.
	Problems []string
}

// MaintenanceRequest describes the NodeMaintenance of one shutdown.
type MaintenanceRequest struct {
	// BootID identifies the boot that the shutdown ends.
	BootID string
	// Reason becomes spec.reason.
	Reason string
	// DrainPlan becomes spec.drainPlan. The server adds the entries that every plan has.
	DrainPlan []v1alpha1.DrainPlanEntry
}

// Pod is a pod of the node that has not finished, as the API lists it.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	Priority        int32
	// Owner is the UID of the controller, empty if there is none.
	Owner types.UID
	// Stays is set if an eviction would not remove the pod from the node, because the pod is a
	// mirror pod or belongs to a DaemonSet.
	Stays bool
	// Leaving is set if the pod is terminating.
	Leaving bool
	// Evacuator is set if the pod names its own evacuator.
	Evacuator bool
}

// RefusedEvictionError is returned if the API did not evict a pod.
type RefusedEvictionError struct {
	// Message quotes the API.
	Message string
	// RetryAfter is the pause that the API requests; 0 if it does not.
	RetryAfter time.Duration
}

// Error returns the message of the API.
func (e *RefusedEvictionError) Error() string {
	return e.Message
}

// DrainState is the progress of the node's drain.
type DrainState struct {
	// Drained is true when no pod is left that must leave the node, and NodeGone if this is so
	// because the Node was deleted: its pods may still run.
	Drained, NodeGone bool
	// Message describes the present activity of the drain.
	Message string
	// PodsLeft is the number of pods that must still leave the node. PodsKept is the number of pods
	// that the drain keeps running on purpose.
	PodsLeft, PodsKept int
	// Ended is true if the maintenance is no longer in stage Drain or does not exist: another user
	// has ended the maintenance.
	Ended bool
}

// Cluster has the API requests of a shutdown. Every method except Event returns an error if the API
// does not answer before the context ends.
type Cluster interface {
	// EnsureMaintenance creates the NodeMaintenance of the shutdown. It adopts an existing
	// maintenance in stage Drain. It replaces a maintenance in stage Complete, which an earlier,
	// cancelled shutdown of the same boot has left. Otherwise the error wraps ErrRefused.
	EnsureMaintenance(ctx context.Context, request MaintenanceRequest) (state.MaintenanceRef, error)
	// Drain returns the progress of the drain. It returns an error if no controller acts on the
	// maintenance.
	Drain(ctx context.Context, ref state.MaintenanceRef) (DrainState, error)
	// Complete moves the maintenance to stage Complete if this agent created it. It returns nil if
	// the maintenance does not exist or has another UID. An empty UID matches any UID.
	Complete(ctx context.Context, ref state.MaintenanceRef) error
	// CompleteOlder completes the maintenances that this agent created in other boots, and returns
	// the number of maintenances that it completed.
	CompleteOlder(ctx context.Context, bootID string) (completed int, err error)
	// DeleteOldest deletes the oldest completed maintenances of earlier boots if there are too
	// many.
	DeleteOldest(ctx context.Context, bootID string) error
	// Pods lists the pods of the node with the rights of a node, bypassing every cache. Only this
	// list shows which pods are gone: if a node gets or evicts a pod that is gone or that runs
	// elsewhere under the same name, the API returns Forbidden.
	Pods(ctx context.Context) ([]Pod, error)
	// Evict requests the eviction of a pod if the pod still has its UID. If the API does not accept
	// it, the error is a *RefusedEvictionError.
	Evict(ctx context.Context, pod Pod) error
	// Cordon makes the node unschedulable if it is schedulable, and records the boot on the node.
	// It reports whether the node was schedulable.
	Cordon(ctx context.Context, bootID string) (changed bool, err error)
	// Uncordon undoes the Cordon of this or an earlier boot. It returns nil if there is nothing to
	// undo, or if the server has taken over the cordon.
	Uncordon(ctx context.Context) error
	// SetCondition writes a condition of the node. It fills in a zero LastTransitionTime, which
	// changes only with the status. It does not write NodeAgentReady if the condition is unchanged
	// and its heartbeat is not due, see protocol.AgentHeartbeatOf.
	SetCondition(ctx context.Context, condition corev1.NodeCondition) error
	// ReportKilled sets the phase of pods that were ended without the API to Failed. It returns the
	// pods that no longer need a report, even if it returns an error about other pods. It skips a
	// pod if one of its containers was started after the time since: the pod runs again.
	ReportKilled(ctx context.Context, pods []state.KilledPod, since time.Time) (reported []state.KilledPod, err error)
	// Event records an event about the node. It does not block.
	Event(eventType, reason, message string)
}

// Local ends the pods of the node without the API.
type Local interface {
	// Name is the name of the engine in messages.
	Name() string
	// End ends the pods of the node within the deadline, bucket by bucket, beginning with
	// resume.Bucket. After each bucket it calls next with the progress and the ended pods, and
	// returns nil if next returns false. It also returns nil when all pods have ended. After an
	// error other than ErrNothingToEnd, the caller calls End again with the last progress.
	End(ctx context.Context, resume state.Local, deadline time.Time, next func(state.Local, []state.KilledPod) bool) error
	// Resume lets the node run pods again after End has returned. It is idempotent, and returns
	// ErrFinal if the node cannot run pods before the machine has restarted.
	Resume(ctx context.Context) error
}

// Kubelet reports whether an engine has stopped the kubelet, and starts it.
type Kubelet interface {
	// Stopped reports whether an engine has stopped the kubelet in this boot and the kubelet has
	// not been started since. It does not block.
	Stopped() bool
	// Start starts the kubelet. It is idempotent.
	Start(ctx context.Context) error
}
