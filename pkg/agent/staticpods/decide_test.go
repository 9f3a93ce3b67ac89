// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
)

func TestDecide(t *testing.T) {
	situationOf := func(mods ...func(*situation)) situation {
		s := situation{
			now: at, namespace: "default", name: "web-node-7", dir: "/manifests", pod: mirror("web"), isMirror: true,
			targeting: []Maintenance{{Name: "update", UID: "uid-update"}}, manifests: 1, running: true, instance: "instance-1",
		}
		for _, mod := range mods {
			mod(&s)
		}
		return s
	}
	isParked := func(mods ...func(*Entry)) func(*situation) {
		return func(s *situation) {
			e := Entry{ParkedAt: at.Add(-3 * time.Second), GracePeriodSeconds: 5, KubeletInstance: "instance-1", Maintenances: s.targeting}
			for _, mod := range mods {
				mod(&e)
			}
			s.manifests, s.parked = 0, append(s.parked, e)
		}
	}
	gone := func(s *situation) { s.pod, s.isMirror, s.running, s.targeting = nil, false, false, nil }
	for name, tc := range map[string]struct {
		situation     situation
		step          step
		message       string
		expected      time.Duration
		late, restart bool
	}{
		"park":                     {situation: situationOf(), step: stepPark},
		"leave an untargeted pod":  {situation: situationOf(func(s *situation) { s.targeting = nil }), step: stepLeave},
		"leave another pod":        {situation: situationOf(func(s *situation) { s.isMirror = false }), step: stepLeave},
		"leave a pod that is gone": {situation: situationOf(gone), step: stepLeave},
		"leave a pod that is being restored": {
			situation: situationOf(isParked(func(e *Entry) { e.Restoring = true }), gone), step: stepLeave,
		},
		"give up a pod from a URL": {
			situation: situationOf(func(s *situation) { s.pod.Annotations[annotationConfigSource] = "http" }), step: stepGiveUp, message: "staticPodURL",
		},
		"wait for a manifest": {situation: situationOf(func(s *situation) { s.manifests = 0 }), step: stepWait, message: "/manifests has no manifest"},
		"wait for a healthy kubelet": {
			situation: situationOf(func(s *situation) { s.unhealthy = errors.New("refused") }), step: stepWait, message: "healthy",
		},
		"keep a pod of the control plane": {
			situation: situationOf(func(s *situation) { s.kept, s.unhealthy = protocol.KeptControlPlane, errors.New("refused") }),
			step:      stepWait, message: "keeps running until the machine goes down (ControlPlaneNode)",
		},
		"wait for the runtime to tell whether a pod runs": {
			situation: situationOf(isParked(), gone, func(s *situation) { s.runtime = errors.New("ask the container runtime: refused") }),
			step:      stepWait, message: "does not report its containers: ask the container runtime",
		},
		"watch": {
			situation: situationOf(isParked()), step: stepWatch, message: "due to node maintenance update;", expected: 2 * time.Second,
		},
		"watch a kubelet without file events": {
			situation: situationOf(isParked(), func(s *situation) { s.latency = 20 * time.Second }), step: stepWatch, expected: 22 * time.Second,
		},
		"watch the last of several manifests": {
			situation: situationOf(isParked(), isParked(func(e *Entry) { e.ParkedAt, e.GracePeriodSeconds = at, 60 })),
			step:      stepWatch, expected: time.Minute,
		},
		"watch a pod that is not late": {
			situation: situationOf(isParked(func(e *Entry) { e.ParkedAt = at.Add(-15 * time.Second) })), step: stepWatch, expected: -10 * time.Second,
		},
		"watch a late pod": {
			situation: situationOf(isParked(func(e *Entry) { e.ParkedAt = at.Add(-16 * time.Second) })),
			step:      stepWatch, message: "it should have stopped at 2026-05-01T11:59:49Z", expected: -11 * time.Second, late: true,
		},
		"watch after the clock was set back": {
			situation: situationOf(isParked(func(e *Entry) { e.ParkedAt = at.Add(time.Hour) })), step: stepWatch, expected: 5 * time.Second,
		},
		"watch a pod whose kubelet was restarted": {
			situation: situationOf(isParked(), func(s *situation) { s.instance = "instance-2" }),
			step:      stepWatch, message: "restarted", expected: 2 * time.Second, restart: true,
		},
		"watch a pod whose kubelet is down": {
			situation: situationOf(isParked(), func(s *situation) { s.instance = "" }), step: stepWatch, expected: 2 * time.Second,
		},
		"watch the mirror pod": {
			situation: situationOf(isParked(), func(s *situation) { s.running = false }), step: stepWatch, expected: 2 * time.Second,
		},
		"watch the containers": {
			situation: situationOf(isParked(), gone, func(s *situation) { s.running = true }), step: stepWatch,
			message: "due to node maintenance update", expected: 2 * time.Second,
		},
		"watch for a manifest that is back": {
			situation: situationOf(isParked(), gone, func(s *situation) { s.manifests = 1 }), step: stepWatch, expected: 2 * time.Second,
		},
		"done": {situation: situationOf(isParked(), gone), step: stepDone, message: "has stopped"},
		"done when a pod of another kind has the name": {
			situation: situationOf(isParked(), gone, func(s *situation) { s.pod = &corev1.Pod{} }), step: stepDone, message: "has stopped",
		},
		"done after a restart of the kubelet": {
			situation: situationOf(isParked(), gone, func(s *situation) { s.instance = "instance-2" }), step: stepDone, restart: true,
		},
		"done again after a restart of the kubelet": {
			situation: situationOf(isParked(func(e *Entry) { e.Stopped = true }), gone, func(s *situation) { s.instance = "instance-2" }), step: stepDone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(tc.situation)
			if got.step != tc.step || got.late != tc.late || got.restarted != tc.restart || !strings.Contains(got.message, tc.message) {
				t.Errorf("got %+v, want step %d, late %t, restarted %t and the message %q", got, tc.step, tc.late, tc.restart, tc.message)
			}
			if (got.message == "") != (tc.step == stepPark || tc.step == stepLeave) {
				t.Errorf("got the message %q", got.message)
			}
			if want := at.Add(tc.expected); tc.step == stepWatch && !got.expected.Equal(want) {
				t.Errorf("got the expected finish %v, want %v", got.expected, want)
			}
		})
	}
}
