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

// Conditions is the value of AnnotationConditionsBy: the node conditions that the server wrote, and
// the maintenances for which it last wrote them.
type Conditions struct {
	// Storage is the ID of the storage that has the maintenances.
	Storage      string                     `json:"storage"`
	Conditions   []corev1.NodeConditionType `json:"conditions"`
	Maintenances map[string]Recorded        `json:"maintenances"`
}

// Recorded is the state of a maintenance for which the conditions were last written.
type Recorded struct {
	UID   types.UID                     `json:"uid"`
	Stage v1alpha1.NodeMaintenanceStage `json:"stage"`
}

// ReadConditions reads the annotation of a node. It treats an invalid value as a missing
// annotation, so that the server treats the conditions as conditions of another client.
func ReadConditions(node *corev1.Node) Conditions {
	var record Conditions
	if err := json.Unmarshal([]byte(node.Annotations[v1alpha1.AnnotationConditionsBy]), &record); err != nil {
		return Conditions{}
	}
	return record
}

// StageOf returns the stage in which a maintenance was recorded, or "" if it was not recorded.
func (c Conditions) StageOf(name string, uid types.UID) v1alpha1.NodeMaintenanceStage {
	if recorded := c.Maintenances[name]; recorded.UID == uid {
		return recorded.Stage
	}
	return ""
}

// Holds reports whether a maintenance was recorded in a stage that holds the node.
func (c Conditions) Holds(name string, uid types.UID) bool {
	stage := c.StageOf(name, uid)
	return stage != "" && stage != v1alpha1.NodeMaintenanceStageIdle
}

// IsEmpty reports whether the record has no maintenances.
func (c Conditions) IsEmpty() bool { return len(c.Maintenances) == 0 }

// Same reports whether two records have the same content, regardless of the storage.
func (c Conditions) Same(other Conditions) bool {
	if c.IsEmpty() || other.IsEmpty() {
		return c.IsEmpty() && other.IsEmpty() && len(other.Conditions) == 0
	}
	return slices.Equal(c.Conditions, other.Conditions) && maps.Equal(c.Maintenances, other.Maintenances)
}

// Encode returns the value of the annotation, with the ID of the storage.
func (c Conditions) Encode(storage string) string {
	c.Storage = storage
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // the fields are strings
	}
	return string(text)
}
