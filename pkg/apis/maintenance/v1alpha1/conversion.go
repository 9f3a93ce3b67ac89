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

package v1alpha1

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance"
)

// addFieldLabelConversions allows our selectable fields in field selectors. An error names any
// other field.
func addFieldLabelConversions(scheme *runtime.Scheme) error {
	if err := scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("NodeMaintenance"),
		allowFields(maintenance.FieldName, maintenance.FieldStage, maintenance.FieldNodeOfShutdown)); err != nil {
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
		return "", "", fmt.Errorf("%q is not a field that can be selected by: supported are %q", label, fields)
	}
}
