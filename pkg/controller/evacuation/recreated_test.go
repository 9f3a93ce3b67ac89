// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// pastEvacuation returns an Evacuation that was created at asked and became complete at left.
func pastEvacuation(
	pod string, asked, left time.Duration, mods ...func(*v1alpha1.Evacuation),
) *v1alpha1.Evacuation {
	uid := types.UID(fmt.Sprintf("%s-%d", pod, asked))
	e := newEvacuation(withCondition(v1alpha1.ConditionComplete, v1alpha1.ReasonPodDeleted, left))
	e.Name, e.UID = protocol.CanonicalName(pod, uid), "evacuation-"+uid
	e.CreationTimestamp, e.Labels = *after(asked), map[string]string{"app": "web"}
	e.Spec.PodRef = v1alpha1.PodReference{Name: pod, UID: uid}
	return build.With(e, mods...)
}

func createdAt(at time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.CreationTimestamp, p.Labels = *after(at), map[string]string{"app": "web"} }
}

// completeOf returns the condition Complete of an Evacuation.
func completeOf(e *v1alpha1.Evacuation) *metav1.Condition {
	return meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionComplete)
}

func TestCountComebacks(t *testing.T) {
	cancelled := func(e *v1alpha1.Evacuation) {
		completeOf(e).Reason = v1alpha1.ReasonCancelled
	}
	ended := func(e *v1alpha1.Evacuation) {
		completeOf(e).Reason = v1alpha1.ReasonPodTerminated
	}
	elsewhere := func(e *v1alpha1.Evacuation) { e.Namespace = "other" }
	otherApp := func(e *v1alpha1.Evacuation) { e.Labels = map[string]string{"app": "api"} }
	past := func(es ...*v1alpha1.Evacuation) []*v1alpha1.Evacuation { return es }
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		past []*v1alpha1.Evacuation
		want int
	}{
		"no pod was evacuated": {newPod(createdAt(time.Minute)), nil, 0},
		"each pod of the same name counts, also within a second": {
			newPod(createdAt(time.Second)),
			past(pastEvacuation(podName, 0, 0), pastEvacuation(podName, 0, time.Second),
				pastEvacuation(podName, time.Second, time.Second)),
			3,
		},
		"each pod with the same labels counts": {
			newPod(createdAt(30 * time.Second)),
			past(pastEvacuation("web-x", 0, 5*time.Second), pastEvacuation("web-y", 10*time.Second, 15*time.Second)),
			2,
		},
		"pods with the same labels that left at the same time count once": {
			newPod(createdAt(30 * time.Second)),
			past(pastEvacuation("web-x", 0, 5*time.Second), pastEvacuation("web-y", 0, 15*time.Second),
				pastEvacuation("web-z", time.Second, time.Second)),
			1,
		},
		"pods that left after the creation of the pod do not count": {
			newPod(createdAt(-time.Hour)), past(pastEvacuation("web-x", 0, 5*time.Second)), 0,
		},
		"cancelled Evacuations do not count": {
			newPod(createdAt(time.Minute)), past(pastEvacuation(podName, 0, 5*time.Second, cancelled)), 0,
		},
		"a pod that has ended by itself counts": {
			newPod(createdAt(time.Minute)), past(pastEvacuation(podName, 0, 5*time.Second, ended)), 1,
		},
		"pods of other namespaces do not count": {
			newPod(createdAt(time.Minute)), past(pastEvacuation(podName, 0, 5*time.Second, elsewhere)), 0,
		},
		"pods with other labels do not count": {
			newPod(createdAt(time.Minute)), past(pastEvacuation("api-x", 0, 5*time.Second, otherApp)), 0,
		},
		"pods without labels and with another name do not count": {
			newPod(createdAt(time.Minute), func(p *corev1.Pod) { p.Labels = nil }),
			past(pastEvacuation("x", 0, time.Second, func(e *v1alpha1.Evacuation) { e.Labels = nil })),
			0,
		},
		"the Evacuation of the pod itself does not count": {
			newPod(createdAt(0)),
			past(newEvacuation(withCondition(v1alpha1.ConditionComplete,
				v1alpha1.ReasonPodDeleted, 0))),
			0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, countComebacks(tc.pod, tc.past, nil).count, tc.want, "comebacks")
		})
	}
}

func TestDecideRecreated(t *testing.T) {
	times := func(n int) func(*situation) { return func(s *situation) { s.comebacks.count = n } }
	wasRecreated := withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonRecreated, 0)
	runDecide(t, map[string]decideTest{
		"a pod that has returned twice is evicted": {
			evacuation: upForEviction(), pod: newPod(createdAt(0)), mod: times(2),
			want: outcome{Active: evict, Evict: true},
		},
		"a pod that has returned three times is kept for some time": {
			evacuation: upForEviction(), pod: newPod(createdAt(0)), at: 9 * time.Second, mod: times(3),
			want: outcome{Active: evict, Blocked: "Recreated", Wake: 10 * time.Second, Events: EventBlocked},
		},
		"a pod that has returned three times is evicted after that time": {
			evacuation: upForEviction(wasRecreated), pod: newPod(createdAt(0)), at: 10 * time.Second,
			mod:  func(s *situation) { s.comebacks.count, s.eviction.Known = 3, true },
			want: outcome{Active: evict, Blocked: "not: NotBlocked", Evict: true},
		},
		"a pod that has returned more often is kept for longer": {
			evacuation: upForEviction(wasRecreated), pod: newPod(createdAt(0)), at: 10 * time.Second,
			mod: times(5), want: outcome{Active: evict, Blocked: "Recreated", Wake: 40 * time.Second},
		},
		"a pod is kept for longestHold at most": {
			evacuation: upForEviction(wasRecreated), pod: newPod(createdAt(0)), at: 10 * time.Second,
			mod: times(1000), want: outcome{Active: evict, Blocked: "Recreated", Wake: longestHold},
		},
		"the pod is evicted when the earlier Evacuations are deleted": {
			evacuation: upForEviction(wasRecreated), pod: newPod(createdAt(0)), at: 9 * time.Second,
			mod:  func(s *situation) { s.eviction.Known = true },
			want: outcome{Active: evict, Blocked: "not: NotBlocked", Evict: true},
		},
		"an active evacuator is not delayed": {
			evacuation: turnOfA(), pod: newPod(createdAt(0)),
			at: 9 * time.Second, mod: times(3),
			want: outcome{Active: classA, Wake: 2*time.Minute + 30*time.Second},
		},
		"a DaemonSet pod is not evicted": {
			evacuation: upForEviction(), pod: newPod(createdAt(0)), at: 9 * time.Second,
			mod:  func(s *situation) { s.comebacks.count, s.podType = 3, v1alpha1.PodTypeDaemonSet },
			want: outcome{Active: evict, Blocked: "NoEvacuator", Events: EventBlocked},
		},
	})
}

func TestMessageOfARecreatedPodNamesTheOwner(t *testing.T) {
	for name, tc := range map[string]struct {
		owners []metav1.OwnerReference
		want   string
	}{
		"the controller": {
			owners: []metav1.OwnerReference{
				{Kind: "ConfigMap", Name: "c"}, {Kind: "ReplicaSet", Name: "web-1", Controller: ptr.To(true)},
			},
			want: "A pod of ReplicaSet web-1 has returned to node node-7 3 times",
		},
		"an owner that is not the controller": {
			owners: []metav1.OwnerReference{{Kind: "ConfigMap", Name: "revision-3"}},
			want:   "A pod of ConfigMap revision-3",
		},
		"no owner": {want: "Pod web-1, which has no owner, has returned"},
	} {
		t.Run(name, func(t *testing.T) {
			got := decide(situation{
				now: start, evacuation: upForEviction(), comebacks: comebacks{count: 3},
				podType: v1alpha1.PodTypeDefault,
				pod: newPod(createdAt(0),
					func(p *corev1.Pod) { p.OwnerReferences, p.Spec.NodeName = tc.owners, testNode }),
			})
			blocked := meta.FindStatusCondition(got.status.Conditions, v1alpha1.ConditionBlocked)
			if blocked == nil || !strings.Contains(blocked.Message, tc.want) {
				t.Errorf("got condition %+v, want %q in its message", blocked, tc.want)
			}
		})
	}
}

// TestPodsThatKeepComingAreEvictedSeldom simulates an hour in which a client creates a new pod on
// the node whenever the previous pod has left.
func TestPodsThatKeepComingAreEvictedSeldom(t *testing.T) {
	owned := func(by string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: "Job", Name: by, UID: types.UID(by), Controller: ptr.To(true)}}
	}
	for name, tc := range map[string]struct {
		mod     func(p *corev1.Pod, n string)
		message string
	}{
		"with the same name": {func(p *corev1.Pod, _ string) { p.Name = "web" }, "has returned to node node-7"},
		"with the same labels": {
			func(p *corev1.Pod, _ string) { p.Labels = map[string]string{"app": "web"} }, "has returned to node node-7",
		},
		"with other names and labels": {func(*corev1.Pod, string) {}, "as other pods of its namespace"},
		"with other names and labels of one owner": {
			func(p *corev1.Pod, _ string) { p.OwnerReferences = owned("api") }, "A pod of Job api was created",
		},
		"with other names, labels and owners": {
			func(p *corev1.Pod, n string) { p.OwnerReferences = owned("api-" + n) }, "as other pods of its namespace",
		},
		"without labels": {func(p *corev1.Pod, _ string) { p.Labels = nil }, "as other pods of its namespace"},
	} {
		for _, reason := range []string{v1alpha1.ReasonPodDeleted, v1alpha1.ReasonPodTerminated} {
			t.Run(name+", "+reason, func(t *testing.T) {
				var pod *corev1.Pod
				var kept []*v1alpha1.Evacuation
				var known arrivals
				evictions, message := 0, ""
				for now := time.Duration(0); now < time.Hour; now += time.Second {
					n := fmt.Sprint(evictions)
					if len(kept) > 0 && start.Add(now).Sub(goneAt(kept[0])) >= DefaultCompletedTTL {
						known.leave(kept[0])
						kept = kept[1:]
					}
					if pod == nil {
						pod = newPod(createdAt(now), func(p *corev1.Pod) {
							p.Name, p.UID, p.Labels, p.Spec.NodeName = "p-"+n, types.UID("uid-"+n), map[string]string{"n": n}, testNode
							tc.mod(p, n)
						})
						known.add(pod, func() bool { return true })
						continue
					}
					got := decide(situation{
						now: start.Add(now), evacuation: upForEviction(), pod: pod,
						podType: v1alpha1.PodTypeDefault, comebacks: known.count(pod, kept, start.Add(now)),
					})
					if blocked := meta.FindStatusCondition(got.status.Conditions, v1alpha1.ConditionBlocked); blocked != nil {
						message = blocked.Message
					}
					if !got.evict {
						continue
					}
					asked := pod.CreationTimestamp.Sub(start) + time.Second
					kept = append(kept, pastEvacuation(pod.Name, asked, now, func(e *v1alpha1.Evacuation) {
						e.Spec.PodRef.UID, e.Spec.NodeName, e.Labels, completeOf(e).Reason = pod.UID, testNode, pod.Labels, reason
					}))
					evictions++
					pod = nil
				}
				is.True(t, evictions <= 25, "%d pods were evicted in an hour, want at most 25", evictions)
				is.True(t, strings.Contains(message, tc.message), "got %q, want it to have %q", message, tc.message)
			})
		}
	}
}

func TestPodsOfLaterWavesAreNoComebacks(t *testing.T) {
	past := []*v1alpha1.Evacuation{
		pastEvacuation("a", 0, time.Second), pastEvacuation("b", 2*time.Second, 3*time.Second), pastEvacuation("c", 4*time.Second, 5*time.Second),
	}
	created := map[types.UID]time.Time{}
	for i, e := range past {
		e.Labels = map[string]string{"n": e.Spec.PodRef.Name}
		created[e.Spec.PodRef.UID] = after(time.Duration(-i-1) * time.Hour).Time
	}
	for name, tc := range map[string]struct {
		at   time.Duration
		want int
	}{
		"a pod of the last wave":                     {-time.Hour, 0},
		"a pod that was created after the last wave": {10 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, countComebacks(newPod(createdAt(tc.at)), past, created).count, tc.want, "comebacks")
		})
	}
}

func TestGatherCountsComebacks(t *testing.T) {
	for name, tc := range map[string]struct {
		created time.Duration
		mod     func(*corev1.Pod)
		want    int
	}{
		"the Evacuations of the node count":     {time.Minute, func(*corev1.Pod) {}, 3},
		"the pod is older than all Evacuations": {-DefaultCompletedTTL, func(*corev1.Pod) {}, 0},
		"the pod terminates":                    {time.Minute, terminatingUntil(time.Hour), 0},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newPod(createdAt(tc.created), func(p *corev1.Pod) { p.Spec.NodeName = testNode }, tc.mod)
			evacuation := newEvacuation(func(e *v1alpha1.Evacuation) {
				e.CreationTimestamp = *after(time.Minute)
			})
			c, own := newIdleController(t, fake.NewClientset(pod), evacuation)
			for i := range 3 {
				past := pastEvacuation(podName, time.Duration(i)*time.Second, time.Duration(i)*time.Second)
				must.Do(t, own.Evacuations.Informer().GetIndexer().Add(past))
			}
			s, err := c.gather(t.Context(), evacuation)
			if err != nil || s.comebacks.count != tc.want {
				t.Errorf("got %d comebacks, %v, want %d", s.comebacks.count, err, tc.want)
			}
		})
	}
}

func TestGatherRecognizesPodsByTheirCreation(t *testing.T) {
	client := fake.NewClientset()
	c, own := newIdleController(t, client, newEvacuation())
	evacuations := own.Evacuations.Informer().GetIndexer()
	for i := range 4 {
		at := time.Duration(i) * time.Minute
		e := pastEvacuation(fmt.Sprintf("p-%d", i), at+2*time.Second, at+5*time.Second)
		e.Labels, e.Spec.NodeName = map[string]string{"n": e.Spec.PodRef.Name}, testNode
		asked := e.DeepCopy()
		asked.Status.Conditions = nil
		pod := newPod(createdAt(at), func(p *corev1.Pod) {
			p.Name, p.UID, p.Labels, p.Spec.NodeName = e.Spec.PodRef.Name, e.Spec.PodRef.UID, e.Labels, testNode
		})
		must.Do(t, client.Tracker().Add(pod))
		must.Do(t, evacuations.Add(asked))
		s, err := c.gather(t.Context(), asked)
		if want := max(0, i-1); err != nil || s.comebacks.count != want {
			t.Errorf("pod %d: got %+v, %v, want %d", i, s.comebacks, err, want)
		}
		must.Do(t, evacuations.Update(e))
	}
	is.Equal(t, len(c.arrivals.pods.Keys()), 4, "pods are known")
	for _, e := range evacuations.List() {
		c.evacuationGone(e)
	}
	if got := len(c.arrivals.pods.Keys()); got != 0 {
		t.Errorf("%d pods are known after their Evacuations are gone", got)
	}
}
