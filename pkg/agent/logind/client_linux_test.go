// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/godbus/dbus/v5"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/must"
)

func TestParsePrepare(t *testing.T) {
	metadata := func(action any) map[string]dbus.Variant {
		return map[string]dbus.Variant{"type": dbus.MakeVariant(action)}
	}
	const plain, detailed = "PrepareForShutdown", "PrepareForShutdownWithMetadata"
	yes, no := ptr.To(true), ptr.To(false)
	for name, test := range map[string]struct {
		member     string
		body       []any
		wantBegins *bool
		wantKind   string
	}{
		"a shutdown begins":                      {member: plain, body: []any{true}, wantBegins: yes},
		"a shutdown was cancelled":               {member: plain, body: []any{false}, wantBegins: no},
		"a reboot begins (systemd 255)":          {member: detailed, body: []any{true, metadata("reboot")}, wantBegins: yes, wantKind: "reboot"},
		"a soft reboot begins":                   {member: detailed, body: []any{true, metadata("soft-reboot")}, wantBegins: yes, wantKind: "reboot"},
		"the machine is switched off":            {member: detailed, body: []any{true, metadata("power-off")}, wantBegins: yes, wantKind: "poweroff"},
		"an unknown kind":                        {member: detailed, body: []any{true, metadata("dance")}, wantBegins: yes},
		"a kind that is not a string":            {member: detailed, body: []any{true, metadata(uint32(7))}, wantBegins: yes},
		"no metadata":                            {member: detailed, body: []any{true, map[string]dbus.Variant{}}, wantBegins: yes},
		"another signal":                         {member: "PrepareForSleep", body: []any{true}},
		"a body of another type has no effect":   {member: plain, body: []any{"yes"}},
		"an empty body has no effect":            {member: plain},
		"metadata of another type has no effect": {member: detailed, body: []any{true, "reboot"}},
	} {
		t.Run(name, func(t *testing.T) {
			begins, kind := parsePrepare(&dbus.Signal{Name: loginInterface + "." + test.member, Body: test.body})
			if !ptr.Equal(begins, test.wantBegins) || kind != test.wantKind {
				t.Errorf("got %v and kind %q, want %v and %q", ptr.Deref(begins, false), kind, ptr.Deref(test.wantBegins, false), test.wantKind)
			}
		})
	}
}

func TestOpenLockRefuses(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "1.ref"), nil, 0o600))
	for name, path := range map[string]string{
		"a path in another directory":      filepath.Join(dir, "1.ref"),
		"a path that leaves the directory": inhibitDir + "/../x.ref",
		"the description of a lock":        inhibitDir + "/1",
		"a lock that does not exist":       inhibitDir + "/no-such-lock.ref",
		"a path that is not absolute":      "1.ref",
		"the directory of locks alone":     inhibitDir,
	} {
		t.Run(name, func(t *testing.T) {
			if file, err := openLock(path); err == nil {
				file.Close()
				t.Errorf("opened %s", path)
			}
		})
	}
}
