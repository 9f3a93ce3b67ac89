// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	labelOperators = []corev1.NodeSelectorOperator{
		corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn, corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist,
		corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt,
	}
	fieldOperators = []corev1.NodeSelectorOperator{corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn}
)

// validateLabelRequirement is as strict as the matcher of component-helpers, which ignores a whole
// term if it cannot parse one requirement. An error about a label value names the index of the
// value.
func validateLabelRequirement(r corev1.NodeSelectorRequirement, path *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabelName(r.Key, path.Child("key"))
	values := path.Child("values")
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 0 {
			errs = append(errs, field.Required(values, "at least one value is required with the operators In and NotIn"))
		}
	case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			errs = append(errs, field.Forbidden(values, "no values are allowed with the operators Exists and DoesNotExist"))
		}
		return errs
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if len(r.Values) != 1 {
			return append(errs, field.Invalid(values, r.Values, "exactly one value is required with the operators Gt and Lt"))
		}
		if _, err := strconv.ParseInt(r.Values[0], 10, 64); err != nil {
			return append(errs, field.Invalid(values.Index(0), r.Values[0], "must be an integer with the operators Gt and Lt"))
		}
	default:
		return append(errs, field.NotSupported(path.Child("operator"), r.Operator, labelOperators))
	}
	for i, value := range r.Values {
		for _, message := range validation.IsValidLabelValue(value) {
			errs = append(errs, field.Invalid(values.Index(i), value, message).WithOrigin("format=k8s-label-value"))
		}
	}
	return errs
}

// validateFieldRequirement allows only metadata.name, the only field that can select nodes.
func validateFieldRequirement(r corev1.NodeSelectorRequirement, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if r.Key != metav1.ObjectNameField {
		errs = append(errs, field.NotSupported(path.Child("key"), r.Key, []string{metav1.ObjectNameField}))
	}
	if !slices.Contains(fieldOperators, r.Operator) {
		return append(errs, field.NotSupported(path.Child("operator"), r.Operator, fieldOperators))
	}
	values := path.Child("values")
	if len(r.Values) != 1 {
		return append(errs, field.Invalid(values, r.Values, "exactly one value is required; add one term for each additional node"))
	}
	if r.Key == metav1.ObjectNameField {
		for _, message := range apivalidation.NameIsDNSSubdomain(r.Values[0], false) {
			errs = append(errs, field.Invalid(values.Index(0), r.Values[0], message))
		}
	}
	return errs
}
