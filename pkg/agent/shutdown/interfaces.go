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
	// ErrFinal is returned by Local.Resume if the node cannot run pods again before it has
	// restarted.
	ErrFinal = errors.New("the pods of this node cannot run again before the machine has restarted")
	// ErrNothingToEnd is returned by Local.End if it cannot end any pods on this machine, and
	// waiting would not help: the machine goes down as it would after End.
	ErrNothingToEnd = errors.New("nothing can be ended on the node")
	// ErrRefused marks an error with which the API answered that it does not accept the
	// maintenance: it is reachable, but of no use for this shutdown.
	ErrRefused = errors.New("refused")
)

// Machine reports that the machine is about to shut down, and delays it.
type Machine interface {
	// Run watches the machine until the context ends. It calls changed after every change of the
	// result of State, and at least once as soon as the state is known. It never gives up: it
	// connects again when it loses the connection to the service manager.
	Run(ctx context.Context, changed func()) error
	// State returns the last known state. It does not block.
	State() MachineState
	// Release lets the shutdown continue. It is idempotent. After it has returned nil, LockHeld is
	// false until a new lock is taken, which happens only when no shutdown is pending.
	Release(ctx context.Context) error
}

// MachineState is what a Machine knows.
type MachineState struct {
	// Known is true once the machine has been asked whether a shutdown is pending, and stays true.
	// While it is false, ShuttingDown=false means nothing: without this field, an agent that
	// restarts during a shutdown would take it for cancelled until the connection is up.
	Known bool
	// ShuttingDown is true from the request of a shutdown until it is cancelled or forgotten. A
	// lost connection does not change it.
	ShuttingDown bool
	// Kind is "reboot", "poweroff" or empty if it is not known.
	Kind string
	// Since is the time at which the shutdown was noticed. Deadline is the time at which the
	// machine goes down whatever the agent does. Both stay the same during one shutdown.
	Since, Deadline time.Time
	// Forgotten is true after a pending shutdown vanished without a cancellation, because logind
	// was restarted, until the next shutdown.
	Forgotten bool
	// Stopping is true when systemd stops the system: what was stopped cannot start again.
	Stopping bool
	// LockHeld is true while the agent delays shutdowns. LockPath is the FIFO of the lock, with
	// which a restarted agent takes it over. Delay is how long the machine waits at most.
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
	// DrainPlan becomes spec.drainPlan.
	DrainPlan []v1alpha1.DrainPlanEntry
}

// Pod is a pod of the node that has not finished, as the API lists it.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	Priority        int32
	// Owner is the UID of the controller, empty if there is none.
	Owner types.UID
	// Stays: an eviction would be in vain, because the pod is a mirror pod or one of a DaemonSet.
	Stays bool
	// Leaving: the pod is terminating.
	Leaving bool
	// Evacuator: the pod names an evacuator of its own.
	Evacuator bool
}

// RefusedEvictionError is an error with which the API has not evicted a pod.
type RefusedEvictionError struct {
	// Message quotes the API.
	Message string
	// RetryAfter is how long the API asks to wait, 0 if it does not say.
	RetryAfter time.Duration
}

// Error returns the message of the API.
func (e *RefusedEvictionError) Error() string {
	return e.Message
}

// DrainState is how far the drain of the node is.
type DrainState struct {
	// Drained is true when no pod is left that has to leave.
	Drained bool
	// Message is what the drain does or waits for.
	Message string
	// PodsLeft is the number of pods that still have to leave. PodsKept is the number of pods that
	// the drain keeps running on purpose.
	PodsLeft, PodsKept int
	// Ended is true if the maintenance is not in stage Drain any more or does not exist: another
	// user has ended it.
	Ended bool
}

// Cluster is the API, as far as a shutdown needs it. Every method except Event returns an error if
// the API does not answer before the context ends.
type Cluster interface {
	// EnsureMaintenance creates the NodeMaintenance of the shutdown. If it exists in stage Drain,
	// it is adopted; if it is Complete, because an earlier shutdown of the same boot was cancelled,
	// it is replaced. Anything else with its name is an error that wraps ErrRefused.
	EnsureMaintenance(ctx context.Context, request MaintenanceRequest) (state.MaintenanceRef, error)
	// Drain returns how far the drain is. It is an error if no controller acts on the maintenance.
	Drain(ctx context.Context, ref state.MaintenanceRef) (DrainState, error)
	// Complete moves the maintenance to stage Complete if this agent created it. A maintenance that
	// does not exist, or exists with another UID, is no error. An empty UID matches any.
	Complete(ctx context.Context, ref state.MaintenanceRef) error
	// CompleteOlder completes the maintenances that this agent created in other boots, and returns
	// how many they were.
	CompleteOlder(ctx context.Context, bootID string) (completed int, err error)
	// DeleteOldest deletes the oldest completed maintenances of earlier boots if there are too
	// many.
	DeleteOldest(ctx context.Context, bootID string) error
	// Pods lists the pods of the node with the rights of a node, past every cache. Which pods are
	// gone follows from this list alone: to a get or an eviction of a pod that is gone, or that
	// runs elsewhere under the same name, the API answers a node that it has no right to it.
	Pods(ctx context.Context) ([]Pod, error)
	// Evict asks for the eviction of a pod, if it still has its UID. An answer other than that it
	// is accepted is a *RefusedEvictionError.
	Evict(ctx context.Context, pod Pod) error
	// Cordon makes the node unschedulable, unless it is, and records the boot on the node.
	Cordon(ctx context.Context, bootID string) error
	// Uncordon undoes the Cordon of this or an earlier boot. It is no error if it did nothing, or
	// if the server has taken over the cordon.
	Uncordon(ctx context.Context) error
	// SetCondition writes a condition of the node. A zero LastTransitionTime is filled in: it
	// changes only with the status. NodeAgentReady is not written if the node has it like that, and
	// its heartbeat is not due there, see protocol.AgentHeartbeatOf.
	SetCondition(ctx context.Context, condition corev1.NodeCondition) error
	// ReportKilled sets the phase of pods that were ended without the API to Failed, and returns
	// those that need no report any more, also if it returns an error for others. Pods of which a
	// container was started after since run again, and are left alone.
	ReportKilled(ctx context.Context, pods []state.KilledPod, since time.Time) (reported []state.KilledPod, err error)
	// Event records an event about the node. It does not block.
	Event(eventType, reason, message string)
}

// Local ends the pods of the node without the API.
type Local interface {
	// Name is the name of the engine in messages.
	Name() string
	// End ends the pods of the node, bucket by bucket from resume.Bucket on, within the deadline.
	// After each bucket it calls next with the progress and the pods that were ended, and returns
	// nil if next returns false. It returns nil when all pods have ended. If it returns an error
	// other than ErrNothingToEnd, it is called again with the last progress.
	End(ctx context.Context, resume state.Local, deadline time.Time, next func(state.Local, []state.KilledPod) bool) error
	// Resume lets the node run pods again, after End has returned. It is idempotent, and returns
	// ErrFinal if that is not possible.
	Resume(ctx context.Context) error
}

// Kubelet is the kubelet, as far as an engine has stopped it.
type Kubelet interface {
	// Stopped reports whether an engine has stopped the kubelet in this boot, and Start has not
	// started it since. It does not block.
	Stopped() bool
	// Start starts the kubelet. It is idempotent.
	Start(ctx context.Context) error
}

// Pods knows the pods of the node without the API.
type Pods interface {
	// Priorities returns the priorities of the pods on the node. It does not block.
	Priorities() []int32
}

// StaticPods stops and restarts static pods.
type StaticPods interface {
	// Problem returns why static pods cannot be stopped and restarted now, empty if they can. It
	// does not block.
	Problem() string
}
