// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	stopAsked   = "stop"
	execAsked   = "exec"
	exited      = "exited"
	sandboxStop = "sandbox"
)

// event is a request to the runtime, or a change of a container.
type event struct {
	what, pod, container string
	timeout              time.Duration
	at                   time.Time
}

// fakeRuntime is a container runtime behind a real socket. It does not run containers; it only
// simulates their durations.
type fakeRuntime struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	endpoint string

	mu         sync.Mutex
	server     *grpc.Server
	sandboxes  []*runtimeapi.PodSandbox
	containers []*fakeContainer
	ips        map[string]string
	stuck      map[string]error
	hangs      map[string]bool
	events     []event
	onStop     func(container string)
}

type fakeContainer struct {
	*runtimeapi.Container
	pod string
	// ends is the time from the stop request until the container ends; negative means never.
	ends     time.Duration
	finished time.Time
	// exec is the duration of a command in the container. code is the exit code of the command.
	exec time.Duration
	code int32
}

// podSpec describes a pod of a test. The checkpoint has the pod unless unknown is set.
type podSpec struct {
	pods.Pod
	unknown, notReady, hostNetwork bool
	ip                             string
	static                         bool
	containers                     []containerSpec
}

type containerSpec struct {
	name     string
	ends     time.Duration
	state    runtimeapi.ContainerState
	finished time.Time
	grace    string
	preStop  *corev1.LifecycleHandler
	rawHook  string
	ports    []corev1.ContainerPort
	exec     time.Duration
	code     int32
}

// newPod returns the spec of a pod with one container that ends when it gets the stop signal.
func newPod(name string, priority int32, mods ...func(*podSpec)) podSpec {
	s := podSpec{Pod: pods.Pod{Namespace: "shop", Name: name, Priority: priority, GracePeriod: metav1.Duration{Duration: 30 * time.Second}}}
	s.containers = []containerSpec{{name: "main", state: runtimeapi.ContainerState_CONTAINER_RUNNING, grace: "30"}}
	for _, mod := range mods {
		mod(&s)
	}
	return s
}

// ends sets the time that each container needs to end.
func ends(after time.Duration) func(*podSpec) {
	return func(s *podSpec) {
		for i := range s.containers {
			s.containers[i].ends = after
		}
	}
}

func grace(seconds string) func(*podSpec) {
	return func(s *podSpec) { s.containers[0].grace = seconds }
}

func namespace(name string) func(*podSpec) { return func(s *podSpec) { s.Namespace = name } }

func unknown(s *podSpec) { s.unknown = true }

func inState(of runtimeapi.ContainerState) func(*podSpec) {
	return func(s *podSpec) { s.containers[0].state = of }
}

func preStop(handler corev1.LifecycleHandler) func(*podSpec) {
	return func(s *podSpec) { s.containers[0].preStop = &handler }
}

func uidOf(name string) string { return "uid-of-" + name }

func newFake(t *testing.T) *fakeRuntime {
	t.Helper()
	// The path of a socket has at most 108 bytes, and t.TempDir contains the name of the test.
	dir, err := os.MkdirTemp("", "cri") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeRuntime{
		endpoint: "unix://" + filepath.ToSlash(filepath.Join(dir, "cri.sock")),
		ips:      map[string]string{}, stuck: map[string]error{}, hangs: map[string]bool{},
	}
	t.Cleanup(func() {
		f.die()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return f
}

// serve starts the runtime, or restarts it with its previous state.
func (f *fakeRuntime) serve(t *testing.T) {
	t.Helper()
	must.Do(t, f.start())
}

func (f *fakeRuntime) start() error {
	path := f.endpoint[len("unix://"):]
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, f)
	f.mu.Lock()
	f.server = server
	f.mu.Unlock()
	go func() { _ = server.Serve(listener) }() // Serve returns when die stops the server
	return nil
}

// die closes all connections, as kill -9 of the runtime does; the containers continue to run.
func (f *fakeRuntime) die() {
	f.mu.Lock()
	server := f.server
	f.server = nil
	f.mu.Unlock()
	if server != nil {
		server.Stop()
	}
}

// add adds pods and returns their entries in the checkpoint.
func (f *fakeRuntime) add(specs ...podSpec) []pods.Pod {
	f.mu.Lock()
	defer f.mu.Unlock()
	var known []pods.Pod
	for _, s := range specs {
		uid := uidOf(s.Name)
		labels := map[string]string{labelPodUID: uid, labelPodName: s.Name, labelPodNamespace: s.Namespace}
		sandbox := &runtimeapi.PodSandbox{
			Id: "sandbox-" + s.Name, Labels: labels, Annotations: map[string]string{},
			Metadata: &runtimeapi.PodSandboxMetadata{Name: s.Name, Namespace: s.Namespace, Uid: uid},
		}
		if s.static {
			sandbox.Annotations["kubernetes.io/config.source"] = "file"
		}
		if s.notReady {
			sandbox.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
		}
		f.sandboxes = append(f.sandboxes, sandbox)
		f.ips[sandbox.Id] = s.ip
		if s.hostNetwork {
			f.ips[sandbox.Id] = "host"
		}
		for i, c := range s.containers {
			f.containers = append(f.containers, newFakeContainer(s.Name, i, sandbox, c))
		}
		if !s.unknown {
			p := s.Pod
			p.UID = types.UID(uid)
			known = append(known, p)
		}
	}
	return known
}

func newFakeContainer(pod string, index int, sandbox *runtimeapi.PodSandbox, c containerSpec) *fakeContainer {
	annotations := map[string]string{}
	if c.grace != "" {
		annotations[annotationGrace] = c.grace
	}
	if c.preStop != nil {
		raw, err := json.Marshal(c.preStop)
		if err != nil {
			panic(err)
		}
		c.rawHook = string(raw)
	}
	if c.rawHook != "" {
		annotations[annotationPreStop] = c.rawHook
	}
	if len(c.ports) > 0 {
		raw, err := json.Marshal(c.ports)
		if err != nil {
			panic(err)
		}
		annotations[annotationPorts] = string(raw)
	}
	labels := map[string]string{labelContainer: c.name}
	for key, value := range sandbox.GetLabels() {
		labels[key] = value
	}
	return &fakeContainer{
		Container: &runtimeapi.Container{
			Id: pod + "/" + c.name + "/" + strconv.Itoa(index), PodSandboxId: sandbox.GetId(), Labels: labels, Annotations: annotations,
			Metadata: &runtimeapi.ContainerMetadata{Name: c.name}, State: c.state,
		},
		pod: pod, ends: c.ends, finished: c.finished, exec: c.exec, code: c.code,
	}
}

func (f *fakeRuntime) find(id string) (*fakeContainer, error) {
	for _, c := range f.containers {
		if c.GetId() == id {
			return c, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "container %q not found", id)
}

func (f *fakeRuntime) note(what string, c *fakeContainer, timeout time.Duration) {
	f.events = append(f.events, event{what: what, pod: c.pod, container: c.GetMetadata().GetName(), timeout: timeout, at: time.Now()})
}

// happened returns all events of a kind so far.
func (f *fakeRuntime) happened(what string) []event {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.events), func(e event) bool { return e.what != what })
}

// of returns the first event of a kind for a pod.
func (f *fakeRuntime) of(t *testing.T, what, pod string) event {
	t.Helper()
	for _, e := range f.happened(what) {
		if e.pod == pod {
			return e
		}
	}
	t.Fatalf("no event %s of pod %s, have %v", what, pod, f.happened(what))
	return event{}
}

func (f *fakeRuntime) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := &runtimeapi.ListContainersResponse{}
	for _, c := range f.containers {
		matches := true
		for key, value := range r.GetFilter().GetLabelSelector() {
			matches = matches && c.GetLabels()[key] == value
		}
		if matches {
			answer.Containers = append(answer.Containers, c.copy())
		}
	}
	return answer, nil
}

func (c *fakeContainer) copy() *runtimeapi.Container {
	return &runtimeapi.Container{
		Id: c.GetId(), PodSandboxId: c.GetPodSandboxId(), Labels: c.GetLabels(), Annotations: c.GetAnnotations(),
		Metadata: c.GetMetadata(), State: c.GetState(),
	}
}

func (f *fakeRuntime) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer := &runtimeapi.ListPodSandboxResponse{}
	for _, s := range f.sandboxes {
		answer.Items = append(answer.Items, &runtimeapi.PodSandbox{
			Id: s.GetId(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(), Metadata: s.GetMetadata(), State: s.GetState(),
		})
	}
	return answer, nil
}

func (f *fakeRuntime) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c, err := f.find(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	s := &runtimeapi.ContainerStatus{Id: c.GetId(), State: c.GetState()}
	if !c.finished.IsZero() {
		s.FinishedAt = c.finished.UnixNano()
	}
	return &runtimeapi.ContainerStatusResponse{Status: s}, nil
}

func (f *fakeRuntime) PodSandboxStatus(_ context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &runtimeapi.PodSandboxStatus{Id: r.GetPodSandboxId(), Network: &runtimeapi.PodSandboxNetworkStatus{}}
	if ip := f.ips[r.GetPodSandboxId()]; ip != "host" {
		s.Network.Ip = ip
	} else {
		options := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}
		s.Linux = &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: options}}
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: s}, nil
}

// StopContainer behaves like that of containerd: if the caller disconnects, the container has got
// the stop signal but is not killed.
func (f *fakeRuntime) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	f.mu.Lock()
	c, err := f.find(r.GetContainerId())
	if err != nil {
		f.mu.Unlock()
		return nil, err
	}
	timeout := time.Duration(r.GetTimeout()) * time.Second
	f.note(stopAsked, c, timeout)
	ends, onStop := c.ends, f.onStop
	if c.GetState() == runtimeapi.ContainerState_CONTAINER_EXITED {
		ends = 0
	}
	f.mu.Unlock()
	if onStop != nil {
		onStop(c.GetId())
	}
	if ends < 0 || ends > timeout {
		ends = timeout
	}
	if !wait(ctx, ends) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.exit(c)
	return &runtimeapi.StopContainerResponse{}, nil
}

// exit ends a container; the caller has the lock.
func (f *fakeRuntime) exit(c *fakeContainer) {
	if c.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
		c.State, c.finished = runtimeapi.ContainerState_CONTAINER_EXITED, time.Now()
		f.note(exited, c, 0)
	}
}

func (f *fakeRuntime) StopPodSandbox(ctx context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sandboxes {
		if s.GetId() != r.GetPodSandboxId() {
			continue
		}
		f.events = append(f.events, event{what: sandboxStop, pod: s.GetMetadata().GetName(), at: time.Now()})
		for _, c := range f.containers {
			if c.GetPodSandboxId() == s.GetId() {
				f.exit(c)
			}
		}
		if f.hangs[s.GetMetadata().GetName()] {
			f.mu.Unlock()
			<-ctx.Done()
			f.mu.Lock()
			return nil, status.FromContextError(ctx.Err()).Err()
		}
		if err := f.stuck[s.GetMetadata().GetName()]; err != nil {
			return nil, err
		}
		s.State = runtimeapi.PodSandboxState_SANDBOX_NOTREADY
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (f *fakeRuntime) ExecSync(ctx context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	f.mu.Lock()
	c, err := f.find(r.GetContainerId())
	if err != nil {
		f.mu.Unlock()
		return nil, err
	}
	f.note(execAsked+" "+fmt.Sprint(r.GetCmd()), c, time.Duration(r.GetTimeout())*time.Second)
	takes, code := c.exec, c.code
	f.mu.Unlock()
	if !wait(ctx, takes) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &runtimeapi.ExecSyncResponse{ExitCode: code}, nil
}

// podList is a fake checkpoint.
type podList struct {
	mu   sync.Mutex
	list []pods.Pod
}

func (l *podList) Pods() []pods.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.list)
}

func (l *podList) add(list ...pods.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, list...)
}

// fakeKubelet counts how often it was stopped and started.
type fakeKubelet struct {
	mu              sync.Mutex
	stops, starts   int
	stopped         time.Time
	stopErr, runErr error
}

func (k *fakeKubelet) Stop(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stops++
	if k.stopped.IsZero() {
		k.stopped = time.Now()
	}
	return k.stopErr
}

func (k *fakeKubelet) Start(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.starts++
	return k.runErr
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	over := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-over:
			t.Fatalf("timed out before %s", what)
		case <-tick.C:
		}
	}
}
