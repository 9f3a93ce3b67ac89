// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// turnOfWeb0 makes a decision every ten seconds until the evacuator reports completion for web-0.
// It calls happens before each decision. It returns how long that took, or 0 if it took more than
// two days, and how often progress was reported.
func turnOfWeb0(s situation, happens func(elapsed time.Duration, s *situation)) (took time.Duration, stamps int) {
	for elapsed := time.Duration(0); elapsed <= 48*time.Hour; elapsed += 10 * time.Second {
		s.now = start.Add(elapsed)
		s.pods = slices.Clone(s.pods)
		happens(elapsed, &s)
		d := decide(s)
		s.memory = d.memory
		for _, r := range d.reports {
			if r.evacuation.Name != web0 {
				continue
			}
			if r.completed {
				return elapsed, stamps
			}
			if r.progress {
				stamps++
			}
			e := s.pods[0].evacuation.DeepCopy()
			r.writeTo(&e.Status, s.now)
			s.pods[0].evacuation = e
		}
	}
	return 0, stamps
}

func TestFlappingIsNoProgress(t *testing.T) {
	const every = 4 * time.Minute
	// odd reports whether an odd number of periods has passed.
	odd := func(elapsed time.Duration) bool { return elapsed/every%2 == 1 }
	set := func(s *situation, mod func(*appsv1.Deployment)) {
		s.deployment = s.deployment.DeepCopy()
		mod(s.deployment)
	}
	up := func(pods ...pod) situation {
		return at(
			0, newDeployment(2, recorded(1, 2, web0)), append([]pod{newTestPod("web-0", leaves(ours))}, pods...)...,
		)
	}
	waiting := at(0, newDeployment(1, func(d *appsv1.Deployment) { d.Status.Replicas = 2 }),
		newTestPod("web-0", leaves(ours)), newTestPod("web-1", unready))
	for name, tc := range map[string]struct {
		s       situation
		happens func(elapsed time.Duration, s *situation)
		// within is the latest time at which the evacuator must report completion, and stamps how
		// often progress may be reported until then.
		within time.Duration
		stamps int
	}{
		"the pods of a rollout that is stuck come and go": {
			s: waiting,
			happens: func(elapsed time.Duration, s *situation) {
				set(s, func(d *appsv1.Deployment) {
					d.Status.AvailableReplicas, d.Status.UpdatedReplicas = 1, 1
					if odd(elapsed) {
						d.Status.AvailableReplicas, d.Status.UpdatedReplicas = 0, 0
					}
				})
			},
			within: 5 * time.Minute, stamps: 1,
		},
		"the template changes repeatedly": {
			s: waiting,
			happens: func(elapsed time.Duration, s *situation) {
				set(s, func(d *appsv1.Deployment) {
					d.Generation = 1 + int64(elapsed/every)
					d.Status.ObservedGeneration = d.Generation
				})
			},
			within: 5 * time.Minute, stamps: 1,
		},
		"the surge pod restarts repeatedly before it is available": {
			s: up(newTestPod("web-1", fresh)),
			happens: func(elapsed time.Duration, s *situation) {
				set(s, func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 30 })
				s.pods[1].Pod = s.pods[1].DeepCopy()
				c := &s.pods[1].Status.Conditions[0]
				c.Status, c.LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(s.now)
				if elapsed%time.Minute < 20*time.Second {
					c.Status = corev1.ConditionTrue
				}
			},
			within: 6 * time.Minute, stamps: 2,
		},
		"progress without an end": {
			s: at(0, newDeployment(40, recorded(20, 40, web0)), newTestPod("web-0", leaves(ours))),
			happens: func(elapsed time.Duration, s *situation) {
				for i := range 19 {
					if name := "old-" + string(rune('a'+i)); elapsed == 0 {
						s.pods = append(s.pods, newTestPod(name))
					}
				}
				if elapsed%every == 0 {
					s.pods = append(s.pods, newTestPod("new-"+string(rune('a'+elapsed/every)), fresh, unready))
				}
			},
			within: 15 * time.Minute, stamps: 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			took, stamps := turnOfWeb0(tc.s, tc.happens)
			is.True(t, took != 0 && took <= tc.within, "the turn ended after %s, want it within %s", took, tc.within)
			is.True(t, stamps <= tc.stamps, "reported progress %d times, want at most %d", stamps, tc.stamps)
		})
	}
}

func TestRealProgressIsReported(t *testing.T) {
	s := at(0, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", leaves(ours), minOne(2, 1)))
	_, stamps := turnOfWeb0(s, func(elapsed time.Duration, s *situation) {
		switch elapsed {
		case time.Minute:
			s.pods = append(s.pods, newTestPod("web-1", fresh, pending("no room")))
		case 2 * time.Minute:
			s.pods[1] = newTestPod("web-1", fresh, unready)
		}
	})
	// Progress is reported with the first report, for a created pod, and for a scheduled pod.
	is.True(t, stamps == 3, "reported progress %d times, want 3", stamps)
}

func TestReplacementsAreToldByTheClockOfTheHost(t *testing.T) {
	for name, ahead := range map[string]time.Duration{
		"ours is an hour ahead": time.Hour, "ours is an hour behind": -time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			s := at(ahead, newDeployment(1), newTestPod("web-0", leaves(ours), minOne(1, 1)))
			s.servingSince = s.now
			s.pods[0].evacuation.Status.ActiveEvacuatorSince = &metav1.Time{Time: s.now}
			d := decide(s)
			if d.scale == nil || d.scale.record == nil || !d.scale.record.Since.Equal(&s.pods[0].CreationTimestamp) {
				t.Fatalf("decided %q, want a record since %s", summary(d), s.pods[0].CreationTimestamp)
			}
			r := d.scale.record
			s.deployment = newDeployment(2, annotated(*r))
			s.target = targetOf(s.deployment, nil, state{})
			s.pods = append(s.pods, newTestPod("web-1", fresh, cordoned))
			if got := s.replacements(); len(got) != 1 || got[0].Name != "web-1" {
				t.Errorf("got %d replacements, want web-1", len(got))
			}
			// A pod of the surge on a node under maintenance does not count as serving.
			is.Equal(t, s.serving(), 1, "pods serve")
		})
	}
}

// TestYoungestPodOnACordonedNodeIsNoReplacement: the first pod of the surge was scheduled to a node
// that is drained. It has left, and another pod has replaced it. The youngest of the pods that are
// older than the surge is on a node that a user has cordoned.
func TestYoungestPodOnACordonedNodeIsNoReplacement(t *testing.T) {
	youngest := func(p *pod) { p.CreationTimestamp = metav1.NewTime(start) }
	s := at(time.Minute, newDeployment(3, recorded(2, 3, web0, "uid-web-2-web-2")),
		newTestPod("web-0", leaves(ours), minOne(3, 1)), newTestPod("web-1", youngest, cordoned), newTestPod("web-3", fresh))
	if got := s.replacements(); len(got) != 1 || got[0].Name != "web-3" {
		t.Errorf("got %d replacements, want web-3", len(got))
	}
	if spare := new(decision).spare(s); spare != 1 {
		t.Errorf("%d pods may leave, want 1: three serve and two have to", spare)
	}
}

// TestPodThatNeverRecoversHoldsASurgeForAWhile covers a pod that becomes ready again and again, and
// never becomes available. The pod that leaves must keep its replacement.
func TestPodThatNeverRecoversHoldsASurgeForAWhile(t *testing.T) {
	s := at(10*time.Second, newDeployment(3, recorded(2, 3, web0)), newTestPod("web-0", leaves(ours), keepsCost), newTestPod("web-1"),
		newTestPod("web-2", fresh))
	for s.now.Before(start.Add(s.timeout)) {
		s.pods[1] = newTestPod("web-1", unready, readyFor(start.Add(20*time.Second).Sub(s.now)))
		d := decide(s)
		if text := summary(d); text != "" {
			is.Equal(t, text, "hand over web-0;", "decided")
			is.Equal(t, s.now.Sub(start), 10*time.Second+s.timeout/2, "the time")
			return
		}
		s.memory, s.now = d.memory, d.wake
	}
	t.Error("the pod has not left")
}

func TestWarningsAreSentOnceForEachText(t *testing.T) {
	s := at(0, newDeployment(1), newTestPod("web-0", leaves(ours)))
	warnings := 0
	for _, texts := range [][]string{{"one"}, {"one", "two"}, {"two", "one"}, {"one"}} {
		s.warnings = texts
		d := decide(s)
		s.memory = d.memory
		for _, e := range d.events {
			if e.reason == EventInvalidAnnotation && e.eventType == corev1.EventTypeWarning {
				warnings++
			}
		}
	}
	is.True(t, warnings == 2, "sent %d warnings, want 2", warnings)
}

// TestPodsThatWereTriedRest covers pods that are blocked after the evacuator has reported
// completion, until the owner fixes the cause.
func TestPodsThatWereTriedRest(t *testing.T) {
	takesUp := func(d decision) bool { return len(d.reports) == 1 && d.reports[0].takesUp }
	ends := func(name string, s situation) memory {
		t.Helper()
		d := decide(s)
		if d.idle || takesUp(d) {
			t.Errorf("%s: got %q, %+v", name, summary(d), d.reports)
		}
		return d.memory
	}
	web1 := newTestPod("web-1")
	stuckAt := func(after time.Duration) situation {
		return at(after, newDeployment(2, stuck), newTestPod("web-0", leaves(ours), minOne(2, 2)), web1)
	}
	blockedAt := func(after time.Duration, m memory) situation {
		s := at(after, newDeployment(2), newTestPod("web-0", leaves(lanes), blocked, minOne(2, 1)), web1)
		s.memory = m
		return s
	}
	again := func(m memory) situation {
		s := stuckAt(20 * time.Minute)
		s.memory = m
		return s
	}
	inVain := goneAt(start, at(10*time.Minute, newDeployment(3, recorded(2, 3, web0)),
		newTestPod("web-0", leaves(lanes), blocked), web1, newTestPod("web-2", fresh)))
	once := ends("a stuck rollout", stuckAt(0))
	for name, tc := range map[string]struct {
		m     memory
		until time.Duration
	}{
		"after a stuck rollout": {once, 5 * time.Minute},
		"after a second one":    {ends("a second one", again(once)), 30 * time.Minute},
		"after a surge in vain": {ends("a surge in vain", inVain), 15 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			d := decide(blockedAt(tc.until-time.Second, tc.m))
			if d.idle || takesUp(d) || !d.wake.Equal(start.Add(tc.until)) {
				t.Errorf("before the end of the rest: got %q, %+v, wake %s; want it to wait until %s", summary(d), d.reports, d.wake, start.Add(tc.until))
			}
			if d := decide(blockedAt(tc.until, d.memory)); !takesUp(d) {
				t.Errorf("after the rest: got %q, %+v", summary(d), d.reports)
			}
		})
	}
	t.Run("eviction reports later than the rest ends", func(t *testing.T) {
		s := at(5*time.Minute, newDeployment(2), newTestPod("web-0", leaves(lanes), minOne(2, 1)), web1)
		s.memory = once
		if d := decide(s); d.idle || len(d.memory.tried) != 1 {
			t.Errorf("got %q with the tries %v, want the try to be kept", summary(d), d.memory.tried)
		}
	})
	t.Run("the pod has left", func(t *testing.T) {
		s := at(time.Minute, newDeployment(1), web1)
		s.memory = once
		if d := decide(s); !d.idle {
			t.Errorf("got %q, wake %s", summary(d), d.wake)
		}
	})
}

func TestAnnotationsOfTheOwner(t *testing.T) {
	for name, tc := range map[string]struct {
		annotations map[string]string
		timeout     time.Duration
		warnings    int
	}{
		"none":      {nil, 5 * time.Minute, 0},
		"a timeout": {map[string]string{v1alpha1.AnnotationSurgeTimeout: "20m"}, 20 * time.Minute, 0},
		"a timeout that is malformed": {
			map[string]string{v1alpha1.AnnotationSurgeTimeout: "20"}, 5 * time.Minute, 1,
		},
		"a mode that is unknown": {
			map[string]string{v1alpha1.AnnotationSurge: "Sometimes"}, 5 * time.Minute, 1,
		},
		"a mode that is known": {map[string]string{v1alpha1.AnnotationSurge: "Always"}, 5 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := at(0, newDeployment(1, func(d *appsv1.Deployment) { d.Annotations = tc.annotations }))
			s.readAnnotations()
			if s.timeout != tc.timeout || len(s.warnings) != tc.warnings {
				t.Errorf("got a timeout of %s and %q", s.timeout, s.warnings)
			}
		})
	}
}

func TestPurpose(t *testing.T) {
	long := "ä"
	for len(long) < maxReason {
		long += "ä"
	}
	for name, tc := range map[string]struct{ reason, want string }{
		"a reason":                  {"Kernel update", " for NodeMaintenance rack-7 (Kernel update)"},
		"none":                      {"", " for NodeMaintenance rack-7"},
		"a reason of blanks":        {" \n\t ", " for NodeMaintenance rack-7"},
		"an escape sequence":        {"a\x1b[31mb\x00c\u0085d", " for NodeMaintenance rack-7 (a[31mbcd)"},
		"a reason that is too long": {"x" + long, " for NodeMaintenance rack-7 (x" + long[:maxReason-2] + ")"},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, purposeOf("rack-7", tc.reason), tc.want)
		})
	}
}
