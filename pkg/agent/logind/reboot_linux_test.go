// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind_test

import (
	"strings"
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

// TestRebootThatIsBlocked asks for a reboot while another program blocks shutdowns, as a package
// manager does. Both are root, whose locks logind would ignore for root.
func TestRebootThatIsBlocked(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		lock := b.lock("dpkg", "block")
		err := logind.Reboot(t.Context(), "/")
		is.True(t, err != nil && strings.Contains(err.Error(), `"dpkg"`) && strings.Contains(err.Error(), `blocks shutdowns: "test"`), "got error %v", err)
		is.True(t, !must.Get(logind.Pending(t.Context(), "/"))(t), "a shutdown is pending although a program blocks it")
		lock.Close()
		eventually(t, "the reboot is accepted", func() bool { return logind.Reboot(t.Context(), "/") == nil })
		b.mustGoDown("reboot.target")
	})
}
