// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"cmp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"haulout.dev/haulout/pkg/agent/buckets"
	"haulout.dev/haulout/pkg/agent/state"
)

const (
	thisBoot  = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	otherBoot = "6fa459ea-ee8a-3ca4-894e-db77e160355e"
	ownName   = "shutdown-worker-1-1b4e28ba"
)

var (
	wall = time.Date(2026, 11, 24, 3, 0, 0, 0, time.UTC)
	// In each row the deadline is ten minutes away, and the buckets of the table have 60 and 30
	// seconds.
	testTable = buckets.Table{{Priority: 0, Period: time.Minute}, {Priority: 2000000000, Period: 30 * time.Second}}
	ownRef    = state.MaintenanceRef{Name: ownName, UID: "nm-1"}
	podA      = state.KilledPod{Namespace: "default", Name: "a", UID: "a"}
	podB      = state.KilledPod{Namespace: "default", Name: "b", UID: "b"}
)

func reported(pod state.KilledPod) state.KilledPod {
	pod.Reported = true
	return pod
}

// row is a test case. modify changes the input of a healthy agent.
type row struct {
	modify func(s *settings, in *input)
	// The following fields are the expected results.
	boot        string
	phase       state.Phase
	maintenance *state.MaintenanceRef
	task        task
	do          string
	local       *state.Local
	killed      []state.KilledPod
	outcome     outcome
	events      []string
	why         string
	wakeIn      time.Duration
}

func testSettings() *settings {
	return &settings{
		node: "worker-1", bootID: thisBoot, buckets: testTable, apiGrace: 10 * time.Second,
		engine: "cri", drain: true, keepForgotten: true,
	}
}

// idleInput returns the input of an agent that waits for a shutdown.
func idleInput() *input {
	return &input{
		state:      state.State{BootID: thisBoot, Phase: state.Armed},
		machine:    MachineState{Known: true, LockHeld: true, Delay: 10 * time.Minute},
		now:        wall,
		wall:       wall,
		priorities: []int32{0, 2000000000},
		olderDone:  true,
	}
}

// pending returns a modifier for the input during a shutdown.
func pending(phase state.Phase, more ...func(in *input)) func(*settings, *input) {
	return func(_ *settings, in *input) {
		in.machine.ShuttingDown, in.machine.Kind = true, "reboot"
		in.deadline = in.now.Add(10 * time.Minute)
		in.api = apiFacts{since: in.now.Add(-time.Second), ok: true}
		in.state.Phase = phase
		in.state.Signal = state.Signal{Kind: "reboot", Time: wall.Add(-time.Minute), Deadline: wall.Add(10 * time.Minute)}
		switch phase {
		case state.Maintaining, state.LocalRun, state.Releasing, state.Down:
			ref := ownRef
			in.state.Maintenance = &ref
			in.drain = &DrainState{PodsLeft: 2}
		}
		if phase == state.LocalRun {
			in.state.Local = &state.Local{Started: wall.Add(-30 * time.Second), Bucket: 1}
			in.local.running = true
		}
		for _, f := range more {
			f(in)
		}
	}
}

// gone returns a modifier for an input in which the stored phase is given and the machine no longer
// reports the shutdown.
func gone(phase state.Phase, more ...func(in *input)) func(*settings, *input) {
	return func(s *settings, in *input) {
		pending(phase, more...)(s, in)
		in.machine.ShuttingDown = false
		in.deadline = time.Time{}
	}
}

func both(f, g func(*settings, *input)) func(*settings, *input) {
	return func(s *settings, in *input) {
		f(s, in)
		g(s, in)
	}
}

func lost(in *input) {
	in.api = apiFacts{since: in.now.Add(-10 * time.Second), failures: 3, failure: "connection refused"}
	in.host.apiFacts = in.api
}

func checkRows(t *testing.T, rows map[string]row) {
	t.Helper()
	for name, tt := range rows {
		t.Run(name, func(t *testing.T) {
			s, in := testSettings(), idleInput()
			if tt.modify != nil {
				tt.modify(s, in)
			}
			before := cloneState(&in.state)
			d := decide(s, in)
			if diff := gocmp.Diff(before, in.state); diff != "" {
				t.Errorf("the input was changed:\n%s", diff)
			}
			if d.next.Phase != tt.phase {
				t.Errorf("phase %s, want %s", d.next.Phase, tt.phase)
			}
			if want := cmp.Or(tt.boot, thisBoot); d.next.BootID != want {
				t.Errorf("boot ID %q, want %q", d.next.BootID, want)
			}
			if diff := gocmp.Diff(tt.maintenance, d.next.Maintenance); diff != "" {
				t.Errorf("maintenance (-want +got):\n%s", diff)
			}
			if d.maintenance != tt.task {
				t.Errorf("task %q, want %q", d.maintenance, tt.task)
			}
			if got := doing(&d); got != tt.do {
				t.Errorf("does %q, want %q", got, tt.do)
			}
			if diff := gocmp.Diff(tt.local, d.next.Local); diff != "" {
				t.Errorf("local run (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(tt.killed, d.next.Killed); diff != "" {
				t.Errorf("killed pods (-want +got):\n%s", diff)
			}
			if d.outcome != tt.outcome {
				t.Errorf("outcome %q, want %q", d.outcome, tt.outcome)
			}
			var events []string
			for _, e := range d.events {
				events = append(events, e.reason)
			}
			if diff := gocmp.Diff(tt.events, events); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if (tt.why == "") != (d.why == "") || !strings.Contains(d.why, tt.why) {
				t.Errorf("why %q, want %q in it", d.why, tt.why)
			}
			var wakeIn time.Duration
			if !d.wake.IsZero() {
				wakeIn = d.wake.Sub(in.now)
			}
			if wakeIn != tt.wakeIn {
				t.Errorf("wakes in %s, want %s", wakeIn, tt.wakeIn)
			}
		})
	}
}

// doing returns a text with the actions of a decision.
func doing(d *decision) string {
	var do []string
	for what, done := range map[string]bool{
		"local": d.local, "proceed": d.proceed, "report": d.report, "resume": d.resume, "release": d.release,
		"cordon": d.cordon, "uncordon": d.uncordon, "evict": len(d.evictions) > 0,
	} {
		if done {
			do = append(do, what)
		}
	}
	slices.Sort(do)
	return strings.Join(do, " ")
}

func TestDecideIdle(t *testing.T) {
	checkRows(t, map[string]row{
		"nothing happens":                {phase: state.Armed},
		"the first start of the agent":   {modify: func(_ *settings, in *input) { in.state = state.State{} }, phase: state.Armed},
		"a machine that is not known":    {modify: func(_ *settings, in *input) { in.machine = MachineState{} }, phase: state.Armed},
		"older maintenances still exist": {modify: func(_ *settings, in *input) { in.olderDone = false }, phase: state.Armed, task: taskOlder},
		"older maintenances wait for a user, the oldest are deleted": {
			modify: func(_ *settings, in *input) { in.olderDone = false }, phase: state.Armed, task: taskOlder,
		},
		"a cordon of the agent may remain": {
			modify: func(_ *settings, in *input) { in.uncordonDue = true }, phase: state.Armed, do: "uncordon",
		},
		"the node stays cordoned before the machine is known": {
			modify: func(_ *settings, in *input) { in.uncordonDue, in.machine = true, MachineState{} }, phase: state.Armed,
		},
		"the node is uncordoned although the machine does not respond": {
			modify: func(_ *settings, in *input) {
				in.uncordonDue, in.machine, in.unknownFor = true, MachineState{}, knownGrace
			},
			phase: state.Armed, do: "uncordon",
		},
		"the kubelet was stopped, and the state is lost": {
			modify: func(_ *settings, in *input) { in.stopped, in.state = true, state.State{} },
			phase:  state.Armed, do: "resume", local: &state.Local{Started: wall},
		},
		"the kubelet is not started before the machine is known": {
			modify: func(_ *settings, in *input) { in.stopped, in.state, in.machine = true, state.State{}, MachineState{} }, phase: state.Armed,
		},
		"the node stays cordoned for a kept maintenance": {
			modify: func(_ *settings, in *input) { in.uncordonDue, in.state.Maintenance = true, &ownRef },
			phase:  state.Armed, task: taskDrain, maintenance: &ownRef,
		},
		"a soft reboot of a machine that was down": {
			modify: func(s *settings, in *input) {
				in.state = state.State{BootID: thisBoot, Phase: state.Down, Maintenance: &ownRef, Signal: state.Signal{Kind: "reboot"}}
				s.bootID = otherBoot
			},
			boot: otherBoot, phase: state.Armed, outcome: outcomeRebooted, events: []string{EventRebooted},
		},
		"it is time to sweep":           {modify: func(_ *settings, in *input) { in.sweepDue = true }, phase: state.Armed, task: taskSweep},
		"the outcome is unchanged":      {modify: func(_ *settings, in *input) { in.outcome = outcomeRebooted }, phase: state.Armed, outcome: outcomeRebooted},
		"a kept maintenance is watched": {modify: func(_ *settings, in *input) { in.state.Maintenance, in.sweepDue = &ownRef, true }, phase: state.Armed, task: taskDrain, maintenance: &ownRef},
		"a kept maintenance and older ones": {
			modify: func(_ *settings, in *input) { in.state.Maintenance, in.olderDone = &ownRef, false },
			phase:  state.Armed, task: taskOlder, maintenance: &ownRef,
		},
		"a kept maintenance that a user has ended": {
			modify: func(_ *settings, in *input) {
				in.state.Maintenance, in.drain = &ownRef, &DrainState{Ended: true}
			},
			phase: state.Armed,
		},
		"a kept maintenance after an interrupted local run": {
			modify: func(_ *settings, in *input) {
				in.state.Maintenance, in.state.Local = &ownRef, &state.Local{Bucket: 1}
				in.state.Killed = []state.KilledPod{podA}
			},
			phase: state.Armed, task: taskDrain, maintenance: &ownRef,
			do: "resume", local: &state.Local{Bucket: 1}, killed: []state.KilledPod{podA},
		},
		"the engine still runs": {
			modify: func(_ *settings, in *input) {
				in.state.Maintenance, in.state.Local = &ownRef, &state.Local{}
				in.local.running = true
			},
			phase: state.Armed, task: taskDrain, maintenance: &ownRef, local: &state.Local{},
		},
	})
}

func TestDecideAfterBoot(t *testing.T) {
	started := wall.Add(-time.Hour)
	old := func(phase state.Phase) func(*settings, *input) {
		return func(_ *settings, in *input) {
			in.state = state.State{
				BootID: otherBoot, Phase: phase, Maintenance: &state.MaintenanceRef{Name: "shutdown-worker-1-6fa459ea", UID: "old"},
				Signal: state.Signal{Kind: "reboot", Time: started, Deadline: wall.Add(time.Hour)},
				Local:  &state.Local{Started: started, Bucket: 1},
				Killed: []state.KilledPod{podA, reported(podB)},
			}
			in.olderDone = false
		}
	}
	rebooted := row{
		phase: state.Armed, task: taskOlder, outcome: outcomeRebooted, events: []string{EventRebooted},
	}
	with := func(modify func(*settings, *input)) row {
		r := rebooted
		r.modify = modify
		return r
	}
	checkRows(t, map[string]row{
		"a local run is never resumed":            with(old(state.LocalRun)),
		"a drain is never resumed":                with(old(state.Maintaining)),
		"a release is never repeated":             with(old(state.Releasing)),
		"the usual case: the machine was down":    with(old(state.Down)),
		"also if the machine is not known yet":    with(both(old(state.LocalRun), func(_ *settings, in *input) { in.machine = MachineState{} })),
		"also if it stays unknown":                with(both(old(state.LocalRun), func(_ *settings, in *input) { in.machine = MachineState{}; in.unknownFor = time.Hour })),
		"a cancelled shutdown before, power loss": {modify: old(state.Cancelled), phase: state.Armed, task: taskOlder},
		"the machine goes down again immediately": {
			modify: both(old(state.LocalRun), func(s *settings, in *input) {
				in.machine.ShuttingDown, in.deadline = true, in.now.Add(10*time.Minute)
				in.api = apiFacts{since: in.now}
			}),
			phase: state.Detected, task: taskEnsure, events: []string{EventRebooted, EventDetected}, wakeIn: 10 * time.Second,
		},
	})
}

func TestDecideDrain(t *testing.T) {
	checkRows(t, map[string]row{
		"a shutdown is requested": {
			modify: pending(state.Armed, func(in *input) { in.outcome = outcomeRebooted }),
			phase:  state.Detected, task: taskEnsure, events: []string{EventDetected}, wakeIn: 9 * time.Second,
		},
		"the maintenance that was kept is adopted through its name": {
			modify: pending(state.Armed, func(in *input) { in.state.Maintenance = &ownRef }),
			phase:  state.Detected, task: taskEnsure, events: []string{EventDetected}, wakeIn: 9 * time.Second,
		},
		"a new shutdown while the last one is undone": {
			modify: pending(state.Cancelled, func(in *input) {
				in.state.Maintenance, in.state.Local, in.state.Killed = &ownRef, &state.Local{Bucket: 1}, []state.KilledPod{podA}
			}),
			phase: state.Detected, task: taskEnsure, events: []string{EventDetected}, wakeIn: 9 * time.Second,
			do: "report", local: &state.Local{Bucket: 1}, killed: []state.KilledPod{podA},
		},
		"the maintenance exists": {
			modify: pending(state.Detected, func(in *input) { in.news.ensured = &ownRef }),
			phase:  state.Maintaining, maintenance: &ownRef, task: taskDrain, events: []string{EventDraining}, wakeIn: 9 * time.Second,
		},
		"pods are left": {modify: pending(state.Maintaining), phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, wakeIn: 9 * time.Second},
		"the last response is a second old and the deadline near": {
			modify: pending(state.Maintaining, func(in *input) { in.deadline = in.now.Add(100 * time.Second) }),
			phase:  state.Maintaining, maintenance: &ownRef, task: taskDrain, wakeIn: 5 * time.Second,
		},
		"the node is drained": {
			modify: pending(state.Maintaining, func(in *input) { in.drain = &DrainState{Drained: true} }),
			phase:  state.Releasing, maintenance: &ownRef, do: "release", events: []string{EventReleased}, why: "drained",
			wakeIn: 599 * time.Second,
		},
		"the node is drained at the moment in which the API is lost": {
			modify: pending(state.Maintaining, lost, func(in *input) { in.drain = &DrainState{Drained: true} }),
			phase:  state.Releasing, maintenance: &ownRef, do: "release", events: []string{EventReleased}, why: "drained",
			wakeIn: 599 * time.Second,
		},
		"the drain keeps DaemonSet pods": {
			modify: pending(state.Maintaining, func(in *input) { in.drain = &DrainState{Drained: true, PodsKept: 3} }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: &state.Local{Started: wall},
			events: []string{EventLocal}, why: "keeps 3 pods", wakeIn: 599 * time.Second,
		},
		"the Node was deleted": {
			modify: pending(state.Maintaining, func(in *input) { in.drain = &DrainState{Drained: true, NodeGone: true} }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: &state.Local{Started: wall},
			events: []string{EventLocal}, why: "no longer has the Node", wakeIn: 599 * time.Second,
		},
		"the Node was deleted, and there is no engine": {
			modify: both(pending(state.Maintaining, func(in *input) { in.drain = &DrainState{Drained: true, NodeGone: true} }),
				func(s *settings, in *input) { s.engine, in.priorities = "", []int32{0} }),
			phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, why: "waits until its pods have ended", wakeIn: 599 * time.Second,
		},
		"the drain keeps pods and there is no engine": {
			modify: both(pending(state.Maintaining, func(in *input) { in.drain = &DrainState{Drained: true, PodsKept: 3} }),
				func(s *settings, _ *input) { s.engine = "" }),
			phase: state.Releasing, maintenance: &ownRef, do: "release", events: []string{EventReleased}, why: "drained",
			wakeIn: 599 * time.Second,
		},
		"a stored maintenance with a phase that does not match": {
			modify: pending(state.Maintaining, func(in *input) { in.state.Maintenance = nil }),
			phase:  state.Detected, task: taskEnsure, wakeIn: 9 * time.Second,
		},
		"a restarted agent that does not know the machine waits": {
			modify: pending(state.Maintaining, func(in *input) { in.machine = MachineState{}; in.unknownFor = 2 * time.Second }),
			phase:  state.Maintaining, maintenance: &ownRef, wakeIn: 3 * time.Second,
		},
		"a restarted agent continues if the machine stays unknown": {
			modify: pending(state.Maintaining, func(in *input) { in.machine = MachineState{}; in.unknownFor = 5 * time.Second }),
			phase:  state.Maintaining, maintenance: &ownRef, task: taskDrain, wakeIn: 9 * time.Second,
		},
	})
}

func TestDecideLocalDue(t *testing.T) {
	begun := func(task task, why string) row {
		return row{
			phase: state.LocalRun, task: task, do: "local proceed", local: &state.Local{Started: wall}, events: []string{EventLocal}, why: why,
			wakeIn: 599 * time.Second,
		}
	}
	with := func(r row, modify func(*settings, *input), ref *state.MaintenanceRef) row {
		r.modify, r.maintenance = modify, ref
		return r
	}
	checkRows(t, map[string]row{
		"the API is lost before the maintenance exists": with(begun(taskEnsure, "has not answered for 10s: connection refused"), pending(state.Detected, lost), nil),
		"the API is lost during the drain":              with(begun(taskDrain, "has not answered for 10s"), pending(state.Maintaining, lost), &ownRef),
		"the API hangs": with(begun(taskDrain, "has not answered for 12s"),
			pending(state.Maintaining, func(in *input) {
				in.api = apiFacts{since: in.now.Add(-12 * time.Second), failures: 3}
				in.host.apiFacts = in.api
			}), &ownRef),
		"time runs out although the API is healthy": func() row {
			r := with(begun(taskDrain, "goes down in 1m35s"),
				pending(state.Maintaining, func(in *input) { in.deadline = in.now.Add(95 * time.Second) }), &ownRef)
			r.wakeIn = 94 * time.Second
			return r
		}(),
		"the delay is shorter than the table": func() row {
			r := with(begun(taskEnsure, "goes down in 5s"),
				pending(state.Armed, func(in *input) { in.deadline = in.now.Add(5 * time.Second) }), nil)
			r.events, r.wakeIn = []string{EventDetected, EventLocal}, 4*time.Second
			return r
		}(),
		"only pods of the second bucket need time": {
			modify: pending(state.Maintaining, func(in *input) {
				in.deadline, in.priorities = in.now.Add(41*time.Second), []int32{2000001000}
			}),
			phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, wakeIn: 6 * time.Second,
		},
		"the API was lost for less than its grace period": {
			modify: pending(state.Maintaining, func(in *input) {
				in.api = apiFacts{since: in.now.Add(-9 * time.Second), failures: 3, failure: "connection refused"}
			}),
			phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, wakeIn: time.Second,
		},
		"without an engine, the agent waits for a lost API": {
			modify: both(pending(state.Maintaining, lost), func(s *settings, _ *input) { s.engine = "" }),
			phase:  state.Maintaining, maintenance: &ownRef, task: taskDrain, why: "without a local engine", wakeIn: 599 * time.Second,
		},
		"without an engine and without pods, the agent does not wait": {
			modify: both(pending(state.Maintaining, lost), func(s *settings, in *input) { s.engine, in.priorities = "", nil }),
			phase:  state.Releasing, maintenance: &ownRef, do: "release", why: "nothing is left to do", events: []string{EventReleased},
			wakeIn: 599 * time.Second,
		},
		"without an engine, the time of the table does not count": {
			modify: both(pending(state.Maintaining, func(in *input) { in.deadline = in.now.Add(20 * time.Second) }),
				func(s *settings, _ *input) { s.engine = "" }),
			phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, wakeIn: 4250 * time.Millisecond,
		},
	})
}
