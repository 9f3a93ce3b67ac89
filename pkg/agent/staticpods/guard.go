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
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// guardTimeout is the maximum time of each request of the Guard.
const guardTimeout = 3 * time.Second

// Refusal is why a static pod must not be stopped: the node would lose the API, and would never see
// the end of the maintenance.
type Refusal struct {
	// Message is the reason, for people.
	Message string
	// Final: nothing that happens elsewhere changes it.
	Final bool
}

// Guard knows whether the API would still be reachable without a static pod.
type Guard interface {
	// Check returns why a static pod must not be stopped, nil if it may be.
	Check(ctx context.Context, pod *corev1.Pod) *Refusal
	// Ready returns an error if the Kubernetes API does not answer.
	Ready(ctx context.Context) error
}

// apiGuard is a Guard for the API server of a client configuration.
//
// A program of the API (kube-apiserver, etcd), or a pod with a port of the node, which may be a
// proxy or a keeper of the API's address, may be stopped if
//   - the address of the client configuration does not lead to this node alone: the kubelet and the
//     agent could not reach any other API server, and
//   - for a program of the API: another endpoint of the API, on another node, is ready, and
//   - for etcd: the members on the nodes of the ready endpoints are a majority of the known ones.
type apiGuard struct {
	config *rest.Config
	kube   kubernetes.Interface
	node   string
	// own returns the addresses of this node's network interfaces; resolve those of a host.
	own     func() ([]netip.Addr, error)
	resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// NewGuard returns the Guard for the API server of a client configuration.
func NewGuard(config *rest.Config, kube kubernetes.Interface, nodeName string) Guard {
	resolve := func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	return &apiGuard{config: config, kube: kube, node: nodeName, own: ownAddresses, resolve: resolve}
}

// Ready returns an error if the Kubernetes API does not answer.
func (g *apiGuard) Ready(ctx context.Context) error {
	return g.ready(ctx, rest.CopyConfig(g.config))
}

// ready checks the readiness of the API server of a configuration. One that refuses the request can
// serve others.
func (g *apiGuard) ready(ctx context.Context, config *rest.Config) error {
	ctx, cancel := context.WithTimeout(ctx, guardTimeout)
	defer cancel()
	config.Timeout = guardTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.JoinPath("readyz").String(), nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoAPI, err)
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		return nil
	}
	return fmt.Errorf("%w: %s is not ready: %s", errNoAPI, base.Host, response.Status)
}

// Check returns why a static pod must not be stopped, nil if it may be.
func (g *apiGuard) Check(ctx context.Context, pod *corev1.Pod) *Refusal {
	if !mayServeAPI(pod) {
		return nil
	}
	refuse := func(final bool, format string, args ...any) *Refusal {
		return &Refusal{
			Final: final,
			Message: fmt.Sprintf("static pod %s/%s is not stopped, because the node could lose the API: %s",
				pod.Namespace, pod.Name, fmt.Sprintf(format, args...)),
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 3*guardTimeout)
	defer cancel()
	own, err := g.own()
	if err != nil {
		return refuse(false, "the addresses of the node are unknown: %v", err)
	}
	server, addresses, err := g.server(ctx)
	if err != nil {
		return refuse(false, "%v", err)
	}
	elsewhere := 0
	loopback := false
	for _, address := range addresses {
		if !isOwn(address, own) {
			elsewhere++
		}
		loopback = loopback || address.IsLoopback()
	}
	program := programOf(pod)
	switch {
	case elsewhere == 0 && (loopback || program != ""):
		return refuse(true, "the address of the API server (%s) is on this node", server)
	case elsewhere == 0:
		// It may be the address that this pod keeps, which moves to another node when it stops.
		return refuse(false, "the address of the API server (%s) is on this node now", server)
	case program == "" && elsewhere == len(addresses):
		return nil
	}
	known, ready, err := g.others(ctx, own)
	switch {
	case err != nil:
		return refuse(false, "%v", err)
	case ready == 0:
		return refuse(false, "no other API server is ready (of %d)", known)
	case program == programEtcd:
		// This member counts whether or not the API server beside it still runs.
		if members := max(known+1, initialMembers(pod)); ready < members/2+1 {
			return refuse(false, "%d of %d etcd members would remain, which is no majority", ready, members)
		}
	}
	return nil
}

// server returns the host of the API server and its addresses.
func (g *apiGuard) server(ctx context.Context) (string, []netip.Addr, error) {
	base, _, err := rest.DefaultServerUrlFor(g.config)
	if err != nil {
		return "", nil, err
	}
	host := base.Hostname()
	if address, err := netip.ParseAddr(host); err == nil {
		return base.Host, []netip.Addr{address.Unmap()}, nil
	}
	addresses, err := g.resolve(ctx, host)
	if err == nil && len(addresses) == 0 {
		err = errors.New("no addresses")
	}
	if err != nil {
		return "", nil, fmt.Errorf("the API server's host %s cannot be resolved: %w", host, err)
	}
	return base.Host, addresses, nil
}

// others returns the number of API servers on other nodes, and how many of them are ready.
func (g *apiGuard) others(ctx context.Context, own []netip.Addr) (known, ready int, err error) {
	slices, err := g.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=kubernetes",
	})
	if apierrors.IsForbidden(err) {
		return 0, 0, fmt.Errorf("the agent may not list the EndpointSlices of the namespace default: %w", err)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("the endpoints of the API are unknown: %w", err)
	}
	endpoints := sets.New[string]()
	for i := range slices.Items {
		slice := &slices.Items[i]
		for _, port := range slice.Ports {
			for _, endpoint := range slice.Endpoints {
				if endpoint.NodeName != nil && *endpoint.NodeName == g.node {
					continue
				}
				for _, text := range endpoint.Addresses {
					if address, err := netip.ParseAddr(text); err == nil && port.Port != nil && !isOwn(address, own) {
						endpoints.Insert(net.JoinHostPort(address.String(), strconv.Itoa(int(*port.Port))))
					}
				}
			}
		}
	}
	for endpoint := range endpoints {
		if g.ready(ctx, g.configOf(endpoint)) == nil {
			ready++
		}
	}
	return len(endpoints), ready, nil
}

// configOf returns the configuration for another endpoint. All API servers of a cluster have
// certificates for the name of the Service.
func (g *apiGuard) configOf(endpoint string) *rest.Config {
	config := rest.CopyConfig(g.config)
	config.Host = (&url.URL{Scheme: "https", Host: endpoint}).String()
	config.ServerName = "kubernetes.default.svc"
	return config
}

// initialMembers returns the number of members in the manifest of an etcd, 0 if it has none: those
// at the time when it joined.
func initialMembers(pod *corev1.Pod) int {
	for _, container := range pod.Spec.Containers {
		for _, arg := range append(container.Command, container.Args...) {
			if list, ok := strings.CutPrefix(arg, "--initial-cluster="); ok {
				return len(strings.Split(list, ","))
			}
		}
	}
	return 0
}

func isOwn(address netip.Addr, own []netip.Addr) bool {
	address = address.Unmap()
	if address.IsLoopback() || address.IsUnspecified() {
		return true
	}
	for _, o := range own {
		if o == address {
			return true
		}
	}
	return false
}

func ownAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	for _, item := range list {
		if prefix, err := netip.ParsePrefix(item.String()); err == nil {
			found = append(found, prefix.Addr().Unmap())
		}
	}
	return found, nil
}
