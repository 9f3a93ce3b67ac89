// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func execHook(command ...string) corev1.LifecycleHandler {
	return corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: command}}
}

func sleepHook(seconds int64) corev1.LifecycleHandler {
	return corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: seconds}}
}

// hookServer serves the preStop hook of a container over HTTP.
func hookServer(t *testing.T, encrypted bool) (port int, last func() *http.Request) {
	t.Helper()
	var got atomic.Pointer[http.Request]
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got.Store(r) })
	server := httptest.NewUnstartedServer(handler)
	if encrypted {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	address := must.Get(url.Parse(server.URL))(t)
	port = must.Get(strconv.Atoi(address.Port()))(t)
	return port, got.Load
}

func get(port intstr.IntOrString, mods ...func(*corev1.HTTPGetAction)) corev1.LifecycleHandler {
	action := &corev1.HTTPGetAction{Path: "/bye?now=1", Port: port}
	for _, mod := range mods {
		if mod != nil {
			mod(action)
		}
	}
	return corev1.LifecycleHandler{HTTPGet: action}
}

func local(s *podSpec) { s.ip = "127.0.0.1" }

func TestHTTPHooks(t *testing.T) {
	t.Parallel()
	secret := func(a *corev1.HTTPGetAction) {
		a.HTTPHeaders = []corev1.HTTPHeader{
			{Name: "Host", Value: "shop.example.com"}, {Name: "authorization", Value: "Bearer x"}, {Name: "X-List", Value: "1"}, {Name: "X-List", Value: "2"},
		}
	}
	https := func(a *corev1.HTTPGetAction) { a.Scheme = corev1.URISchemeHTTPS }
	tests := []struct {
		name      string
		encrypted bool
		mod       func(*corev1.HTTPGetAction)
		pod       func(*podSpec)
		named     bool
		want      bool
		token     string
	}{
		{name: "by the address of the pod", pod: local, want: true, token: "Bearer x"},
		{name: "by the name of a port", pod: local, named: true, want: true, token: "Bearer x"},
		{name: "in the network of the node", pod: func(s *podSpec) { s.hostNetwork = true }, want: true, token: "Bearer x"},
		{name: "by its own host", pod: func(*podSpec) {}, mod: func(a *corev1.HTTPGetAction) { a.Host = "127.0.0.1" }, want: true, token: "Bearer x"},
		{name: "encrypted with any certificate", encrypted: true, pod: local, mod: https, want: true, token: "Bearer x"},
		{name: "encrypted for a server without encryption", pod: local, mod: https, want: true},
		{name: "a pod without an address", pod: func(*podSpec) {}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			port, last := hookServer(t, tt.encrypted)
			at := intstr.FromInt32(int32(port))
			if tt.named {
				at = intstr.FromString("web")
			}
			pod := newPod("p", 0, tt.pod, preStop(get(at, secret, tt.mod)))
			pod.containers[0].ports = []corev1.ContainerPort{{Name: "other", ContainerPort: 1}, {Name: "web", ContainerPort: int32(port)}}
			n := newNode(t, tableOf(20*time.Second, 0), pod)
			n.end(t)
			n.of(t, exited, "p")
			request := last()
			if (request != nil) != tt.want {
				t.Fatalf("the hook was sent: %t, want %t", request != nil, tt.want)
			}
			if request == nil {
				return
			}
			if request.URL.String() != "/bye?now=1" || request.Host != "shop.example.com" || len(request.Header.Values("X-List")) != 2 {
				t.Errorf("got %s of host %s with headers %v", request.URL, request.Host, request.Header)
			}
			if got := request.Header.Get("Authorization"); got != tt.token {
				t.Errorf("sent the token %q, want %q", got, tt.token)
			}
		})
	}
}

func TestHooksTakeFromTheGrace(t *testing.T) {
	t.Parallel()
	// This port accepts connections and never responds.
	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = silent.Close() })
	deaf := intstr.FromInt32(int32(silent.Addr().(*net.TCPAddr).Port))
	tests := []struct {
		name string
		mods []func(*podSpec)
		// waits is the expected time from the start until the container gets the stop request, with
		// a tolerance of slow.
		waits, timeout time.Duration
	}{
		{name: "a sleep", mods: []func(*podSpec){grace("6"), preStop(sleepHook(1))}, waits: time.Second, timeout: 5 * time.Second},
		{name: "a sleep longer than the grace", mods: []func(*podSpec){grace("1"), preStop(sleepHook(60))}, waits: time.Second, timeout: 2 * time.Second},
		{name: "a sleep longer than the bucket", waits: 2 * time.Second, timeout: 2 * time.Second, mods: []func(*podSpec){
			grace("600"), preStop(sleepHook(600)),
		}},
		{name: "a command", waits: time.Second, timeout: 5 * time.Second, mods: []func(*podSpec){
			grace("6"), preStop(execHook("flush", "all")), func(s *podSpec) { s.containers[0].exec = time.Second },
		}},
		{name: "a command that does not end", waits: time.Second, timeout: 2 * time.Second, mods: []func(*podSpec){
			grace("1"), preStop(execHook("flush", "all")), func(s *podSpec) { s.containers[0].exec = time.Minute },
		}},
		{name: "a command that fails", timeout: 6 * time.Second, mods: []func(*podSpec){grace("6"), preStop(execHook("flush", "all")), func(s *podSpec) {
			s.containers[0].code = 1
		}}},
		{name: "a server that does not respond", waits: time.Second, timeout: 2 * time.Second, mods: []func(*podSpec){
			grace("1"), local, preStop(get(deaf)),
		}},
		{name: "a port without a number", timeout: 6 * time.Second, mods: []func(*podSpec){grace("6"), local, preStop(get(intstr.FromString("missing")))}},
		{name: "a hook of another kind", timeout: 6 * time.Second, mods: []func(*podSpec){
			grace("6"), preStop(corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{}}),
		}},
		{name: "a hook that cannot be read", timeout: 6 * time.Second, mods: []func(*podSpec){
			grace("6"), func(s *podSpec) { s.containers[0].rawHook = "{" },
		}},
		{name: "no hook without grace", timeout: 2 * time.Second, mods: []func(*podSpec){grace("0"), preStop(sleepHook(60))}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			period := 20 * time.Second
			if tt.waits == 2*time.Second {
				period = tt.waits
			}
			n := newNode(t, tableOf(period, 0), newPod("p", 0, tt.mods...))
			began := time.Now()
			n.end(t)
			stop := n.of(t, stopAsked, "p")
			if waited := stop.at.Sub(began); waited < tt.waits || waited > tt.waits+slow {
				t.Errorf("the container got the stop request after %s, want %s", waited, tt.waits)
			}
			if stop.timeout != tt.timeout && stop.timeout != tt.timeout-time.Second {
				t.Errorf("timeout is %s, want %s", stop.timeout, tt.timeout)
			}
			is.True(t, !n.of(t, exited, "p").at.Before(stop.at), "the container ended before the stop request")
		})
	}
}

func TestACommandRunsInItsContainerForTheTimeThatIsLeft(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(20*time.Second, 0), newPod("p", 0, grace("6"), preStop(execHook("flush", "all"))))
	n.end(t)
	run := n.of(t, "exec [flush all]", "p")
	if run.timeout < 6*time.Second || run.timeout > 7*time.Second {
		t.Errorf("the command had %s, want the 6 seconds of the pod and at most one more", run.timeout)
	}
	is.True(t, !run.at.After(n.of(t, stopAsked, "p").at), "the command ran after the stop request")
}
