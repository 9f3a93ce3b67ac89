// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/Microsoft/go-winio"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pod is a pod of the runtime, with one container.
type pod struct {
	Namespace, Name, UID string
	// Takes is the time from a request to stop until the container ends, in milliseconds.
	Takes int
}

// containerRuntime is a container runtime that can only list and stop its pods. It writes each step
// to a log.
type containerRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	log *os.File

	mu      sync.Mutex
	running map[string]pod
}

// runRuntime serves the pods that are listed in a file at a pipe, and writes the calls to a log.
func runRuntime(pipe, podsFile, logFile string) error {
	data, err := os.ReadFile(podsFile)
	if err != nil {
		return err
	}
	var pods []pod
	if err := json.Unmarshal(data, &pods); err != nil {
		return err
	}
	log, err := os.Create(logFile)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	r := &containerRuntime{log: log, running: map[string]pod{}}
	for _, p := range pods {
		r.running[p.UID] = p
	}
	// Only for the current user, as the pipe of containerd.
	listener, err := winio.ListenPipe(pipe, &winio.PipeConfig{SecurityDescriptor: "D:P(A;;GA;;;BA)(A;;GA;;;SY)(A;;GA;;;WD)"})
	if err != nil {
		return fmt.Errorf("listen at %s: %w", pipe, err)
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, r)
	r.write("listens")
	return server.Serve(net.Listener(listener))
}

func (r *containerRuntime) write(format string, args ...any) {
	_, _ = fmt.Fprintf(r.log, "%s %s\n", time.Now().UTC().Format(time.RFC3339Nano), fmt.Sprintf(format, args...))
}

func labels(p pod) map[string]string {
	return map[string]string{
		"io.kubernetes.pod.namespace": p.Namespace, "io.kubernetes.pod.name": p.Name, "io.kubernetes.pod.uid": p.UID, "io.kubernetes.container.name": "app",
	}
}

// ListContainers implements the interface of the runtime.
func (r *containerRuntime) ListContainers(_ context.Context, request *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answer := &runtimeapi.ListContainersResponse{}
	for _, p := range r.running {
		if uid := request.GetFilter().GetLabelSelector()["io.kubernetes.pod.uid"]; uid != "" && uid != p.UID {
			continue
		}
		answer.Containers = append(answer.Containers, &runtimeapi.Container{
			Id: "container-" + p.UID, PodSandboxId: "sandbox-" + p.UID, Metadata: &runtimeapi.ContainerMetadata{Name: "app"},
			State: runtimeapi.ContainerState_CONTAINER_RUNNING, Labels: labels(p), CreatedAt: time.Now().Add(-time.Hour).UnixNano(),
		})
	}
	return answer, nil
}

// ListPodSandbox implements the interface of the runtime.
func (r *containerRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answer := &runtimeapi.ListPodSandboxResponse{}
	for _, p := range r.running {
		answer.Items = append(answer.Items, &runtimeapi.PodSandbox{
			Id: "sandbox-" + p.UID, Metadata: &runtimeapi.PodSandboxMetadata{Namespace: p.Namespace, Name: p.Name, Uid: p.UID},
			State: runtimeapi.PodSandboxState_SANDBOX_READY, Labels: labels(p),
		})
	}
	return answer, nil
}

// StopContainer implements the interface of the runtime.
func (r *containerRuntime) StopContainer(ctx context.Context, request *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	r.mu.Lock()
	p, found := r.running[trim(request.GetContainerId(), "container-")]
	r.mu.Unlock()
	if !found {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	r.write("stop %s timeout=%d", p.Name, request.GetTimeout())
	takes := min(time.Duration(p.Takes)*time.Millisecond, time.Duration(request.GetTimeout())*time.Second)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(takes):
	}
	r.write("ended %s", p.Name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, p.UID)
	return &runtimeapi.StopContainerResponse{}, nil
}

// StopPodSandbox implements the interface of the runtime.
func (r *containerRuntime) StopPodSandbox(context.Context, *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// ContainerStatus implements the interface of the runtime.
func (r *containerRuntime) ContainerStatus(_ context.Context, request *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	uid := trim(request.GetContainerId(), "container-")
	answer := &runtimeapi.ContainerStatus{Id: request.GetContainerId(), State: runtimeapi.ContainerState_CONTAINER_EXITED, FinishedAt: time.Now().UnixNano()}
	if p, found := r.running[uid]; found {
		answer.State, answer.FinishedAt, answer.Labels = runtimeapi.ContainerState_CONTAINER_RUNNING, 0, labels(p)
	}
	return &runtimeapi.ContainerStatusResponse{Status: answer}, nil
}

func trim(id, prefix string) string {
	return id[min(len(prefix), len(id)):]
}
