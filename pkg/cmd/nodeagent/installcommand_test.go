// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/agent/config"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// fakeServices records the installed and removed services.
type fakeServices struct {
	installed  *installation
	removed    bool
	pending    bool
	pendingErr error
	err        error
	// stopped is a function that is called when the service is stopped.
	stopped func()
}

func (f *fakeServices) services() services {
	return services{
		root: true,
		install: func(_ context.Context, i *installation) (bool, error) {
			f.installed = i
			return true, f.err
		},
		pending: func(context.Context) (bool, error) { return f.pending, f.pendingErr },
		uninstall: func(context.Context) error {
			f.removed = true
			if f.stopped != nil {
				f.stopped()
			}
			return f.err
		},
	}
}

// executeWith runs the command install or uninstall with the fake services.
func executeWith(t *testing.T, f *fakeServices, args ...string) (string, error) {
	t.Helper()
	o := &Options{}
	cmd := newInstallCommand(o, f.services())
	if args[0] == "uninstall" {
		cmd = newUninstallCommand(o, f.services())
	}
	o.addFlags(cmd.Flags())
	var out bytes.Buffer
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args[1:])
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestInstall(t *testing.T) {
	file := configFile(t, "maxShutdownDelay: 10m\n# a comment that must stay\n")
	content := must.Get(os.ReadFile(file))(t)
	root := t.TempDir()
	installedFile := filepath.Join(root, config.DefaultPath())
	must.Do(t, os.MkdirAll(filepath.Dir(installedFile), 0o700))
	must.Do(t, os.WriteFile(installedFile, []byte(configHead+"maxShutdownDelay: 20m\n"), 0o600))
	for name, test := range map[string]struct {
		args    []string
		content string
		delay   string
		run     []string
	}{
		"without a file": {delay: "30m0s", run: []string{"run"}},
		"with a file": {
			args: []string{"--config", file, "--root", root}, content: string(content), delay: "10m0s", run: []string{"run"},
		},
		"with the machine's own file": {args: []string{"--root", root}, delay: "20m0s", run: []string{"run"}},
		"with flags": {
			args:  []string{"--node-name", "n", "--kubeconfig", "/k", "--state-directory", "/s"},
			delay: "30m0s", run: []string{"run", "--kubeconfig=/k", "--node-name=n", "--state-directory=/s"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeServices{}
			out, err := executeWith(t, f, append([]string{"install"}, test.args...)...)
			must.True(t, err == nil && strings.Contains(out, "installed and runs"), "the output is %q, %v", out, err)
			i := f.installed
			if string(i.content) != test.content || i.path != config.DefaultPath() || i.config.MaxShutdownDelay.Duration.String() != test.delay {
				t.Errorf("the file is %q at %s, the delay %s", i.content, i.path, i.config.MaxShutdownDelay.Duration)
			}
			is.Slices(t, i.args, test.run, "the arguments")
		})
	}
}

func TestInstallRefusesAWrongConfiguration(t *testing.T) {
	f := &fakeServices{}
	_, err := executeWith(t, f, "install", "--config", configFile(t, "localEngine: Docker\n"))
	if err == nil || !strings.Contains(err.Error(), "localEngine") || f.installed != nil {
		t.Errorf("installed %+v, %v", f.installed, err)
	}
}

// nodeServer serves one node, and records the patches of its status.
func nodeServer(t *testing.T) (kubeconfig string, patches func() string) {
	t.Helper()
	kubeconfig, body := recordingServer(t)
	return kubeconfig, body.String
}

func recordingServer(t *testing.T) (kubeconfig string, body *bytes.Buffer) {
	t.Helper()
	body = &bytes.Buffer{}
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			_, _ = io.Copy(body, r.Body)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(node)
	}))
	t.Cleanup(server.Close)
	return kubeconfigFor(t, server.URL, ""), body
}

func TestUninstall(t *testing.T) {
	kubeconfig, _ := nodeServer(t)
	noAPI := kubeconfigFor(t, "http://"+unreachable(t), "")
	for name, test := range map[string]struct {
		services   fakeServices
		kubeconfig string
		parked     bool
		args       []string
		// want has texts of the output, and refused has texts of the error. files has the files in
		// the folder afterwards.
		want, refused string
		files         string
		// more is an additional line of the configuration.
		more string
	}{
		"a broken configuration":          {kubeconfig: kubeconfig, more: "maxShutdownDelay: 25h\n", refused: "maxShutdownDelay"},
		"a broken configuration by force": {kubeconfig: kubeconfig, more: "maxShutdownDelay: 25h\n", args: []string{"--force"}, want: "removed"},
		"a node without parked pods":      {kubeconfig: kubeconfig, want: "removed"},
		"parked pods":                     {kubeconfig: kubeconfig, parked: true, refused: "proxy.yaml", files: "running.yaml"},
		"parked pods that are restored": {
			kubeconfig: kubeconfig, parked: true, args: []string{"--restore-static-pods"},
			want: "restored", files: "proxy.yaml running.yaml storage.yaml",
		},
		"a pending shutdown": {kubeconfig: kubeconfig, services: fakeServices{pending: true}, refused: "the agent delays a shutdown"},
		"a pending shutdown by force": {
			kubeconfig: kubeconfig, services: fakeServices{pending: true}, args: []string{"--force"},
			refused: "the agent delays a shutdown",
		},
		"no service manager": {kubeconfig: kubeconfig, services: fakeServices{pendingErr: errors.New("no bus")}, refused: "no bus"},
		"no service manager by force": {
			kubeconfig: kubeconfig, services: fakeServices{pendingErr: errors.New("no bus")}, args: []string{"--force"},
			want: "removed",
		},
		"no API":               {kubeconfig: noAPI, refused: "NodeAgentReady"},
		"no API by force":      {kubeconfig: noAPI, args: []string{"--force"}, want: "removed"},
		"a removal that fails": {kubeconfig: kubeconfig, services: fakeServices{err: errors.New("no rights")}, refused: "no rights"},
		"parked pods and a removal that fails": {
			kubeconfig: kubeconfig, parked: true, args: []string{"--restore-static-pods"},
			services: fakeServices{err: errors.New("no rights")}, refused: "no rights", files: "running.yaml",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if test.parked {
				dir = parkedFolder(t)
			}
			path := configFile(t, "nodeName: node-1\nstaticPodPath: "+dir+"\n"+test.more)
			f := test.services
			out, err := executeWith(t, &f, append([]string{"uninstall", "--config", path, "--kubeconfig", test.kubeconfig}, test.args...)...)
			if test.refused != "" {
				if err == nil || !strings.Contains(err.Error(), test.refused) || f.removed != (f.err != nil) {
					t.Errorf("removed: %v, the error is %v, want one with %q", f.removed, err, test.refused)
				}
			} else if err != nil || !f.removed || !strings.Contains(out, test.want) {
				t.Errorf("removed: %v, %v; the output is %q, want %q", f.removed, err, out, test.want)
			}
			is.Equal(t, names(t, dir), test.files, "the folder has")
		})
	}
}

// The agent knows the folder of the parked pods although the kubelet is gone.
func TestUninstallWithoutAKubelet(t *testing.T) {
	kubeconfig, _ := nodeServer(t)
	dir, stateDir := parkedFolder(t), t.TempDir()
	store := must.Get(state.Open(stateDir, ""))(t)
	last := config.Default()
	last.StaticPodPath = dir
	must.Do(t, store.Save(state.State{Phase: state.Armed, BootID: "b", Configuration: last}))
	f := &fakeServices{}
	path := configFile(t, "nodeName: node-1\nkubeletConfig: /no/such/kubelet.yaml\nstateDirectory: "+stateDir+"\n")
	if _, err := executeWith(t, f, "uninstall", "--config", path, "--kubeconfig", kubeconfig); err == nil || !strings.Contains(err.Error(), "proxy.yaml") || f.removed {
		t.Errorf("removed: %v, the error is %v, want one that names the parked pod", f.removed, err)
	}
}

// After the agent is removed, no program would restore parked pods. So no pod may stay parked, even
// if the API fails or the agent parks pods until it stops.
func TestUninstallRestoresWhateverHappensAfterTheRemoval(t *testing.T) {
	for name, test := range map[string]struct {
		// parked is set if a pod is parked before the command runs.
		parked bool
		// down is set if the API no longer responds. force is set if --force is given.
		down, force bool
		// left is set if the pods must not be restored.
		left    bool
		refused string
	}{
		"pods that were parked after the check, and are left": {left: true, refused: "parked static pods before it stopped: "},
		"an API that fails":                     {parked: true, down: true, refused: "the service is removed, but the condition"},
		"an API that fails, by force":           {parked: true, down: true, force: true},
		"pods that were parked after the check": {},
	} {
		t.Run(name, func(t *testing.T) {
			var down atomic.Bool
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if down.Load() {
					http.Error(w, "down", http.StatusInternalServerError)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-1"}}`)
			}))
			t.Cleanup(server.Close)
			dir := parkedFolder(t)
			parking := filepath.Join(filepath.Dir(dir), ".nm-parked")
			if !test.parked {
				must.Do(t, os.Rename(parking, parking+"-later"))
			}
			f := &fakeServices{stopped: func() {
				down.Store(test.down)
				if !test.parked {
					if err := os.Rename(parking+"-later", parking); err != nil {
						t.Error(err)
					}
				}
			}}
			path := configFile(t, "nodeName: node-1\nstaticPodPath: "+dir+"\n")
			args := []string{"uninstall", "--config", path, "--kubeconfig", kubeconfigFor(t, server.URL, "")}
			said, folder := "The service is removed", "running.yaml"
			if !test.left {
				args = append(args, "--restore-static-pods")
				said, folder = "proxy.yaml restored", "proxy.yaml running.yaml storage.yaml"
			}
			if test.force {
				args = append(args, "--force")
			}
			out, err := executeWith(t, f, args...)
			if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("the error is %v, want one with %q", err, test.refused)
			}
			if !f.removed || !strings.Contains(out, said) {
				t.Errorf("removed: %v, the output is %q", f.removed, out)
			}
			is.Equal(t, names(t, dir), folder, "the folder has")
		})
	}
}

// An unreadable state does not show whether pods are parked.
func TestUninstallRefusesAStateThatCannotBeRead(t *testing.T) {
	kubeconfig, _ := nodeServer(t)
	dir := t.TempDir()
	stored := filepath.Join(dir, "state.json")
	must.Do(t, os.WriteFile(stored, []byte("{"), 0o600))
	path := configFile(t, "nodeName: node-1\nkubeletConfig: /no/such/kubelet.yaml\nstateDirectory: "+dir+"\n")
	f := &fakeServices{}
	args := []string{"uninstall", "--config", path, "--kubeconfig", kubeconfig}
	if _, err := executeWith(t, f, args...); err == nil || !strings.Contains(err.Error(), stored) || f.removed {
		t.Errorf("removed: %v, the error is %v, want one that names %s", f.removed, err, stored)
	}
	if _, err := executeWith(t, f, append(args, "--force")...); err != nil || !f.removed {
		t.Errorf("removed by force: %v, %v", f.removed, err)
	}
}

// After an uninstallation, drains must not wait for an agent that no longer exists.
func TestUninstallTellsTheCluster(t *testing.T) {
	kubeconfig, body := recordingServer(t)
	path := configFile(t, "nodeName: node-1\nstaticPodPath: "+t.TempDir()+"\n")
	// Until it is stopped, the agent writes its own condition.
	f := &fakeServices{stopped: body.Reset}
	must.Get(executeWith(t, f, "uninstall", "--config", path, "--kubeconfig", kubeconfig))(t)
	for _, want := range []string{"maintenance.haulout.dev/NodeAgentReady", "maintenance.haulout.dev/NodeAgentRunning", `"False"`, "Stopped"} {
		if !strings.Contains(body.String(), want) {
			t.Errorf("the node's status was changed at last by %s, which has no %s", body, want)
		}
	}
}
