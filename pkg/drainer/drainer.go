// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package drainer is the library for programs that drain nodes: it does what the commands start,
// wait and complete of `kubectl maintenance` do, which use it.
//
// A program that has used k8s.io/kubectl/pkg/drain creates a maintenance with Drain, waits for it
// with Wait, does its work, and puts the nodes back into service with Complete. The server carries
// out the drain: it goes on if the program ends, and a program that has started again waits for it
// with another call of Wait.
//
// What ends a wait before its aim is a WaitError, whose cause errors.Is compares with ErrTimeout,
// ErrBlocked, ErrEnded, ErrPaused and ErrPodsKept.
//
// The program needs the ClusterRole haulout-maintenance-operator and the right to maintain the
// nodes. artifacts/examples/drain is a complete example.
package drainer

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
)

// Drainer starts, changes and follows maintenances. It may be copied and used by several
// goroutines, as long as its fields do not change.
type Drainer struct {
	// Client is the client of Haulout's API.
	Client versioned.Interface
	// FieldManager is the name under which the API server records the writes; the default is the
	// user agent of the client. It must not begin with kubectl: Flux would undo the writes.
	FieldManager string
	// DryRun makes the server check all writes and store none.
	DryRun bool
	// Progress, if set, is called by Wait with the maintenance, first as it is and then after each
	// change.
	Progress func(nm *v1alpha1.NodeMaintenance)
	// Follow, if set, replaces the watch with which Wait follows a maintenance, for a program that
	// has a cache of maintenances.
	Follow Follow
}

// Cordon makes the nodes of a maintenance unschedulable. It creates a maintenance without a UID,
// such as one that ForNodes returns, in stage Cordon, and moves all others to this stage.
//
// It does not wait: see Wait.
func (d *Drainer) Cordon(ctx context.Context, nm *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenance, error) {
	return d.Start(ctx, nm, v1alpha1.NodeMaintenanceStageCordon)
}

// Drain cordons the nodes of a maintenance and then asks their pods to leave, within their
// disruption budgets. It creates a maintenance without a UID, such as one that ForNodes returns, in
// stage Drain, and moves all others to this stage.
//
// It does not wait: see Wait.
func (d *Drainer) Drain(ctx context.Context, nm *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenance, error) {
	return d.Start(ctx, nm, v1alpha1.NodeMaintenanceStageDrain)
}

// Complete puts the nodes of a maintenance back into service. The object and its history stay until
// the object is deleted.
//
// It does not wait: see Wait. A maintenance that goes from stage Idle straight to Complete
// uncordons also nodes that others have cordoned.
func (d *Drainer) Complete(ctx context.Context, nm *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenance, error) {
	return d.patch(ctx, nm, map[string]any{"stage": v1alpha1.NodeMaintenanceStageComplete})
}

// Start creates a maintenance without a UID in a stage, and moves all others to the stage. Stages
// only go forward.
func (d *Drainer) Start(ctx context.Context, nm *v1alpha1.NodeMaintenance, stage v1alpha1.NodeMaintenanceStage) (*v1alpha1.NodeMaintenance, error) {
	if nm.UID != "" {
		return d.patch(ctx, nm, map[string]any{"stage": stage})
	}
	create := nm.DeepCopy()
	create.Spec.Stage = stage
	return d.Client.MaintenanceV1alpha1().NodeMaintenances().Create(ctx, create, metav1.CreateOptions{
		DryRun: d.dryRun(), FieldManager: d.FieldManager, FieldValidation: metav1.FieldValidationStrict,
	})
}

// Pause makes a drain ask no further pod to leave. Pods that are leaving finish, and the nodes stay
// cordoned.
func (d *Drainer) Pause(ctx context.Context, nm *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenance, error) {
	return d.patch(ctx, nm, map[string]any{"paused": true})
}

// Resume continues a drain that was paused.
func (d *Drainer) Resume(ctx context.Context, nm *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenance, error) {
	return d.patch(ctx, nm, map[string]any{"paused": false})
}

// Cancel deletes a maintenance, with which the server puts its nodes back into service: pods that
// have not left stay.
func (d *Drainer) Cancel(ctx context.Context, nm *v1alpha1.NodeMaintenance) error {
	if err := isStored(nm); err != nil {
		return err
	}
	return d.Client.MaintenanceV1alpha1().NodeMaintenances().Delete(ctx, nm.Name, metav1.DeleteOptions{
		DryRun: d.dryRun(), Preconditions: metav1.NewUIDPreconditions(string(nm.UID)),
	})
}

// patch changes fields of the spec of a maintenance. The UID makes the patch fail if a different
// maintenance was created under the same name in the meantime.
func (d *Drainer) patch(ctx context.Context, nm *v1alpha1.NodeMaintenance, spec map[string]any) (*v1alpha1.NodeMaintenance, error) {
	if err := isStored(nm); err != nil {
		return nil, err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": nm.UID}, "spec": spec})
	if err != nil {
		return nil, err
	}
	return d.Client.MaintenanceV1alpha1().NodeMaintenances().Patch(ctx, nm.Name, types.MergePatchType, patch,
		metav1.PatchOptions{DryRun: d.dryRun(), FieldManager: d.FieldManager})
}

// isStored returns an error about a maintenance that does not come from the API: one with the same
// name may be another one.
func isStored(nm *v1alpha1.NodeMaintenance) error {
	if nm.UID == "" {
		return fmt.Errorf("nodemaintenance %q has no UID: it must be one that Cordon, Drain or the API has returned", nm.Name)
	}
	return nil
}

func (d *Drainer) dryRun() []string {
	if d.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}
