// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestDecideSurgePending(t *testing.T) {
	const (
		class   = v1alpha1.EvacuatorClassDeployment
		pending = "SurgePending"
	)
	surging := func(mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
		e := newEvacuation(withEvacuators(class), active(class))
		return build.With(e, mods...)
	}
	timeout := func(d time.Duration) func(*situation) { return func(s *situation) { s.surgeTimeout = d } }
	runDecide(t, map[string]decideTest{
		"a surge without progress is not blocked before the surge timeout": {
			evacuation: surging(reported(minute, "web is scaled up")), pod: newPod(),
			at:   6*minute - second,
			want: outcome{Active: class, Progress: minute, Wake: 6 * minute},
		},
		"a surge without progress is pending after the surge timeout": {
			evacuation: surging(reported(minute, "web is scaled up")), pod: newPod(), at: 6 * minute,
			want: outcome{Active: class, Progress: minute, Blocked: pending, Wake: 31 * minute, Events: EventBlocked},
		},
		"a pod that must not leave without a replacement stays beyond every deadline": {
			evacuation: surging(reported(minute, "no surge pod can be created")), pod: newPod(), at: 24 * hour,
			mod: func(s *situation) {
				s.standing = &eviction.Blocker{Reason: v1alpha1.ReasonReplicaFailure, Message: "None can be created."}
			},
			want: outcome{
				Active: class, Progress: minute, Blocked: v1alpha1.ReasonReplicaFailure,
				Events: EventBlocked,
			},
		},
		"a pod that is up for eviction and must not leave stays": {
			evacuation: upForEviction(), pod: newPod(), at: hour,
			mod: func(s *situation) {
				s.standing = &eviction.Blocker{Reason: v1alpha1.ReasonReplicaFailure, Message: "None can be created."}
			},
			want: outcome{
				Active: evict, Blocked: v1alpha1.ReasonReplicaFailure, Wake: hour + standingRetry,
				Events: EventBlocked,
			},
		},
		"a pod that is up for eviction waits during a scale-down and is not blocked": {
			evacuation: upForEviction(), pod: newPod(), at: hour,
			mod: func(s *situation) {
				s.standing = &eviction.Blocker{Reason: v1alpha1.ReasonPodWaits, Message: "Another pod is deleted first."}
			},
			want: outcome{Active: evict, Blocked: "not: " + v1alpha1.ReasonPodWaits, Wake: hour + waitRetry},
		},
		"the surge timeout of the Deployment counts": {
			evacuation: surging(reported(minute, "web is scaled up")), pod: newPod(), at: 20 * minute,
			mod:  timeout(20 * minute),
			want: outcome{Active: class, Progress: minute, Wake: 21 * minute},
		},
		"progress clears Blocked": {
			evacuation: surging(reported(10*minute, "scheduled"), withCondition("Blocked", pending, 0)),
			pod:        newPod(), at: 10 * minute,
			want: outcome{Active: class, Progress: 10 * minute, Blocked: "not: NotBlocked", Wake: 15 * minute},
		},
		"a surge timeout beyond the progress deadline does not hide a pending surge": {
			evacuation: surging(reported(minute, "web is scaled up")), pod: newPod(), at: 16 * minute,
			mod:  timeout(hour),
			want: outcome{Active: class, Progress: minute, Blocked: pending, Wake: 31 * minute, Events: EventBlocked},
		},
		"a new leader waits for a report of the evacuator": {
			evacuation: surging(reported(minute, "web is scaled up")), pod: newPod(), at: hour,
			mod:  func(s *situation) { s.servingSince = start.Add(hour) },
			want: outcome{Active: class, Progress: minute, Wake: 62*minute + 30*second},
		},
		"a new leader does not clear Blocked": {
			evacuation: surging(reported(minute, "web is scaled up"), withCondition("Blocked", pending, 0)),
			pod:        newPod(), at: hour, mod: func(s *situation) { s.servingSince = start.Add(hour) },
			want: outcome{Active: class, Progress: minute, Blocked: pending, Wake: 65 * minute},
		},
		"a terminating pod is not pending": {
			evacuation: surging(reported(minute, "x")), pod: newPod(terminatingUntil(20 * minute)),
			at:   10 * minute,
			want: outcome{Active: class, Progress: minute, Wake: 20*minute + overdueAfter},
		},
	})
}

func TestMessageOfAPendingSurge(t *testing.T) {
	class := v1alpha1.EvacuatorClassDeployment
	for name, tt := range map[string]struct {
		mods []func(*v1alpha1.Evacuation)
		want []string
		not  string
	}{
		"it advises what to do, and quotes the report of the evacuator": {
			mods: []func(*v1alpha1.Evacuation){
				reported(minute, "surge pod web-x is Pending:\n0/20 nodes \x1b[31mare available"),
			},
			want: []string{
				"since 2000-01-01T00:01:00Z", "Free capacity", "maintenance.haulout.dev/surge-timeout",
				"maintenance.haulout.dev/surge: Disabled", `"surge pod web-x is Pending: 0/20 nodes [31mare available"`,
			},
			not: "Check that the controller behind it runs",
		},
		"it does not quote the message of the server": {
			mods: []func(*v1alpha1.Evacuation){
				func(e *v1alpha1.Evacuation) { e.Spec.ProgressDeadlineSeconds = nil },
			},
			want: []string{"since 2000-01-01T00:00:00Z"}, not: "Last report",
		},
	} {
		t.Run(name, func(t *testing.T) {
			mods := append([]func(*v1alpha1.Evacuation){withEvacuators(class), active(class)}, tt.mods...)
			got := decide(situation{
				now: start.Add(20 * minute), evacuation: newEvacuation(mods...), pod: newPod(),
				podType: v1alpha1.PodTypeDefault, servingSince: start.Add(-hour),
				startDeadline: 25 * minute, surgeTimeout: protocol.DefaultSurgeTimeout,
			})
			blocked := meta.FindStatusCondition(got.status.Conditions, v1alpha1.ConditionBlocked)
			must.True(t, blocked != nil, "condition Blocked not found")
			for _, want := range tt.want {
				is.True(t, strings.Contains(blocked.Message, want), "got message %q, want %q in it", blocked.Message, want)
			}
			is.True(t, !strings.Contains(blocked.Message, tt.not), "got message %q, want it without %q", blocked.Message, tt.not)
		})
	}
}

func TestEvictionIsNotSentOfAPodThatMustNotLeave(t *testing.T) {
	for name, tc := range map[string]struct {
		replaced bool
		why      *eviction.Blocker
		want     bool
	}{
		"a reason that is newer than the decision": {true, &eviction.Blocker{Reason: v1alpha1.ReasonReplicaFailure}, false},
		"no reason":                    {true, nil, true},
		"a pod without that evacuator": {false, &eviction.Blocker{Reason: v1alpha1.ReasonReplicaFailure}, true},
	} {
		t.Run(name, func(t *testing.T) {
			evacuation, pod := upForEviction(), newPod()
			// A user is the instigator, so no maintenance has to drain the node.
			evacuation.Finalizers = []string{v1alpha1.FinalizerInstigatorPrefix + "user.example.com"}
			c, _ := newIdleController(t, fake.NewClientset(pod), evacuation)
			pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
			must.Do(t, pods.Add(pod))
			c.podLister = corelisters.NewPodLister(pods)
			c.standing = func(_ *corev1.Pod, class string) *eviction.Blocker {
				is.True(t, class == evict, "asked for class %q", class)
				return tc.why
			}
			request := eviction.Request{Evacuation: keyOf(evacuation), Pod: pod.Name, UID: pod.UID, ReplacedFirst: tc.replaced}
			is.Equal(t, c.isWanted(request), tc.want)
			s, err := c.gather(t.Context(), evacuation)
			if err != nil || s.standing != nil {
				t.Errorf("got %+v, %v for a pod that the evacuator of Deployments is not asked about", s.standing, err)
			}
			evacuation.Spec.Evacuators = []v1alpha1.Evacuator{{EvacuatorClass: v1alpha1.EvacuatorClassDeployment}}
			if s, err = c.gather(t.Context(), evacuation); err != nil || s.standing != tc.why {
				t.Errorf("got %+v, %v, want %+v", s.standing, err, tc.why)
			}
		})
	}
}
