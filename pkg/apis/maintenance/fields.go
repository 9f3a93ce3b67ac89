// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package maintenance

// Names of the selectable fields. Conversion, attributes, indexes and tests share them.
const (
	// FieldName selects by metadata.name (all kinds).
	FieldName = "metadata.name"
	// FieldNamespace selects Evacuations by metadata.namespace.
	FieldNamespace = "metadata.namespace"
	// FieldStage selects NodeMaintenances and NodeMaintenanceRollouts by spec.stage.
	FieldStage = "spec.stage"
	// FieldNodeOfShutdown selects the NodeMaintenances that announce the shutdown of a node, by the
	// name of this node. It is not a field of the object: its value is derived from the name, the
	// boot ID in the annotation, and the selector.
	FieldNodeOfShutdown = "nodeOfShutdown"
	// FieldNodeName selects Evacuations by the node of their pod.
	FieldNodeName = "spec.nodeName"
	// FieldPodName selects Evacuations by the name of their pod.
	FieldPodName = "spec.podRef.name"
	// FieldActiveEvacuatorClass selects Evacuations by their active evacuator class; evacuators
	// watch with it.
	FieldActiveEvacuatorClass = "status.activeEvacuatorClass"
	// FieldBlocked selects Evacuations by their condition Blocked: "true" or "false".
	FieldBlocked = "status.blocked"
	// FieldWorker selects NodeTasks by the class of their workers; workers watch with it.
	FieldWorker = "spec.worker"
	// FieldState selects NodeTasks by their state.
	FieldState = "status.state"
)
