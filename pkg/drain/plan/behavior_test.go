// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	drained = v1alpha1.DrainBehaviorDrain
	awaited = v1alpha1.DrainBehaviorWaitCompleted
	skipped = v1alpha1.DrainBehaviorSkip
)

// began is the begin of stage Drain, and clock returns the time some seconds later.
var began = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func clock(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }

// does returns an entry with a behavior.
func does(e v1alpha1.DrainPlanEntry, behavior v1alpha1.DrainBehavior, waitSeconds ...int32) v1alpha1.DrainPlanEntry {
	e.Behavior = &behavior
	for _, seconds := range waitSeconds {
		e.WaitSeconds = &seconds
	}
	return e
}

func TestRules(t *testing.T) {
	high, all := entry(typeDefault, 1000), entry(typeDefault, maxPriority)
	web := entryFor(typeDefault, 1000, "web")
	for name, test := range map[string]struct {
		plan  entries
		pod   Pod
		after int
		want  v1alpha1.DrainBehavior
		until time.Time
	}{
		"a plan without behaviors drains": {plan: entries{high, all}, want: drained},
		"an entry that covers the pod decides": {
			plan: entries{does(high, skipped), all}, want: skipped,
		},
		"an entry that does not cover the pod says nothing": {
			plan: entries{does(high, skipped), all}, pod: pod(typeDefault, 1001), want: drained,
		},
		"a later entry decides if the first says nothing": {
			plan: entries{high, does(all, awaited)}, want: awaited,
		},
		"the first that says something decides": {
			plan: entries{does(web, drained), does(high, skipped), does(all, awaited)},
			pod:  podOf("web", typeDefault, 7), want: drained,
		},
		"a selector does not match other pods": {
			plan: entries{does(web, drained), does(high, skipped)}, pod: podOf("db", typeDefault, 7), want: skipped,
		},
		"other types are drained": {plan: entries{does(all, skipped)}, pod: pod(typeStatic, 7), want: drained},
		"a wait has an end": {
			plan: entries{does(all, awaited, 60)}, after: 59, want: awaited, until: clock(60),
		},
		"a wait is over": {plan: entries{does(all, awaited, 60)}, after: 60, want: drained},
		"after its wait, a pod is not skipped by a later entry": {
			plan: entries{does(high, awaited, 60), does(all, skipped)}, after: 60, want: drained,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.pod.Type == "" {
				test.pod = pod(typeDefault, 0)
			}
			rules := must.Get(RulesOf(test.plan, began))(t)
			is.Equal(t, rules.Of(test.pod, clock(test.after)), Treatment{test.want, test.until})
			is.Equal(t, rules.Skips(test.pod), test.want == skipped)
		})
	}
}

// TestAWaitEndsOnlyAfterItsDrainHasBegun covers a maintenance before stage Drain.
func TestAWaitEndsOnlyAfterItsDrainHasBegun(t *testing.T) {
	rules := must.Get(RulesOf(entries{does(entry(typeDefault, maxPriority), awaited, 60)}, time.Time{}))(t)
	is.Equal(t, rules.Of(pod(typeDefault, 0), began), Treatment{Behavior: awaited})
}

// TestPlansWithoutBehaviorsHaveNoRules checks that such plans cost nothing.
func TestPlansWithoutBehaviorsHaveNoRules(t *testing.T) {
	is.True(t, must.Get(RulesOf(defaultPlan(), began))(t) == nil, "got rules")
	n := node("one", pod(typeDefault, 0))
	is.True(t, NodeRules{}.Filter(n, began) == n, "got another node")
}

func TestRulesOfSeveralMaintenances(t *testing.T) {
	all := entry(typeDefault, maxPriority)
	for name, test := range map[string]struct {
		plans []v1alpha1.DrainPlanEntry
		after int
		want  v1alpha1.DrainBehavior
		until time.Time
	}{
		"nobody":                           {want: drained},
		"one drains":                       {plans: entries{does(all, skipped), does(all, awaited), all}, want: drained},
		"one waits":                        {plans: entries{does(all, skipped), does(all, awaited)}, want: awaited},
		"all skip":                         {plans: entries{does(all, skipped), does(all, skipped)}, want: skipped},
		"the order does not matter":        {plans: entries{does(all, awaited, 60), does(all, skipped)}, want: awaited, until: clock(60)},
		"the shorter wait ends the wait":   {plans: entries{does(all, awaited, 60), does(all, awaited, 30)}, want: awaited, until: clock(30)},
		"no limit is the longest wait":     {plans: entries{does(all, awaited), does(all, awaited, 30)}, want: awaited, until: clock(30)},
		"after the shorter wait all drain": {plans: entries{does(all, awaited), does(all, awaited, 30)}, after: 30, want: drained},
	} {
		t.Run(name, func(t *testing.T) {
			var rules NodeRules
			for _, e := range test.plans {
				rules = append(rules, must.Get(RulesOf(entries{e}, began))(t))
			}
			is.Equal(t, rules.Of(pod(typeDefault, 0), clock(test.after)), Treatment{test.want, test.until})
		})
	}
}

func TestFilterRemovesSkippedPods(t *testing.T) {
	web := does(entryFor(typeDefault, maxPriority, "web"), skipped)
	rules := NodeRules{must.Get(RulesOf(entries{web}, began))(t)}
	n := node("one", podOf("web", typeDefault, 0), podOf("db", typeDefault, 0))
	got := rules.Filter(n, began)
	is.True(t, len(got.Pods) == 1 && got.Pods[0].Labels["app"] == "db" && got.Name == "one", "got %+v", got)
	is.True(t, len(n.Pods) == 2, "the node has changed: %+v", n)
}

func TestCompletingMessage(t *testing.T) {
	var several, one, long Completing
	several.Add("shop/a", time.Time{})
	several.Join(Completing{Pods: 1, Name: "shop/b", Until: clock(60)})
	several.Add("shop/c", clock(30))
	one.Add("shop/a", time.Time{})
	long.Add("shop/"+strings.Repeat("a", 200), clock(60))
	for name, test := range map[string]struct {
		pods    Completing
		planned string
		asked   int
		want    string
	}{
		"several pods": {
			several, MessageEvacuating, 0, "Waiting for 3 pods to complete (until 2026-11-01T12:00:30Z), such as shop/a",
		},
		"one pod without a limit":          {one, "Evacuating (limited by m)", 0, "Waiting for 1 pod to complete, such as shop/a"},
		"another pod is asked":             {one, MessageEvacuating, 1, MessageEvacuating},
		"no pod":                           {Completing{}, MessageEvacuating, 0, MessageEvacuating},
		"a node that waits for other ones": {one, "Waiting for node two.", 0, "Waiting for node two."},
		"a long name": {
			long, MessageEvacuating, 0,
			"Waiting for 1 pod to complete (until 2026-11-01T12:01:00Z), such as shop/" + strings.Repeat("a", 52) + "…",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.pods.MessageOf(test.planned, test.asked)
			is.Equal(t, got, test.want)
			is.True(t, len(got) <= MaxMessageBytes, "%d bytes", len(got))
		})
	}
}
