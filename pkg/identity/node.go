// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
)

// nodeUserPrefix is followed by the name of the node in the user name of a kubelet.
const nodeUserPrefix = "system:node:"

// NodeOf returns the name of the node whose kubelet, or node agent, a user is, and false for any
// other user. The user name alone is not enough: only the group is reserved for credentials that
// the cluster has issued to a node.
func NodeOf(u user.Info) (name string, ok bool) {
	if u == nil || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	name, ok = strings.CutPrefix(u.GetName(), nodeUserPrefix)
	return name, ok && name != ""
}
