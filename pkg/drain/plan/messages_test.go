// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestWaitMessage(t *testing.T) {
	long := strings.Repeat("n", 200)
	for name, test := range map[string]struct {
		nodes []string
		of    string
		want  string
	}{
		"one node":  {nodes: []string{"two"}, want: "Waiting for node two."},
		"two nodes": {nodes: []string{"three", "two"}, want: "Waiting for nodes three and two."},
		"seven nodes": {
			nodes: []string{"two", "three", "4", "5", "6", "7", "8"}, want: "Waiting for nodes two, three and 5 more.",
		},
		"a node of another maintenance": {
			nodes: []string{"two"}, of: "maintenance-a", want: "Waiting for node two (maintenance-a).",
		},
		"a name that is too long":             {nodes: []string{long}, want: "Waiting for node " + strings.Repeat("n", 107) + "…."},
		"names that are too long are counted": {nodes: []string{long, "b"}, want: "Waiting for 2 nodes."},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes nodeList
			for _, name := range test.nodes {
				nodes.add(name)
			}
			got := nodes.message(test.of)
			is.Equal(t, got, test.want)
			is.True(t, len(got) <= MaxMessageBytes, "got %d bytes, want at most %d", len(got), MaxMessageBytes)
		})
	}
}

func TestNotAuthorizedMessage(t *testing.T) {
	is.Equal(t, NotAuthorizedMessage("x"), `Not drained: user "x" may not maintain this node.`)
	for _, user := range []string{strings.Repeat("u", 300), strings.Repeat(`"`, 300), strings.Repeat("ü", 300)} {
		if got := NotAuthorizedMessage(user); len(got) > MaxMessageBytes ||
			!strings.HasSuffix(got, "may not maintain this node.") {
			t.Errorf("got %d bytes: %s", len(got), got)
		}
	}
}

// TestRemarksForTheSubjectOnly counts the remarks that are computed. The cost of a remark depends
// on the pairs of maintenances of a node.
func TestRemarksForTheSubjectOnly(t *testing.T) {
	for _, n := range []int{50, 100, 200, 400} {
		world := World{Nodes: []*Node{node("one", pod(typeDefault, 0))}}
		for i := range n {
			world.Maintenances = append(world.Maintenances, maintenance(fmt.Sprintf("m-%03d", i), i, defaultPlan(), "one"))
		}
		world.Subject = "m-007"
		p := &planning{nodes: map[string]*nodeState{}, groups: map[string]*group{}}
		result := must.Get(p.plan(world))(t)
		if len(result.Messages) != 1 || result.Messages["m-007"]["one"] != MessageEvacuating {
			t.Errorf("got messages %v, want that of the subject", result.Messages)
		}
		remarks := 0
		for _, g := range p.groups {
			for _, a := range g.answers {
				for _, r := range a.remarks {
					if r != nil {
						remarks++
					}
				}
			}
		}
		is.True(t, remarks == 1, "of %d maintenances: got %d remarks, want that of the subject", n, remarks)
	}
}
