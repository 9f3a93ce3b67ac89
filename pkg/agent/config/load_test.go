// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const head = "apiVersion: nodeagent.haulout.dev/v1alpha1\nkind: NodeAgentConfiguration\n"

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	must.Do(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func TestLoad(t *testing.T) {
	changed := func(change func(*configv1alpha1.NodeAgentConfiguration)) *configv1alpha1.NodeAgentConfiguration {
		c := Default()
		change(c)
		return c
	}
	for name, test := range map[string]struct {
		content string
		want    *configv1alpha1.NodeAgentConfiguration
	}{
		"only apiVersion and kind": {content: head, want: Default()},
		"JSON": {
			content: `{"apiVersion":"nodeagent.haulout.dev/v1alpha1","kind":"NodeAgentConfiguration","nodeName":"a"}`,
			want:    changed(func(c *configv1alpha1.NodeAgentConfiguration) { c.NodeName = "a" }),
		},
		"the table of KEP-2712, from high to low": {
			content: head + `
shutdownGracePeriodByPodPriority:
- {priority: 100000, shutdownGracePeriodSeconds: 300}
- {priority: 10000, shutdownGracePeriodSeconds: 180}
- {priority: 1000, shutdownGracePeriodSeconds: 120}
- {priority: 0, shutdownGracePeriodSeconds: 60}
maxShutdownDelay: 1h
`,
			want: changed(func(c *configv1alpha1.NodeAgentConfiguration) {
				c.ShutdownGracePeriodByPodPriority = []configv1alpha1.ShutdownGracePeriodByPodPriority{
					{Priority: 100000, ShutdownGracePeriodSeconds: 300}, {Priority: 10000, ShutdownGracePeriodSeconds: 180},
					{Priority: 1000, ShutdownGracePeriodSeconds: 120}, {Priority: 0, ShutdownGracePeriodSeconds: 60},
				}
				c.MaxShutdownDelay = metav1.Duration{Duration: time.Hour}
			}),
		},
		"one document between markers and comments": {
			content: "# by hand\n---\n" + head + "localEngine: None\n---\n# the end\n",
			want:    changed(func(c *configv1alpha1.NodeAgentConfiguration) { c.LocalEngine = configv1alpha1.LocalEngineNone }),
		},
		"disabled endpoints": {
			content: head + "metricsBindAddress: \"\"\n",
			want:    changed(func(c *configv1alpha1.NodeAgentConfiguration) { *c.MetricsBindAddress = "" }),
		},
		"the maintenance stays after a reboot": {
			content: head + "completeAfterReboot: false\n",
			want:    changed(func(c *configv1alpha1.NodeAgentConfiguration) { *c.CompleteAfterReboot = false }),
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := must.Get(Load(write(t, test.content)))(t)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("the configuration differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		content string
		// want are the texts that the error must contain.
		want []string
	}{
		"an empty file": {"", []string{`apiVersion is ""`, `must be "nodeagent.haulout.dev/v1alpha1"`, `kind is ""`}},
		"another apiVersion": {
			strings.Replace(head, "v1alpha1", "v1", 1),
			[]string{`apiVersion is "nodeagent.haulout.dev/v1"`, `must be "nodeagent.haulout.dev/v1alpha1"`},
		},
		"the kubelet's file": {
			"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n",
			[]string{`apiVersion is "kubelet.config.k8s.io/v1beta1"`, `kind is "KubeletConfiguration"`, `must be "NodeAgentConfiguration"`},
		},
		"no YAML":                   {head + "\t- x: [", []string{"yaml"}},
		"a list":                    {"- a\n- b\n", []string{"array"}},
		"an unknown field":          {head + "maxShutdownDelays: 5m\n", []string{`unknown field "maxShutdownDelays"`}},
		"another spelling":          {head + "MaxShutdownDelay: 5m\n", []string{`unknown field "MaxShutdownDelay"`}},
		"a field given twice":       {head + "nodeName: a\nnodeName: b\n", []string{`key "nodeName" already set`}},
		"several documents":         {head + "---\n" + head, []string{"several YAML documents", "must have exactly one"}},
		"a duration without a unit": {head + "maxShutdownDelay: 300\n", []string{"maxShutdownDelay"}},
		"an unknown field of the table": {
			head + "shutdownGracePeriodByPodPriority: [{priority: 1, shutdownGracePeriod: 5}]\n",
			[]string{`unknown field "shutdownGracePeriodByPodPriority[0].shutdownGracePeriod"`},
		},
		"a priority that is not an int32": {
			head + "shutdownGracePeriodByPodPriority: [{priority: 2147483648, shutdownGracePeriodSeconds: 5}]\n",
			[]string{"priority"},
		},
		"two wrong values": {
			head + "localEngine: Docker\nmaxShutdownDelay: 25h\n",
			[]string{"localEngine", `"CRI"`, "maxShutdownDelay", "24h"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, test.content)
			c, err := Load(path)
			must.True(t, err != nil, "loaded as %+v", c)
			for _, want := range append(test.want, path) {
				is.True(t, strings.Contains(err.Error(), want), "the error does not name %q: %v", want, err)
			}
		})
	}
}

func TestLoadMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.yaml")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("the error is %v, want one that names %s", err, path)
	}
}

// A file with any content must result in a configuration or an error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(head + "maxShutdownDelay: 5m\n"))
	f.Add([]byte("---\n---\n"))
	f.Add([]byte(`{"apiVersion":"nodeagent.haulout.dev/v1alpha1","kind":"NodeAgentConfiguration","metricsBindAddress":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := decode(data)
		must.True(t, (c == nil) != (err == nil), "got %v and %v", c, err)
		if err == nil {
			_ = Validate(c)
		}
	})
}
