// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package identity distinguishes requests of this server process from all others.
package identity

import (
	"fmt"
	"net/http"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// GarbageCollector is the user name of the garbage collector of the host cluster.
const GarbageCollector = "system:serviceaccount:kube-system:generic-garbage-collector"

// Server recognizes the user of the server's own controllers. It compares the UID, a random value
// that the server generates at its start and keeps secret. The name is not enough: a cluster
// administrator could impersonate it, and the kube-apiserver in front of this server uses the same
// name. The zero value recognizes no user.
type Server struct {
	self atomic.Pointer[user.DefaultInfo]
}

// Learn authenticates the loopback token and stores its user.
func (s *Server) Learn(auth authenticator.Request, loopbackToken string) error {
	req, err := http.NewRequest(http.MethodGet, "https://localhost/", nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+loopbackToken)
	resp, ok, err := auth.AuthenticateRequest(req)
	if err != nil {
		return fmt.Errorf("authenticate the loopback token: %w", err)
	}
	if !ok || resp.User.GetUID() == "" {
		return fmt.Errorf("authenticate the loopback token: the token has no user, or the user has no UID")
	}
	s.Set(&user.DefaultInfo{Name: resp.User.GetName(), UID: resp.User.GetUID(), Groups: resp.User.GetGroups()})
	return nil
}

// Set makes u the server's own user, for tests without a loopback token.
func (s *Server) Set(u *user.DefaultInfo) {
	s.self.Store(u)
}

// Is reports whether u is the server itself.
func (s *Server) Is(u user.Info) bool {
	self := s.self.Load()
	return self != nil && u != nil && u.GetName() == self.Name && u.GetUID() == self.UID
}
