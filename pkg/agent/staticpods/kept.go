// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

// Policy is what the agent's configuration says about static pods. The patterns are those of
// path.Match, for <namespace>/<name>; the name may be with or without the name of the node.
type Policy struct {
	// KeepAll: static pods are kept, except for those that Evacuate matches.
	KeepAll bool
	// Keep matches the static pods that are kept.
	Keep []string
	// Evacuate matches static pods that leave although KeepAll is set or another pod of the node is
	// a part of a control plane. It has no effect on the programs of a control plane, on pods
	// through which the kubelet may reach the API server, and on Nodes with a label of a control
	// plane, whose static pods the server keeps.
	Evacuate []string
}

// surroundings is what decides which static pods are kept, apart from the pods.
type surroundings struct {
	policy Policy
	// node is the name of the node. labelled: the Node has a label of a control plane.
	node     string
	labelled bool
	// api is where the kubelet reaches its API server.
	api apiPlace
}

// apiPlace is where the API server of the kubelet is.
type apiPlace int

const (
	// apiUnknown: the kubelet's kubeconfig cannot be read, or its host cannot be resolved.
	apiUnknown apiPlace = iota
	// apiElsewhere: no address of it is one of this node. apiNamed: neither, and the kubeconfig has
	// a name that has to be resolved.
	apiElsewhere
	apiNamed
	// apiHere: it is reached through an address of this node.
	apiHere
)

// The programs of a control plane.
var controlPrograms = []string{
	"kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager", "cloud-controller-manager", "etcd-manager",
	"openshift-kube-apiserver", "openshift-apiserver", "openshift-kube-scheduler", "openshift-kube-controller-manager", "openshift-controller-manager",
}

// nodePrograms are the control programs that make their node a control-plane node.
var nodePrograms = []string{"kube-apiserver", "openshift-kube-apiserver", "etcd", "etcd-manager"}

// hyperkubeCommands are the names of the control programs as words behind hyperkube.
var hyperkubeCommands = map[string]string{
	"apiserver": "kube-apiserver", "controller-manager": "kube-controller-manager", "scheduler": "kube-scheduler",
}

// balancers keep an address of the API, or distribute its connections.
var balancers = []string{"kube-vip", "keepalived", "haproxy", "nginx", "nginx-proxy", "envoy", "traefik"}

// resolvers are servers of names, perhaps the one that the node asks for the address of the API.
var resolvers = []string{"coredns", "dnsmasq", "node-cache", "k8s-dns-node-cache"}

// controlPorts are those of kube-apiserver and etcd, listenFlags the flags that name a port on
// which a program listens.
var (
	controlPorts = []int32{6443, 2379, 2380}
	listenFlags  = []string{"secure-port", "listen-client-urls", "listen-peer-urls", "bind-address"}
)

// keptPods decides which static pods of the node are kept, and why. unread are the static pods of
// the node of which no manifest can be read.
func keptPods(pods []*corev1.Pod, unread []types.NamespacedName, s surroundings) map[types.NamespacedName]protocol.KeptReason {
	kept := map[types.NamespacedName]protocol.KeptReason{}
	isControlPlane := s.labelled || slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return runsAny(pod, nodePrograms) })
	for _, pod := range pods {
		if reason := keptReason(pod, isControlPlane, s); reason != "" {
			kept[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = reason
		}
	}
	for _, key := range unread {
		if _, ok := kept[key]; !ok {
			kept[key] = protocol.KeptUndecided
		}
	}
	return kept
}

// keptReason returns the first reason that applies to a pod, "" if it leaves.
func keptReason(pod *corev1.Pod, isControlPlane bool, s surroundings) protocol.KeptReason {
	matches := func(patterns []string) bool {
		name := strings.TrimSuffix(pod.Name, "-"+strings.ToLower(s.node))
		return slices.ContainsFunc(patterns, func(pattern string) bool {
			// The patterns were validated.
			long, _ := path.Match(pattern, pod.Namespace+"/"+pod.Name)
			short, _ := path.Match(pattern, pod.Namespace+"/"+name)
			return long || short
		})
	}
	usesNode := pod.Spec.HostNetwork || hasHostPort(pod)
	mayLeave := matches(s.policy.Evacuate)
	switch {
	case isControlProgram(pod), isControlPlane && (s.labelled || !mayLeave):
		return protocol.KeptControlPlane
	case s.api == apiHere && usesNode, pod.Spec.HostNetwork && runsAny(pod, balancers), s.api == apiNamed && usesNode && runsAny(pod, resolvers):
		return protocol.KeptServesAPI
	case matches(s.policy.Keep), s.policy.KeepAll && !mayLeave:
		return protocol.KeptByConfiguration
	case s.api == apiUnknown && usesNode:
		return protocol.KeptUndecided
	}
	return ""
}

// isControlProgram reports whether a pod is a part of a control plane. kube-proxy may have the
// label of its tier, and runs on all nodes.
func isControlProgram(pod *corev1.Pod) bool {
	if runsAny(pod, controlPrograms) || listens(pod) {
		return true
	}
	return pod.Labels["tier"] == "control-plane" && !runsAny(pod, []string{"kube-proxy"})
}

// runsAny reports whether a pod runs one of the programs: by a label, the name of an image, or a
// command.
func runsAny(pod *corev1.Pod, programs []string) bool {
	for _, label := range []string{"component", "app", "k8s-app"} {
		if slices.Contains(programs, pod.Labels[label]) {
			return true
		}
	}
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return slices.Contains(programs, imageName(c.Image)) ||
			slices.ContainsFunc(commandsOf(c), func(name string) bool { return slices.Contains(programs, name) })
	})
}

// shellSeparators are what ends a command in a script, apart from the words that precede one.
var (
	shellSeparators = strings.NewReplacer("\\\n", " ", ";", "\n", "|", "\n", "&", "\n", "(", "\n", ")", "\n", "`", "\n", "{", "\n", "}", "\n")
	shellWords      = []string{"exec", "sudo", "env", "nice", "time", "then", "do", "else", "if", "while", "until", "!", "nohup", "ionice", "tini", "--"}
	shells          = []string{"sh", "bash", "dash", "ash", "busybox"}
)

// commandsOf returns the names of the programs that a container runs: the first word, and those
// words in the script of a shell that are at the place of a command.
func commandsOf(c corev1.Container) []string {
	words := slices.Concat(c.Command, c.Args)
	if len(words) == 0 {
		return nil
	}
	first := path.Base(words[0])
	if !slices.Contains(shells, first) {
		return programAt(words)
	}
	var found []string
	for _, script := range words[1:] {
		for line := range strings.Lines(shellSeparators.Replace(script)) {
			found = append(found, programAt(strings.Fields(line))...)
		}
	}
	return found
}

// programAt returns the name of the program at the begin of a command, behind words like exec and
// variables that are set for it.
func programAt(words []string) []string {
	wrapped := false
	for i, word := range words {
		name := path.Base(strings.Trim(word, `"'`))
		switch _, err := strconv.Atoi(word); {
		case slices.Contains(shellWords, word):
			wrapped = true
			continue
		case isAssignment(word), wrapped && (err == nil || strings.HasPrefix(word, "-")):
			continue
		case strings.HasPrefix(word, "-"):
			return nil
		case name == "hyperkube" && i+1 < len(words):
			if program, ok := hyperkubeCommands[words[i+1]]; ok {
				return []string{program}
			}
			return []string{path.Base(words[i+1])}
		}
		return []string{name}
	}
	return nil
}

// isAssignment reports whether a word sets a variable.
func isAssignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	return ok && name != "" && !strings.ContainsAny(name, "-/.:\"'")
}

// imageName returns the last part of an image's repository.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	image = image[strings.LastIndexByte(image, '/')+1:]
	name, _, _ := strings.Cut(image, ":")
	return name
}

func hasHostPort(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
	})
}

// listens reports whether a pod listens on a port of a control plane of the node.
func listens(pod *corev1.Pod) bool {
	for _, c := range pod.Spec.Containers {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return slices.Contains(controlPorts, p.HostPort) }) {
			return true
		}
		words := slices.Concat(c.Command, c.Args)
		if pod.Spec.HostNetwork && slices.ContainsFunc(words, hasListenFlag) {
			return true
		}
	}
	return false
}

// hasListenFlag reports whether a word of a command, or a script, has a flag with a control port.
func hasListenFlag(text string) bool {
	for word := range strings.FieldsSeq(text) {
		flag, value, ok := strings.Cut(word, "=")
		if !ok || !strings.HasPrefix(flag, "-") || !slices.ContainsFunc(listenFlags, func(f string) bool { return strings.HasSuffix(flag, f) }) {
			continue
		}
		for address := range strings.SplitSeq(strings.Trim(value, `"'`), ",") {
			text := address[strings.LastIndexByte(address, ':')+1:]
			if port, err := strconv.ParseInt(strings.TrimRight(text, "/"), 10, 32); err == nil && slices.Contains(controlPorts, int32(port)) {
				return true
			}
		}
	}
	return false
}

// placeOf returns where the API server with the URL of a kubeconfig is. Of a name with several
// addresses, one of this node is enough.
func placeOf(ctx context.Context, server string, own func() ([]netip.Addr, error),
	resolve func(ctx context.Context, host string) ([]netip.Addr, error),
) apiPlace {
	base, err := url.Parse(server)
	if err != nil || base.Hostname() == "" {
		return apiUnknown
	}
	addresses, elsewhere := []netip.Addr{}, apiNamed
	if address, err := netip.ParseAddr(base.Hostname()); err == nil {
		addresses, elsewhere = append(addresses, address), apiElsewhere
	} else if addresses, err = resolve(ctx, base.Hostname()); err != nil || len(addresses) == 0 {
		return apiUnknown
	}
	ours, err := own()
	if err != nil {
		return apiUnknown
	}
	if slices.ContainsFunc(addresses, func(address netip.Addr) bool {
		address = address.Unmap()
		return address.IsLoopback() || address.IsUnspecified() || slices.Contains(ours, address)
	}) {
		return apiHere
	}
	return elsewhere
}

// lookup returns the addresses of a host.
func lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// ownAddresses returns the addresses of the network interfaces of this node.
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
