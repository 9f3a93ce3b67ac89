// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bytes"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/agent/config"
	"haulout.dev/haulout/pkg/agent/kubelet"
)

func TestPrintMigrated(t *testing.T) {
	for name, tt := range map[string]struct {
		facts kubelet.Facts
		want  string
	}{
		"the two fields": {
			kubelet.Facts{ShutdownFields: []string{"shutdownGracePeriod"}, ShutdownTable: map[int32]int64{0: 20, 2000000000: 10}},
			`shutdownGracePeriodByPodPriority:
- priority: 0
  shutdownGracePeriodSeconds: 20
- priority: 2000000000
  shutdownGracePeriodSeconds: 10
`,
		},
		"a table that is longer than the delay, with an entry without time": {
			kubelet.Facts{ShutdownFields: []string{"shutdownGracePeriodByPodPriority"}, ShutdownTable: map[int32]int64{0: 1800, 5: 0}},
			`maxShutdownDelay: 30m6s
shutdownGracePeriodByPodPriority:
- priority: 0
  shutdownGracePeriodSeconds: 1800
- priority: 5
  shutdownGracePeriodSeconds: 1
`,
		},
		"nothing to migrate": {kubelet.Facts{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := printMigrated(&out, config.Default(), &tt.facts)
			if out.String() != tt.want || (err != nil) != (tt.want == "") {
				t.Errorf("printed %q, %v, want %q", out.String(), err, tt.want)
			}
		})
	}
}

func TestShutdownNeedsATime(t *testing.T) {
	const limits = "--within must be from 1s to 24h"
	for args, want := range map[string]string{
		"": limits, "--within=100ms": limits, "--within=-2m": limits, "--within=24h1s": limits,
		"--within=120": `invalid argument "120" for "--within" flag: time: missing unit in duration "120"`,
	} {
		cmd := NewCommand()
		cmd.SetArgs(strings.Fields("shutdown " + args))
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		if err := cmd.Execute(); err == nil || err.Error() != want {
			t.Errorf("error %v for %q, want %s", err, args, want)
		}
	}
}
