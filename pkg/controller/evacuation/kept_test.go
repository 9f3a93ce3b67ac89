// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const daemonSetClass = v1alpha1.EvacuatorClassDaemonSet

// requested adds the report with which the DaemonSet evacuator requests the eviction.
func requested(e *v1alpha1.Evacuation) {
	e.Status.EvacuationProgressTimestamp, e.Status.ExpectedEvacuationFinishTime = after(0), after(time.Minute)
}

func ofDaemonSet(p *corev1.Pod) {
	p.OwnerReferences = build.Owner("apps/v1", "DaemonSet", "logger", "ds")
}

func TestDecideDaemonSetPod(t *testing.T) {
	asked := func(mods ...func(*v1alpha1.Evacuation)) *v1alpha1.Evacuation {
		e := newEvacuation(withEvacuators(daemonSetClass), active(daemonSetClass), requested)
		return build.With(e, mods...)
	}
	targeted := func(s *situation) { s.targeted, s.podType = true, v1alpha1.PodTypeDaemonSet }
	blockedBy := func(reason string) func(*situation) {
		return func(s *situation) {
			targeted(s)
			s.eviction = eviction.State{
				Known: true, Blocker: &eviction.Blocker{Reason: reason, Message: "Budget logger."},
			}
		}
	}
	wasBlocked := withCondition(v1alpha1.ConditionBlocked, "PodDisruptionBudget", 0)
	runDecide(t, map[string]decideTest{
		"the pod is evicted when the evacuator requests it": {
			evacuation: asked(), pod: newPod(), mod: targeted,
			want: outcome{Active: daemonSetClass, Evict: true, Wake: 15 * time.Minute},
		},
		"the pod is not evicted before the evacuator requests it": {
			evacuation: newEvacuation(withEvacuators(daemonSetClass), active(daemonSetClass)), pod: newPod(),
			mod: targeted, want: outcome{Active: daemonSetClass, Wake: 2*time.Minute + 30*time.Second},
		},
		"the pod is not evicted if no maintenance targets it": {
			evacuation: asked(), pod: newPod(),
			mod:  func(s *situation) { s.podType = v1alpha1.PodTypeDaemonSet },
			want: outcome{Active: daemonSetClass, Wake: 15 * time.Minute},
		},
		"the message of the evacuator stays if the queue has a message": {
			evacuation: asked(), pod: newPod(),
			mod: func(s *situation) {
				targeted(s)
				s.eviction = eviction.State{Known: true, Message: "The pod waits for other pods."}
			},
			want: outcome{Active: daemonSetClass, Evict: true, Wake: 15 * time.Minute}, says: daemonSetClass,
		},
		"a pod of another type is not evicted": {
			evacuation: asked(), pod: newPod(), mod: func(s *situation) { s.targeted = true },
			want: outcome{Active: daemonSetClass, Wake: 15 * time.Minute},
		},
		"the pod waits for its budget": {
			evacuation: asked(), pod: newPod(), mod: blockedBy("UnhealthyPodsHoldBudget"),
			want: outcome{
				Active: daemonSetClass, Blocked: "UnhealthyPodsHoldBudget", Evict: true,
				Wake: time.Minute, Events: EventBlocked,
			},
		},
		"the evacuator stays active while the budget allows no eviction": {
			evacuation: asked(wasBlocked), pod: newPod(), at: 24 * time.Hour, mod: blockedBy("PodDisruptionBudget"),
			want: outcome{
				Active: daemonSetClass, Since: 24 * time.Hour, Blocked: "PodDisruptionBudget",
				Evict: true, Wake: 24*time.Hour + time.Minute,
			},
		},
	})
}

func TestMessageOfAKeptDaemonSetPod(t *testing.T) {
	for name, tt := range map[string]struct {
		reason string
		at     time.Duration
		want   bool
	}{
		"the budget has refused for less than BudgetPatience": {
			reason: "PodDisruptionBudget", at: protocol.DefaultBudgetPatience - time.Second,
		},
		"the budget has refused for BudgetPatience": {
			reason: "PodDisruptionBudget", at: protocol.DefaultBudgetPatience, want: true,
		},
		"the budget cannot be computed": {reason: "PodDisruptionBudgetSyncFailed", at: 0, want: true},
		"the eviction is forbidden":     {reason: "EvictionForbidden", at: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvacuation(withEvacuators(daemonSetClass), active(daemonSetClass), requested,
				withCondition(v1alpha1.ConditionBlocked, tt.reason, 0))
			d := decide(situation{
				now: start.Add(tt.at), evacuation: e, pod: newPod(), podType: v1alpha1.PodTypeDaemonSet,
				targeted: true, servingSince: start, startDeadline: DefaultEvacuatorStartDeadline,
				budgetPatience: protocol.DefaultBudgetPatience,
				eviction: eviction.State{
					Known: true, Blocker: &eviction.Blocker{Reason: tt.reason, Message: "Budget logger."},
				},
			})
			message := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked).Message
			if got := strings.Contains(message, "has been kept on its node since 2000-01-01T00:00:00Z"); got != tt.want {
				t.Errorf("got %q", message)
			}
			e.Status = d.status
			is.Equal(t, protocol.IsKeptByBudget(e, protocol.DefaultBudgetPatience, start.Add(tt.at)), tt.want, "IsKeptByBudget")
			if !tt.want && wording.RemedyFor(tt.reason).OfBudget && !d.wake.Equal(start.Add(protocol.DefaultBudgetPatience)) {
				t.Errorf("got the requeue at %s, want %s", d.wake, start.Add(protocol.DefaultBudgetPatience))
			}
		})
	}
}

// TestPatienceWithABudgetBeginsWithTheBudget: for 20 minutes another cause blocks a DaemonSet pod,
// and then its budget allows no disruption.
func TestPatienceWithABudgetBeginsWithTheBudget(t *testing.T) {
	for _, before := range []string{
		v1alpha1.ReasonEvictionDenied, v1alpha1.ReasonEvictionError, v1alpha1.ReasonEvictionForbidden,
		v1alpha1.ReasonEvacuatorNotProgressing,
	} {
		t.Run(before, func(t *testing.T) {
			e := newEvacuation(withEvacuators(daemonSetClass), active(daemonSetClass), requested,
				withCondition(v1alpha1.ConditionBlocked, before, 0))
			const begins = 20 * time.Minute
			for _, step := range []struct {
				at     time.Duration
				reason string
				want   bool
			}{
				{begins, v1alpha1.ReasonPodDisruptionBudget, false},
				{begins + time.Minute, v1alpha1.ReasonUnhealthyPodsHoldBudget, false},
				{begins + protocol.DefaultBudgetPatience - time.Second, v1alpha1.ReasonPodDisruptionBudget, false},
				{begins + protocol.DefaultBudgetPatience, v1alpha1.ReasonPodDisruptionBudget, true},
			} {
				d := decide(situation{
					now: start.Add(step.at), evacuation: e, pod: newPod(), podType: v1alpha1.PodTypeDaemonSet,
					targeted: true, servingSince: start, startDeadline: DefaultEvacuatorStartDeadline,
					budgetPatience: protocol.DefaultBudgetPatience,
					eviction: eviction.State{
						Known: true, Blocker: &eviction.Blocker{Reason: step.reason, Message: "Budget logger."},
					},
				})
				e.Status = d.status
				if got := protocol.IsKeptByBudget(e, protocol.DefaultBudgetPatience, start.Add(step.at)); got != step.want {
					t.Errorf("got IsKeptByBudget %t at %s, want %t", got, step.at, step.want)
				}
				message := meta.FindStatusCondition(d.status.Conditions, v1alpha1.ConditionBlocked).Message
				if got := strings.Contains(message, "has been kept on its node since 2000-01-01T00:20:00Z"); got != step.want {
					t.Errorf("got message %q at %s", message, step.at)
				}
			}
		})
	}
}

// daemonSetWorld returns a world with a DaemonSet pod whose eviction is requested.
func daemonSetWorld(t *testing.T, allowed int32, answer func(*policyv1.Eviction) error) *world {
	t.Helper()
	node := newNode(corev1.ConditionTrue)
	e := newEvacuation(withEvacuators(daemonSetClass), active(daemonSetClass), requested)
	w := newWorld(t, 0, e, newPod(ofDaemonSet), node, newBudget("1", allowed))
	w.host.answer(answer)
	must.Do(w, w.api.client.Tracker().Add(asking("kernel-2026-11", node)))
	synctest.Wait()
	w.api.edit(t, e, requested)
	return w
}

func TestKeptDaemonSetPodIsEvictedWhenItsBudgetAllowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := daemonSetWorld(t, 0, refuse)
		w.until("the pod is kept", time.Second, func(e *v1alpha1.Evacuation) bool {
			return protocol.IsKeptByBudget(e, protocol.DefaultBudgetPatience, w.clock.Now()) &&
				strings.Contains(
					meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked).Message,
					"kept",
				)
		})
		if !hasClass(daemonSetClass)(w.get()) {
			t.Errorf("got active evacuator %s, want %s", w.get().Status.ActiveEvacuatorClass, daemonSetClass)
		}
		w.host.answer(w.accept)
		must.Get(w.client.PolicyV1().PodDisruptionBudgets("shop").Update(t.Context(), newBudget("2", 1),
			metav1.UpdateOptions{}))(w)
		w.until("the pod is evicted", time.Second, podDeleted)
	})
}

func TestRefusedDaemonSetPodIsBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := daemonSetWorld(t, 1, func(*policyv1.Eviction) error {
			return apierrors.NewForbidden(corev1.Resource("pods"), podName, errors.New("denied by policy keep-logging"))
		})
		blocked := func(e *v1alpha1.Evacuation) bool {
			condition := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked)
			return condition != nil && condition.Status == metav1.ConditionTrue &&
				strings.Contains(condition.Message, "keep-logging")
		}
		w.until("the Evacuation is blocked with the error of the policy", time.Second, blocked)
		w.until("an hour has passed", 10*time.Second, func(*v1alpha1.Evacuation) bool {
			return w.clock.Since(start) > time.Hour
		})
		if e := w.get(); !blocked(e) || !hasClass(daemonSetClass)(e) {
			t.Errorf("got status %+v, want it blocked with the same active evacuator", e.Status)
		}
	})
}
