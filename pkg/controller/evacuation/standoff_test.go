// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "shop", Name: name}
}

func TestExplainStandoff(t *testing.T) {
	down := func(pod, node string, holders ...string) downPod {
		return downPod{pod: key(pod), node: node, holders: holders}
	}
	facts := func(name string, healthy, desired int32, down ...downPod) budgetFacts {
		return budgetFacts{name: key(name), healthy: healthy, desired: desired, down: down}
	}
	// api-1 on node b, which maintenance beta drains, waits for budget api: pod api-2 is down on
	// node a, which maintenance alpha drains.
	rivalOf := func(budget budgetFacts) []rival {
		return []rival{{pod: key("api-1"), holders: []string{"beta"}, budget: budget}}
	}
	theirs := facts("api", 1, 1, down("api-2", "a", "alpha"))
	const cordoned, cycle = "BudgetPodsCordoned", "BudgetsHoldEachOther"
	for name, tt := range map[string]struct {
		budget budgetFacts
		rivals []rival
		want   string
		says   []string
	}{
		"no pod is down": {budget: facts("web", 1, 1), rivals: rivalOf(theirs)},
		"a pod is down on a cordoned node": {
			budget: facts("web", 1, 1, down("web-2", "b", "beta")), want: cordoned, says: []string{"web-2 on node b"},
		},
		"only the pod itself is down": {budget: facts("web", 1, 1, down("web-1", "a", "alpha"))},
		"the budget would refuse without pods that are down": {
			budget: facts("web", 1, 3, down("web-2", "b", "beta")), rivals: rivalOf(theirs),
		},
		"the message names at most three pods": {
			budget: facts("web", 1, 1, down("web-2", "b", "beta"), down("web-3", "b", "beta"),
				down("web-4", "c", "beta"), down("web-5", "c", "beta"), down("web-6", "c", "beta")),
			want: cordoned, says: []string{"web-2 on node b, web-3 on node b, web-4 on node c, and 2 more"},
		},
		"two maintenances wait for each other": {
			budget: facts("web", 1, 1, down("web-2", "b", "beta")), rivals: rivalOf(theirs), want: cycle,
			says: []string{
				"NodeMaintenances alpha and beta hold each other", "PodDisruptionBudget shop/web waits",
				"PodDisruptionBudget shop/api of pod shop/api-1",
			},
		},
		"the rival waits for a pod of a third maintenance": {
			budget: facts("web", 1, 1, down("web-2", "b", "beta")),
			rivals: rivalOf(facts("api", 1, 1, down("api-2", "c", "gamma"))), want: cordoned,
		},
		"the budget of the rival would refuse without pods that are down": {
			budget: facts("web", 1, 1, down("web-2", "b", "beta")),
			rivals: rivalOf(facts("api", 1, 5, down("api-2", "a", "alpha"))), want: cordoned,
		},
		"the rival is down itself": {
			budget: facts("web", 1, 1, down("web-2", "b", "beta")),
			rivals: rivalOf(facts("api", 1, 1, down("api-1", "a", "alpha"))), want: cordoned,
		},
		"the rival waits for the same budget": {
			budget: facts("web", 1, 1, down("web-2", "b", "beta")),
			rivals: rivalOf(facts("web", 1, 1, down("web-2", "a", "alpha"))), want: cordoned,
		},
		"the same maintenance holds both nodes": {
			budget: facts("web", 1, 1, down("web-2", "b", "alpha")),
			rivals: []rival{{pod: key("api-1"), holders: []string{"alpha"}, budget: theirs}}, want: cordoned,
		},
		"the pod that is down is on a node of another maintenance than the rival": {
			budget: facts("web", 1, 1, down("web-2", "c", "gamma")), rivals: rivalOf(theirs), want: cordoned,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := explainStandoff(key("web-1"), []string{"alpha"}, tt.budget, tt.rivals)
			if got == nil {
				is.True(t, tt.want == "", "got no blocker, want %s", tt.want)
				return
			}
			is.True(t, got.Reason == tt.want, "got blocker %+v, want %q", got, tt.want)
			for _, says := range tt.says {
				is.True(t, strings.Contains(got.Message, says), "got message %q, want %q in it", got.Message, says)
			}
		})
	}
}

// labelled sets the label app of a pod.
func labelled(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{"app": app} }
}

func podOn(name, app, node string, ready corev1.ConditionStatus) *corev1.Pod {
	return newPod(labelled(app), func(p *corev1.Pod) {
		p.Name, p.UID, p.Spec.NodeName = name, types.UID("uid-"+name), node
		p.Status.Conditions[0].Status = ready
	})
}

func budgetOf(app string) *policyv1.PodDisruptionBudget {
	b := newBudget("1", 0)
	b.Name, b.UID, b.Spec.Selector = app, types.UID("uid-"+app), &metav1.LabelSelector{
		MatchLabels: map[string]string{"app": app},
	}
	b.Status.CurrentHealthy, b.Status.DesiredHealthy, b.Status.ExpectedPods = 1, 1, 2
	return b
}

func cordoned(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.NodeSpec{Unschedulable: true},
	}
}

func TestStandoffIsReported(t *testing.T) {
	here, there := cordoned(testNode), cordoned("node-8")
	waits := withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonPodDisruptionBudget, 0)
	rivalEvacuation := newEvacuation(active(evict), waits, func(e *v1alpha1.Evacuation) {
		e.Name, e.UID, e.Spec.NodeName = protocol.CanonicalName("api-1", "uid-api-1"), "evacuation-2", "node-8"
		e.Spec.PodRef = v1alpha1.PodReference{Name: "api-1", UID: "uid-api-1"}
	})
	for name, tt := range map[string]struct {
		there *corev1.Node
		// rival adds the Evacuation of api-1 on the other node, which waits for api-2 on this node.
		rival bool
		want  string
	}{
		"the other pod is down on a node that is not cordoned": {
			there: &corev1.Node{ObjectMeta: there.ObjectMeta}, want: "UnhealthyPodsHoldBudget",
		},
		"the other pod is down on a cordoned node": {there: there, want: "BudgetPodsCordoned"},
		"a pod on that node waits for a pod that is down on this one": {
			there: there, rival: true, want: "BudgetsHoldEachOther",
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, 0, newEvacuation(), newPod(labelled("web")), here, tt.there,
				podOn("web-2", "web", "node-8", corev1.ConditionFalse),
				podOn("api-1", "api", "node-8", corev1.ConditionTrue),
				podOn("api-2", "api", testNode, corev1.ConditionFalse), budgetOf("web"), budgetOf("api"))
			w.host.answer(refuse)
			must.Do(w, w.api.client.Tracker().Add(asking("alpha", here)))
			must.Do(w, w.api.client.Tracker().Add(asking("beta", there)))
			if tt.rival {
				must.Do(w, w.api.client.Tracker().Add(rivalEvacuation))
			}
			w.until("the condition has the reason "+tt.want, time.Second,
				hasReason(v1alpha1.ConditionBlocked, tt.want))
			before := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionBlocked).Message
			version := w.get().ResourceVersion
			end := w.clock.Now().Add(5 * time.Minute)
			w.until("five minutes have passed", 5*time.Second, func(*v1alpha1.Evacuation) bool {
				return w.clock.Now().After(end)
			})
			e := w.get()
			got := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked)
			if got.Message != before || got.Reason != tt.want {
				t.Errorf("got condition %+v after five minutes, want message %q", got, before)
			}
			if e.Status.FailedEvictionCounter == 0 && e.ResourceVersion != version {
				t.Errorf("got resourceVersion %s, want no write since %s", e.ResourceVersion, version)
			}
		})
	}
}
