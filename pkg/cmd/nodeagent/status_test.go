// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// runningAgent serves the endpoints of an agent with a report and returns its address.
func runningAgent(t *testing.T, report Report) string {
	t.Helper()
	server := httptest.NewServer(endpoints(func() Report { return report }))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// apiServer serves one node and returns a kubeconfig for it.
func apiServer(t *testing.T, node *corev1.Node) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/nodes/"+node.Name {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: "Failure", Reason: metav1.StatusReasonNotFound, Message: r.URL.Path + " not found"})
			return
		}
		_ = json.NewEncoder(w).Encode(node)
	}))
	t.Cleanup(server.Close)
	return kubeconfigFor(t, server.URL, "")
}

// kubeconfigFor writes a kubeconfig; user is the YAML of its credentials.
func kubeconfigFor(t *testing.T, server, user string) string {
	t.Helper()
	if user == "" {
		user = "{}"
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	content := `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "` + server + `"}}]
users: [{name: u, user: ` + user + `}]
`
	must.Do(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// unreachable returns an address without a listener.
func unreachable(t *testing.T) string {
	t.Helper()
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	must.Do(t, listener.Close())
	return listener.Addr().String()
}

func storedState(t *testing.T, s state.State) string {
	t.Helper()
	dir := t.TempDir()
	store := must.Get(state.Open(dir, ""))(t)
	must.Do(t, store.Save(s))
	return dir
}

// draining returns the state of an agent in the middle of a reboot.
func draining() state.State {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return state.State{
		Version: 1, BootID: "b", Phase: state.Maintaining,
		Signal:      state.Signal{Kind: "reboot", Time: start, Deadline: start.Add(30 * time.Minute)},
		Maintenance: &state.MaintenanceRef{Name: "shutdown-node-1-12345678", UID: "u"},
		LockPath:    "/run/systemd/inhibit/7.ref",
		Killed:      []state.KilledPod{{Namespace: "ns", Name: "a", UID: "1", Reported: true}, {Namespace: "ns", Name: "b", UID: "2"}},
	}
}

func healthyReport(stored state.State) Report {
	return Report{
		Version: "v9", Node: "node-1", BootID: "b", Started: time.Now().Add(-time.Hour), Engine: "CRI",
		Shutdown: shutdown.Status{State: stored, Why: "12 pods left", TimeLeft: 20 * time.Minute, LockHeld: true, Delay: 30 * time.Minute},
	}
}

func TestStatus(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1"},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: "True", Reason: "KubeletReady"},
			{Type: "maintenance.haulout.dev/NodeAgentReady", Status: "True", Reason: "Ready", Message: "v9"},
			{Type: "maintenance.haulout.dev/NodeAgentRunning", Status: "False", Reason: "NoLock", Message: "no lock"},
			{Type: "GracefulNodeShutdownInProgress", Status: "True", Reason: "WaitingForDrain", Message: "12 pods left"},
		}},
	}
	broken := healthyReport(draining())
	broken.Engine, broken.Shutdown.LockHeld, broken.StaticPodProblem = "", false, "the kubelet has no static pod path"
	broken.Shutdown.Problems = []string{"logind limits the delay to 5s"}
	for name, test := range map[string]struct {
		report     *Report
		dir        string
		kubeconfig string
		// want has texts that the output must contain; wantNot has texts that it must not contain.
		want, wantNot []string
		unhealthy     bool
		// more is an additional line of the configuration.
		more string
	}{
		"a configuration that cannot be loaded": {
			dir: storedState(t, draining()), kubeconfig: "/none/kubeconfig", more: "maxShutdownDelay: 25h\n",
			want: []string{"Configuration:", "maxShutdownDelay", "Agent:", "no answer", "Maintaining", "/none/kubeconfig"}, unhealthy: true,
		},
		"a node that drains": {
			report: new(healthyReport(draining())), dir: t.TempDir(), kubeconfig: apiServer(t, node),
			want: []string{
				"node-1", "running for 1h0m0s, version v9", "Maintaining", "reboot, requested at 2026-01-02T03:04:05Z",
				"2026-01-02T03:34:05Z at the latest", "shutdown-node-1-12345678", "2, of which 1 are reported to the API", "12 pods left", "20m0s",
				"held: the agent delays a shutdown by at most 30m0s (/run/systemd/inhibit/7.ref)", "CRI", "can be stopped and restarted",
				"NodeAgentReady:", "True (Ready) v9", "NodeAgentRunning:", "False (NoLock) no lock", "GracefulNodeShutdownInProgress:", "True (WaitingForDrain) 12 pods left",
			},
			wantNot: []string{"KubeletReady", "Problem", "no answer"},
		},
		"an agent with problems": {
			report: new(broken), dir: t.TempDir(), kubeconfig: apiServer(t, node),
			want:      []string{"not held", "none: the agent ends pods only", "the kubelet has no static pod path", "logind limits the delay to 5s"},
			unhealthy: true,
		},
		"no API": {
			report: new(healthyReport(state.State{Phase: state.Armed})), dir: t.TempDir(),
			kubeconfig: kubeconfigFor(t, "http://"+unreachable(t), ""),
			want:       []string{"node-1", "running", "Armed", "API:", "no answer", "connection refused"},
			wantNot:    []string{"Shutdown:", "NodeMaintenance:"},
		},
		"no kubeconfig": {
			report: new(healthyReport(state.State{Phase: state.Armed})), dir: t.TempDir(), kubeconfig: "/none/kubeconfig",
			want: []string{"running", "/none/kubeconfig"},
		},
		"no agent, no API, a shutdown on the disk": {
			dir: storedState(t, draining()), kubeconfig: kubeconfigFor(t, "http://"+unreachable(t), ""),
			want:      []string{"Agent:", "no answer", "connection refused", "Maintaining", "reboot", "shutdown-node-1-12345678"},
			wantNot:   []string{"running", "Lock:"},
			unhealthy: true,
		},
		"no agent and nothing stored": {
			dir: t.TempDir(), kubeconfig: "/none/kubeconfig",
			want:      []string{"no answer", "Phase:", "none"},
			unhealthy: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			address := unreachable(t)
			if test.report != nil {
				address = runningAgent(t, *test.report)
			}
			path := configFile(t, "nodeName: node-1\nmetricsBindAddress: \""+address+"\"\n"+test.more)
			args := []string{"status", "--config", path, "--state-directory", test.dir, "--kubeconfig", test.kubeconfig}
			out, err := execute(t, args...)
			if got := errors.Is(err, errUnhealthy); got != test.unhealthy || !got && err != nil {
				t.Errorf("the error is %v, want one: %v", err, test.unhealthy)
			}
			for _, want := range test.want {
				is.True(t, strings.Contains(out, want), "the output has no %q:\n%s", want, out)
			}
			for _, not := range test.wantNot {
				is.True(t, !strings.Contains(out, not), "the output has %q:\n%s", not, out)
			}
			out, err = execute(t, append(args, "--output=json")...)
			if got := errors.Is(err, errUnhealthy); got != test.unhealthy {
				t.Errorf("with --output=json the error is %v", err)
			}
			var s snapshot
			if err := json.Unmarshal([]byte(out), &s); err != nil || (s.Report == nil) != (test.report == nil) {
				t.Errorf("the JSON is read as %+v, %v:\n%s", s, err, out)
			}
		})
	}
}

func TestStatusOfADamagedFileLeavesIt(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "state.json")
	must.Do(t, os.WriteFile(file, []byte("{"), 0o600))
	out, err := execute(t, "status", "--config", configFile(t, "metricsBindAddress: \"\"\n"), "--state-directory", dir, "--kubeconfig", "/none/k")
	if !errors.Is(err, errUnhealthy) || !strings.Contains(out, "damaged") || !strings.Contains(out, "metricsBindAddress is empty") {
		t.Errorf("the error is %v, the output:\n%s", err, out)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "{" {
		t.Errorf("the file is %q, %v", data, err)
	}
}

func TestStatusOfSomethingElseOnThePort(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	t.Cleanup(other.Close)
	if report, err := askAgent(t.Context(), other.Listener.Addr().String()); err == nil {
		t.Errorf("a page was read as %+v", report)
	}
	notFound := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(notFound.Close)
	if report, err := askAgent(t.Context(), notFound.Listener.Addr().String()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("no page was read as %+v, %v", report, err)
	}
}

func TestEndpoints(t *testing.T) {
	address := runningAgent(t, healthyReport(draining()))
	for path, want := range map[string]string{
		"/healthz": "ok\n",
		"/metrics": "registered_metrics_total",
		"/statusz": `"phase": "Maintaining"`,
	} {
		response := must.Get(http.Get("http://" + address + path))(t)
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s answers %s, %v:\n%s", path, response.Status, err, body)
		}
		response = must.Get(http.Post("http://"+address+path, "text/plain", nil))(t)
		response.Body.Close()
		if response.StatusCode != http.StatusMethodNotAllowed && path != "/metrics" {
			t.Errorf("a POST to %s answers %s", path, response.Status)
		}
	}
}

// An agent whose port is in use runs without its endpoints and reports this.
func TestServeOnAPortInUse(t *testing.T) {
	taken := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	if err := serveOnce(t.Context(), taken.Addr().String(), http.NotFoundHandler()); err == nil {
		t.Error("served on a port that is in use")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		serve(ctx, taken.Addr().String(), http.NotFoundHandler())
	}()
	cancel()
	<-ended
}

func TestServeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	address := unreachable(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		serve(ctx, address, endpoints(func() Report { return Report{Version: "v1"} }))
	}()
	for {
		report, err := askAgent(ctx, address)
		if err == nil {
			is.True(t, report.Version == "v1", "the report is %+v", report)
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	cancel()
	<-ended
}
