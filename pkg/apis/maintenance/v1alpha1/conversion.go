// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance"
)

// addFieldLabelConversions allows Haulout's selectable fields in field selectors. Other fields
// cause an error that names them.
func addFieldLabelConversions(scheme *runtime.Scheme) error {
	if err := scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("NodeMaintenance"),
		allowFields(maintenance.FieldName, maintenance.FieldStage, maintenance.FieldNodeOfShutdown)); err != nil {
		return err
	}
	if err := scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("NodeMaintenanceRollout"),
		allowFields(maintenance.FieldName, maintenance.FieldStage)); err != nil {
		return err
	}
	if err := scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("NodeTask"),
		allowFields(maintenance.FieldName, maintenance.FieldWorker, maintenance.FieldState)); err != nil {
		return err
	}
	return scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("Evacuation"),
		allowFields(maintenance.FieldName, maintenance.FieldNamespace, maintenance.FieldNodeName, maintenance.FieldPodName,
			maintenance.FieldActiveEvacuatorClass, maintenance.FieldBlocked))
}

func allowFields(fields ...string) runtime.FieldLabelConversionFunc {
	return func(label, value string) (string, string, error) {
		if slices.Contains(fields, label) {
			return label, value, nil
		}
		return "", "", fmt.Errorf("%q is not a selectable field: supported are %q", label, fields)
	}
}
