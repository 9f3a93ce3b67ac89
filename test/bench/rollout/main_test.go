// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestSettings(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		// fails is a part of the error; "" means no error.
		fails string
	}{
		"the defaults are valid":                        {},
		"a small size":                                  {args: []string{"--nodes=30", "--pods=60", "--deployments=6", "--memory-nodes=100", "--memory-pods=1000"}},
		"two parts":                                     {args: []string{"--parts=trips,decision"}},
		"a folder without the programs":                 {args: []string{"--before=nothing"}, fails: "--before=nothing"},
		"an unknown part":                               {args: []string{"--parts=speed"}, fails: "flag -parts: \"speed\" must be one of trips"},
		"more places than the server allows":            {args: []string{"--percent=21"}, fails: "--percent=21: must be from 1 to 20"},
		"no node is left after the ramp":                {args: []string{"--nodes=2", "--pods=50"}, fails: "--nodes=2"},
		"pods that do not divide into Deployments":      {args: []string{"--pods=1001"}, fails: "--deployments"},
		"more pods than the nodes in service can run":   {args: []string{"--nodes=10", "--pods=3000"}, fails: "--pods"},
		"more nodes of memory than a maintenance has":   {args: []string{"--memory-nodes=5001"}, fails: "--memory-nodes"},
		"fewer pods than nodes of memory":               {args: []string{"--memory-pods=10"}, fails: "--memory-pods"},
		"a negative duration":                           {args: []string{"--work=-1s"}, fails: "--work=-1s: must be at least 0s"},
		"an argument that is not a flag":                {args: []string{"fast"}, fails: "\"fast\""},
		"no repetition":                                 {args: []string{"--repetitions=0"}, fails: "--repetitions=0"},
		"no time to count the writes of an idle server": {args: []string{"--idle=0s"}, fails: "--idle"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readSettings(test.args)
			if test.fails == "" && err != nil || test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
				t.Errorf("got error %v, want one that names %q", err, test.fails)
			}
		})
	}
}

func TestPlaces(t *testing.T) {
	for want, s := range map[int]settings{20: {nodes: 200, percent: 10}, 2: {nodes: 29, percent: 10}, 1: {nodes: 9, percent: 10}} {
		is.Equal(t, s.places(), want)
	}
}

func TestIsOver(t *testing.T) {
	for condition, want := range map[string]struct{ complete, over bool }{
		v1alpha1.ConditionProgressing: {}, v1alpha1.ConditionComplete: {true, true}, v1alpha1.ConditionStalled: {false, true},
	} {
		r := &v1alpha1.NodeMaintenanceRollout{}
		r.Status.Conditions = []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue}}
		is.Equal(t, isComplete(r), want.complete, condition)
		is.Equal(t, isOver(r), want.over, condition)
		r.Status.Conditions[0].Status = metav1.ConditionFalse
		is.True(t, !isOver(r), "a rollout is over although %s is False", condition)
	}
}
