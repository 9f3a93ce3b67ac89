// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestSettings(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		// fails is a part of the error; "" means no error.
		fails string
	}{
		"the defaults are valid":                        {},
		"a small size":                                  {args: []string{"--nodes=500", "--pods=15000", "--drain=25", "--rest=10s"}},
		"the drain of all nodes":                        {args: []string{"--parts=full", "--nodes=10", "--pods=100", "--drain=10"}},
		"a rollout of one node":                         {args: []string{"--rollout", "--nodes=1", "--pods=1", "--drain=1"}},
		"an unknown part":                               {args: []string{"--parts=speed"}, fails: `"speed" must be one of preview`},
		"fewer pods than nodes":                         {args: []string{"--pods=10"}, fails: "--pods 10"},
		"more nodes to drain than nodes":                {args: []string{"--drain=5001"}, fails: "--drain 5001"},
		"no other nodes are left for the part finished": {args: []string{"--nodes=10", "--drain=6"}, fails: "at most half of --nodes"},
		"an argument that is not a flag":                {args: []string{"fast"}, fails: `"fast"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readSettings(test.args)
			if test.fails == "" && err != nil || test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
				t.Errorf("got error %v, want one that names %q", err, test.fails)
			}
		})
	}
	s, err := readSettings(nil)
	is.True(t, err == nil && !slices.Contains(s.parts, partFull), "without --parts, the parts are %q, %v: the drain of all nodes takes hours", s.parts, err)
}

func TestPodsOn(t *testing.T) {
	c := &cluster{settings: settings{nodes: 10, pods: 25, drain: 3}}
	is.Equal(t, c.podsOn(groupCancelled), 9, "pods on the nodes 0 to 2")
	is.Equal(t, c.podsOn(groupFinished), 8, "pods on the nodes 3 to 5")
	is.Equal(t, c.podsOn(groupCancelled, groupFinished, groupOther), 25, "all pods")
}
