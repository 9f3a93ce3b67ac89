/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package maintenance

// Names of the selectable fields. Conversion, attributes, indexes and tests share them.
const (
	// FieldName selects by metadata.name (both kinds).
	FieldName = "metadata.name"
	// FieldNamespace selects Evacuations by metadata.namespace.
	FieldNamespace = "metadata.namespace"
	// FieldStage selects NodeMaintenances by spec.stage.
	FieldStage = "spec.stage"
	// FieldNodeOfShutdown selects the NodeMaintenances that announce a shutdown of a node, by the
	// name of the node. No field of the object has it: it follows from the name, the boot ID in the
	// annotation and the selector.
	FieldNodeOfShutdown = "nodeOfShutdown"
	// FieldNodeName selects Evacuations by the node of their pod.
	FieldNodeName = "spec.nodeName"
	// FieldPodName selects Evacuations by the name of their pod.
	FieldPodName = "spec.podRef.name"
	// FieldActiveEvacuatorClass selects Evacuations by their active evacuator class; evacuators use
	// it to watch.
	FieldActiveEvacuatorClass = "status.activeEvacuatorClass"
	// FieldBlocked selects Evacuations by their condition Blocked: "true" or "false".
	FieldBlocked = "status.blocked"
)
