// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/agent/config"
	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const configHead = "apiVersion: nodeagent.haulout.dev/v1alpha1\nkind: NodeAgentConfiguration\n"

// configFile writes a configuration for a test and returns its path.
func configFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	must.Do(t, os.WriteFile(path, []byte(configHead+content), 0o600))
	return path
}

// execute runs the command and returns its output.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := NewCommand()
	cmd.SilenceErrors = true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestConfigCheck(t *testing.T) {
	path := configFile(t, "nodeName: from-the-file\nmaxShutdownDelay: 10m\n")
	out := must.Get(execute(t, "config", "check", "--config", path, "--node-name", "from-the-flag", "--state-directory", "/state"))(t)
	var c configv1alpha1.NodeAgentConfiguration
	if err := yaml.UnmarshalStrict([]byte(out), &c); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if c.NodeName != "from-the-flag" || c.StateDirectory != "/state" || c.MaxShutdownDelay.Duration.String() != "10m0s" || c.LocalEngine != "CRI" {
		t.Errorf("the configuration is %+v", c)
	}
	// The printed text is a valid configuration file.
	printed := filepath.Join(t.TempDir(), "printed.yaml")
	must.Do(t, os.WriteFile(printed, []byte(out), 0o600))
	again, err := config.Load(printed)
	is.True(t, err == nil && again.NodeName == "from-the-flag", "the printed file is read as %+v, %v", again, err)
}

func TestConfigCheckRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"a wrong field": {
			[]string{"--config", configFile(t, "localEngine: Docker\n")}, []string{"localEngine", "Docker", `"CRI"`},
		},
		"a missing file that is named": {
			[]string{"--config", filepath.Join(t.TempDir(), "none.yaml")}, []string{"none.yaml"},
		},
		"a wrong flag": {
			[]string{"--config", configFile(t, ""), "--state-directory", "relative"},
			[]string{"--state-directory", "stateDirectory", "absolute"},
		},
		"a wrong node name": {
			[]string{"--config", configFile(t, ""), "--node-name", "Node_1"}, []string{"--node-name", "nodeName", "Node_1"},
		},
		"an argument": {[]string{"more"}, []string{"more"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := execute(t, append([]string{"config", "check"}, test.args...)...)
			must.True(t, err != nil, "accepted:\n%s", out)
			for _, want := range test.want {
				is.True(t, strings.Contains(err.Error(), want), "the error does not name %q: %v", want, err)
			}
		})
	}
}

// A node without a configuration file uses the defaults.
func TestDefaultFileMayBeMissing(t *testing.T) {
	if _, err := os.Stat(config.DefaultPath()); err == nil {
		t.Fatalf("%s exists on this machine", config.DefaultPath())
	}
	c := must.Get((&Options{NodeName: "a"}).Load())(t)
	is.True(t, c.NodeName == "a" && c.Kubeconfig != "", "the configuration is %+v", c)
}

func TestVersion(t *testing.T) {
	out, err := execute(t, "--version")
	is.True(t, err == nil && strings.Contains(out, "haulout-node-agent version "), "--version prints %q, %v", out, err)
}

// Every command has a description, and rejects arguments that it would ignore.
func TestCommandsAreDescribed(t *testing.T) {
	var names []string
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Args == nil || cmd.RunE == nil {
			t.Errorf("%s has no description, no rule for its arguments or nothing to run", cmd.CommandPath())
		}
		names = append(names, cmd.CommandPath())
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(NewCommand())
	for _, want := range []string{"haulout-node-agent", "haulout-node-agent status", "haulout-node-agent config check"} {
		is.True(t, slices.Contains(names, want), "%s is missing", want)
	}
}
