// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// olderSet returns a ReplicaSet of an earlier rollout.
func olderSet() *appsv1.ReplicaSet {
	set := newReplicaSet()
	set.Name, set.UID, set.Spec.Replicas = "web-0", "uid-older", ptr.To[int32](0)
	return set
}

// leftover returns a pod of olderSet.
func leftover(mod func(*pod)) *corev1.Pod {
	return newTestPod("leftover", on("good"), func(p *pod) {
		p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = "web-0", "uid-older"
		mod(p)
	}).Pod
}

func TestLeftoversOfEarlierRolloutsDoNotCount(t *testing.T) {
	for name, mod := range map[string]func(*pod){
		"a pod that the kubelet has evicted": func(p *pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" },
		"a pod that has succeeded":           func(p *pod) { p.Status.Phase = corev1.PodSucceeded },
		"a pod that terminates": func(p *pod) {
			p.DeletionTimestamp, p.Finalizers = &metav1.Time{Time: start}, []string{"example.com/keep"}
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			evacuations, host := scene(newBudget(), olderSet(), leftover(mod))
			newWorld(t, evacuations, host...).scaled(2, true)
		})
	}
	bubble.Run(t, "a pod that runs", func(t *testing.T) {
		evacuations, host := scene(newBudget(), olderSet(), leftover(func(*pod) {}))
		newWorld(t, evacuations, host...).reported("web-0", false, "2 of its ReplicaSets have pods")
	})
}

// TestPodsThatReturnAreNotReplacedAgain simulates an hour of a Deployment whose pods tolerate all
// taints. So all of them start on the drained node.
func TestPodsThatReturnAreNotReplacedAgain(t *testing.T) {
	for name, budget := range map[string]int{"without a budget": 0, "with minAvailable 1": 1} {
		t.Run(name, func(t *testing.T) {
			w := &simulation{
				t: t, rng: rand.New(rand.NewPCG(1, 1)), now: start, wish: 1, calm: true, budget: budget,
				d: newDeployment(1, surging("1")),
			}
			w.pods = append(w.pods, w.newPod(true))
			for range 3600 {
				w.now = w.now.Add(time.Second)
				w.replicaSet()
				w.kubelet()
				for i := range w.pods {
					p := &w.pods[i]
					p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
					if p.evacuation == nil {
						leaves(ours)(p)
						p.evacuation.Status.ActiveEvacuatorSince = &metav1.Time{Time: w.now}
					}
				}
				w.eviction()
				w.us(false)
				if w.ready() < 1 {
					w.fail("no pod is ready")
				}
			}
			is.True(t, w.next <= 2, "%d pods were started, want 2", w.next)
			got := w.memory.standing
			if got.Reason != v1alpha1.ReasonRecreated ||
				!strings.Contains(got.Message, "tolerates the cordon taint node.kubernetes.io/unschedulable") {
				t.Errorf("got %+v, want it to name the toleration", got)
			}
		})
	}
}

func TestNoPodLeavesWhileNoneCanBeCreated(t *testing.T) {
	failing := func(reason, message string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Status.Conditions = []appsv1.DeploymentCondition{
				{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: reason, Message: message},
			}
		}
	}
	const webhook = `admission webhook "w.example.com" does not answer`
	up := func(d *appsv1.Deployment) { recorded(1, 2, web0)(d) }
	for name, tc := range map[string]struct {
		d      *appsv1.Deployment
		mod    podMod
		reason string
		leaves bool
	}{
		"a webhook":                     {newDeployment(2, up, failing(failedCreate, webhook)), func(*pod) {}, "ReplicaFailure", false},
		"a webhook before the surge":    {newDeployment(2, failing(failedCreate, webhook)), func(*pod) {}, "ReplicaFailure", false},
		"a pod that is not ready":       {newDeployment(2, up, failing(failedCreate, webhook)), unready, "ReplicaFailure", true},
		"a quota that counts the pod":   {newDeployment(2, up, failing(failedCreate, `exceeded quota: small`)), func(*pod) {}, "", true},
		"pods cannot be deleted":        {newDeployment(2, up, failing("FailedDelete", webhook)), func(*pod) {}, "", true},
		"the failure has been repaired": {newDeployment(2, up), func(*pod) {}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			d := decide(at(24*time.Hour, tc.d, newTestPod("web-0", leaves(ours), tc.mod)))
			if got := strings.Contains(summary(d), "hand over web-0;"); got != tc.leaves {
				t.Errorf("got %q, want it to leave: %t", summary(d), tc.leaves)
			}
			if d.memory.standing.Reason != tc.reason || tc.reason != "" && !strings.Contains(d.memory.standing.Message, webhook) {
				t.Errorf("got %+v, want reason %q", d.memory.standing, tc.reason)
			}
		})
	}
}

func TestDeclinedTurnIsTakenUpAgain(t *testing.T) {
	never := under(nil, ptrTo(0), 1, 1)
	other := func(p *pod) {
		p.evacuation.Spec.Evacuators = append(p.evacuation.Spec.Evacuators,
			v1alpha1.Evacuator{EvacuatorClass: "later.example.com", Priority: 1})
	}
	autoscaled := func(high int32) func(*situation) {
		return func(s *situation) { *s = s.scaledBy(newAutoscaler(1, high, 1)) }
	}
	tried := func(ago time.Duration, before int) func(*situation) {
		return func(s *situation) {
			s.memory.tried = map[types.UID]try{"uid-web-0": {at: s.now.Add(-ago), before: before}}
		}
	}
	for name, tc := range map[string]struct {
		deployment []func(*appsv1.Deployment)
		pod        []podMod
		mod        func(*situation)
		want       bool
	}{
		"the Deployment can be scaled now": {pod: []podMod{minOne(1, 1)}, want: true},
		"surge: Always was set":            {deployment: []func(*appsv1.Deployment){always}, pod: []podMod{never}, want: true},
		"the budget still never allows it": {pod: []podMod{never}},
		"the Deployment is still paused": {
			deployment: []func(*appsv1.Deployment){func(d *appsv1.Deployment) { d.Spec.Paused = true }}, pod: []podMod{minOne(1, 1)},
		},
		"maxSurge is still 0":              {deployment: []func(*appsv1.Deployment){surging("0")}, pod: []podMod{minOne(1, 1)}},
		"maxReplicas was raised":           {pod: []podMod{minOne(1, 1)}, mod: autoscaled(2), want: true},
		"maxReplicas still leaves no room": {pod: []podMod{minOne(1, 1)}, mod: autoscaled(1)},
		"the budget cannot be computed":    {pod: []podMod{minOne(1, 1), syncFailed}},
		"the replicas were reverted twice": {
			deployment: []func(*appsv1.Deployment){annotated(record{UID: testUID, Resets: 2})}, pod: []podMod{minOne(1, 1)},
		},
		"a surge was tried":                       {pod: []podMod{minOne(1, 1)}, mod: tried(5*time.Minute-time.Second, 0)},
		"a surge was tried, and the rest is over": {pod: []podMod{minOne(1, 1)}, mod: tried(5*time.Minute, 0), want: true},
		"a surge was tried again":                 {pod: []podMod{minOne(1, 1)}, mod: tried(10*time.Minute-time.Second, 1)},
		"that longer rest is over":                {pod: []podMod{minOne(1, 1)}, mod: tried(10*time.Minute, 1), want: true},
		"another evacuator was active in between": {pod: []podMod{minOne(1, 1), other}},
		"surge: Always was set, and only another client evicts the pod": {
			deployment: []func(*appsv1.Deployment){always}, pod: []podMod{never, evictedByOthers}, want: true,
		},
		"the budget still never allows the eviction by another client": {pod: []podMod{never, evictedByOthers}},
		"the budget allows the eviction by another client":             {pod: []podMod{minOne(2, 2), evictedByOthers}},
	} {
		t.Run(name, func(t *testing.T) {
			s := at(0, newDeployment(1, tc.deployment...), newTestPod("web-0", append([]podMod{leaves(lanes), blocked}, tc.pod...)...))
			if tc.mod != nil {
				tc.mod(&s)
			}
			d := decide(s)
			got := len(d.reports) == 1 && d.reports[0].takesUp
			if got != tc.want {
				t.Errorf("got %t (%+v), want %t", got, d.reports, tc.want)
			}
			is.True(t, d.scale == nil, "the record changes: %+v", d.scale)
		})
	}
	t.Run("the pod is not blocked", func(t *testing.T) {
		if d := decide(at(0, newDeployment(1), newTestPod("web-0", leaves(lanes), minOne(1, 1)))); len(d.reports) > 0 {
			t.Errorf("got %+v", d.reports)
		}
	})
}

func TestOwnerChangesHisMind(t *testing.T) {
	for name, waits := range map[string]podMod{"the server is refused": blocked, "another client is refused": evictedByOthers} {
		bubble.Run(t, name, func(t *testing.T) {
			evacuations, host := scene(newBudget())
			evacuations[0] = newTestPod("web-0", leaves(lanes), waits).evacuation
			host[0] = newDeployment(1, func(d *appsv1.Deployment) { d.Spec.Paused = true })
			w := newWorld(t, evacuations, host...)
			synctest.Wait()
			d := w.deployment()
			d.Spec.Paused = false
			must.Get(w.host.AppsV1().Deployments(testNamespace).Update(t.Context(), d, metav1.UpdateOptions{}))(w)
			w.scaled(2, true)
			w.reported("web-0", false, "scaled from 1 to 2")
		})
	}
}

func TestEndOfMinReadySecondsIsWaitedFor(t *testing.T) {
	slow := func(d *appsv1.Deployment) { d.Spec.MinReadySeconds = 40 }
	for name, tc := range map[string]struct {
		after, readyAt time.Duration
		ends           bool
		wake           time.Duration
	}{
		"after the surge timeout":                {after: 12 * time.Second, readyAt: 3 * time.Second, wake: 44 * time.Second},
		"after the latest end of the turn":       {after: 31 * time.Second, readyAt: 3 * time.Second, wake: 44 * time.Second},
		"not for one that is ready again at 60s": {after: 71 * time.Second, readyAt: 60 * time.Second, ends: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := at(tc.after, newDeployment(2, recorded(1, 2, web0), slow), newTestPod("web-0", leaves(ours), reported(0)),
				newTestPod("web-1", fresh, cheapest, func(p *pod) {
					p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(start.Add(tc.readyAt))
				}))
			s.timeout = 10 * time.Second
			d := decide(s)
			if got := strings.Contains(summary(d), "hand over"); got != tc.ends {
				t.Errorf("got %q, want the turn to end: %t", summary(d), tc.ends)
			}
			if !tc.ends && d.wake.After(start.Add(tc.wake)) {
				t.Errorf("wakes at %s", d.wake)
			}
		})
	}
}

// recordedAutoscaler returns an autoscaler with a record of a surge of its minReplicas.
func recordedAutoscaler(from, to, keep int32) *autoscalingv2.HorizontalPodAutoscaler {
	a := newAutoscaler(to, 20, 2)
	text, err := json.Marshal(record{UID: a.UID, From: from, To: to, Keep: keep, Since: &metav1.Time{Time: start}})
	if err != nil {
		panic(err)
	}
	a.Annotations = map[string]string{v1alpha1.AnnotationSurgeRecord: string(text)}
	return a
}

func TestMinReplicasOfTheUser(t *testing.T) {
	leaving, other := newTestPod("web-0", leaves(ours)), newTestPod("web-1")
	for name, tc := range map[string]struct {
		a    *autoscalingv2.HorizontalPodAutoscaler
		want string
	}{
		"are not lowered although the autoscaler has not acted on them": {newAutoscaler(10, 20, 2), "scale to 11 for 1;"},
		"are restored from a record with contradictory values":          {recordedAutoscaler(10, 3, 2), "back to 10;"},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, summary(decide(at(0, newDeployment(2), leaving, other).scaledBy(tc.a))), tc.want)
		})
	}
}

func TestOwnerIsToldOfReplicasThatStay(t *testing.T) {
	for name, tc := range map[string]struct {
		active corev1.ConditionStatus
		want   string
	}{
		"the autoscaler has lost its metrics": {corev1.ConditionFalse, "Warning"},
		"the autoscaler has metrics":          {corev1.ConditionTrue, "Normal"},
	} {
		t.Run(name, func(t *testing.T) {
			a := recordedAutoscaler(1, 3, 2)
			a.Status.Conditions = append(a.Status.Conditions,
				autoscalingv2.HorizontalPodAutoscalerCondition{Type: autoscalingv2.ScalingActive, Status: tc.active})
			d := decide(at(0, newDeployment(3), newTestPod("web-0"), newTestPod("web-1"), newTestPod("web-2")).scaledBy(a))
			if summary(d) != "back to 1;" || len(d.events) != 1 || d.events[0].reason != EventSurgeEnded || d.events[0].eventType != tc.want {
				t.Fatalf("got %q with %+v, want back to 1 with one %s event", summary(d), d.events, tc.want)
			}
			if got := strings.Contains(d.events[0].message, "the replicas stay"); got != (tc.want == "Warning") {
				t.Errorf("got %q", d.events[0].message)
			}
		})
	}
}

func TestAutoscalerOfSomethingElseGetsItsMinReplicasBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := recordedAutoscaler(1, 3, 2)
		a.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Name: testName}
		w := newWorld(t, nil, a)
		w.until("minReplicas are as before", func() (bool, string) {
			got := must.Get(w.host.AutoscalingV2().HorizontalPodAutoscalers(testNamespace).Get(t.Context(), testName, metav1.GetOptions{}))(w)
			return *got.Spec.MinReplicas == 1 && len(got.Annotations) == 0, fmt.Sprint(*got.Spec.MinReplicas, got.Annotations)
		})
	})
}

// hanging is a client whose writes of pods hang until their deadline.
type hanging struct {
	kubernetes.Interface
	sent map[string]int
}

type hangingCore struct {
	corev1client.CoreV1Interface
	sent map[string]int
}

type hangingPods struct {
	corev1client.PodInterface
	sent map[string]int
}

func (h hanging) CoreV1() corev1client.CoreV1Interface {
	return hangingCore{h.Interface.CoreV1(), h.sent}
}

func (h hangingCore) Pods(namespace string) corev1client.PodInterface {
	return hangingPods{h.CoreV1Interface.Pods(namespace), h.sent}
}

func (h hangingPods) Patch(
	ctx context.Context, name string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, _ ...string,
) (*corev1.Pod, error) {
	h.sent[name]++
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestHangingCostsDoNotHoldBackASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, own := fake.NewClientset(), versionedfake.NewClientset()
		c := newIdle(t, client, own)
		defer c.queue.ShutDown()
		host := hanging{client, map[string]int{}}
		c.Client = host
		var pods []*corev1.Pod
		for i := range 3 {
			pods = append(pods, newTestPod(fmt.Sprintf("web-%d", i), cheapest).Pod)
		}
		begun := time.Now()
		c.writeCosts(t.Context(), decision{restore: pods})
		if took := time.Since(begun); host.sent["web-0"] != 1 || took > 2*costTimeout {
			t.Errorf("sent %v, which took %s", host.sent, took)
		}
	})
}
