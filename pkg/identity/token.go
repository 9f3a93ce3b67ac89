// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// NodeOfToken returns the node for which a token was issued: that of the kubelet, that to which the
// token of a service account is bound, or that of the pod to which it is bound. It is "" if the
// credentials name no node. onlyNode is true if the user is the node itself and not a pod on it.
func NodeOfToken(u user.Info) (name string, onlyNode bool) {
	if name, ok := NodeOf(u); ok {
		return name, true
	}
	if u == nil {
		return "", false
	}
	nodes, pods := u.GetExtra()[serviceaccount.NodeNameKey], u.GetExtra()[serviceaccount.PodNameKey]
	if len(nodes) != 1 {
		return "", false
	}
	return nodes[0], len(pods) == 0
}
