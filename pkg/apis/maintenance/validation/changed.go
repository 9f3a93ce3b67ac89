// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"reflect"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// ChangedFields returns the names of the fields in which two specs differ, as in the API. It
// compares all fields of the type, so that no field that is added later can be forgotten.
func ChangedFields[T any](now, was *T) []string {
	var names []string
	a, b := reflect.ValueOf(now).Elem(), reflect.ValueOf(was).Elem()
	for i := range a.NumField() {
		if !apiequality.Semantic.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			name := a.Type().Field(i).Name
			names = append(names, strings.ToLower(name[:1])+name[1:])
		}
	}
	return names
}
