// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"strings"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestUnitFile(t *testing.T) {
	o := Options{Args: []string{"run", "--config", "/etc/my files/100%.yaml"}, MaxDelay: 90*time.Second + time.Millisecond, KubeletUnit: "k3s.service"}
	must.Do(t, o.complete())
	text := must.Get(unitFile(&o))(t)
	for _, line := range []string{
		"After=k3s.service containerd.service crio.service cri-docker.service docker.service dbus.service systemd-logind.service network-online.target",
		`ExecStart=/usr/local/bin/haulout-node-agent run --config "/etc/my files/100%%.yaml"`,
		"Type=notify", "Restart=always", "StartLimitIntervalSec=0", "FileDescriptorStoreMax=8", "TimeoutStopSec=91", "WantedBy=multi-user.target",
	} {
		is.True(t, strings.Contains("\n"+text, "\n"+line+"\n"), "the unit file has no line %q:\n%s", line, text)
	}
}

func TestOptionsAreRefused(t *testing.T) {
	for name, o := range map[string]Options{
		"a relative program":             {Binary: "bin/agent"},
		"a program with ..":              {Binary: "/usr/../agent"},
		"a relative file":                {Files: []File{{Path: "agent.yaml"}}},
		"a kubelet unit without a type":  {KubeletUnit: "kubelet"},
		"a kubelet unit with a space":    {KubeletUnit: "a.service b.service"},
		"a kubelet unit with a new line": {KubeletUnit: "a.service\nExecStart=x.service"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Install(t.Context(), o); err == nil {
				t.Errorf("installed with %+v", o)
			}
		})
	}
}
