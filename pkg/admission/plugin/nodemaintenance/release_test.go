// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance"
)

// TestReleaseOfNodesAmongManyOthers covers a write that concerns hundreds of nodes that the user
// may delete, and releases three nodes that the user may not delete.
func TestReleaseOfNodesAmongManyOthers(t *testing.T) {
	nodes := []*corev1.Node{node("prod-0", "prod"), node("prod-1", "prod"), node("prod-2", "prod")}
	own := []string{}
	for i := range 600 {
		nodes = append(nodes, node(fmt.Sprintf("dev-%03d", i), "dev"))
		own = append(own, fmt.Sprintf("dev-%03d", i))
	}
	held := holding("prod-0", "prod-1", "prod-2")
	for name, r := range map[string]request{
		"a new selector": {nm: maintain(pools("dev"), held), old: maintain(pools("prod"), held)},
		"a new selector and stage Complete": {
			nm: maintain(pools("dev"), held, atStage("Complete")), old: maintain(pools("prod"), held),
		},
		"the deletion of a maintenance that holds both": {old: maintain(pools("dev", "prod"), held, holding(own...))},
	} {
		t.Run(name, func(t *testing.T) {
			r.by = bob
			f := newFixture(t, may(own...), nodes)
			ctx, _ := f.context(r)
			if err := f.validate(ctx, r); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "prod-2") {
				t.Errorf("got %v, want a Forbidden error that names prod-2", err)
			}
		})
	}
}

// TestReleaseOfManyNodes covers a user who may delete each of 1,202 nodes by name, and releases
// them in one write.
func TestReleaseOfManyNodes(t *testing.T) {
	nodes := manyNodes(1200)
	f := newFixture(t, may(allOf(nodes)...), nodes)
	r := request{by: bob, old: maintain(pools("blue"))}
	ctx, _ := f.context(r)
	if err := f.validate(ctx, r); err != nil {
		t.Error(err)
	}
	if n := len(f.host.asked); n != 1203 {
		t.Errorf("got %d questions, want 1203: one for each of 1,202 nodes and one for all", n)
	}
}

func TestReleaseFailsBeforeTheRequestTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := may("blue-1")
		h.hangs["blue-2"] = true
		f := newFixture(t, h, twoPools)
		r := request{by: bob, old: maintain(pools("blue"))}
		ctx, _ := f.context(r)
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		err := f.validate(ctx, r)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "2 nodes to release") ||
			!strings.Contains(err.Error(), "in steps") {
			t.Errorf("got %v, want an error that the nodes are to be released in steps", err)
		}
		if ctx.Err() != nil {
			t.Error("the request timed out before it got an answer")
		}
	})
}

func TestErrorsNameOnlyNodesThatTheUserMayGet(t *testing.T) {
	for name, test := range map[string]struct {
		hidden []string
		want   string
	}{
		"the user may get all nodes": {want: "may not delete 2 of the nodes (blue-1, blue-2),"},
		"the user may get one node": {
			hidden: []string{"blue-1"}, want: "may not delete 2 of the nodes (blue-2 and 1 that the user may not get),",
		},
		"the user may get no node": {hidden: []string{"blue-1", "blue-2"}, want: "may not delete 2 of the nodes,"},
	} {
		t.Run(name, func(t *testing.T) {
			h := may()
			for _, node := range test.hidden {
				h.hidden[node] = true
			}
			f := newFixture(t, h, twoPools)
			r := request{by: bob, nm: maintain(pools("blue"))}
			ctx, _ := f.context(r)
			err := f.validate(ctx, r)
			if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q in it", err, test.want)
			}
			for _, node := range test.hidden {
				if strings.Contains(err.Error(), node) {
					t.Errorf("got error %q, want it without the name of node %s", err, node)
				}
			}
		})
	}
}

// TestDrainPlanIsRefusedIfTheStatusWouldBeTooLarge checks that the error has the number of nodes
// and the limit.
func TestDrainPlanIsRefusedIfTheStatusWouldBeTooLarge(t *testing.T) {
	nodes := manyNodes(5000)
	plan := func(own, length int) func(*maintenance.NodeMaintenance) {
		return func(nm *maintenance.NodeMaintenance) {
			for i := range own {
				nm.Spec.DrainPlan = append(nm.Spec.DrainPlan, maintenance.DrainPlanEntry{
					PodType: "Default",
					PodSelector: &metav1.LabelSelector{
						MatchLabels: map[string]string{fmt.Sprintf("app-%d", i): strings.Repeat("x", length)},
					},
				})
			}
		}
	}
	for name, test := range map[string]struct {
		request request
		want    bool
	}{
		"a plan of 441 KiB for 5,000 nodes": {
			request: request{nm: maintain(pools("blue"), plan(100, 4400))}, want: true,
		},
		"the same plan in stage Idle": {
			request: request{nm: maintain(pools("blue"), plan(100, 4400), atStage("Idle"))}, want: true,
		},
		"the same plan for one node": {request: request{nm: maintain(pools("red"), plan(100, 4400))}},
		"a new selector makes the status too large": {
			request: request{nm: maintain(pools("blue"), plan(100, 50)), old: maintain(pools("red"), plan(100, 50))},
			want:    true,
		},
		"the plan stays, and the reason changes": {
			request: request{
				nm: maintain(pools("blue"), plan(100, 50), because("x")), old: maintain(pools("blue"), plan(100, 50)),
			},
		},
		"the plan stays, and the maintenance is completed": {
			request: request{
				nm:  maintain(pools("blue"), plan(100, 50), atStage("Complete")),
				old: maintain(pools("blue"), plan(100, 50)),
			},
		},
		"a plan without entries for 5,000 nodes": {request: request{nm: maintain(pools("blue"))}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, may(append(allOf(nodes), "")...), nodes)
			test.request.by = bob
			ctx, _ := f.context(test.request)
			err := f.validate(ctx, test.request)
			if !test.want {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.drainPlan") ||
				!strings.Contains(err.Error(), "for 5002 nodes") ||
				!strings.Contains(err.Error(), "at most 1024 KiB") || len(err.Error()) > 500 {
				t.Errorf("got %v, want a short error with the number of nodes and the limit", err)
			}
		})
	}
}

// TestMatchingOfALargeSelectorStopsWithTheRequest covers an object that was stored before selectors
// had a limit: its request stops when it is cancelled.
func TestMatchingOfALargeSelectorStopsWithTheRequest(t *testing.T) {
	selector := &corev1.NodeSelector{}
	for i := range 26_000 {
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: fmt.Sprintf("k%d", i), Operator: corev1.NodeSelectorOpExists},
			}})
	}
	f := newFixture(t, may(""), manyNodes(100))
	r := request{by: bob, nm: maintain(selector)}
	ctx, _ := f.context(r)
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	if err := f.validate(ctx, r); err == nil || len(f.host.asked) > 0 {
		t.Errorf("got %v after %d questions, want an error before the first question", err, len(f.host.asked))
	}
}
