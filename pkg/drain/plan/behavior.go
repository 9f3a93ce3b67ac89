// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// Rules decides what a maintenance does with the pods of its nodes, by the behaviors in its drain
// plan. nil drains every pod.
type Rules struct {
	// entries are the entries of the plan that have a behavior, in the order of the plan.
	entries Targets
	// since is the time at which stage Drain began, zero if it has not begun.
	since time.Time
}

// RulesOf returns the rules of a maintenance, nil if its plan has no behavior. since is the time at
// which stage Drain began, zero if it has not begun.
func RulesOf(plan []v1alpha1.DrainPlanEntry, since time.Time) (*Rules, error) {
	if !slices.ContainsFunc(plan, hasBehavior) {
		return nil, nil
	}
	var decisive []v1alpha1.DrainPlanEntry
	for i := range plan {
		if hasBehavior(plan[i]) {
			decisive = append(decisive, plan[i])
		}
	}
	entries, err := CompileTargets(decisive)
	if err != nil {
		return nil, fmt.Errorf("behaviors of the drain plan: %w", err)
	}
	return &Rules{entries, since}, nil
}

func hasBehavior(e v1alpha1.DrainPlanEntry) bool { return e.Behavior != nil }

// Treatment is what a drain does with a pod.
type Treatment struct {
	// Behavior is Drain, WaitCompleted or Skip.
	Behavior v1alpha1.DrainBehavior
	// Until is the time at which a pod that the drain lets complete is asked to leave, zero for
	// never and for other pods.
	Until time.Time
}

// Of returns what the maintenance does with a pod at a time. The first entry that covers the pod
// and has a behavior decides.
func (r *Rules) Of(pod Pod, now time.Time) Treatment {
	drained := Treatment{Behavior: v1alpha1.DrainBehaviorDrain}
	if r == nil {
		return drained
	}
	at := r.entries.First(pod)
	if at < 0 {
		return drained
	}
	e := &r.entries.Entries[at]
	t := Treatment{Behavior: *e.Behavior}
	if seconds := ptr.Deref(e.WaitSeconds, 0); t.Behavior == v1alpha1.DrainBehaviorWaitCompleted && seconds > 0 && !r.since.IsZero() {
		if t.Until = r.since.Add(time.Duration(seconds) * time.Second); !now.Before(t.Until) {
			return drained
		}
	}
	return t
}

// Skips reports whether the maintenance keeps a pod.
func (r *Rules) Skips(pod Pod) bool {
	return r.Of(pod, time.Time{}).Behavior == v1alpha1.DrainBehaviorSkip
}

// NodeRules has the rules of the maintenances that drain a node. The zero value drains every pod.
type NodeRules []*Rules

// Of returns what the maintenances of a node do with a pod at a time. The strictest of them
// decides, in the order Drain, WaitCompleted, Skip.
func (n NodeRules) Of(pod Pod, now time.Time) Treatment {
	strictest := Treatment{Behavior: v1alpha1.DrainBehaviorDrain}
	for i, rules := range n {
		t := rules.Of(pod, now)
		switch {
		case t.Behavior == v1alpha1.DrainBehaviorDrain:
			return t
		case i == 0 || strictest.Behavior == v1alpha1.DrainBehaviorSkip:
			strictest = t
		case t.Behavior == v1alpha1.DrainBehaviorWaitCompleted && isSooner(t.Until, strictest.Until):
			strictest.Until = t.Until
		}
	}
	return strictest
}

// isSooner compares two times of which zero means never.
func isSooner(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// Filter returns a node without the pods that its rules skip at a time. No wave waits for these
// pods.
func (n NodeRules) Filter(node *Node, now time.Time) *Node {
	isSkipped := func(pod Pod) bool { return n.Of(pod, now).Behavior == v1alpha1.DrainBehaviorSkip }
	if len(n) == 0 || !slices.ContainsFunc(node.Pods, isSkipped) {
		return node
	}
	filtered := *node
	filtered.Pods = slices.DeleteFunc(slices.Clone(node.Pods), isSkipped)
	return &filtered
}

// Completing describes pods that a drain lets complete.
type Completing struct {
	// Pods is the number of pods, and Name is the namespace and name of one of them.
	Pods int
	Name string
	// Until is the first time at which one of the pods is asked to leave, zero for never.
	Until time.Time
}

// Add adds a pod that the drain lets complete until a time.
func (c *Completing) Add(name string, until time.Time) {
	c.Join(Completing{Pods: 1, Name: name, Until: until})
}

// Join adds further pods.
func (c *Completing) Join(other Completing) {
	c.Pods += other.Pods
	if c.Name == "" {
		c.Name = other.Name
	}
	if isSooner(other.Until, c.Until) {
		c.Until = other.Until
	}
}

// String returns a phrase about the pods: "2 pods to complete, such as shop/backup-1".
func (c *Completing) String() string {
	text := wording.Count(c.Pods, "pod") + " to complete"
	if !c.Until.IsZero() {
		text += " (until " + c.Until.UTC().Format(time.RFC3339) + ")"
	}
	return text + ", such as " + c.Name
}

// MessageOf returns the message of a node: the planned one of Result, or one about the pods if
// nothing else happens on the node. asked is the number of pods that are asked to leave it.
func (c *Completing) MessageOf(planned string, asked int) string {
	if c.Pods == 0 || asked > 0 || !strings.HasPrefix(planned, MessageEvacuating) {
		return planned
	}
	return Fit("Waiting for "+c.String(), MaxMessageBytes)
}
