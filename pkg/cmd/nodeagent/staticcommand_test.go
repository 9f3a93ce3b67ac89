// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/agent/config"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// parkedFolder returns a static pod folder with two parked pods.
func parkedFolder(t *testing.T) string {
	t.Helper()
	parent := t.TempDir()
	dir := filepath.Join(parent, "manifests")
	for path, name := range map[string]string{
		filepath.Join(dir, "running.yaml"):                           "running",
		filepath.Join(parent, ".nm-parked", "uid-1", "proxy.yaml"):   "proxy",
		filepath.Join(parent, ".nm-parked", "uid-1", "storage.yaml"): "storage",
	} {
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		manifest := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec: {containers: [{name: app, image: app}]}\n"
		must.Do(t, os.WriteFile(path, []byte(manifest), 0o600))
	}
	return dir
}

// names returns the names of the files in a folder, without names that begin with a dot.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries := must.Get(os.ReadDir(dir))(t)
	var list []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			list = append(list, e.Name())
		}
	}
	return strings.Join(list, " ")
}

func TestStaticListAndRestore(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		// want has texts of the output, and refused has texts of the error. files has the files in
		// the folder afterwards.
		want, refused []string
		files         string
	}{
		"list":        {args: []string{"list"}, want: []string{"NAMESPACE", "proxy.yaml", "storage.yaml", "uid-1"}, files: "running.yaml"},
		"restore one": {args: []string{"restore", "proxy.yaml"}, want: []string{"proxy.yaml restored"}, files: "proxy.yaml running.yaml"},
		"restore all": {
			args: []string{"restore", "--all"}, want: []string{"proxy.yaml restored", "storage.yaml restored"},
			files: "proxy.yaml running.yaml storage.yaml",
		},
		"restore manifests of another cluster, of which there are none": {
			args: []string{"restore", "--foreign"}, want: []string{"Nothing was restored"}, files: "running.yaml",
		},
		"restore all manifests and those of another cluster": {args: []string{"restore", "--all", "--foreign"}, refused: []string{"--foreign"}, files: "running.yaml"},
		"restore none":      {args: []string{"restore"}, refused: []string{"--all"}, files: "running.yaml"},
		"restore both ways": {args: []string{"restore", "--all", "proxy.yaml"}, refused: []string{"--all"}, files: "running.yaml"},
		"restore an unknown pod": {
			args: []string{"restore", "proxy.yaml", "other"}, refused: []string{`"other"`, "proxy", "storage"}, files: "running.yaml",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := parkedFolder(t)
			out, err := execute(t, append([]string{"static", "--static-pod-path", dir}, test.args...)...)
			must.True(t, (err != nil) == (len(test.refused) > 0), "the error is %v\n%s", err, out)
			for _, want := range test.want {
				is.True(t, strings.Contains(out, want), "the output has no %q:\n%s", want, out)
			}
			for _, want := range test.refused {
				is.True(t, strings.Contains(err.Error(), want), "the error has no %q: %v", want, err)
			}
			is.Equal(t, names(t, dir), test.files, "the folder has")
		})
	}
}

func TestRestoreKeepsANewerManifest(t *testing.T) {
	dir := parkedFolder(t)
	newer := filepath.Join(dir, "proxy.yaml")
	must.Do(t, os.WriteFile(newer, []byte("newer"), 0o600))
	out, err := execute(t, "static", "restore", "--all", "--static-pod-path", dir)
	is.True(t, err == nil && strings.Contains(out, "because it has a newer manifest"), "the output is %q, %v", out, err)
	if data, err := os.ReadFile(newer); err != nil || string(data) != "newer" {
		t.Errorf("the newer manifest is %q, %v", data, err)
	}
	if out, err := execute(t, "static", "list", "--static-pod-path", dir); err != nil || !strings.Contains(out, "No static pods of "+dir+" are parked") {
		t.Errorf("the output is %q, %v", out, err)
	}
	if out, err := execute(t, "static", "restore", "--all", "--static-pod-path", dir); err != nil || !strings.Contains(out, "Nothing was restored") {
		t.Errorf("the output is %q, %v", out, err)
	}
}

// Without the flag, the commands use the folder in the agent's configuration or, without one, the
// folder in the kubelet's configuration.
func TestStaticPodFolder(t *testing.T) {
	dir := parkedFolder(t)
	kubeletConfig := filepath.Join(t.TempDir(), "kubelet.yaml")
	content := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nstaticPodPath: " + dir + "\n"
	must.Do(t, os.WriteFile(kubeletConfig, []byte(content), 0o600))
	none := filepath.Join(t.TempDir(), "none.yaml")
	must.Do(t, os.WriteFile(none, []byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"), 0o600))
	for name, test := range map[string]struct {
		config  string
		refused string
	}{
		"of the configuration":          {config: "staticPodPath: " + dir + "\nkubeletConfig: /none.yaml\n"},
		"of the kubelet":                {config: "kubeletConfig: " + kubeletConfig + "\n"},
		"of a kubelet that has none":    {config: "kubeletConfig: " + none + "\n", refused: "--static-pod-path"},
		"of a kubelet that is not here": {config: "kubeletConfig: /none.yaml\n", refused: "--static-pod-path"},
		"of a wrong configuration":      {config: "localEngine: Docker\n", refused: "localEngine"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := execute(t, "static", "list", "--config", configFile(t, test.config))
			if test.refused != "" {
				if err == nil || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("the error is %v, want one that names %s", err, test.refused)
				}
				return
			}
			is.True(t, err == nil && strings.Contains(out, "proxy.yaml"), "the output is %q, %v", out, err)
		})
	}
}

// Parked pods can be restored without a usable configuration, and without a kubelet.
func TestStaticCommandsUseTheLastFolder(t *testing.T) {
	for name, content := range map[string]string{
		"a wrong configuration": "maxShutdownDelay: 7d\n",
		"no kubelet":            "kubeletConfig: /none.yaml\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir, stateDir := parkedFolder(t), t.TempDir()
			store := must.Get(state.Open(stateDir, ""))(t)
			last := config.Default()
			last.StaticPodPath = dir
			must.Do(t, store.Save(state.State{Phase: state.Armed, BootID: "of an earlier boot", Configuration: last}))
			out, err := execute(t, "static", "restore", "--all", "--config", configFile(t, content), "--state-directory", stateDir)
			is.True(t, err == nil, "the output is %q, %v", out, err)
			is.Equal(t, names(t, dir), "proxy.yaml running.yaml storage.yaml", "the folder has")
		})
	}
}
