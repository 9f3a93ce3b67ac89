// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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
		"a node name with a colon is unchanged": {
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
