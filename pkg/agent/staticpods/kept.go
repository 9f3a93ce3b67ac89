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

// Policy is the agent's configuration for static pods. The patterns are those of path.Match, for
// <namespace>/<name>; the name may be with or without the name of the node.
type Policy struct {
	// KeepAll is set if static pods are kept, except for the pods that Evacuate matches.
	KeepAll bool
	// Keep has patterns of the static pods that are kept.
	Keep []string
	// Evacuate has patterns of static pods that are stopped although KeepAll is set or another pod
	// of the node is part of a control plane. It has no effect on control plane programs, on pods
	// through which the kubelet may reach the API server, and on Nodes with a control plane label,
	// where the server keeps such pods.
	Evacuate []string
}

// surroundings are the facts, apart from the pods, that decide which static pods are kept.
type surroundings struct {
	policy Policy
	// node is the name of the node. labelled is set if the Node has a control plane label.
	node     string
	labelled bool
	// api is the location of the kubelet's API server.
	api apiPlace
}

// apiPlace is the location of the kubelet's API server.
type apiPlace int

const (
	// apiUnknown: the kubelet's kubeconfig cannot be read, or its host cannot be resolved.
	apiUnknown apiPlace = iota
	// apiElsewhere: no address of the API server is an address of this node. apiNamed: the same is
	// true, but the kubeconfig has a host name that must be resolved.
	apiElsewhere
	apiNamed
	// apiHere: the kubelet reaches the API server through an address of this node.
	apiHere
)

var controlPrograms = []string{
	"kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager", "cloud-controller-manager", "etcd-manager",
	"openshift-kube-apiserver", "openshift-apiserver", "openshift-kube-scheduler", "openshift-kube-controller-manager", "openshift-controller-manager",
}

// nodePrograms are the control programs that make their node a control-plane node.
var nodePrograms = []string{"kube-apiserver", "openshift-kube-apiserver", "etcd", "etcd-manager"}

// hyperkubeCommands maps the subcommands of hyperkube to programs.
var hyperkubeCommands = map[string]string{
	"apiserver": "kube-apiserver", "controller-manager": "kube-controller-manager", "scheduler": "kube-scheduler",
	"proxy": "kube-proxy",
}

// balancers are programs that own an address of the API server or distribute its connections.
var balancers = []string{"kube-proxy", "kube-vip", "keepalived", "haproxy", "nginx", "nginx-proxy", "envoy", "traefik"}

// resolvers are name servers that the node may use to resolve the name of the API server.
var resolvers = []string{"coredns", "dnsmasq", "node-cache", "k8s-dns-node-cache"}

// controlPorts are the ports of kube-apiserver and etcd. listenFlags are the flags that set a
// listening port.
var (
	controlPorts = []int32{6443, 2379, 2380}
	listenFlags  = []string{"secure-port", "listen-client-urls", "listen-peer-urls", "bind-address"}
)

// keptPods decides which static pods of the node are kept, and for which reason, and whether one of
// them makes it a control-plane node. unread are the static pods of the node without a readable
// manifest.
func keptPods(
	pods []*corev1.Pod, unread []types.NamespacedName, s surroundings,
) (kept map[types.NamespacedName]protocol.KeptReason, isControlPlane bool) {
	kept = map[types.NamespacedName]protocol.KeptReason{}
	isControlPlane = slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return runsAny(pod, nodePrograms) })
	for _, pod := range pods {
		if reason := keptReason(pod, s.labelled || isControlPlane, s); reason != "" {
			kept[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = reason
		}
	}
	for _, key := range unread {
		if _, ok := kept[key]; !ok {
			kept[key] = protocol.KeptUndecided
		}
	}
	return kept, isControlPlane
}

// keptReason returns the first reason to keep a pod; "" if the pod may be stopped.
func keptReason(pod *corev1.Pod, isControlPlane bool, s surroundings) protocol.KeptReason {
	matches := func(patterns []string) bool {
		name := strings.TrimSuffix(pod.Name, "-"+strings.ToLower(s.node))
		return slices.ContainsFunc(patterns, func(pattern string) bool {
			// Ignore the errors, since the patterns are validated.
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

// isControlProgram reports whether a pod is part of a control plane. It excludes kube-proxy, which
// may have a control plane label and runs on all nodes.
func isControlProgram(pod *corev1.Pod) bool {
	if runsAny(pod, controlPrograms) || listens(pod) {
		return true
	}
	return pod.Labels["tier"] == "control-plane" && !runsAny(pod, []string{"kube-proxy"})
}

// runsAny reports whether a pod runs one of the programs, according to a label, the name of an
// image, or a command.
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

// shellSeparators end a command in a script. The words in the second list may precede a command.
var (
	shellSeparators = strings.NewReplacer("\\\n", " ", ";", "\n", "|", "\n", "&", "\n", "(", "\n", ")", "\n", "`", "\n", "{", "\n", "}", "\n")
	shellWords      = []string{"exec", "sudo", "env", "nice", "time", "then", "do", "else", "if", "while", "until", "!", "nohup", "ionice", "tini", "--"}
	shells          = []string{"sh", "bash", "dash", "ash", "busybox"}
)

// commandsOf returns the names of the programs that a container runs: the first word and, in a
// shell script, every word in the position of a command.
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

// programAt returns the name of the program at the start of a command. It skips words such as exec,
// and assignments of variables.
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

func isAssignment(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	return ok && name != "" && !strings.ContainsAny(name, "-/.:\"'")
}

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

// listens reports whether a pod listens on a control plane port of the node.
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

// hasListenFlag reports whether a word or a script contains a listen flag with a control plane
// port.
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

// placeOf returns the location of the API server with the URL of a kubeconfig. If a name has
// several addresses, one address of this node is enough.
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

func lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
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
