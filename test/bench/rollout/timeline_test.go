// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// changesOf returns changes from texts such as "+a -b": after each second, a goes out of service
// and b comes back, at the same time.
func changesOf(seconds ...string) []change {
	var changes []change
	for second, text := range seconds {
		for _, field := range strings.Fields(text) {
			changes = append(changes, change{
				at: time.Unix(100+int64(second), 0), node: field[1:], out: field[0] == '+',
			})
		}
	}
	return changes
}

func TestTripOf(t *testing.T) {
	for name, test := range map[string]struct {
		changes       []change
		nodes, places int
		want          trip
		// fails is a part of the error; "" means no error.
		fails string
	}{
		"two places that are always in use": {
			changes: changesOf("+a +b", "", "-a +c -b +d", "", "-c +e", "-d", "-e"), nodes: 5, places: 2,
			want: trip{Seconds: 6, RampSeconds: 2, AfterSeconds: 4, InUse: 1, Most: 2, PerNode: 2},
		},
		"a place is empty for half of the time after the ramp": {
			changes: changesOf("+a +b", "-a -b", "+c +d", "-c -d", "", "+e", "-e"), nodes: 5, places: 2,
			// From 1 to 5 s: nothing, two nodes, nothing, nothing.
			want: trip{Seconds: 6, RampSeconds: 1, AfterSeconds: 5, InUse: 0.25, Most: 2, PerNode: 1},
		},
		"a ramp, and too many nodes at the end": {
			changes: changesOf("+a", "-a +b +c", "-b +d", "-c -d +e +f +g", "-e -f -g"), nodes: 7, places: 2,
			want: trip{Seconds: 4, RampSeconds: 2, AfterSeconds: 2, InUse: 1, Most: 3, PerNode: 1},
		},
		"other changes of a node do not count": {
			changes: changesOf("+a +a", "-a -a +b", "+b", "-b +c", "-c"), nodes: 3, places: 1,
			want: trip{Seconds: 4, RampSeconds: 1, AfterSeconds: 3, InUse: 1, Most: 1, PerNode: 1},
		},
		"a node that is still out":         {changes: changesOf("+a", "-a +b"), nodes: 2, places: 1, fails: "1 of 2 nodes came back, and 1 are out"},
		"a node that was never taken":      {changes: changesOf("+a", "-a"), nodes: 2, places: 1, fails: "1 of 2 nodes came back"},
		"not more nodes than places":       {changes: changesOf("+a +b", "-a -b"), nodes: 2, places: 2, fails: "too few nodes"},
		"a node that was taken twice":      {changes: changesOf("+a", "-a", "+a", "-a"), nodes: 1, places: 1, fails: "2 of 1 nodes came back"},
		"no change at all, of one node":    {nodes: 1, places: 1, fails: "0 of 1 nodes came back"},
		"the last is taken with the first": {changes: changesOf("+a +b +c", "-a", "-b -c"), nodes: 3, places: 1, fails: "too few nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := tripOf(test.changes, test.nodes, test.places)
			if test.fails != "" {
				is.True(t, err != nil && strings.Contains(err.Error(), test.fails), "got error %v, want one with %q", err, test.fails)
				return
			}
			must.Do(t, err)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRecorder(t *testing.T) {
	r := &recorder{out: map[string]bool{}}
	see := func(kind watch.EventType, name string, unschedulable bool) {
		r.see(watch.Event{Type: kind, Object: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: unschedulable},
		}})
	}
	see(watch.Added, "a", false)
	see(watch.Added, "b", false)
	see(watch.Modified, "a", true)
	see(watch.Modified, "a", true)
	is.True(t, !must.Get(r.isIdle())(t), "a node is out, but the recorder is idle")
	see(watch.Modified, "a", false)
	is.True(t, must.Get(r.isIdle())(t), "no node is out, but the recorder is not idle")
	is.Equal(t, len(r.changes), 2, "changes")
	is.True(t, r.changes[0].out && !r.changes[1].out && r.changes[0].node == "a", "got changes %v", r.changes)
}
