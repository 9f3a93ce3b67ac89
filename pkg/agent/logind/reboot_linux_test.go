// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind_test

import (
	"testing"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestRebootOfAnotherProgram asks for a reboot as the reboot worker does, while another program
// delays shutdowns.
func TestRebootOfAnotherProgram(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		isPending := func() bool { return must.Get(logind.Pending(t.Context(), "/"))(t) }
		lock := b.inhibit("other")
		is.True(t, !isPending(), "a shutdown is pending before the request")
		must.Do(t, logind.Reboot(t.Context(), "/"))
		is.True(t, isPending(), "no shutdown is pending")
		b.mustWait()
		must.Do(t, logind.Reboot(t.Context(), "/")) // already pending
		lock.Close()
		b.mustGoDown("reboot.target")
		is.True(t, isPending(), "the shutdown that is in progress is not pending")
		b.systemd.cancelJob()
		eventually(t, "the cancelled shutdown is not pending", func() bool { return !isPending() })
	})
}
