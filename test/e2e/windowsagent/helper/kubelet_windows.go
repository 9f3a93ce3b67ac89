// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/http"
	"time"

	"golang.org/x/sys/windows/svc"
)

// kubelet is a service with a healthz endpoint.
type kubelet struct {
	address string
}

func runKubelet(address string) error {
	return svc.Run("kubelet", kubelet{address: address})
}

// Execute implements svc.Handler.
func (k kubelet) Execute(_ []string, requests <-chan svc.ChangeRequest, status chan<- svc.Status) (specific bool, code uint32) {
	status <- svc.Status{State: svc.StartPending}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	server := &http.Server{Addr: k.address, Handler: mux, ReadHeaderTimeout: time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	status <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	for {
		select {
		case err := <-failed:
			if !errors.Is(err, http.ErrServerClosed) {
				return true, 1
			}
			return false, 0
		case request := <-requests:
			switch request.Cmd {
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending}
				_ = server.Close()
			default:
				status <- request.CurrentStatus
			}
		}
	}
}
