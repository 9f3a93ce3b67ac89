// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// manifests are static pods as distributions write them. Each has the reason for which it is kept
// on a node without a control-plane label whose API server is on another node.
var manifests = map[string]struct {
	manifest string
	want     protocol.KeptReason
	// node is set if the pod makes its node a control-plane node.
	node bool
}{
	"kubeadm's kube-apiserver": {
		`{metadata: {labels: {component: kube-apiserver, tier: control-plane}}, spec: {hostNetwork: true, containers: [
			{image: "registry.k8s.io/kube-apiserver:v1.37.1", command: [kube-apiserver, --etcd-servers=https://127.0.0.1:2379, --secure-port=6443]}]}}`,
		"ControlPlaneNode", true,
	},
	"kubeadm's etcd": {
		`{metadata: {labels: {component: etcd, tier: control-plane}}, spec: {hostNetwork: true, containers: [
			{image: "registry.k8s.io/etcd:3.6.1-0", command: [etcd, --data-dir=/var/lib/etcd]}]}}`,
		"ControlPlaneNode", true,
	},
	"kubeadm's kube-scheduler": {
		`{metadata: {labels: {component: kube-scheduler, tier: control-plane}}, spec: {hostNetwork: true, containers: [{command: [kube-scheduler]}]}}`,
		"ControlPlaneNode", false,
	},
	"kube-controller-manager without labels": {
		`{spec: {containers: [{image: "mirror.example/kube-controller-manager@sha256:00", command: [/usr/local/bin/kube-controller-manager]}]}}`,
		"ControlPlaneNode", false,
	},
	"OpenShift's etcd": {
		`{metadata: {labels: {app: etcd, k8s-app: etcd}}, spec: {hostNetwork: true, containers: [
			{image: "quay.example/release@sha256:00", command: [/bin/sh, -c, "set -e\nexec nice -n -19 etcd \\\n  --logger=zap"]}]}}`,
		"ControlPlaneNode", true,
	},
	"OpenShift's kube-apiserver": {
		`{metadata: {labels: {app: openshift-kube-apiserver, apiserver: "true"}}, spec: {hostNetwork: true, containers: [
			{image: "quay.example/release@sha256:00", command: [/bin/bash, -ec], args: ["exec watch-termination -- hyperkube kube-apiserver"]}]}}`,
		"ControlPlaneNode", true,
	},
	"a shell that runs etcd, without labels": {
		`{spec: {containers: [{image: image, command: [/bin/sh, -c, "set -e; A=b exec nice -n -19 etcd --data-dir=/data"]}]}}`, "ControlPlaneNode", true,
	},
	"RKE2's etcd": {
		`{metadata: {labels: {component: etcd, tier: control-plane}}, spec: {hostNetwork: true, containers: [
			{image: "index.docker.io/rancher/hardened-etcd:v3", command: [etcd, --config-file=/var/lib/rancher/rke2/server/db/etcd/config]}]}}`,
		"ControlPlaneNode", true,
	},
	"k3s's and RKE2's cloud-controller-manager": {
		`{metadata: {labels: {component: cloud-controller-manager, tier: control-plane}}, spec: {hostNetwork: true, containers: [{image: a}]}}`,
		"ControlPlaneNode", false,
	},
	"etcd-manager": {
		`{metadata: {labels: {k8s-app: etcd-manager-main}}, spec: {hostNetwork: true, containers: [
			{image: "registry.k8s.io/etcd-manager/etcd-manager-slim:v3", command: [/bin/sh, -c, "mkfifo /tmp/p; (tee -a /var/log/etcd.log < /tmp/p &); exec /etcd-manager --v=6 > /tmp/p"]}]}}`,
		"ControlPlaneNode", true,
	},
	"hyperkube apiserver": {
		`{spec: {hostNetwork: true, containers: [{image: "registry/hyperkube:v1", command: [/hyperkube, apiserver]}]}}`, "ControlPlaneNode", true,
	},
	"a program that listens on the port of etcd": {
		`{spec: {hostNetwork: true, containers: [{command: [store], args: ["--listen-client-urls=https://127.0.0.1:2379,https://10.0.0.1:2379"]}]}}`,
		"ControlPlaneNode", false,
	},
	"a pod with the host port of kube-apiserver": {
		`{spec: {containers: [{image: a, ports: [{containerPort: 443, hostPort: 6443}]}]}}`, "ControlPlaneNode", false,
	},
	"kube-vip": {
		`{spec: {hostNetwork: true, containers: [{image: "ghcr.io/kube-vip/kube-vip:v0.9", args: [manager]}]}}`, "ServesTheAPI", false,
	},
	"kubespray's nginx-proxy": {
		`{metadata: {labels: {k8s-app: kube-nginx}}, spec: {hostNetwork: true, containers: [{image: "docker.io/library/nginx:1.27"}]}}`, "ServesTheAPI", false,
	},
	"keepalived": {
		`{spec: {hostNetwork: true, containers: [{image: "osixia/keepalived:2"}]}}`, "ServesTheAPI", false,
	},
	"an nginx of its own network":               {`{spec: {containers: [{image: "nginx:1"}]}}`, "", false},
	"a client of etcd":                          {`{spec: {hostNetwork: true, containers: [{command: [store, "--etcd-servers=https://10.0.0.1:2379"]}]}}`, "", false},
	"a backup with the path of etcd":            {`{spec: {hostNetwork: true, containers: [{image: backup, args: [--data=/var/lib/etcd]}]}}`, "", false},
	"a backup with the path of etcd in a shell": {`{spec: {containers: [{image: backup, command: [sh, -c, "backup \\\n  --data=/var/lib/etcd /var/lib/etcd"]}]}}`, "", false},
	"logs of RKE2 and k3s":                      {`{spec: {containers: [{image: logs, command: [ship, /var/lib/rancher/rke2, --dir=/run/k3s]}]}}`, "", false},
	"RKE2's kube-proxy": {
		`{metadata: {labels: {component: kube-proxy, tier: control-plane}}, spec: {hostNetwork: true, containers: [{command: [kube-proxy]}]}}`, "ServesTheAPI", false,
	},
	"hyperkube proxy":   {`{spec: {hostNetwork: true, containers: [{image: "registry/hyperkube:v1", command: [/hyperkube, proxy]}]}}`, "ServesTheAPI", false},
	"hyperkube kubelet": {`{spec: {hostNetwork: true, containers: [{image: "registry/hyperkube:v1", command: [/hyperkube, kubelet]}]}}`, "", false},
}

// podIn returns the pod of a manifest, and adds the missing names.
func podIn(t *testing.T, name, manifest string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	must.Do(t, yaml.Unmarshal([]byte(strings.ReplaceAll(manifest, "\t", " ")), pod))
	pod.Namespace, pod.Name = "kube-system", name+"-node-7"
	return pod
}

func TestKeptPods(t *testing.T) {
	plain := `{spec: {containers: [{image: plain}]}}`
	for name, tc := range manifests {
		t.Run(name, func(t *testing.T) {
			pods := []*corev1.Pod{podIn(t, "subject", tc.manifest), podIn(t, "plain", plain)}
			got, isControlPlane := keptPods(pods, nil, surroundings{node: node, api: apiElsewhere})
			is.Equal(t, isControlPlane, tc.node, "a control-plane node")
			if reason := got[keyOf("subject")]; reason != tc.want {
				t.Errorf("got the reason %q, want %q", reason, tc.want)
			}
			if isNode := got[keyOf("plain")] != ""; isNode != tc.node {
				t.Errorf("another pod of the node is kept: %t, want %t", isNode, tc.node)
			}
		})
	}
}

func keyOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "kube-system", Name: name + "-node-7"}
}

func TestKeptPodsDependOnTheNode(t *testing.T) {
	const plain, hosted, ported = `{spec: {containers: [{image: a}]}}`, `{spec: {hostNetwork: true, containers: [{image: a}]}}`,
		`{spec: {containers: [{image: a, ports: [{hostPort: 80}]}]}}`
	apiserver := manifests["kubeadm's kube-apiserver"].manifest
	// The CoreDNS pod of OpenShift on bare metal and vSphere resolves the name of the API for the
	// kubelet.
	const coredns = `{metadata: {labels: {app: vsphere-infra-coredns}}, spec: {hostNetwork: true, containers: [
		{image: "quay.example/release@sha256:00", command: [/usr/bin/coredns], args: [--conf, /etc/coredns/Corefile]}]}}`
	resolvers := map[string]string{
		"coredns": coredns, "cache": `{spec: {hostNetwork: true, containers: [{image: "registry.k8s.io/dns/k8s-dns-node-cache:1.26", args: [-localip, 169.254.20.10]}]}}`,
		"dnsmasq": `{spec: {containers: [{image: "example/dnsmasq:1", ports: [{containerPort: 53, hostPort: 53, protocol: UDP}]}]}}`,
		"inner":   `{spec: {containers: [{image: "example/dnsmasq:1"}]}}`, "hosted": hosted,
	}
	elsewhere := func(policy Policy) surroundings { return surroundings{node: node, api: apiElsewhere, policy: policy} }
	for name, tc := range map[string]struct {
		pods map[string]string
		s    surroundings
		want map[string]protocol.KeptReason
	}{
		"a worker keeps nothing": {pods: map[string]string{"a": plain, "b": hosted}, s: elsewhere(Policy{})},
		"a Node with a label keeps all": {
			pods: map[string]string{"a": plain}, s: surroundings{node: node, api: apiElsewhere, labelled: true, policy: Policy{Evacuate: []string{"*/*"}}},
			want: map[string]protocol.KeptReason{"a": "ControlPlaneNode"},
		},
		"an API server on the node keeps the pods that use the node": {
			pods: map[string]string{"a": plain, "b": hosted, "c": ported}, s: surroundings{node: node, api: apiHere},
			want: map[string]protocol.KeptReason{"b": "ServesTheAPI", "c": "ServesTheAPI"},
		},
		"an unknown API server keeps the pods that use the node": {
			pods: map[string]string{"a": plain, "b": hosted}, s: surroundings{node: node},
			want: map[string]protocol.KeptReason{"b": "Undecided"},
		},
		"an API server with a name keeps the pods that may resolve the name": {
			pods: resolvers, s: surroundings{node: node, api: apiNamed},
			want: map[string]protocol.KeptReason{"coredns": "ServesTheAPI", "cache": "ServesTheAPI", "dnsmasq": "ServesTheAPI"},
		},
		"an API server with an address keeps no pod that resolves names": {pods: resolvers, s: elsewhere(Policy{})},
		"the configuration keeps all": {
			pods: map[string]string{"a": plain}, s: elsewhere(Policy{KeepAll: true}), want: map[string]protocol.KeptReason{"a": "KeptByConfiguration"},
		},
		"the configuration keeps all but one": {
			pods: map[string]string{"a": plain, "b": plain}, s: elsewhere(Policy{KeepAll: true, Evacuate: []string{"kube-system/b"}}),
			want: map[string]protocol.KeptReason{"a": "KeptByConfiguration"},
		},
		"the configuration keeps one, by the name of the mirror pod, too": {
			pods: map[string]string{"a": plain, "b": plain, "c": plain}, s: elsewhere(Policy{Keep: []string{"kube-system/a", "kube-system/b-node-7"}}),
			want: map[string]protocol.KeptReason{"a": "KeptByConfiguration", "b": "KeptByConfiguration"},
		},
		"keepStaticPods has precedence": {
			pods: map[string]string{"a": plain}, s: elsewhere(Policy{Keep: []string{"*/a"}, Evacuate: []string{"*/a"}}),
			want: map[string]protocol.KeptReason{"a": "KeptByConfiguration"},
		},
		"pods beside a control plane may leave, but not its programs": {
			pods: map[string]string{"api": apiserver, "logs": plain}, s: elsewhere(Policy{Evacuate: []string{"*/*"}}),
			want: map[string]protocol.KeptReason{"api": "ControlPlaneNode"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var pods []*corev1.Pod
			for _, pod := range slices.Sorted(maps.Keys(tc.pods)) {
				pods = append(pods, podIn(t, pod, tc.pods[pod]))
			}
			want := map[types.NamespacedName]protocol.KeptReason{keyOf("unread"): "Undecided"}
			for pod, reason := range tc.want {
				want[keyOf(pod)] = reason
			}
			if got, _ := keptPods(pods, []types.NamespacedName{keyOf("unread")}, tc.s); !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestPlaceOf(t *testing.T) {
	own := func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("10.0.0.7")}, nil }
	resolve := func(_ context.Context, host string) ([]netip.Addr, error) {
		switch host {
		case "api":
			return []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.7")}, nil
		case "balancer":
			return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
		case "empty":
			return nil, nil
		}
		return nil, errors.New("no such host")
	}
	for server, want := range map[string]apiPlace{
		"https://127.0.0.1:6443": apiHere, "https://[::1]:6443": apiHere, "https://10.0.0.7:6443": apiHere, "https://api:6443": apiHere,
		"https://10.0.0.1:6443": apiElsewhere, "https://balancer": apiNamed,
		"https://gone:6443": apiUnknown, "https://empty": apiUnknown, "": apiUnknown, "10.0.0.7:6443": apiUnknown,
	} {
		if got := placeOf(t.Context(), server, own, resolve); got != want {
			t.Errorf("%q: got %d, want %d", server, got, want)
		}
	}
	broken := func() ([]netip.Addr, error) { return nil, errors.New("no interfaces") }
	if got := placeOf(t.Context(), "https://10.0.0.7", broken, resolve); got != apiUnknown {
		t.Errorf("got %d without interfaces, want it unknown", got)
	}
}

func TestIsRefuted(t *testing.T) {
	now := &Cluster{CAs: []string{"ca-1"}}
	for name, tc := range map[string]struct {
		parked, now *Cluster
		want        bool
	}{
		"of an older version":     {nil, now, false},
		"with the UID of a Node":  {&Cluster{Node: "node-1"}, now, false},
		"with the same authority": {&Cluster{CAs: []string{"ca-0", "ca-1"}}, now, false},
		"with another authority":  {&Cluster{CAs: []string{"ca-2"}}, now, true},
		"no authority is known":   {&Cluster{CAs: []string{"ca-2"}}, &Cluster{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, isRefuted(tc.parked, tc.now), tc.want)
		})
	}
}

func TestMembershipOf(t *testing.T) {
	full := Cluster{Namespace: "ns-1", Node: "node-1", CAs: []string{"ca-1"}}
	for name, tc := range map[string]struct {
		parked, now *Cluster
		want        membership
	}{
		"the same cluster":                         {&full, &full, memberSame},
		"the same cluster, another Node":           {&full, &Cluster{Namespace: "ns-1", Node: "node-2"}, memberSame},
		"another cluster":                          {&full, &Cluster{Namespace: "ns-2", Node: "node-2", CAs: []string{"ca-2"}}, memberForeign},
		"another cluster with the same authority":  {&full, &Cluster{Namespace: "ns-2", CAs: []string{"ca-1"}}, memberForeign},
		"the namespace is not readable":            {&full, &Cluster{Node: "node-1", CAs: []string{"ca-2"}}, memberSame},
		"another Node and a bundle of authorities": {&full, &Cluster{Node: "node-2", CAs: []string{"ca-0", "ca-1"}}, memberSame},
		"another Node and another authority":       {&full, &Cluster{Node: "node-2", CAs: []string{"ca-2"}}, memberForeign},
		"no API, the same authority":               {&full, &Cluster{CAs: []string{"ca-1"}}, memberSame},
		"no API, another authority":                {&full, &Cluster{CAs: []string{"ca-2"}}, memberUnknown},
		"of an older version":                      {nil, &full, memberUnknown},
		"of an older version, the same Node":       {&Cluster{Node: "node-1"}, &full, memberSame},
		"of an older version, another Node":        {&Cluster{Node: "node-0"}, &full, memberForeign},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, membershipOf(tc.parked, tc.now), tc.want)
		})
	}
}
