// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/testing/is"
)

// nodePod returns a pod of the node without an owner.
func nodePod(name string, modify ...func(pod *Pod)) Pod {
	pod := Pod{Namespace: "default", Name: name, UID: types.UID(name)}
	for _, f := range modify {
		f(&pod)
	}
	return pod
}

func priority(p int32) func(*Pod)    { return func(pod *Pod) { pod.Priority = p } }
func owner(uid types.UID) func(*Pod) { return func(pod *Pod) { pod.Owner = uid } }
func stays(pod *Pod)                 { pod.Stays = true }
func isLeaving(pod *Pod)             { pod.Leaving = true }
func evacuator(pod *Pod)             { pod.Evacuator = true }

// answering returns a modifier: kube-apiserver responds and lists these pods, and the node has been
// cordoned for a long time.
func answering(pods ...Pod) func(in *input) {
	return func(in *input) {
		in.host = hostFacts{
			apiFacts: apiFacts{ok: true, since: in.now.Add(-time.Second)}, pods: pods,
			listed: in.now.Add(-time.Second), cordoned: in.now.Add(-time.Minute),
		}
	}
}

// Every response of kube-apiserver leads to evictions within budgets, and never to a local end.
func TestDecideWithoutHaulout(t *testing.T) {
	web := answering(nodePod("web"))
	evicting := func(task task, why string) row {
		return row{phase: state.Evicting, task: task, do: "cordon evict", events: []string{EventEvicting}, why: why, wakeIn: 505 * time.Second}
	}
	with := func(r row, modify func(*settings, *input), ref *state.MaintenanceRef) row {
		r.modify, r.maintenance = modify, ref
		return r
	}
	failing := func(failure string, refusals int) func(*input) {
		return func(in *input) {
			in.api = apiFacts{since: in.now.Add(-10 * time.Second), failures: 3, refusals: refusals, failure: failure}
		}
	}
	again := func(r row) row {
		r.events = nil
		return r
	}
	checkRows(t, map[string]row{
		"the aggregator returns 503 before the maintenance exists": with(evicting(taskEnsure, "Haulout has not answered for 10s: 503"), pending(state.Detected, failing("503", 0), web), nil),
		"no leader acts on the maintenance":                        with(evicting(taskDrain, "no replica leads"), pending(state.Maintaining, failing("no replica leads", 0), web), &ownRef),
		"admission refuses the maintenance, it is not created again": with(evicting(taskNone, "the API refuses the NodeMaintenance: quota"),
			pending(state.Detected, func(in *input) {
				in.api = apiFacts{since: in.now.Add(-3 * time.Second), failures: 3, refusals: 3, failure: "quota"}
			}, web), nil),
		"a restarted agent knows that it was refused": with(again(evicting(taskNone, "the API refuses the NodeMaintenance")),
			pending(state.Evicting, func(in *input) { in.state.Refused = true }, web), nil),
		"the requester may not drain the node": with(evicting(taskDrain, "NotAuthorized"), pending(state.Maintaining, failing("NotAuthorized", 3), web), &ownRef),
		"a user ends the maintenance, or it is lost with its store": with(evicting(taskDrain, "was ended by another user"),
			pending(state.Maintaining, func(in *input) { in.drain = &DrainState{Ended: true} }, web), &ownRef),
		"without an engine, a user ends the maintenance": func() row {
			r := with(evicting(taskDrain, "was ended by another user"), both(pending(state.Maintaining, func(in *input) { in.drain = &DrainState{Ended: true} }, web),
				func(s *settings, _ *input) { s.engine = "" }), &ownRef)
			r.wakeIn = 599 * time.Second
			return r
		}(),
		"two requests have failed for longer than the grace period": {
			modify: pending(state.Maintaining, func(in *input) { in.api = apiFacts{since: in.now.Add(-20 * time.Second), failures: 2} }, web),
			phase:  state.Maintaining, maintenance: &ownRef, task: taskDrain, wakeIn: 505 * time.Second,
		},
		"the agent has not sent a request to kube-apiserver yet": {
			modify: pending(state.Maintaining, failing("503", 0)), phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, why: "503", wakeIn: 505 * time.Second,
		},
		"two lists have failed": {
			modify: pending(state.Evicting, failing("503", 0), func(in *input) {
				in.host.apiFacts = apiFacts{since: in.now.Add(-20 * time.Second), failures: 2}
			}),
			phase: state.Evicting, task: taskEnsure, why: "503", wakeIn: 505 * time.Second,
		},
		"kube-apiserver is lost, too": {
			modify: pending(state.Evicting, lost), phase: state.LocalRun, task: taskEnsure, do: "local proceed", local: &state.Local{Started: wall},
			events: []string{EventLocal}, why: "and kube-apiserver has not answered for 10s: connection refused", wakeIn: 599 * time.Second,
		},
		"the node is not cordoned yet": {
			modify: pending(state.Maintaining, failing("503", 0), web, func(in *input) { in.host.cordoned = time.Time{} }),
			phase:  state.Evicting, maintenance: &ownRef, task: taskDrain, do: "cordon", events: []string{EventEvicting}, why: "503", wakeIn: 505 * time.Second,
		},
		"Haulout is back": {
			modify: pending(state.Evicting, web, func(in *input) {
				ref := ownRef
				in.state.Maintenance, in.drain = &ref, &DrainState{PodsLeft: 1}
			}),
			phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, events: []string{EventDraining}, wakeIn: 9 * time.Second,
		},
		"the maintenance exists and no leader has observed it": {
			modify: pending(state.Evicting, web, func(in *input) { in.news.ensured = &ownRef }),
			phase:  state.Evicting, maintenance: &ownRef, task: taskDrain, do: "cordon evict", wakeIn: 9 * time.Second,
		},
		"all pods were evicted": {
			modify: pending(state.Evicting, failing("503", 0), answering()), phase: state.Releasing, do: "release",
			events: []string{EventReleased}, why: "all pods were evicted", wakeIn: 505 * time.Second,
		},
		"a pod may have been bound before the cordon": {
			modify: pending(state.Evicting, failing("503", 0), answering(), func(in *input) { in.host.cordoned = in.now.Add(-4 * time.Second) }),
			phase:  state.Evicting, task: taskEnsure, do: "cordon", why: "503", wakeIn: 505 * time.Second,
		},
		"DaemonSet pods are left": {
			modify: pending(state.Evicting, failing("503", 0), answering(nodePod("ds", stays))), phase: state.LocalRun, task: taskEnsure, do: "local proceed",
			local: &state.Local{Started: wall}, events: []string{EventLocal}, why: "all pods were evicted, except 1", wakeIn: 505 * time.Second,
		},
		"only the time of the table is left": {
			modify: pending(state.Evicting, failing("503", 0), web, func(in *input) { in.deadline = in.now.Add(95 * time.Second) }),
			phase:  state.LocalRun, task: taskEnsure, do: "local proceed", local: &state.Local{Started: wall}, events: []string{EventLocal},
			why: "goes down in 1m35s", wakeIn: 94 * time.Second,
		},
		"kube-apiserver is back between two buckets": {
			modify: pending(state.LocalRun, failing("503", 0), web, func(in *input) { in.local.asking = true }),
			phase:  state.Evicting, maintenance: &ownRef, task: taskDrain, do: "cordon", local: &state.Local{Started: wall.Add(-30 * time.Second), Bucket: 1},
			events: []string{EventEvicting}, why: "503", wakeIn: 505 * time.Second,
		},
		"kube-apiserver is back between two buckets, and the maintenance has no status yet": {
			modify: pending(state.LocalRun, web, func(in *input) {
				in.local.asking, in.drain = true, nil
				in.api = apiFacts{since: in.now.Add(-time.Second), failures: 1, failure: "has no status yet"}
			}),
			phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, do: "", local: &state.Local{Started: wall.Add(-30 * time.Second), Bucket: 1},
			events: []string{EventDraining}, wakeIn: 9 * time.Second,
		},
		"kube-apiserver is back between two buckets, and Haulout has only failed since": {
			modify: pending(state.LocalRun, web, func(in *input) {
				in.local.asking, in.state.Maintenance, in.drain = true, nil, nil
				in.api = apiFacts{since: in.now.Add(-time.Second), failures: 1, failure: "503"}
			}),
			phase: state.Detected, task: taskEnsure, do: "", local: &state.Local{Started: wall.Add(-30 * time.Second), Bucket: 1}, wakeIn: 9 * time.Second,
		},
		"kube-apiserver is back between two buckets, and DaemonSet pods are left": {
			modify: pending(state.LocalRun, answering(nodePod("ds", stays)), func(in *input) { in.local.asking = true }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed",
			local: &state.Local{Started: wall.Add(-30 * time.Second), Bucket: 1}, wakeIn: 599 * time.Second,
		},
		"without a drain, the pods end immediately": {
			modify: both(pending(state.Armed, web), func(s *settings, _ *input) { s.drain = false }),
			phase:  state.LocalRun, do: "local proceed", local: &state.Local{Started: wall}, events: []string{EventDetected, EventLocal},
			why: "drainBeforeShutdown is false", wakeIn: 599 * time.Second,
		},
	})
}

// After the system-node-critical entry, the agent must not wait for the API: the API server that
// responds may be a pod that has just ended.
func TestNothingIsWaitedForAfterTheNodeCriticalEntry(t *testing.T) {
	for bucket, want := range map[int]state.Phase{0: state.Maintaining, 1: state.Maintaining, 2: state.LocalRun} {
		s, in := testSettings(), idleInput()
		s.buckets = append(slices.Clone(testTable), testTable[1])
		s.buckets[2].Priority = 2100000000
		pending(state.LocalRun, func(in *input) { in.local.asking, in.state.Local.Bucket = true, bucket })(s, in)
		if got := decide(s, in).next.Phase; got != want {
			t.Errorf("before bucket %d: phase %s, want %s", bucket, got, want)
		}
	}
}

func TestEvictions(t *testing.T) {
	in := func(namespace string) func(*Pod) { return func(p *Pod) { p.Namespace = namespace } }
	critical := priority(2000001000)
	refuse := func(name types.UID, in time.Duration) func(*input) {
		return func(input *input) {
			if input.host.refused == nil {
				input.host.refused = map[types.UID]refusal{}
			}
			input.host.refused[name] = refusal{next: input.now.Add(in)}
		}
	}
	// The local end begins after 505 seconds, and its last entry of the table has 30 seconds.
	left := func(d time.Duration) func(*input) {
		return func(in *input) { in.deadline = in.now.Add(95*time.Second + d) }
	}
	for name, tt := range map[string]struct {
		pods   []Pod
		modify []func(*input)
		want   []string
	}{
		"pods without owners":                                  {[]Pod{nodePod("b"), nodePod("a")}, nil, []string{"a", "b"}},
		"mirror pods and DaemonSet pods stay":                  {[]Pod{nodePod("a", stays)}, nil, nil},
		"terminating pods are not evicted again":               {[]Pod{nodePod("a", isLeaving)}, nil, nil},
		"one pod of an owner at a time":                        {[]Pod{nodePod("a", owner("o")), nodePod("b", owner("o")), nodePod("c", owner("p"))}, nil, []string{"a", "c"}},
		"a pod of the owner is terminating":                    {[]Pod{nodePod("a", owner("o"), isLeaving), nodePod("b", owner("o"))}, nil, nil},
		"the owner is in another namespace":                    {[]Pod{nodePod("a", owner("o"), isLeaving, in("other")), nodePod("b", owner("o"))}, nil, []string{"b"}},
		"lower entries first":                                  {[]Pod{nodePod("a", critical), nodePod("b")}, nil, []string{"b"}},
		"an entry waits until pods are gone":                   {[]Pod{nodePod("a", critical), nodePod("b", isLeaving)}, nil, nil},
		"the entry begins when only its own time is left":      {[]Pod{nodePod("a", critical), nodePod("b", isLeaving)}, []func(*input){left(30 * time.Second)}, []string{"a"}},
		"the entry does not begin a moment earlier":            {[]Pod{nodePod("a", critical), nodePod("b", isLeaving)}, []func(*input){left(31 * time.Second)}, nil},
		"pods of earlier entries are evicted, too":             {[]Pod{nodePod("a", critical), nodePod("b")}, []func(*input){left(30 * time.Second)}, []string{"b", "a"}},
		"a refused pod waits":                                  {[]Pod{nodePod("a")}, []func(*input){refuse("a", time.Second)}, nil},
		"the siblings of the refused pod may be evicted":       {[]Pod{nodePod("a", owner("o")), nodePod("b", owner("o"))}, []func(*input){refuse("a", time.Second)}, []string{"b"}},
		"the refused pod is evicted again":                     {[]Pod{nodePod("a")}, []func(*input){refuse("a", 0)}, []string{"a"}},
		"a pod with an evacuator comes last":                   {[]Pod{nodePod("a", evacuator), nodePod("b")}, nil, []string{"b"}},
		"a pod with an evacuator comes after the evicted pods": {[]Pod{nodePod("a", evacuator), nodePod("b")}, []func(*input){refuse("b", time.Second)}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, in := testSettings(), idleInput()
			pending(state.Evicting, append([]func(*input){answering(tt.pods...)}, tt.modify...)...)(s, in)
			var got []string
			for _, pod := range evictions(s, in) {
				got = append(got, pod.Name)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("evicts %q, want %q", got, tt.want)
			}
		})
	}
}

func TestRefusedEvictionsBackOff(t *testing.T) {
	var got []time.Duration
	var r refusal
	for _, retryAfter := range []time.Duration{0, 0, time.Hour, 0, 0} {
		r = r.after(wall, retryAfter, "no")
		got = append(got, r.next.Sub(wall))
	}
	want := []time.Duration{5 * time.Second, 10 * time.Second, 30 * time.Second, 30 * time.Second, 30 * time.Second}
	is.True(t, slices.Equal(got, want), "waits %v, want %v", got, want)
}

func TestRemainingWithin(t *testing.T) {
	request := func(made time.Duration) *state.Within {
		return &state.Within{BootID: thisBoot, SinceBoot: made, Within: 2 * time.Minute}
	}
	for name, tt := range map[string]struct {
		w          *state.Within
		begun, now time.Duration
		want       time.Duration
		ok         bool
	}{
		"no request":                       {nil, time.Hour, time.Hour, 0, false},
		"of another boot":                  {&state.Within{BootID: otherBoot, SinceBoot: time.Hour, Within: time.Minute}, time.Hour, time.Hour, 0, false},
		"of a pending shutdown":            {request(time.Hour), 30 * time.Minute, time.Hour, 2 * time.Minute, true},
		"a minute before the shutdown":     {request(time.Hour - time.Minute), time.Hour, time.Hour, time.Minute, true},
		"over when the shutdown begins":    {request(time.Hour - 5*time.Minute), time.Hour, time.Hour, 2 * time.Minute, true},
		"too old when the shutdown begins": {request(time.Hour - 301*time.Second), time.Hour, time.Hour, 0, false},
		"over, and the machine still runs": {request(time.Hour), time.Hour, 2 * time.Hour, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := remainingWithin(tt.w, thisBoot, tt.begun, tt.now); got != tt.want || ok != tt.ok {
				t.Errorf("remaining %s, %t, want %s, %t", got, ok, tt.want, tt.ok)
			}
		})
	}
}

// The command that requests a shutdown knows the boot ID of the kernel; the ID of the manager also
// identifies the boot of userspace.
func TestWithinInAnotherBootOfUserspace(t *testing.T) {
	request := &state.Within{BootID: thisBoot, SinceBoot: time.Hour, Within: 2 * time.Minute}
	for boot, want := range map[string]bool{thisBoot: true, thisBoot + "-4711": true, otherBoot + "-4711": false} {
		if _, ok := remainingWithin(request, boot, time.Hour, time.Hour); ok != want {
			t.Errorf("in boot %s the request counts: %t, want %t", boot, ok, want)
		}
	}
}

func TestIsSooner(t *testing.T) {
	request := &state.Within{BootID: thisBoot, SinceBoot: time.Hour, Within: 2 * time.Minute}
	for name, tt := range map[string]struct {
		old  *state.Within
		want bool
	}{
		"no older request":        {nil, false},
		"of another boot":         {&state.Within{BootID: otherBoot, SinceBoot: time.Hour - time.Second, Within: time.Minute}, false},
		"that ends sooner":        {&state.Within{BootID: thisBoot, SinceBoot: time.Hour - time.Second, Within: time.Minute}, true},
		"that ends later":         {&state.Within{BootID: thisBoot, SinceBoot: time.Hour - time.Second, Within: time.Hour}, false},
		"that is over":            {&state.Within{BootID: thisBoot, SinceBoot: time.Hour - time.Minute, Within: time.Second}, false},
		"that is no longer valid": {&state.Within{BootID: thisBoot, SinceBoot: time.Hour - 6*time.Minute, Within: 7 * time.Minute}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := IsSooner(tt.old, request); got != tt.want {
				t.Errorf("IsSooner() = %t, want %t", got, tt.want)
			}
		})
	}
}
