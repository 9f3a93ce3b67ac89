// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package bubble runs subtests in bubbles of testing/synctest.
package bubble

import (
	"testing"
	"testing/synctest"
)

// Run runs a subtest in a separate bubble.
func Run(t *testing.T, name string, test func(*testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}
