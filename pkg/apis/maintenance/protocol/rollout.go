// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// RolloutKind is the kind of the owner of the NodeMaintenances that the server creates for a
// rollout.
var RolloutKind = v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenanceRollout")

// ServerUser is the name of the server as a client of its own API. With it, rollouts pause the
// drains of their units while a hold says so; they resume only drains that it has paused.
const ServerUser = "system:apiserver"

// RolloutOf returns the reference of a NodeMaintenance to the rollout that it belongs to, or nil. A
// user can set any owner, but only the server sets LabelRollout. A maintenance that is left behind
// by its rollout has the label and no owner.
func RolloutOf(nm *v1alpha1.NodeMaintenance) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(nm)
	if nm.Labels[v1alpha1.LabelRollout] == "" || owner == nil || GroupKindOf(owner) != RolloutKind.GroupKind() {
		return nil
	}
	return owner
}

// BelongsTo reports whether a NodeMaintenance belongs to the rollout with the UID.
func BelongsTo(nm *v1alpha1.NodeMaintenance, rollout types.UID) bool {
	owner := RolloutOf(nm)
	return owner != nil && owner.UID == rollout
}

// ResumeCommand returns the command that ends the pause of a maintenance. If a hold of its rollout
// has paused it, the rollout would pause it again.
func ResumeCommand(nm *v1alpha1.NodeMaintenance) string {
	if owner := PausingRollout(nm); owner != nil {
		return "kubectl maintenance rollout resume " + owner.Name
	}
	return "kubectl maintenance resume " + nm.Name
}

// PausingRollout returns the rollout that has paused a maintenance because of a hold; nil if none
// has.
func PausingRollout(nm *v1alpha1.NodeMaintenance) *metav1.OwnerReference {
	if nm.Status.Pause == nil || nm.Status.Pause.By != ServerUser {
		return nil
	}
	return RolloutOf(nm)
}
