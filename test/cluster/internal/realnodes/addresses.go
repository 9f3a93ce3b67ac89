// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package realnodes adds nodes with a kubelet, a container runtime and real pods to a development
// cluster.
//
// There are two kinds of processes. The process `network` has a network namespace with a bridge. It
// connects kube-apiserver, which listens on the loopback interface of the machine, to the bridge:
// as kube-apiserver's egress proxy in one direction, with forwarded ports in the other. Each node
// is one process in new namespaces, in which it is PID 1. It runs containerd, kubelet and
// kube-proxy. When it ends, the kernel ends all processes of the node, including its pods, and
// removes its mounts and network interfaces.
//
// The addresses are valid only in these namespaces, so several clusters can run on one machine.
package realnodes

import (
	"fmt"
	"net"
	"strconv"
)

// Max is the maximum number of real nodes of a cluster: the last digit of their addresses.
const Max = 9

// The addresses are from the range for benchmarks (RFC 2544), which is not routed on any network.
const (
	// Gateway is the address of the bridge. Nodes and pods reach kube-apiserver there.
	Gateway = "198.18.0.1"
	// podRange contains the addresses of all pods.
	podRange = "198.18.0.0/16"
	// APIServerPort is the port of kube-apiserver at the Gateway.
	APIServerPort = 6443
	// bridge is the name of the network interface.
	bridge = "br0"
)

// Name returns the name of a real node; the first has the index 1.
func Name(index int) string { return "real-" + strconv.Itoa(index) }

// Address returns the address of a real node.
func Address(index int) string { return fmt.Sprintf("198.18.0.%d", 10+index) }

// PodRange returns the addresses of the pods of a real node.
func PodRange(index int) string { return fmt.Sprintf("198.18.%d.0/24", 10+index) }

// APIServer returns the URL of kube-apiserver for nodes and pods.
func APIServer() string {
	return "https://" + net.JoinHostPort(Gateway, strconv.Itoa(APIServerPort))
}
