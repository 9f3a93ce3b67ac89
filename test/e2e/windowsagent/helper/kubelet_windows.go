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

package main

import (
	"errors"
	"net/http"
	"time"

	"golang.org/x/sys/windows/svc"
)

// kubelet is a service that says that it is healthy.
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
