// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	hostinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/testing/is"
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
			is.True(t, ok == c.want && err == nil, "got %v, %v", ok, err)
		})
	}
}

// TestParametersOfPoliciesAreNotShared: an informer of the factory that cannot be filled keeps
// /readyz from being ok until the server restarts.
func TestParametersOfPoliciesAreNotShared(t *testing.T) {
	shared := policyInformers{hostinformers.NewSharedInformerFactory(fake.NewClientset(), 0)}
	for resource, want := range map[string]bool{"nodes": true, "namespaces": true, "configmaps": false, "secrets": false} {
		_, err := shared.ForResource(corev1.SchemeGroupVersion.WithResource(resource))
		is.Equal(t, err == nil, want)
	}
}
