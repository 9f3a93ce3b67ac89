// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
)

// nodeUserPrefix is the prefix of a kubelet's user name; the name of the node follows it.
const nodeUserPrefix = "system:node:"

// NodeOf returns the node of a user that is a kubelet or a node agent, and false for any other
// user. The user name alone is not enough: only the group is reserved for credentials that the
// cluster has issued to nodes.
func NodeOf(u user.Info) (name string, ok bool) {
	if u == nil || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	name, ok = strings.CutPrefix(u.GetName(), nodeUserPrefix)
	return name, ok && name != ""
}
