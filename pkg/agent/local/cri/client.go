// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/util"
)

const (
	labelPodUID       = "io.kubernetes.pod.uid"
	labelPodName      = "io.kubernetes.pod.name"
	labelPodNamespace = "io.kubernetes.pod.namespace"
	labelContainer    = "io.kubernetes.container.name"

	// callTimeout limits calls that only read.
	callTimeout = 5 * time.Second
	// maxMessageBytes is the maximum size of a response of the runtime, as in the kubelet.
	maxMessageBytes = 16 << 20
)

// client calls the container runtime. It uses the generated client of cri-api. From cri-client it
// uses only the address and the dialer (sockets and pipes): the service of cri-client cannot be
// created while the runtime is down, and it adds minutes to the timeout of each call, while here
// the time until the machine goes down is the limit.
type client struct {
	conn *grpc.ClientConn
	api  runtimeapi.RuntimeServiceClient
}

func newClient(endpoint func() string) (*client, error) {
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay, reconnect.MaxDelay = retryInterval, time.Second
	conn, err := grpc.NewClient("passthrough:///runtime",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, endpoint()) }),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: callTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)))
	if err != nil {
		return nil, fmt.Errorf("create a client of the container runtime: %w", err)
	}
	return &client{conn: conn, api: runtimeapi.NewRuntimeServiceClient(conn)}, nil
}

func dial(ctx context.Context, endpoint string) (net.Conn, error) {
	if err := checkEndpoint(endpoint, runtime.GOOS); err != nil {
		return nil, err
	}
	address, dialer, err := util.GetAddressAndDialer(endpoint)
	if err != nil {
		return nil, fmt.Errorf("runtime endpoint %q: %w", endpoint, err)
	}
	return dialer(ctx, address)
}

// checkEndpoint rejects other protocols, for example TCP: they have no access control.
func checkEndpoint(endpoint, system string) error {
	prefix := "unix://"
	if system == "windows" {
		prefix = "npipe://"
	}
	if path, found := strings.CutPrefix(endpoint, prefix); !found || path == "" {
		return fmt.Errorf("runtime endpoint %q: must be %s<path>", endpoint, prefix)
	}
	return nil
}

// running reports whether a container of a pod runs. A container in an unknown state counts as
// running.
func (c *client) running(ctx context.Context, podUID string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := c.api.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
		LabelSelector: map[string]string{labelPodUID: podUID},
	}})
	if err != nil {
		return false, fmt.Errorf("list the containers of pod %s: %w", podUID, err)
	}
	for _, container := range list.GetContainers() {
		if mayRun(container.GetState()) {
			return true, nil
		}
	}
	return false, nil
}

func mayRun(s runtimeapi.ContainerState) bool {
	return s == runtimeapi.ContainerState_CONTAINER_RUNNING || s == runtimeapi.ContainerState_CONTAINER_UNKNOWN
}

// list returns all containers and sandboxes. It lists the sandboxes last, so that the result has
// the sandbox of every container.
func (c *client) list(ctx context.Context) ([]*runtimeapi.Container, []*runtimeapi.PodSandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	containers, err := c.api.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, nil, fmt.Errorf("list containers: %w", err)
	}
	sandboxes, err := c.api.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, nil, fmt.Errorf("list pod sandboxes: %w", err)
	}
	return containers.GetContainers(), sandboxes.GetItems(), nil
}

// stopContainer ends a container, and kills it if it has not ended after the timeout. It returns
// nil if the container does not exist.
func (c *client) stopContainer(ctx context.Context, id string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout+stopMargin)
	defer cancel()
	_, err := c.api.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: int64(timeout / time.Second)})
	return unlessGone(err)
}

func (c *client) stopSandbox(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, sandboxTime)
	defer cancel()
	_, err := c.api.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	return unlessGone(err)
}

func unlessGone(err error) error {
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// exec runs a command in a container until the command or the context ends.
func (c *client) exec(ctx context.Context, id string, command []string) error {
	request := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command}
	if deadline, found := ctx.Deadline(); found {
		// Without a timeout, the runtime lets the command continue when the caller disconnects.
		request.Timeout = wholeSeconds(time.Until(deadline) + time.Second)
	}
	answer, err := c.api.ExecSync(ctx, request)
	if err != nil {
		return err
	}
	if code := answer.GetExitCode(); code != 0 {
		return fmt.Errorf("command ended with exit code %d", code)
	}
	return nil
}

// finished returns when a container ended; zero if it has not ended.
func (c *client) finished(ctx context.Context, id string) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := c.api.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil || answer.GetStatus().GetFinishedAt() == 0 {
		return time.Time{}, err
	}
	return time.Unix(0, answer.GetStatus().GetFinishedAt()), nil
}

// address returns the address at which the node reaches a pod.
func (c *client) address(ctx context.Context, sandbox string) (string, error) {
	answer, err := c.api.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
	if err != nil {
		return "", fmt.Errorf("find the address of the pod: %w", err)
	}
	if ip := answer.GetStatus().GetNetwork().GetIp(); ip != "" {
		return ip, nil
	}
	if answer.GetStatus().GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE {
		return "127.0.0.1", nil
	}
	return "", fmt.Errorf("the pod has no address")
}
