// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package is compares values in tests, in one line. The test continues after a failure.
package is

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// Equal reports an error of the test if got differs from want. what is the name of the value in the
// error.
func Equal[T comparable](tb testing.TB, got, want T, what ...string) {
	tb.Helper()
	if got != want {
		tb.Errorf("%sgot %s, want %s", prefix(what), show(got), show(want))
	}
}

// Slices reports an error of the test if got has other elements than want.
func Slices[T comparable](tb testing.TB, got, want []T, what ...string) {
	tb.Helper()
	if !slices.Equal(got, want) {
		tb.Errorf("%sgot %s, want %s", prefix(what), show(got), show(want))
	}
}

// True reports an error of the test if ok is not true.
func True(tb testing.TB, ok bool, format string, args ...any) {
	tb.Helper()
	if !ok {
		tb.Errorf(format, args...)
	}
}

func prefix(what []string) string {
	if len(what) == 0 {
		return ""
	}
	return strings.Join(what, " ") + ": "
}

// show quotes strings, so that an empty string is visible.
func show(value any) string {
	t := reflect.TypeOf(value)
	if t != nil && (t.Kind() == reflect.String || t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String) {
		return fmt.Sprintf("%q", value)
	}
	return fmt.Sprintf("%+v", value)
}
