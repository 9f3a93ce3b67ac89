// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"net/http"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func loopback(uid string) *user.DefaultInfo {
	return &user.DefaultInfo{Name: user.APIServerUser, UID: uid, Groups: []string{user.SystemPrivilegedGroup}}
}

func TestServerKnowsItself(t *testing.T) {
	auth := authenticatorfactory.NewFromTokens(map[string]*user.DefaultInfo{"secret": loopback("drawn-at-random")}, nil)
	var server Server
	if server.Is(loopback("drawn-at-random")) || server.Is(&user.DefaultInfo{}) {
		t.Error("a server that has not learned who it is recognizes a user")
	}
	must.Do(t, server.Learn(auth, "secret"))
	cases := map[string]struct {
		user user.Info
		want bool
	}{
		"the bearer of the loopback token":                     {user: loopback("drawn-at-random"), want: true},
		"the kube-apiserver in front, which has the same name": {user: loopback("another")},
		"a user who impersonates the name and the group":       {user: loopback("")},
		"a user who has the UID and another name":              {user: &user.DefaultInfo{Name: "mallory", UID: "drawn-at-random"}},
		"an administrator":                                     {user: &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}},
		"no user":                                              {},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := server.Is(c.user); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestLearnFails(t *testing.T) {
	cases := map[string]authenticator.Request{
		"for a token without a user": authenticatorfactory.NewFromTokens(
			map[string]*user.DefaultInfo{"other": loopback("uid")}, nil,
		),
		"for a user without a UID, which any user could be": authenticator.RequestFunc(
			func(*http.Request) (*authenticator.Response, bool, error) {
				return &authenticator.Response{User: loopback("")}, true, nil
			},
		),
	}
	for name, auth := range cases {
		t.Run(name, func(t *testing.T) {
			var server Server
			if err := server.Learn(auth, "secret"); err == nil {
				t.Error("no error")
			}
			is.True(t, !server.Is(loopback("")) && !server.Is(loopback("uid")), "a user is recognized all the same")
		})
	}
}
