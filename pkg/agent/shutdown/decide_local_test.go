// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"testing"
	"time"

	"haulout.dev/haulout/pkg/agent/state"
)

func TestDecideLocalRun(t *testing.T) {
	started := wall.Add(-30 * time.Second)
	second := &state.Local{Started: started, Bucket: 1}
	back := func(in *input) { in.local.asking = true }
	last := func(in *input) {
		in.news.progress, in.news.killed = &state.Local{Bucket: 2, Done: true}, []state.KilledPod{podA}
	}
	checkRows(t, map[string]row{
		"the engine works": {
			modify: pending(state.LocalRun, lost), phase: state.LocalRun, maintenance: &ownRef, task: taskDrain,
			do: "local proceed", local: second, wakeIn: 599 * time.Second,
		},
		"a bucket has ended": {
			modify: pending(state.LocalRun, lost, back, func(in *input) {
				in.state.Local.Bucket = 0
				in.state.Killed = []state.KilledPod{podA}
				in.news.progress, in.news.killed = &state.Local{Bucket: 1}, []state.KilledPod{podA, podB}
			}),
			phase: state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: second,
			killed: []state.KilledPod{podA, podB}, wakeIn: 599 * time.Second,
		},
		"the API is back in the middle of a bucket: pods are reported": {
			modify: pending(state.LocalRun, func(in *input) { in.state.Killed = []state.KilledPod{podA} }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed report", local: second,
			killed: []state.KilledPod{podA}, wakeIn: 599 * time.Second,
		},
		"the API is back between two buckets": {
			modify: pending(state.LocalRun, back, func(in *input) { in.state.Killed = []state.KilledPod{podA} }),
			phase:  state.Maintaining, maintenance: &ownRef, task: taskDrain, do: "", local: second,
			killed: []state.KilledPod{podA}, events: []string{EventDraining}, wakeIn: 9 * time.Second,
		},
		"the API is back and the engine has failed": {
			modify: pending(state.LocalRun, func(in *input) { in.local.running = false }),
			phase:  state.Maintaining, maintenance: &ownRef, task: taskDrain, do: "resume", local: second,
			events: []string{EventDraining}, wakeIn: 9 * time.Second,
		},
		"the API is back on a node that cannot run pods again": {
			modify: pending(state.LocalRun, back, func(in *input) { in.local.final = true }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: second, wakeIn: 599 * time.Second,
		},
		"the API is back and the time is short": {
			modify: pending(state.LocalRun, back, func(in *input) { in.deadline = in.now.Add(105 * time.Second) }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: second, wakeIn: 104 * time.Second,
		},
		"the API is back and the last bucket has ended": {
			modify: pending(state.LocalRun, back, func(in *input) { in.news.progress = &state.Local{Bucket: 2} }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed",
			local: &state.Local{Started: started, Bucket: 2}, wakeIn: 599 * time.Second,
		},
		"the API is back and the maintenance is ended": {
			modify: pending(state.LocalRun, back, func(in *input) { in.drain = &DrainState{Ended: true} }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: second, wakeIn: 599 * time.Second,
		},
		"only DaemonSet pods were left": {
			modify: pending(state.LocalRun, back, func(in *input) { in.drain = &DrainState{Drained: true, PodsKept: 1} }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: second, wakeIn: 599 * time.Second,
		},
		"the maintenance was created during the run": {
			modify: pending(state.LocalRun, func(in *input) { in.state.Maintenance, in.drain, in.news.ensured = nil, nil, &ownRef }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: second, wakeIn: 599 * time.Second,
		},
		"killed pods are reported before the kubelet starts": {
			modify: pending(state.Maintaining, func(in *input) {
				in.state.Local, in.state.Killed = second, []state.KilledPod{podA, podB}
				in.news.reported = []state.KilledPod{podA}
			}),
			phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, do: "report", local: second,
			killed: []state.KilledPod{reported(podA), podB}, wakeIn: 9 * time.Second,
		},
		"all pods are reported, the kubelet starts": {
			modify: pending(state.Maintaining, func(in *input) {
				in.state.Local, in.state.Killed = second, []state.KilledPod{podA}
				in.news.reported = []state.KilledPod{podA}
			}),
			phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, do: "resume", local: second,
			killed: []state.KilledPod{reported(podA)}, wakeIn: 9 * time.Second,
		},
		"reports fail for too long": {
			modify: pending(state.Maintaining, func(in *input) {
				in.state.Local, in.state.Killed, in.reportingFor = second, []state.KilledPod{podA}, 10*time.Second
			}),
			phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, do: "resume", local: second,
			killed: []state.KilledPod{podA}, wakeIn: 9 * time.Second,
		},
		"the kubelet runs again": {
			modify: pending(state.Maintaining, func(in *input) {
				in.state.Local, in.state.Killed, in.news.resumed = second, []state.KilledPod{podA}, true
			}),
			phase: state.Maintaining, maintenance: &ownRef, task: taskDrain, wakeIn: 9 * time.Second,
		},
		"the kubelet cannot run again": {
			modify: pending(state.Maintaining, func(in *input) { in.state.Local, in.local.final = second, true }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: &state.Local{Started: started},
			events: []string{EventLocal}, why: ErrFinal.Error(), wakeIn: 599 * time.Second,
		},
		"the API is lost again before the kubelet runs": {
			modify: pending(state.Maintaining, lost, func(in *input) { in.state.Local = second }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: &state.Local{Started: started},
			events: []string{EventLocal}, why: "has not answered", wakeIn: 599 * time.Second,
		},
		"the engine returned": {
			modify: pending(state.LocalRun, lost, func(in *input) { in.news.ended = true }),
			phase:  state.Releasing, maintenance: &ownRef, do: "proceed release", local: &state.Local{Started: started, Bucket: 1, Done: true},
			events: []string{EventReleased}, why: "the pods of each bucket have ended, or its time is over", wakeIn: 599 * time.Second,
		},
		"the engine waits for a decision after the last bucket": {
			modify: pending(state.LocalRun, back, func(in *input) { in.news.progress = &state.Local{Bucket: 2, Done: true} }),
			phase:  state.Releasing, maintenance: &ownRef, do: "proceed release", local: &state.Local{Started: started, Bucket: 2, Done: true},
			events: []string{EventReleased}, why: "the pods of each bucket have ended, or its time is over", wakeIn: 599 * time.Second,
		},
		"the pods of the last bucket are reported before the machine goes down": {
			modify: pending(state.LocalRun, last), phase: state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "proceed report",
			local: &state.Local{Started: started, Bucket: 2, Done: true}, killed: []state.KilledPod{podA}, wakeIn: 599 * time.Second,
		},
		"the pods of the last bucket are reported without a drain": {
			modify: both(pending(state.LocalRun, last, lost), func(s *settings, _ *input) { s.drain = false }),
			phase:  state.LocalRun, maintenance: &ownRef, do: "proceed report",
			local: &state.Local{Started: started, Bucket: 2, Done: true}, killed: []state.KilledPod{podA}, wakeIn: 599 * time.Second,
		},
		"the pods of the last bucket have been reported": {
			modify: pending(state.LocalRun, last, func(in *input) { in.news.reported = []state.KilledPod{podA} }),
			phase:  state.Releasing, maintenance: &ownRef, do: "proceed release", local: &state.Local{Started: started, Bucket: 2, Done: true},
			killed: []state.KilledPod{reported(podA)}, events: []string{EventReleased}, why: "the pods of each bucket have ended", wakeIn: 599 * time.Second,
		},
		"the API is lost after the last bucket": {
			modify: pending(state.LocalRun, last, lost),
			phase:  state.Releasing, maintenance: &ownRef, do: "proceed release", local: &state.Local{Started: started, Bucket: 2, Done: true},
			killed: []state.KilledPod{podA}, events: []string{EventReleased}, why: "the pods of each bucket have ended", wakeIn: 599 * time.Second,
		},
		"reports fail for too long after the last bucket": {
			modify: pending(state.LocalRun, last, func(in *input) { in.reportingFor = 10 * time.Second }),
			phase:  state.Releasing, maintenance: &ownRef, do: "proceed release", local: &state.Local{Started: started, Bucket: 2, Done: true},
			killed: []state.KilledPod{podA}, events: []string{EventReleased}, why: "the pods of each bucket have ended", wakeIn: 599 * time.Second,
		},
		"the engine was removed from the configuration": {
			modify: both(pending(state.LocalRun, func(in *input) { in.local.running = false }), func(s *settings, _ *input) { s.engine = "" }),
			phase:  state.Detected, maintenance: &ownRef, task: taskDrain, wakeIn: 599 * time.Second,
		},
		"a stored local run without progress": {
			modify: pending(state.LocalRun, lost, func(in *input) { in.state.Local = nil }),
			phase:  state.LocalRun, maintenance: &ownRef, task: taskDrain, do: "local proceed", local: &state.Local{Started: wall}, wakeIn: 599 * time.Second,
		},
	})
}

func TestDecideRelease(t *testing.T) {
	late := func(in *input) { in.deadline = in.now.Add(time.Second) }
	released := func(phase state.Phase, local *state.Local) row {
		return row{
			modify: pending(phase, late), phase: state.Releasing, maintenance: &ownRef, do: "release", local: local,
			events: []string{EventReleased}, why: "does not wait any longer",
		}
	}
	detected := released(state.Detected, nil)
	detected.maintenance = nil
	checkRows(t, map[string]row{
		"the deadline is near, no maintenance yet":                        detected,
		"the deadline is near, during the drain":                          released(state.Maintaining, nil),
		"the deadline is near, during a local run":                        released(state.LocalRun, &state.Local{Started: wall.Add(-30 * time.Second), Bucket: 1}),
		"the release failed":                                              {modify: pending(state.Releasing), phase: state.Releasing, maintenance: &ownRef, do: "release"},
		"the lock is released":                                            {modify: pending(state.Releasing, func(in *input) { in.news.released, in.releasedHere, in.machine.LockHeld = true, true, false }), phase: state.Down, maintenance: &ownRef},
		"a machine that goes down":                                        {modify: pending(state.Down, func(in *input) { in.releasedHere, in.machine.LockHeld = true, false }), phase: state.Down, maintenance: &ownRef},
		"a restarted agent on a machine that goes down, without the lock": {modify: pending(state.Down, func(in *input) { in.machine.LockHeld = false }), phase: state.Down, maintenance: &ownRef, do: "release"},
		"a restarted agent on a machine that goes down, with the lock":    {modify: pending(state.Down, func(in *input) { in.releasedHere = true }), phase: state.Down, maintenance: &ownRef, do: "release"},
	})
}

func TestDecideVanished(t *testing.T) {
	nameOnly := &state.MaintenanceRef{Name: ownName}
	forgotten := func(in *input) { in.machine.Forgotten = true }
	interrupted := &state.Local{Started: wall.Add(-30 * time.Second), Bucket: 1}
	cancelled := func(modify func(*settings, *input)) row {
		return row{
			modify: modify, phase: state.Cancelled, maintenance: &ownRef, task: taskComplete,
			outcome: outcomeCancelled, events: []string{EventCancelled},
		}
	}
	with := func(r row, change func(*row)) row {
		change(&r)
		return r
	}
	checkRows(t, map[string]row{
		"cancelled before the maintenance exists": with(cancelled(gone(state.Detected)), func(r *row) { r.maintenance = nameOnly }),
		"cancelled during the drain":              cancelled(gone(state.Maintaining)),
		"cancelled during a local run":            with(cancelled(gone(state.LocalRun)), func(r *row) { r.local = interrupted }),
		"cancelled after a local run": with(cancelled(gone(state.Releasing, func(in *input) { in.state.Local = &state.Local{Done: true} })), func(r *row) {
			r.local, r.do = &state.Local{}, "resume"
		}),
		"the engine of a cancelled run ends with a result": with(cancelled(gone(state.LocalRun, func(in *input) {
			in.local.running, in.news.ended = false, true
		})), func(r *row) { r.local, r.do = interrupted, "resume" }),
		"the target failed after the release": cancelled(gone(state.Down)),
		"forgotten, and the policy is Cancel": with(cancelled(both(gone(state.Maintaining, forgotten), func(s *settings, _ *input) { s.keepForgotten = false })),
			func(r *row) { r.events = []string{EventVanished} }),
		"forgotten, and nothing to keep": with(cancelled(gone(state.Detected, forgotten)), func(r *row) {
			r.maintenance, r.events = nameOnly, []string{EventVanished}
		}),
		"forgotten, and the policy is Keep": {
			modify: gone(state.Maintaining, forgotten), phase: state.Armed, maintenance: &ownRef, task: taskDrain, events: []string{EventVanished},
		},
		"forgotten during a local run": {
			modify: gone(state.LocalRun, forgotten, func(in *input) { in.local.running = false }),
			phase:  state.Armed, maintenance: &ownRef, task: taskDrain, do: "resume", local: interrupted, events: []string{EventVanished},
		},
		"logind ends with the machine": {
			modify: gone(state.Down, forgotten, func(in *input) { in.vanishedFor = 10 * time.Second }),
			phase:  state.Down, maintenance: &ownRef, wakeIn: 50 * time.Second,
		},
		"logind was restarted after the release": {
			modify: gone(state.Down, forgotten, func(in *input) { in.vanishedFor = time.Minute }),
			phase:  state.Armed, maintenance: &ownRef, task: taskDrain, events: []string{EventVanished},
		},
		"the maintenance is completed": {
			modify: gone(state.Cancelled, func(in *input) { in.state.Maintenance, in.news.completed = &ownRef, true }), phase: state.Armed,
		},
		"completed, but the kubelet is not back": {
			modify: gone(state.Cancelled, func(in *input) {
				in.state.Maintenance, in.state.Local, in.news.completed = &ownRef, interrupted, true
			}),
			phase: state.Cancelled, do: "resume", local: interrupted,
		},
		"the kubelet is back": {
			modify: gone(state.Cancelled, func(in *input) {
				in.state.Local, in.state.Killed, in.news.resumed = interrupted, []state.KilledPod{podA}, true
			}),
			phase: state.Armed,
		},
		"a maintenance that was created too late": {
			modify: gone(state.Cancelled, func(in *input) { in.state.Maintenance, in.news.ensured = nameOnly, &ownRef }),
			phase:  state.Cancelled, maintenance: &ownRef, task: taskComplete,
		},
		"the engine was removed from the configuration": {
			modify: both(gone(state.Cancelled, func(in *input) { in.state.Local = interrupted }), func(s *settings, _ *input) { s.engine = "" }),
			phase:  state.Armed,
		},
		"the engine was removed, and the kubelet is stopped": {
			modify: both(gone(state.Cancelled, func(in *input) { in.state.Local, in.stopped = interrupted, true }), func(s *settings, _ *input) { s.engine = "" }),
			phase:  state.Cancelled, do: "resume", local: interrupted,
		},
	})
}

func TestDecideLockPath(t *testing.T) {
	for name, tt := range map[string]struct {
		machine MachineState
		want    string
	}{
		"the machine does not respond yet": {MachineState{}, "/run/systemd/inhibit/1.ref"},
		"the lock of the last process":     {MachineState{LockPath: "/run/systemd/inhibit/2.ref"}, "/run/systemd/inhibit/2.ref"},
		"no lock":                          {MachineState{Known: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := idleInput()
			in.state.LockPath, in.machine = "/run/systemd/inhibit/1.ref", tt.machine
			if got := decide(testSettings(), in).next.LockPath; got != tt.want {
				t.Errorf("lock path %q, want %q", got, tt.want)
			}
		})
	}
}
