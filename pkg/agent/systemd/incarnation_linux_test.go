// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"errors"
	"testing"
)

func TestIncarnation(t *testing.T) {
	for name, test := range map[string]struct {
		properties map[string]any
		want       string
		fails      bool
	}{
		"a systemd without soft-reboot":                       {properties: map[string]any{"Version": "252.38-1~deb12u1"}},
		"a systemd that does not count soft-reboots":          {properties: map[string]any{"Version": "255.4", "UserspaceTimestampMonotonic": uint64(4711)}, want: "4711"},
		"a systemd that counts, after no soft-reboot":         {properties: map[string]any{"Version": "257 (257.9-1)", "SoftRebootsCount": uint32(0)}},
		"a systemd that counts, after the second soft-reboot": {properties: map[string]any{"Version": "256", "SoftRebootsCount": uint32(2)}, want: "2"},
		"an unknown version":                                  {properties: map[string]any{"Version": "next"}, fails: true},
		"no answer":                                           {properties: map[string]any{"Version": "256"}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := incarnation(func(name string) (any, error) {
				value, ok := test.properties[name]
				if !ok {
					return nil, errors.New("no answer")
				}
				return value, nil
			})
			if (err != nil) != test.fails || !test.fails && got != test.want {
				t.Errorf("got %q, %v, want %q, an error: %t", got, err, test.want, test.fails)
			}
		})
	}
}
