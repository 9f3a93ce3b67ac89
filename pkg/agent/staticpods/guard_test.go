/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package staticpods

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/cert"
	"k8s.io/utils/ptr"
)

// apiServers are servers that are ready, by their address; connections to other addresses fail.
type apiServers struct {
	ca []byte
	mu sync.Mutex
	// listeners are the real addresses, hosts the SNI names of the requests.
	listeners map[string]string
	hosts     []string
}

// newServers starts a server for each address, whose readiness has the given status.
func newServers(t *testing.T, status map[string]int) *apiServers {
	t.Helper()
	certificate, key, err := cert.GenerateSelfSignedCertKey("kubernetes.default.svc", nil, []string{"api.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	s := &apiServers{ca: certificate, listeners: map[string]string{}}
	for address, code := range status {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			s.hosts = append(s.hosts, r.TLS.ServerName)
			s.mu.Unlock()
			if r.URL.Path != "/readyz" {
				code = http.StatusNotFound
			}
			w.WriteHeader(code)
		}))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		server.StartTLS()
		t.Cleanup(server.Close)
		s.listeners[address] = server.Listener.Addr().String()
	}
	return s
}

// config returns a client configuration for the host.
func (s *apiServers) config(host string) *rest.Config {
	return &rest.Config{
		Host: "https://" + host, TLSClientConfig: rest.TLSClientConfig{CAData: s.ca, ServerName: "api.example.com"},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			listener, ok := s.listeners[address]
			if !ok {
				return nil, errors.New("connection refused")
			}
			return (&net.Dialer{}).DialContext(ctx, network, listener)
		},
	}
}

// endpointsOf returns the EndpointSlice of the API; the node of an address may follow it after an
// @.
func endpointsOf(addresses ...string) runtime.Object {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		Ports:      []discoveryv1.EndpointPort{{Port: ptr.To[int32](6443)}, {}},
	}
	for _, address := range addresses {
		address, host, _ := strings.Cut(address, "@")
		endpoint := discoveryv1.Endpoint{Addresses: []string{address}}
		if host != "" {
			endpoint.NodeName = &host
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
	}
	return slice
}

func command(words ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers[0].Command = words }
}

func hostNetwork(p *corev1.Pod) { p.Spec.HostNetwork = true }

func TestGuard(t *testing.T) {
	const ready = http.StatusOK
	apiServer, etcd := mirror("api", command("/usr/local/bin/kube-apiserver")), mirror("etcd", command("etcd"))
	three := []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}
	for name, tc := range map[string]struct {
		pod *corev1.Pod
		// host is that of the client configuration; the node has the address 10.0.0.1.
		host      string
		endpoints []string
		servers   map[string]int
		// want is a part of the refusal, empty for none.
		want  string
		final bool
	}{
		"a pod without a port of the node": {pod: mirror("web"), host: "127.0.0.1:6443"},
		"a client of the API":              {pod: mirror("p", hostNetwork, command("kube-proxy")), host: "127.0.0.1:6443"},
		"a proxy that the node reaches the API through": {
			pod: mirror("proxy", hostNetwork), host: "127.0.0.1:6443", endpoints: three, servers: map[string]int{"10.0.0.2:6443": ready},
			want: "(127.0.0.1:6443) is on this node", final: true,
		},
		"a proxy on a port of the node": {
			pod: mirror("proxy", func(p *corev1.Pod) {
				p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 1, HostPort: 6443}}
			}),
			host: "[::1]:6443", want: "is on this node", final: true,
		},
		"a proxy elsewhere":       {pod: mirror("proxy", hostNetwork), host: "10.0.0.100:6443"},
		"a keeper of the address": {pod: mirror("vip", hostNetwork), host: "10.0.0.1:6443", want: "is on this node now"},
		"a proxy on all nodes of a name": {
			pod: mirror("proxy", hostNetwork), host: "all.example.com:6443", endpoints: three, servers: map[string]int{"10.0.0.2:6443": ready},
		},
		"a proxy on all nodes of a name, of which none is ready": {
			pod: mirror("proxy", hostNetwork), host: "all.example.com:6443", endpoints: three, want: "no other API server is ready (of 2)",
		},
		"a name without addresses": {pod: apiServer, host: "none.example.com", want: "cannot be resolved"},
		"the only API server":      {pod: apiServer, host: "10.0.0.1:6443", endpoints: three[:1], want: "is on this node", final: true},
		"the only API server behind a balancer": {
			pod: apiServer, host: "10.0.0.100:6443", endpoints: three[:1], want: "no other API server is ready (of 0)",
		},
		"an API server of several": {
			pod: apiServer, host: "10.0.0.100:6443", endpoints: three, servers: map[string]int{"10.0.0.3:6443": ready},
		},
		"an API server on another address of the node": {
			pod: apiServer, host: "10.0.0.100:6443", endpoints: []string{"10.0.0.2@" + node}, servers: map[string]int{"10.0.0.2:6443": ready},
			want: "no other API server is ready (of 0)",
		},
		"an API server of several that are not ready": {
			pod: apiServer, host: "10.0.0.100:6443", endpoints: three, want: "no other",
			servers: map[string]int{"10.0.0.1:6443": ready, "10.0.0.2:6443": http.StatusInternalServerError},
		},
		"an API server of several that refuse anonymous users": {
			pod: apiServer, host: "10.0.0.100:6443", endpoints: three, servers: map[string]int{"10.0.0.3:6443": http.StatusUnauthorized},
		},
		"an API server known by its label": {
			pod: mirror("api", func(p *corev1.Pod) { p.Labels = map[string]string{"component": "kube-apiserver"} }), host: "10.0.0.100:6443", want: "no other",
		},
		"an API server known by its image": {
			pod: mirror("api", func(p *corev1.Pod) {
				p.Spec.Containers[0].Image = "registry.example.com:5000/a/kube-apiserver:v1@sha256:1"
			}),
			host: "10.0.0.100:6443", want: "no other",
		},
		"a member of an etcd of three": {
			pod: etcd, host: "10.0.0.100:6443", endpoints: three, servers: map[string]int{"10.0.0.2:6443": ready, "10.0.0.3:6443": ready},
		},
		"a member of an etcd of three of which one is gone": {
			pod: etcd, host: "10.0.0.100:6443", endpoints: three, servers: map[string]int{"10.0.0.2:6443": ready}, want: "1 of 3 etcd members",
		},
		"a member of an etcd of three without its API server": {
			pod: etcd, host: "10.0.0.100:6443", endpoints: three[1:], servers: map[string]int{"10.0.0.2:6443": ready, "10.0.0.3:6443": ready},
		},
		"a member of an etcd of two": {
			pod: etcd, host: "10.0.0.100:6443", endpoints: three[:2], servers: map[string]int{"10.0.0.2:6443": ready}, want: "1 of 2 etcd members",
		},
		"a member of an etcd that had five": {
			pod: mirror("etcd", command("etcd", "--initial-cluster=a=1,b=2,c=3,d=4,e=5")), host: "10.0.0.100:6443", endpoints: three,
			servers: map[string]int{"10.0.0.2:6443": ready, "10.0.0.3:6443": ready}, want: "2 of 5 etcd members",
		},
	} {
		t.Run(name, func(t *testing.T) {
			servers := newServers(t, tc.servers)
			g := NewGuard(servers.config(tc.host), kubefake.NewClientset(endpointsOf(tc.endpoints...)), node).(*apiGuard)
			g.own = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil }
			g.resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
				if host != "all.example.com" {
					return nil, fmt.Errorf("no such host %s", host)
				}
				return []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}, nil
			}
			got := g.Check(t.Context(), tc.pod)
			if tc.want == "" {
				if got != nil {
					t.Errorf("got the refusal %+v, want none", got)
				}
				return
			}
			if got == nil || !strings.Contains(got.Message, tc.want) || got.Final != tc.final || !strings.Contains(got.Message, "default/"+tc.pod.Name) {
				t.Errorf("got %+v, want a refusal with %q, final: %t", got, tc.want, tc.final)
			}
			for _, host := range servers.hosts {
				if host != "kubernetes.default.svc" {
					t.Errorf("a server was asked as %s", host)
				}
			}
		})
	}
}

func TestGuardRefusesWhatItCannotFindOut(t *testing.T) {
	forbidden := func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(discoveryv1.Resource("endpointslices"), "", errors.New("no"))
	}
	kube := kubefake.NewClientset()
	kube.PrependReactor("list", "endpointslices", forbidden)
	apiServer := mirror("api", command("kube-apiserver"))
	g := NewGuard(newServers(t, nil).config("10.0.0.100:6443"), kube, node).(*apiGuard)
	g.own = func() ([]netip.Addr, error) { return nil, nil }
	if got := g.Check(t.Context(), apiServer); got == nil || got.Final || !strings.Contains(got.Message, "may not list the EndpointSlices") {
		t.Errorf("got %+v, want a refusal that names the missing right", got)
	}
	g.own = func() ([]netip.Addr, error) { return nil, errors.New("netlink") }
	if got := g.Check(t.Context(), apiServer); got == nil || got.Final || !strings.Contains(got.Message, "netlink") {
		t.Errorf("got %+v, want a refusal", got)
	}
}

func TestGuardKnowsTheOwnAddresses(t *testing.T) {
	own, err := ownAddresses()
	if err != nil {
		t.Fatal(err)
	}
	if !isOwn(netip.MustParseAddr("127.0.0.53"), own) || isOwn(netip.MustParseAddr("192.0.2.1"), own) {
		t.Errorf("got the addresses %v", own)
	}
	for _, address := range own {
		if !isOwn(address, own) {
			t.Errorf("%v is not its own", address)
		}
	}
}

func TestReady(t *testing.T) {
	for name, tc := range map[string]struct {
		servers map[string]int
		want    bool
	}{
		"a ready server":     {map[string]int{"10.0.0.2:6443": http.StatusOK}, true},
		"an overloaded one":  {map[string]int{"10.0.0.2:6443": http.StatusTooManyRequests}, true},
		"one that says no":   {map[string]int{"10.0.0.2:6443": http.StatusForbidden}, true},
		"one without etcd":   {map[string]int{"10.0.0.2:6443": http.StatusInternalServerError}, false},
		"a balancer without": {map[string]int{"10.0.0.2:6443": http.StatusServiceUnavailable}, false},
		"none":               {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := NewGuard(newServers(t, tc.servers).config("10.0.0.2:6443"), kubefake.NewClientset(), node).Ready(t.Context())
			if (err == nil) != tc.want {
				t.Errorf("got %v, want ready: %t", err, tc.want)
			}
			if err != nil && !errors.Is(err, errNoAPI) {
				t.Errorf("got %v, want %v", err, errNoAPI)
			}
		})
	}
}
