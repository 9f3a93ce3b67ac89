// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"haulout.dev/haulout/pkg/agent/buckets"
	"haulout.dev/haulout/pkg/agent/local/pods"
	agentstate "haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestGrace(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		pod      podSpec
		deadline time.Duration
		want     time.Duration
	}{
		{name: "the pod's own time", pod: newPod("p", 0, grace("7")), want: 7 * time.Second},
		{name: "not more than the time of the bucket", pod: newPod("p", 0, grace("3600")), want: 20 * time.Second},
		{name: "not more than the time until the deadline", pod: newPod("p", 0, grace("3600")), deadline: 9 * time.Second, want: 9 * time.Second},
		{name: "at least 2 seconds", pod: newPod("p", 0, grace("1")), want: 2 * time.Second},
		{name: "at least 2 seconds without a grace period", pod: newPod("p", 0, grace("0")), want: 2 * time.Second},
		{name: "the grace period of the checkpoint if the runtime has none", want: 12 * time.Second, pod: newPod("p", 0, grace(""), func(s *podSpec) {
			s.GracePeriod.Duration = 12 * time.Second
		})},
		{name: "less for a pod that is being deleted", want: 4 * time.Second, pod: newPod("p", 0, grace("15"), func(s *podSpec) {
			s.GracePeriod.Duration = 4 * time.Second
		})},
		{name: "the default of the API if none is known", pod: newPod("p", -7, grace(""), unknown), want: 20 * time.Second},
		{name: "an invalid annotation", want: 5 * time.Second, pod: newPod("p", 0, grace("soon"), func(s *podSpec) {
			s.GracePeriod.Duration = 5 * time.Second
		})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, tableOf(20*time.Second, 0), tt.pod)
			deadline := time.Time{}
			if tt.deadline > 0 {
				deadline = time.Now().Add(tt.deadline)
			}
			must.Do(t, n.engine.End(t.Context(), agentstate.Local{}, deadline, n.next))
			if got := n.of(t, stopAsked, "p").timeout; got != tt.want {
				t.Errorf("timeout is %s, want %s", got, tt.want)
			}
		})
	}
}

func TestStopTimeout(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]time.Duration{
		-time.Second: 2 * time.Second, 0: 2 * time.Second, 1900 * time.Millisecond: 2 * time.Second,
		4990 * time.Millisecond: 5 * time.Second, 4400 * time.Millisecond: 4 * time.Second, time.Hour: time.Hour,
	} {
		if got := stopTimeout(left); got != want {
			t.Errorf("stopTimeout(%s) = %s, want %s", left, got, want)
		}
	}
}

func TestWhatIsRecorded(t *testing.T) {
	t.Parallel()
	long := time.Now().Add(-time.Hour)
	tests := []struct {
		name string
		pod  podSpec
		// stopped is set if the pod's container must be stopped; removed is set if its sandbox must
		// be stopped.
		stopped, removed, recorded bool
	}{
		{name: "a running pod", pod: newPod("p", 0), stopped: true, removed: true, recorded: true},
		{name: "a container of unknown state may run", stopped: true, removed: true, recorded: true,
			pod: newPod("p", 0, inState(runtimeapi.ContainerState_CONTAINER_UNKNOWN))},
		{name: "a running container in a sandbox that has died", stopped: true, recorded: true, pod: newPod("p", 0, func(s *podSpec) {
			s.notReady = true
		})},
		{name: "a container between two starts", removed: true, pod: newPod("p", 0, inState(runtimeapi.ContainerState_CONTAINER_EXITED), func(s *podSpec) {
			s.containers[0].finished = long
		})},
		{name: "a container that was not started yet", removed: true, pod: newPod("p", 0, inState(runtimeapi.ContainerState_CONTAINER_CREATED))},
		{name: "a pod that has ended long ago", pod: newPod("p", 0, inState(runtimeapi.ContainerState_CONTAINER_EXITED), func(s *podSpec) {
			s.notReady, s.containers[0].finished = true, long
		})},
		{name: "a pod that has failed and whose container ends", stopped: true, removed: true, pod: newPod("p", 0, func(s *podSpec) { s.Finished = true })},
		{name: "a static pod by its sandbox", stopped: true, removed: true, pod: newPod("p", 0, func(s *podSpec) { s.static = true })},
		{name: "a static pod by its manifest", stopped: true, removed: true, pod: newPod("p", 0, func(s *podSpec) { s.Static = true })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, tableOf(20*time.Second, 0), tt.pod)
			must.Do(t, n.engine.End(t.Context(), agentstate.Local{Started: time.Now()}, time.Time{}, n.next))
			got := []bool{len(n.stops()) == 1, len(n.happened(sandboxStop)) == 1, len(n.allKilled()) == 1}
			if want := []bool{tt.stopped, tt.removed, tt.recorded}; !slices.Equal(got, want) {
				t.Errorf("stopped, removed, recorded: %v, want %v", got, want)
			}
		})
	}
}

func TestKilledPodsHaveTheirUID(t *testing.T) {
	t.Parallel()
	n := newNode(t, tableOf(20*time.Second, 0), newPod("a", 0))
	var killed []agentstate.KilledPod
	must.Do(t, n.engine.End(t.Context(), agentstate.Local{}, time.Time{}, func(_ agentstate.Local, k []agentstate.KilledPod) bool {
		killed = append(killed, k...)
		return true
	}))
	if diff := cmp.Diff([]agentstate.KilledPod{{Namespace: "shop", Name: "a", UID: types.UID(uidOf("a"))}}, killed); diff != "" {
		t.Errorf("killed (-want +got):\n%s", diff)
	}
}

func TestSidecarsEndLast(t *testing.T) {
	t.Parallel()
	// The runtime lists main twice: main was restarted, and the runtime does not report the end of
	// the earlier container.
	pod := newPod("p", 0, func(s *podSpec) {
		s.Sidecars = []string{"first", "second"}
		s.containers = nil
		for _, name := range []string{"second", "main", "first", "main"} {
			s.containers = append(s.containers, containerSpec{name: name, state: running, ends: 100 * time.Millisecond, grace: "30"})
		}
	})
	n := newNode(t, tableOf(20*time.Second, 0), pod)
	n.end(t)
	var order []string
	for _, e := range n.happened(exited) {
		order = append(order, e.container)
	}
	if want := []string{"main", "main", "second", "first"}; !slices.Equal(order, want) {
		t.Errorf("ended in the order %v, want %v", order, want)
	}
}

func TestRunning(t *testing.T) {
	t.Parallel()
	n := newNode(t, buckets.Table{{Priority: 0}},
		newPod("runs", 0), newPod("unknown", 0, inState(runtimeapi.ContainerState_CONTAINER_UNKNOWN)),
		newPod("ended", 0, inState(runtimeapi.ContainerState_CONTAINER_EXITED)))
	for pod, want := range map[string]bool{"runs": true, "unknown": true, "ended": false, "never-there": false} {
		got, err := n.engine.Running(t.Context(), uidOf(pod))
		if err != nil || got != want {
			t.Errorf("%s: running is %t with error %v, want %t", pod, got, err, want)
		}
	}
	n.die()
	if _, err := n.engine.Running(t.Context(), uidOf("ended")); err == nil {
		t.Error("got no error from a runtime that is down: a pod that runs would count as ended")
	}
}

func TestCheckEndpoint(t *testing.T) {
	t.Parallel()
	tests := []struct {
		endpoint, system string
		ok               bool
	}{
		{"unix:///run/containerd/containerd.sock", "linux", true},
		{"npipe:////./pipe/containerd-containerd", "windows", true},
		{"npipe:////./pipe/containerd-containerd", "linux", false},
		{"unix:///run/containerd/containerd.sock", "windows", false},
		{"/run/containerd/containerd.sock", "linux", false},
		{"tcp://127.0.0.1:1234", "linux", false},
		{"unix://", "linux", false},
		{"", "linux", false},
	}
	for _, tt := range tests {
		if err := checkEndpoint(tt.endpoint, tt.system); (err == nil) != tt.ok {
			t.Errorf("checkEndpoint(%q, %q) = %v, want ok %t", tt.endpoint, tt.system, err, tt.ok)
		}
	}
}

// TestAnyPodsEndInTheOrderOfTheirPriorities ends random pods and uses random tables.
func TestAnyPodsEndInTheOrderOfTheirPriorities(t *testing.T) {
	t.Parallel()
	for range 15 {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0))
		table := buckets.Table{}
		for priority := int32(random.IntN(2000)) - 1000; len(table) < 1+random.IntN(5); priority += 1 + int32(random.IntN(1000)) {
			table = append(table, buckets.Bucket{Priority: priority, Period: time.Minute})
		}
		priorities := map[string]int32{}
		var specs []podSpec
		for i := range random.IntN(25) {
			name, priority := fmt.Sprintf("p%d", i), int32(random.IntN(8000))-3000
			priorities[name] = priority
			specs = append(specs, newPod(name, priority, ends(time.Duration(random.IntN(20))*time.Millisecond)))
		}
		n := newNode(t, table, specs...)
		n.end(t)
		var before string
		for _, name := range n.stops() {
			if before != "" && bucketOf(table, priorities[name]) < bucketOf(table, priorities[before]) {
				t.Errorf("seed %d: %s (priority %d) was stopped after %s (priority %d)", seed, name, priorities[name], before, priorities[before])
			}
			before = name
		}
		if got := n.allKilled(); len(got) != len(specs) || len(n.stops()) != len(specs) {
			t.Errorf("seed %d: ended %v and stopped %v, want all %d once", seed, got, n.stops(), len(specs))
		}
		n.die()
	}
}

// bucketOf finds the bucket of a priority independently of Table.Index.
func bucketOf(table buckets.Table, priority int32) int {
	bucket := 0
	for i, b := range table {
		if priority >= b.Priority {
			bucket = i
		}
	}
	return bucket
}

// TestGroupNeedsNoLabels has pods that another program created.
func TestGroupNeedsNoLabels(t *testing.T) {
	t.Parallel()
	sandboxes := []*runtimeapi.PodSandbox{{Id: "s1", Metadata: &runtimeapi.PodSandboxMetadata{Name: "debug", Namespace: "default"}}}
	containers := []*runtimeapi.Container{
		{Id: "c1", PodSandboxId: "s1", State: running, Metadata: &runtimeapi.ContainerMetadata{Name: "shell"}},
		{Id: "c2", PodSandboxId: "gone", State: running, Labels: map[string]string{
			labelPodUID: "u2", labelPodName: "orphan", labelPodNamespace: "kube-system",
		}},
	}
	list := group(containers, sandboxes, pods.NewIndex(nil), buckets.Table{{Priority: 0}, {Priority: 2000000000}})
	var got []string
	for _, p := range list {
		got = append(got, fmt.Sprintf("%s/%s %s in bucket %d, %d running, grace %s", p.namespace, p.name, p.uid, p.bucket, len(p.running), p.grace))
	}
	want := []string{"default/debug s1 in bucket 0, 1 running, grace 30s", "kube-system/orphan u2 in bucket 1, 1 running, grace 30s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
}
