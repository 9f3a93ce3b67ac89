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
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
)

func TestNodeOf(t *testing.T) {
	for name, test := range map[string]struct {
		user   user.Info
		want   string
		wantOK bool
	}{
		"a kubelet": {
			user: &user.DefaultInfo{Name: "system:node:worker-1", Groups: []string{"system:nodes", "system:authenticated"}}, want: "worker-1", wantOK: true,
		},
		"a node name with a colon is taken as it is": {
			user: &user.DefaultInfo{Name: "system:node:a:b", Groups: []string{"system:nodes"}}, want: "a:b", wantOK: true,
		},
		"a user of that name without the group": {
			user: &user.DefaultInfo{Name: "system:node:worker-1", Groups: []string{"system:authenticated"}},
		},
		"a user of that name with a similar group": {
			user: &user.DefaultInfo{Name: "system:node:worker-1", Groups: []string{"system:nodes:all", "system:node"}},
		},
		"a member of the group that is not a node": {
			user: &user.DefaultInfo{Name: "worker-1", Groups: []string{"system:nodes"}},
		},
		"a node without a name": {user: &user.DefaultInfo{Name: "system:node:", Groups: []string{"system:nodes"}}},
		"a service account": {
			user: &user.DefaultInfo{
				Name: "system:serviceaccount:system:node:worker-1", Groups: []string{"system:serviceaccounts", "system:nodes"},
			},
		},
		"no user": {},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := NodeOf(test.user)
			if ok != test.wantOK || ok && got != test.want {
				t.Errorf("NodeOf() = %q, %v, want %q, %v", got, ok, test.want, test.wantOK)
			}
		})
	}
}
