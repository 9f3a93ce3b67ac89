// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"haulout.dev/haulout/pkg/testing/must"
)

const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// write creates files below a folder and returns the folder.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return dir
}

// defaults returns the facts about a kubelet with the name node-7 and without a configuration.
func defaults(mods ...func(*Facts)) Facts {
	f := Facts{
		HealthzAddress:           "127.0.0.1:10248",
		ContainerRuntimeEndpoint: "unix:///run/containerd/containerd.sock", NodeName: "node-7",
	}
	for _, mod := range mods {
		mod(&f)
	}
	return f
}

func TestDiscover(t *testing.T) {
	const manifests = "/etc/kubernetes/manifests"
	shutsDown := func(field string, table map[int32]int64) func(*Facts) {
		return func(f *Facts) { f.ShutdownFields, f.ShutdownTable = []string{field}, table }
	}
	static := func(path string) func(*Facts) { return func(f *Facts) { f.StaticPodPath = path } }
	for name, tc := range map[string]struct {
		files map[string]string
		// args are the arguments without the name of the program; DIR is the folder of the files.
		args []string
		want Facts
	}{
		"a configuration file": {
			files: map[string]string{"config.yaml": header + `
staticPodPath: /etc/kubernetes/manifests/
staticPodURL: http://10.0.0.1/pods
shutdownGracePeriod: 30s
healthzPort: 10999
healthzBindAddress: 0.0.0.0
containerRuntimeEndpoint: unix:///run/crio/crio.sock
unknownField: {a: b}
maxOpenFiles: 9223372036854775807
registryBurst: of a type that this version does not know
`},
			args: []string{"--config=DIR/config.yaml"},
			want: Facts{
				StaticPodPath: manifests, StaticPodURL: true, HealthzAddress: "127.0.0.1:10999",
				ShutdownFields: []string{"shutdownGracePeriod"}, ShutdownTable: map[int32]int64{0: 30, criticalPriority: 0},
				ContainerRuntimeEndpoint: "unix:///run/crio/crio.sock", NodeName: "node-7",
			},
		},
		"the file of the agent's configuration, if the command line names none": {
			files: map[string]string{"default.yaml": header + "staticPodPath: /a\n"},
			want:  defaults(static("/a")),
		},
		"the file that the command line names, and not that of the agent's configuration": {
			files: map[string]string{"default.yaml": header + "staticPodPath: /a\n", "config.yaml": header + "staticPodPath: /b\n"},
			args:  []string{"--v", "2", "--config", "DIR/config.yaml"},
			want:  defaults(static("/b")),
		},
		"flags alone": {
			args: []string{
				"--pod-manifest-path=/c", "--manifest-url=http://10.0.0.1/pods", "--healthz-bind-address=::", "--healthz_port=1",
				"--container-runtime-endpoint=unix:///a",
			},
			want: Facts{
				StaticPodPath: "/c", StaticPodURL: true, HealthzAddress: "[::1]:1",
				ContainerRuntimeEndpoint: "unix:///a", NodeName: "node-7",
			},
		},
		"flags before files": {
			files: map[string]string{"config.yaml": header + "staticPodPath: /b\nhealthzPort: 5\n"},
			args:  []string{"--config=DIR/config.yaml", "--pod-manifest-path=/c", "--healthz-port=0"},
			want:  defaults(static("/c"), func(f *Facts) { f.HealthzAddress = "" }),
		},
		"the last of several flags": {
			args: []string{"--pod-manifest-path=/c", "--pod-manifest-path=/d"},
			want: defaults(static("/d")),
		},
		"drop-ins in their order, also in subfolders": {
			files: map[string]string{
				"config.yaml":      header + "staticPodPath: /b\nhealthzPort: 5\nfeatureGates: {A: true}\n",
				"d/10-a.conf":      header + "staticPodPath: /late\n",
				"d/20/a.conf":      header + "staticPodPath: /later\nhealthzPort: null\n",
				"d/05-early.conf":  header + "staticPodPath: /early\nshutdownGracePeriod: 10s\n",
				"d/99-ignored.yml": "no kubelet configuration",
			},
			args: []string{"--config=DIR/config.yaml", "--config-dir=DIR/d"},
			want: defaults(static("/later"), shutsDown("shutdownGracePeriod", map[int32]int64{0: 10, criticalPriority: 0})),
		},
		"a path relative to the file": {
			files: map[string]string{"config.yaml": header + "staticPodPath: manifests\n"},
			args:  []string{"--config=DIR/config.yaml"},
			want:  defaults(static("DIR/manifests")),
		},
		"paths relative to the kubelet's working directory": {
			files: map[string]string{"sub/config.yaml": header, "d/a.conf": header + "staticPodPath: manifests\n"},
			args:  []string{"--config=sub/config.yaml", "--config-dir=d"},
			want:  defaults(static("DIR/manifests")),
		},
		"the kubelet's own shutdown by priorities": {
			files: map[string]string{"config.yaml": header + "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]\n"},
			args:  []string{"--config=DIR/config.yaml"},
			want:  defaults(shutsDown("shutdownGracePeriodByPodPriority", map[int32]int64{0: 5})),
		},
		"the kubelet's own shutdown with time for critical pods": {
			files: map[string]string{"config.yaml": header + "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n"},
			args:  []string{"--config=DIR/config.yaml"},
			want: defaults(func(f *Facts) {
				f.ShutdownFields = []string{"shutdownGracePeriod", "shutdownGracePeriodCriticalPods"}
				f.ShutdownTable = map[int32]int64{0: 20, criticalPriority: 10}
			}),
		},
		"the kubelet's own shutdown without time": {
			files: map[string]string{"config.yaml": header + "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 0}]\n"},
			args:  []string{"--config=DIR/config.yaml"},
			want:  defaults(),
		},
		"the kubelet's own shutdown whose feature is off": {
			files: map[string]string{"config.yaml": header + "shutdownGracePeriod: 10s\nfeatureGates: {" + shutdownFeature + ": false}\n"},
			args:  []string{"--config=DIR/config.yaml"},
			want:  defaults(),
		},
		"the kubelet's own shutdown whose feature a flag disables": {
			files: map[string]string{"config.yaml": header + "shutdownGracePeriod: 10s\n"},
			args:  []string{"--config=DIR/config.yaml", "--feature-gates=A=true," + shutdownFeature + "=false"},
			want:  defaults(),
		},
		"another name in capitals": {
			args: []string{"--hostname-override=Node-7 "},
			want: defaults(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, tc.files)
			args := []string{"/usr/bin/kubelet", "--hostname-override=node-7"}
			for _, arg := range tc.args {
				args = append(args, strings.ReplaceAll(arg, "DIR", dir))
			}
			got := must.Get(discover(filepath.Join(dir, "default.yaml"), args, dir))(t)
			tc.want.StaticPodPath = strings.ReplaceAll(tc.want.StaticPodPath, "DIR", dir)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadConfigurations(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		args  []string
		want  string
	}{
		"a missing file":   {args: []string{"--config=DIR/config.yaml"}, want: "config.yaml"},
		"a missing folder": {args: []string{"--config-dir=DIR/d"}, want: "drop-ins"},
		"text":             {files: map[string]string{"c": "{"}, args: []string{"--config=DIR/c"}, want: "/c: "},
		"another kind": {
			files: map[string]string{"c": "apiVersion: v1\nkind: Pod\n"}, args: []string{"--config=DIR/c"}, want: "KubeletConfiguration",
		},
		"a drop-in without a kind":    {files: map[string]string{"d/a.conf": "staticPodPath: /a\n"}, args: []string{"--config-dir=DIR/d"}, want: "a.conf"},
		"a field of another type":     {files: map[string]string{"c": header + "healthzPort: many\n"}, args: []string{"--config=DIR/c"}, want: "healthzPort"},
		"a flag that is not a number": {args: []string{"--healthz-port=many"}, want: "--healthz-port"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := write(t, tc.files)
			args := []string{"kubelet"}
			for _, arg := range tc.args {
				args = append(args, strings.ReplaceAll(arg, "DIR", dir))
			}
			if _, err := discover("", args, ""); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestReachable(t *testing.T) {
	for bound, want := range map[string]string{
		"127.0.0.1:10271": "127.0.0.1:10271",
		"0.0.0.0:10271":   "127.0.0.1:10271",
		"[::]:10271":      "[::1]:10271",
		"10.1.2.3:80":     "10.1.2.3:80",
	} {
		if got := Reachable(bound); got != want {
			t.Errorf("%s is reached at %s, want %s", bound, got, want)
		}
	}
}

func TestDiscoverNamesTheHost(t *testing.T) {
	host := must.Get(os.Hostname())(t)
	got, err := discover("", []string{"kubelet"}, "")
	if err != nil || got.NodeName != strings.ToLower(host) {
		t.Errorf("got %q, %v, want %q", got.NodeName, err, strings.ToLower(host))
	}
}

func TestHealthOfADisabledEndpoint(t *testing.T) {
	if err := (Health{}).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "healthzPort") {
		t.Errorf("got %v, want an error that names healthzPort", err)
	}
}
