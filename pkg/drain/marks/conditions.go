// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package marks

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Conditions is what AnnotationConditionsBy holds: which conditions of a node are ours, and what
// they were last about.
type Conditions struct {
	// Storage is the ID of the storage that the maintenances are of.
	Storage      string                     `json:"storage"`
	Conditions   []corev1.NodeConditionType `json:"conditions"`
	Maintenances map[string]Recorded        `json:"maintenances"`
}

// Recorded is a maintenance as the conditions were last written for it.
type Recorded struct {
	UID   types.UID                     `json:"uid"`
	Stage v1alpha1.NodeMaintenanceStage `json:"stage"`
}

// ReadConditions reads the annotation of a node. One that cannot be read counts as absent: then the
// conditions are taken for those of another client.
func ReadConditions(node *corev1.Node) Conditions {
	var record Conditions
	if err := json.Unmarshal([]byte(node.Annotations[v1alpha1.AnnotationConditionsBy]), &record); err != nil {
		return Conditions{}
	}
	return record
}

// StageOf returns the stage in which a maintenance was recorded, or "" if it was not.
func (c Conditions) StageOf(name string, uid types.UID) v1alpha1.NodeMaintenanceStage {
	if recorded := c.Maintenances[name]; recorded.UID == uid {
		return recorded.Stage
	}
	return ""
}

// Holds reports whether a maintenance was recorded as one that holds the node.
func (c Conditions) Holds(name string, uid types.UID) bool {
	stage := c.StageOf(name, uid)
	return stage != "" && stage != v1alpha1.NodeMaintenanceStageIdle
}

// IsEmpty reports whether there is nothing to remember.
func (c Conditions) IsEmpty() bool { return len(c.Maintenances) == 0 }

// Same reports whether two records say the same, whatever storage they are of.
func (c Conditions) Same(other Conditions) bool {
	if c.IsEmpty() || other.IsEmpty() {
		return c.IsEmpty() && other.IsEmpty() && len(other.Conditions) == 0
	}
	return slices.Equal(c.Conditions, other.Conditions) && maps.Equal(c.Maintenances, other.Maintenances)
}

// Encode returns the value of the annotation for maintenances of a storage.
func (c Conditions) Encode(storage string) string {
	c.Storage = storage
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings only
	}
	return string(text)
}
