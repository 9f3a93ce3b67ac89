// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestSentToClosed(t *testing.T) {
	start := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	status := func(allowed int32, behind ...int64) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Generation: 1}}
		b.Status = policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed, ObservedGeneration: 1}
		for _, generation := range behind {
			b.Generation = generation
		}
		return b
	}
	refused := func(seconds float64) Call {
		return Call{
			Verb: "create", Subresource: "eviction", Namespace: "shop", Name: "web-1", User: "haulout", Code: 429,
			RefusedBy: "web", Received: at(seconds),
		}
	}
	by := func(user string, call Call) Call {
		call.User = user
		return call
	}
	granted := refused(5)
	granted.Code, granted.RefusedBy = 201, ""
	for sentence, tc := range map[string]struct {
		events map[float64]*policyv1.PodDisruptionBudget
		calls  []Call
		want   []string
		probes int
	}{
		"one that is sent while the budget is open, and lost a race": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(1)}, calls: []Call{refused(5)},
		},
		"one that is sent before a client could know": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(1), 5: status(0)}, calls: []Call{refused(5.1)},
		},
		"one that is sent to a closed budget": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(1), 5: status(0)}, calls: []Call{refused(6)},
			want: []string{"budget web had allowed no disruption for 1s"},
		},
		"one that is sent half a second after the budget closed": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(1), 5: status(0)}, calls: []Call{refused(5.5)},
			want: []string{"budget web had allowed no disruption for 500ms"},
		},
		"one that a scheduler sends half a second after the budget closed": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(1), 5: status(0)}, calls: []Call{by(SchedulerUser, refused(5.5))},
		},
		"one that a scheduler sends later": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(1), 5: status(0)}, calls: []Call{by(SchedulerUser, refused(6.1))},
			want: []string{"budget web had allowed no disruption for 1.1s"},
		},
		"one that is sent to a budget that is not up to date": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(1), 5: status(1, 2)}, calls: []Call{refused(6)},
			want: []string{"budget web had allowed no disruption for 1s"},
		},
		"a budget that never closed any more after it had opened": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(0), 5: status(1)}, calls: []Call{refused(6)},
		},
		"what passes although the budget is closed": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(0)}, calls: []Call{granted},
		},
		"probes": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(0)}, calls: []Call{refused(10), refused(16), refused(22)},
			probes: 3,
		},
		"probes are not in the log by time": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(0)}, calls: []Call{refused(16), refused(10)}, probes: 2,
		},
		"more of them than there may be": {
			events: map[float64]*policyv1.PodDisruptionBudget{0: status(0)}, calls: []Call{refused(10), refused(12), refused(16)},
			want: []string{"for 12s"}, probes: 2,
		},
		"a budget that no client has seen": {calls: []Call{refused(10)}},
	} {
		t.Run(sentence, func(t *testing.T) {
			log := Log{Calls: tc.calls}
			for _, second := range []float64{0, 5} {
				if budget, ok := tc.events[second]; ok {
					log.Observations = append(log.Observations, observe(at(second), watch.Modified, budget))
				}
			}
			found, probes := SentToClosed(log)
			expect(t, found, tc.want...)
			is.Equal(t, probes, tc.probes, "probes")
		})
	}
}

func TestNotPutBack(t *testing.T) {
	for name, test := range map[string]struct {
		change   func(*corev1.Node)
		cordoned bool
		want     []string
	}{
		"a node as it was":      {change: open},
		"a node that is closed": {change: closed, want: []string{"node one is not schedulable"}},
		"a user's cordon":       {change: closed, cordoned: true},
		"a user's cordon that is gone": {
			change: open, cordoned: true, want: []string{"node one is schedulable, although"},
		},
		"an annotation of ours": {
			change: func(n *corev1.Node) {
				n.Annotations = map[string]string{v1alpha1.AnnotationCordonedBy: "{}", "example.com/mine": ""}
			},
			want: []string{"has the annotation maintenance.haulout.dev/cordoned-by"},
		},
		"an annotation of ours for autoscalers": {
			change: func(n *corev1.Node) { n.Annotations = map[string]string{"karpenter.sh/do-not-disrupt": "true"} },
			want:   []string{"has the annotation karpenter.sh/do-not-disrupt"},
		},
		"a taint of ours": {
			change: func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{{Key: v1alpha1.TaintDrain}, {Key: "example.com/mine"}}
			},
			want: []string{"has the taint maintenance.haulout.dev/drain"},
		},
		"a condition of a maintenance": {
			change: func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{
					{Type: "Ready", Status: corev1.ConditionTrue}, {Type: "Drained", Status: corev1.ConditionTrue},
					{Type: "DrainInProgress", Status: corev1.ConditionFalse},
				}
			},
			want: []string{"has the condition Drained"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTape(t)
			begin(p)
			p.node("one", "blue", test.change)
			var cordoned []string
			if test.cordoned {
				cordoned = []string{"one"}
			}
			expect(t, notPutBack(p.log, cordoned...), test.want...)
		})
	}
}

func TestLeftOver(t *testing.T) {
	p := newTape(t)
	begin(p)
	p.ask("low-1", "low-2")
	p.end("low-1")
	expect(t, leftOver(p.log), "Evacuation shop/low-2 still exists")
}

func TestUnasked(t *testing.T) {
	tests := map[string]struct {
		play func(*tape)
		want []string
	}{
		"a maintenance drains the node": {play: func(p *tape) { p.drain("drain", "a"); p.evict("web") }},
		"no maintenance was ever there": {
			play: func(p *tape) { p.evict("web") }, want: []string{"pod shop/web on node a1 was evicted"},
		},
		"it drains other nodes": {
			play: func(p *tape) { p.drain("drain", "b"); p.evict("web") },
			want: []string{"pod shop/web on node a1 was evicted"},
		},
		"it came later": {
			play: func(p *tape) {
				p.evict("web")
				p.host += 10
				p.drain("drain", "a")
				p.nms["drain"].CreationTimestamp = metav1.NewTime(p.now())
				p.reach("drain", 1000, "a1")
			},
			want: []string{"pod shop/web on node a1 was evicted"},
		},
		"it was over a moment ago": {
			play: func(p *tape) { p.drain("drain", "a"); p.complete("drain"); p.evict("web") },
		},
		"it was over long ago": {
			play: func(p *tape) {
				p.drain("drain", "a")
				p.complete("drain")
				p.host += int(stopTime/time.Second) + 1
				p.evict("web")
			},
			want: []string{"pod shop/web on node a1 was evicted"},
		},
		"another one drains it": {
			play: func(p *tape) {
				p.drain("drain", "a")
				p.drain("other", "a,b")
				p.complete("drain")
				p.host += 100
				p.evict("web")
			},
		},
		"it was paused a moment ago": {
			play: func(p *tape) { p.drain("drain", "a"); p.pause("drain", true); p.evict("web") },
		},
		"it was paused long ago": {
			play: func(p *tape) {
				p.drain("drain", "a")
				p.pause("drain", true)
				p.host += int(stopTime/time.Second) + 1
				p.evict("web")
			},
			want: []string{"pod shop/web on node a1 was evicted"},
		},
		"it was resumed": {
			play: func(p *tape) {
				p.drain("drain", "a")
				p.pause("drain", true)
				p.host += 100
				p.pause("drain", false)
				p.evict("web")
			},
		},
		"it is paused, and another one drains the node": {
			play: func(p *tape) {
				p.drain("drain", "a")
				p.pause("drain", true)
				p.drain("other", "a")
				p.host += 100
				p.evict("web")
			},
		},
		"another user evicts": {play: func(p *tape) { p.evict("web"); p.log.Calls[0].User = "alice" }},
		"a budget refused":    {play: func(p *tape) { p.evict("web"); p.log.Calls[0].Code = 429 }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newTape(t)
			p.node("a1", "a")
			p.node("b1", "b")
			p.pod("web", "a1", 0)
			p.log.begin()
			tt.play(p)
			expect(t, unasked(p.log, "haulout"), tt.want...)
		})
	}
}
