// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestNodeOfToken(t *testing.T) {
	account := func(extra map[string][]string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:a:b", Groups: []string{"system:serviceaccounts"}, Extra: extra}
	}
	const node, pod = "authentication.kubernetes.io/node-name", "authentication.kubernetes.io/pod-name"
	for name, test := range map[string]struct {
		user     user.Info
		want     string
		onlyNode bool
	}{
		"a kubelet":                  {&user.DefaultInfo{Name: "system:node:a", Groups: []string{"system:nodes"}}, "a", true},
		"a token bound to a node":    {account(map[string][]string{node: {"a"}}), "a", true},
		"a token bound to a pod":     {account(map[string][]string{node: {"a"}, pod: {"p"}}), "a", false},
		"a token bound to nothing":   {account(nil), "", false},
		"a token with several nodes": {account(map[string][]string{node: {"a", "b"}}), "", false},
		"nobody":                     {nil, "", false},
	} {
		got, onlyNode := NodeOfToken(test.user)
		is.True(t, got == test.want && onlyNode == test.onlyNode, "%s: got %q, %v", name, got, onlyNode)
	}
}
