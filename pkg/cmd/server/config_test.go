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

package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

func TestAnonymousRequests(t *testing.T) {
	as := func(name string) authenticator.Request {
		return authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: name}}, true, nil
		})
	}
	health := []string{"/healthz", "/livez", "/readyz"}
	cases := map[string]struct {
		user, path string
		want       bool
	}{
		"may ask for health":       {user.Anonymous, "/readyz", true},
		"may not look into health": {user.Anonymous, "/readyz/etcd", false},
		"may not read the version": {user.Anonymous, "/version", false},
		"may not reach the API, whatever a role grants": {
			user: user.Anonymous, path: "/apis/maintenance.haulout.dev/v1alpha1/nodemaintenances",
		},
		"are not those of a user": {"alice", "/version", true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, ok, err := refuseAnonymous(as(c.user), health).AuthenticateRequest(httptest.NewRequest(http.MethodGet,
				c.path, nil))
			if ok != c.want || err != nil {
				t.Errorf("got %v, %v", ok, err)
			}
		})
	}
}
