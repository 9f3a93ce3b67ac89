// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// raw is the finalizer of an Evacuation that was made for an eviction.
const raw = v1alpha1.FinalizerInstigatorRawEviction

// asked records the last eviction of the pod.
func asked(at time.Duration) func(*v1alpha1.Evacuation) {
	return func(e *v1alpha1.Evacuation) {
		metav1.SetMetaDataAnnotation(&e.ObjectMeta, v1alpha1.AnnotationEvictionAsked, after(at).UTC().Format(time.RFC3339))
	}
}

func TestDecideExpiry(t *testing.T) {
	forbidding := withStatus(func(st *v1alpha1.EvacuationStatus) { st.EvacuationCancellationPolicy = forbid })
	done := withStatus(func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true })
	ttl := func(s *situation) { s.rawEvictionTTL = 15 * minute }
	expired := outcome{Active: classA, Progress: 14 * minute, Release: releaseRawEviction, Events: EventRawEvictionExpired}
	report := reported(14*minute, "flushing")
	runDecide(t, map[string]decideTest{
		"the client may ask again": {
			evacuation: turnOfA(withFinalizers(raw), asked(0), report), pod: newPod(), mod: ttl, at: 15*minute - second,
			want: outcome{Active: classA, Progress: 14 * minute, Wake: 15 * minute},
		},
		"the client has given up": {
			evacuation: turnOfA(withFinalizers(raw), asked(0), report), pod: newPod(), mod: ttl, at: 15 * minute, want: expired,
		},
		"the client has asked again": {
			evacuation: turnOfA(withFinalizers(raw), asked(5*minute), report), pod: newPod(), mod: ttl, at: 15 * minute,
			want: outcome{Active: classA, Progress: 14 * minute, Wake: 20 * minute},
		},
		"without a record, the creation counts": {
			evacuation: turnOfA(withFinalizers(raw), report), pod: newPod(), mod: ttl, at: 15 * minute, want: expired,
		},
		"another instigator requests it as well": {
			evacuation: turnOfA(withFinalizers(theirs, raw), asked(0), report), pod: newPod(), mod: ttl, at: 15 * minute, want: expired,
		},
		"only other instigators request it": {
			evacuation: turnOfA(withFinalizers(theirs), asked(0), report), pod: newPod(), mod: ttl, at: 15 * minute,
			want: outcome{Active: classA, Progress: 14 * minute, Wake: 29 * minute},
		},
		"the evacuator forbids a cancellation": {
			evacuation: turnOfA(withFinalizers(raw), asked(0), report, forbidding), pod: newPod(), mod: ttl, at: 15 * minute,
			want: outcome{Active: classA, Progress: 14 * minute, Policy: forbid, Release: releaseRawEviction, Events: EventRawEvictionExpired},
		},
		"the pod waits for its eviction": {
			evacuation: upForEviction(withFinalizers(raw), asked(0)), pod: newPod(), mod: ttl, at: 15 * minute,
			want: outcome{Active: evict, Release: releaseRawEviction, Events: EventRawEvictionExpired},
		},
		"the evacuators are done": {
			evacuation: turnOfA(withFinalizers(raw), asked(0), done), pod: newPod(), mod: ttl, at: minute,
			want: outcome{Active: evict, Since: minute, Wake: 15 * minute},
			says: "The pod waits for the next eviction by a client: a.example.com has finished",
		},
		"the evacuators are done, and another instigator requests it as well": {
			evacuation: turnOfA(withFinalizers(theirs, raw), asked(0), done), pod: newPod(), mod: ttl, at: minute,
			want: outcome{Active: evict, Since: minute, Evict: true, Wake: 15 * minute},
			says: "The pod waits for its eviction: a.example.com has finished",
		},
		"its client may evict the pod": {
			evacuation: upForEviction(withFinalizers(raw), asked(0)), pod: newPod(), mod: ttl, at: minute,
			want: outcome{Active: evict, Wake: 15 * minute},
		},
		"another instigator requests its eviction": {
			evacuation: upForEviction(withFinalizers(theirs, raw), asked(0)), pod: newPod(), mod: ttl, at: minute,
			want: outcome{Active: evict, Evict: true, Wake: 15 * minute},
		},
		"the pod is stopping": {
			evacuation: turnOfA(withFinalizers(raw), asked(0), report), pod: newPod(stoppingFor(hour)), mod: ttl, at: 15 * minute,
			want: outcome{Active: classA, Progress: 14 * minute, Blocked: "not: PodStopping", Wake: 44 * minute},
		},
		"the pod has left": {
			evacuation: turnOfA(withFinalizers(raw), asked(0), report), mod: ttl, at: 15 * minute,
			want: outcome{Active: classA, Progress: 14 * minute, Complete: "PodDeleted", Wake: 20 * minute},
		},
	})
}

// TestTheServerDoesNotEvictForOthers lets the evacuator of a pod finish, whose eviction another
// webhook may have refused.
func TestTheServerDoesNotEvictForOthers(t *testing.T) {
	for name, test := range map[string]struct {
		finalizers []string
		want       bool
	}{"only an eviction asks": {[]string{raw}, false}, "another instigator asks": {[]string{raw, theirs}, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				finished := withStatus(func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true })
				w := newWorld(t, 0, newExpiring(withFinalizers(test.finalizers...), finished), newPod(), newNode(corev1.ConditionTrue))
				w.until("no evacuator is left", time.Second, hasClass(evict))
				<-time.After(time.Minute)
				is.Equal(t, w.host.sent() > 0, test.want, "an eviction by the server")
			})
		})
	}
}

// TestTheLastCheckKnowsWhoAsks lets the other instigators withdraw after a pod was handed to the
// queue of evictions.
func TestTheLastCheckKnowsWhoAsks(t *testing.T) {
	for name, test := range map[string]struct {
		finalizers []string
		want       bool
	}{"another instigator asks": {[]string{raw, theirs}, true}, "only an eviction is left": {[]string{raw}, false}} {
		t.Run(name, func(t *testing.T) {
			evacuation, pod := upForEviction(withFinalizers(test.finalizers...)), newPod()
			c, _ := newIdleController(t, fake.NewClientset(pod), evacuation)
			is.Equal(t, c.isWanted(eviction.Request{Evacuation: keyOf(evacuation), Pod: pod.Name, UID: pod.UID}), test.want)
		})
	}
}

// newExpiring returns the Evacuation of an eviction with an active evacuator that reports for
// hours.
func newExpiring(mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
	patient := func(e *v1alpha1.Evacuation) { e.Spec.ProgressDeadlineSeconds = new(int32(24 * 3600)) }
	return turnOfA(append([]func(*v1alpha1.Evacuation){withFinalizers(raw), asked(0), reported(0, "flushing"), patient}, mods...)...)
}

// TestEvictionsThatNobodyRepeats runs the controller until the request of an eviction is over.
func TestEvictionsThatNobodyRepeats(t *testing.T) {
	isReleased := func(e *v1alpha1.Evacuation) bool { return e == nil || !slices.Contains(e.Finalizers, raw) }
	for name, test := range map[string]struct {
		mods []func(*v1alpha1.Evacuation)
		// leads is the time at which the leader starts; acts changes the Evacuation while it runs.
		leads time.Duration
		acts  func(*world)
		// want is the time at which the request ends; stays is set if the Evacuation does not.
		want  time.Duration
		stays bool
	}{
		"asked once": {want: 15 * minute},
		"asked again": {
			acts: func(w *world) {
				<-time.After(10 * time.Minute)
				w.api.edit(w.T, w.target, asked(10*minute))
			},
			want: 25 * minute,
		},
		"a new leader knows when":      {leads: 10 * minute, want: 15 * minute},
		"a new leader starts too late": {leads: hour, want: hour},
		"another instigator":           {mods: []func(*v1alpha1.Evacuation){withFinalizers(theirs, raw)}, want: 15 * minute, stays: true},
		"an evacuator that forbids a cancellation": {
			mods: []func(*v1alpha1.Evacuation){withStatus(func(st *v1alpha1.EvacuationStatus) { st.EvacuationCancellationPolicy = forbid })},
			want: 15 * minute, stays: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, test.leads, newExpiring(test.mods...), newPod(), newNode(corev1.ConditionTrue))
				if test.acts != nil {
					test.acts(w)
				}
				w.until("the request of the eviction is over", time.Second, isReleased)
				over := w.clock.Since(start)
				is.True(t, over >= test.want && over <= test.want+time.Minute, "the request was over after %v, want %v", over, test.want)
				w.expectEvent(EventRawEvictionExpired)
				if test.stays {
					<-time.After(time.Minute)
					must.True(t, w.get() != nil, "the Evacuation was deleted")
					is.True(t, !protocol.IsForEviction(w.get()), "the finalizers are %q", w.get().Finalizers)
					return
				}
				w.until("the Evacuation is gone", time.Second, gone)
				is.Equal(t, w.host.sent(), 0, "evictions")
			})
		})
	}
}
