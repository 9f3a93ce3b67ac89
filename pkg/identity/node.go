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
