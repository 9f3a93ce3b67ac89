// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package state stores the data that the agent needs after a crash or a reboot.
package state

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
)

// Version is the version of the file that this agent writes and the only one that it reads.
const Version = 1

// Phase is the phase of a shutdown.
type Phase string

const (
	// Armed means: no shutdown is pending, and the agent would delay one.
	Armed Phase = "Armed"
	// Detected means: a shutdown is pending, and its NodeMaintenance does not exist yet.
	Detected Phase = "Detected"
	// Maintaining means: the NodeMaintenance exists, and the server drains the node.
	Maintaining Phase = "Maintaining"
	// Evicting means: Haulout does not respond, and the agent evicts the pods itself.
	Evicting Phase = "Evicting"
	// LocalRun means: the agent ends the pods without the API.
	LocalRun Phase = "Local"
	// Releasing means: the agent lets the shutdown continue.
	Releasing Phase = "Releasing"
	// Down means: the shutdown continues; the machine is about to go down.
	Down Phase = "Down"
	// Cancelled means: the shutdown was cancelled, and the agent undoes what it did.
	Cancelled Phase = "Cancelled"
)

// Phases are all phases. The Phase of a zero State is none of them.
var Phases = []Phase{Armed, Detected, Maintaining, Evicting, LocalRun, Releasing, Down, Cancelled}

// Pending reports whether a shutdown is pending in this phase.
func (p Phase) Pending() bool {
	return p != "" && p != Armed && p != Cancelled
}

// State is the content of state.json.
type State struct {
	// Version is the version of the file. Save sets it.
	Version int `json:"version"`
	// BootID is the boot during which the state was stored. A phase of another boot must not be
	// resumed.
	BootID string `json:"bootID,omitempty"`
	// Phase is the progress of the shutdown.
	Phase Phase `json:"phase,omitempty"`
	// Signal is the request for the shutdown.
	Signal Signal `json:"signal,omitzero"`
	// Maintenance is the NodeMaintenance of the shutdown, once it exists.
	Maintenance *MaintenanceRef `json:"maintenance,omitempty"`
	// Refused is set if the API refused the NodeMaintenance of the shutdown. The agent does not
	// create it again.
	Refused bool `json:"refused,omitempty"`
	// Last has the times of the last shutdown that was not cancelled, possibly of an earlier boot.
	Last Times `json:"last,omitzero"`
	// LockPath is the path of the pipe that holds the inhibitor lock. A new process can open it.
	LockPath string `json:"lockPath,omitempty"`
	// Local is the progress of ending pods without the API, once that has begun.
	Local *Local `json:"local,omitempty"`
	// Killed are the pods that ended without the API.
	Killed []KilledPod `json:"killed,omitempty"`
	// Configuration is the configuration of the agent that stored this state, with the node name,
	// the runtime endpoint and the static pod folder that the agent found. An agent whose
	// configuration cannot be loaded uses it to end the pods.
	Configuration *configv1alpha1.NodeAgentConfiguration `json:"configuration,omitempty"`
}

// Times are the times of a shutdown; zero for steps that it has not reached.
type Times struct {
	// Start is the time at which the agent detected the shutdown. End is the time at which it
	// released the shutdown.
	Start time.Time `json:"start,omitzero"`
	End   time.Time `json:"end,omitzero"`
}

// Signal is a request for a shutdown.
type Signal struct {
	// Kind is reboot, poweroff, or "" if unknown.
	Kind string `json:"kind,omitempty"`
	// Time is the time at which the machine requested the shutdown.
	Time time.Time `json:"time,omitzero"`
	// Deadline is the time at which the machine goes down regardless of the agent.
	Deadline time.Time `json:"deadline,omitzero"`
	// DeadlineSinceBoot is the deadline on the clock that counts since the boot and that no user
	// can set, see SinceBoot. 0 if unknown.
	DeadlineSinceBoot time.Duration `json:"deadlineSinceBoot,omitempty"`
}

// MaintenanceRef identifies a NodeMaintenance.
type MaintenanceRef struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid,omitempty"`
}

// Local is the progress of ending pods without the API.
type Local struct {
	// Started is the time at which the agent began to end pods.
	Started time.Time `json:"started,omitzero"`
	// Bucket is the index of the next bucket.
	Bucket int `json:"bucket"`
	// Done is set if all buckets have ended.
	Done bool `json:"done,omitempty"`
}

// KilledPod is a pod that ended without the API.
type KilledPod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the UID of the pod. The agent changes the status only if the pod still has this UID.
	UID types.UID `json:"uid"`
	// Reported is set if the pod's status in the API reports that the pod ended.
	Reported bool `json:"reported,omitempty"`
}

// check returns an error for a state that no agent writes.
func (s *State) check() error {
	switch {
	case s.Phase != "" && !slices.Contains(Phases, s.Phase):
		return fmt.Errorf("phase is %q: must be Armed, Detected, Maintaining, Evicting, Local, Releasing, Down or Cancelled", s.Phase)
	case s.Phase != "" && s.BootID == "":
		return fmt.Errorf("bootID is empty in phase %s: must be the ID of a boot", s.Phase)
	case s.Maintenance != nil && s.Maintenance.Name == "":
		return fmt.Errorf("maintenance.name is empty: must be the name of a NodeMaintenance")
	case s.Local != nil && s.Local.Bucket < 0:
		return fmt.Errorf("local.bucket is %d: must be at least 0", s.Local.Bucket)
	}
	return nil
}
