// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package must ends a test at the first error of its preparations or reads, in one line of the
// test.
package must

import "testing"

// Do ends the test if there is an error.
func Do(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Get takes the results of a call. It returns a function that ends the test if there was an error,
// and otherwise returns the value:
//
//	pod := must.Get(pods.Get(ctx, "web", metav1.GetOptions{}))(t)
func Get[T any](value T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		Do(tb, err)
		return value
	}
}

// True ends the test if ok is not true.
func True(tb testing.TB, ok bool, format string, args ...any) {
	tb.Helper()
	if !ok {
		tb.Fatalf(format, args...)
	}
}
