// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"fmt"
	"maps"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/identity"
)

// maxBootIDLength is the maximum length of a boot ID: a UUID on Linux, a time on Windows.
const maxBootIDLength = 64

// shutdownReasons are the allowed reasons of a maintenance that a node requests. Messages and
// events repeat the reason, so a node must not choose the text.
var shutdownReasons = []string{v1alpha1.ShutdownReason, v1alpha1.ShutdownReasonReboot, v1alpha1.ShutdownReasonPowerOff}

// validateOfNode refuses a write of a node agent unless it announces the shutdown of its own node
// or ends such a maintenance. For nodes, this replaces the check whether the user may maintain
// the node, because nodes do not have that right.
func validateOfNode(a admission.Attributes, node string, nm, old *maintenance.NodeMaintenance) error {
	var errs field.ErrorList
	if old == nil {
		errs = validateShutdown(node, nm)
	} else {
		errs = validateEndOfShutdown(node, nm, old)
	}
	if len(errs) == 0 {
		return nil
	}
	return admission.NewForbidden(a, fmt.Errorf("node %q may only create the NodeMaintenance of its own shutdown and complete or delete it: %w",
		node, errs.ToAggregate()))
}

// validateShutdown returns an error for each field in which a new maintenance differs from the
// maintenance of a shutdown of the node. The registry has already set the finalizer and the
// requester.
func validateShutdown(node string, nm *maintenance.NodeMaintenance) field.ErrorList {
	spec := field.NewPath("spec")
	errs := validateShutdownMetadata(node, nm)
	errs = append(errs, validateShutdownSelector(node, nm.Spec.NodeSelector, spec.Child("nodeSelector"))...)
	if stage := maintenance.NodeMaintenanceStageDrain; nm.Spec.Stage != stage {
		errs = append(errs, field.NotSupported(spec.Child("stage"), nm.Spec.Stage, []maintenance.NodeMaintenanceStage{stage}))
	}
	if policy := maintenance.NewNodesPolicyIgnore; nm.Spec.NewNodes != "" && nm.Spec.NewNodes != policy {
		errs = append(errs, field.NotSupported(spec.Child("newNodes"), nm.Spec.NewNodes, []maintenance.NewNodesPolicy{policy}))
	}
	if policy := maintenance.ExcludedNodeContinue; nm.Spec.OnExcludedNode != "" && nm.Spec.OnExcludedNode != policy {
		errs = append(errs, field.NotSupported(spec.Child("onExcludedNode"), nm.Spec.OnExcludedNode, []maintenance.ExcludedNodePolicy{policy}))
	}
	if nm.Spec.Paused {
		errs = append(errs, field.Forbidden(spec.Child("paused"), "must be false"))
	}
	if !slices.Contains(shutdownReasons, nm.Spec.Reason) {
		errs = append(errs, field.NotSupported(spec.Child("reason"), protocol.OneLine(nm.Spec.Reason, maxBootIDLength), shutdownReasons))
	}
	if nm.Spec.Task != nil {
		errs = append(errs, field.Forbidden(spec.Child("task"), "must be empty"))
	}
	for i := range nm.Spec.DrainPlan {
		entry, path := &nm.Spec.DrainPlan[i], spec.Child("drainPlan").Index(i)
		if !planorder.SelectsAll(entry.PodSelector) {
			errs = append(errs, field.Forbidden(path.Child("podSelector"), "must be empty"))
		}
		if entry.Behavior != nil {
			errs = append(errs, field.Forbidden(path.Child("behavior"), "must be empty"))
		}
	}
	return errs
}

func validateShutdownMetadata(node string, nm *maintenance.NodeMaintenance) field.ErrorList {
	var errs field.ErrorList
	metadata := field.NewPath("metadata")
	annotations := metadata.Child("annotations")
	bootID := nm.Annotations[v1alpha1.AnnotationBootID]
	switch {
	case bootID == "":
		errs = append(errs, field.Required(annotations.Key(v1alpha1.AnnotationBootID), "must be the boot ID of the node"))
	case len(bootID) > maxBootIDLength:
		errs = append(errs, field.TooLong(annotations.Key(v1alpha1.AnnotationBootID), nil, maxBootIDLength))
	default:
		if want := protocol.ShutdownName(node, bootID); nm.Name != want {
			errs = append(errs, field.Invalid(metadata.Child("name"), nm.Name, fmt.Sprintf("must be %q for this node and boot ID", want)))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(nm.Annotations)) {
		if key != v1alpha1.AnnotationBootID {
			errs = append(errs, field.Forbidden(annotations.Key(key), "only "+v1alpha1.AnnotationBootID+" is allowed"))
		}
	}
	if nm.GenerateName != "" {
		errs = append(errs, field.Forbidden(metadata.Child("generateName"), "must be empty"))
	}
	if len(nm.Labels) > 0 {
		errs = append(errs, field.Forbidden(metadata.Child("labels"), "must be empty"))
	}
	if len(nm.OwnerReferences) > 0 {
		errs = append(errs, field.Forbidden(metadata.Child("ownerReferences"), "must be empty"))
	}
	for i, finalizer := range nm.Finalizers {
		if finalizer != v1alpha1.FinalizerMaintenanceCompletion {
			errs = append(errs, field.Forbidden(metadata.Child("finalizers").Index(i), "must be empty"))
		}
	}
	return errs
}

// validateShutdownSelector returns errors unless the selector selects exactly the node by its name.
// Labels are not enough: the kubelet can change the labels of its node, and other nodes may have
// the same labels.
func validateShutdownSelector(node string, selector *corev1.NodeSelector, path *field.Path) field.ErrorList {
	terms := path.Child("nodeSelectorTerms")
	if selector == nil || len(selector.NodeSelectorTerms) != 1 {
		return field.ErrorList{field.Invalid(terms, field.OmitValueType{}, "must have exactly one term")}
	}
	term, path := &selector.NodeSelectorTerms[0], terms.Index(0)
	var errs field.ErrorList
	if len(term.MatchExpressions) > 0 {
		errs = append(errs, field.Forbidden(path.Child("matchExpressions"), "must be empty"))
	}
	fields := path.Child("matchFields")
	if len(term.MatchFields) != 1 {
		return append(errs, field.Invalid(fields, field.OmitValueType{}, "must have exactly one requirement"))
	}
	requirement, path := &term.MatchFields[0], fields.Index(0)
	if requirement.Key != metav1.ObjectNameField {
		errs = append(errs, field.NotSupported(path.Child("key"), requirement.Key, []string{metav1.ObjectNameField}))
	}
	if requirement.Operator != corev1.NodeSelectorOpIn {
		errs = append(errs, field.NotSupported(path.Child("operator"), requirement.Operator, []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn}))
	}
	if !slices.Equal(requirement.Values, []string{node}) {
		errs = append(errs, field.Invalid(path.Child("values"), field.OmitValueType{}, fmt.Sprintf("must have exactly one value, %q", node)))
	}
	return errs
}

// validateEndOfShutdown allows a node only to change the stage of its maintenance to Complete or,
// if nm is nil, to delete the maintenance. The registry has set the requester. It returns an error
// for an object that the node did not request, unless the node deletes the maintenance of its own
// finished shutdown.
func validateEndOfShutdown(node string, nm, old *maintenance.NodeMaintenance) field.ErrorList {
	spec, metadata := field.NewPath("spec"), field.NewPath("metadata")
	if nm == nil && isOverShutdown(node, old) {
		return nil
	}
	if !isRequestedByNode(old.Spec.RequestedBy, node) {
		return field.ErrorList{field.Forbidden(spec.Child("requestedBy"), "the NodeMaintenance was requested, or last changed, by another user")}
	}
	// Check the selector again: an older server may have accepted other nodes, and the write would
	// release these.
	if errs := validateShutdownSelector(node, old.Spec.NodeSelector, spec.Child("nodeSelector")); nm == nil || len(errs) > 0 {
		return errs
	}
	var errs field.ErrorList
	for _, f := range []struct {
		path     *field.Path
		now, was any
	}{
		{metadata.Child("labels"), nm.Labels, old.Labels},
		{metadata.Child("annotations"), nm.Annotations, old.Annotations},
		{metadata.Child("ownerReferences"), nm.OwnerReferences, old.OwnerReferences},
		{metadata.Child("finalizers"), nm.Finalizers, old.Finalizers},
	} {
		if !apiequality.Semantic.DeepEqual(f.now, f.was) {
			errs = append(errs, field.Forbidden(f.path, "must not change"))
		}
	}
	for _, name := range validation.ChangedFields(&nm.Spec, &old.Spec) {
		if !slices.Contains([]string{"stage", "requestedBy"}, name) {
			errs = append(errs, field.Forbidden(spec.Child(name), "must not change"))
		}
	}
	if nm.Spec.Stage != old.Spec.Stage && nm.Spec.Stage != maintenance.NodeMaintenanceStageComplete {
		errs = append(errs, field.Invalid(spec.Child("stage"), nm.Spec.Stage, "must be "+string(maintenance.NodeMaintenanceStageComplete)))
	}
	return errs
}

// isOverShutdown reports whether a maintenance announced a shutdown of the node, is complete, and
// has released the node. The node may delete such a maintenance, regardless of the user who
// completed it: its only effect is that it counts against the limit.
func isOverShutdown(node string, nm *maintenance.NodeMaintenance) bool {
	return protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector) == node && nm.Spec.Stage == maintenance.NodeMaintenanceStageComplete &&
		!slices.Contains(nm.Finalizers, v1alpha1.FinalizerMaintenanceCompletion)
}

// isRequestedByNode reports whether the requester of a maintenance is the node.
func isRequestedByNode(requester *authenticationv1.UserInfo, node string) bool {
	if requester == nil {
		return false
	}
	name, ok := identity.NodeOf(rights.UserOf(requester))
	return ok && name == node
}
