// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestOutages(t *testing.T) {
	at := 0
	node := func(kind watch.EventType, name, zone string, unschedulable bool) Observation {
		at++
		return observe(dawn.Add(time.Duration(at)*time.Second), kind, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}, Spec: corev1.NodeSpec{Unschedulable: unschedulable},
		})
	}
	out := func(name, zone string) Observation { return node(watch.Modified, name, zone, true) }
	back := func(name, zone string) Observation { return node(watch.Modified, name, zone, false) }
	for sentence, tc := range map[string]struct {
		events []Observation
		limit  Limit
		most   int
		want   []string
	}{
		"no node is out":               {events: []Observation{back("a", "x"), back("b", "x")}, limit: Limit{Nodes: 1}},
		"one after the other is out":   {events: []Observation{out("a", "x"), back("a", "x"), out("b", "x")}, limit: Limit{Nodes: 1}, most: 1},
		"one that is out is deleted":   {events: []Observation{out("a", "x"), node(watch.Deleted, "a", "x", true), out("b", "x")}, limit: Limit{Nodes: 1}, most: 1},
		"one that is out changes":      {events: []Observation{out("a", "x"), out("a", "x")}, limit: Limit{Nodes: 1}, most: 1},
		"two are out in two domains":   {events: []Observation{out("a", "x"), out("b", "y")}, limit: Limit{Key: "zone", Nodes: 1}, most: 2},
		"any number may be out in one": {events: []Observation{out("a", "x"), out("b", "x")}, limit: Limit{Key: "zone", Domains: 1}, most: 2},
		"two are out": {
			events: []Observation{out("a", "x"), out("b", "y"), out("b", "y"), back("b", "y")}, limit: Limit{Nodes: 1}, most: 2,
			want: []string{`2 nodes are out of service in domain "", 1 allowed: a, b`},
		},
		"two are out, twice": {
			events: []Observation{out("a", "x"), out("b", "y"), back("b", "y"), out("c", "x")}, limit: Limit{Nodes: 1}, most: 2,
			want: []string{"1 allowed: a, b", "1 allowed: a, c"},
		},
		"two are out in a domain": {
			events: []Observation{out("a", "x"), out("b", "y"), out("c", "x")}, limit: Limit{Key: "zone", Nodes: 1}, most: 3,
			want: []string{`2 nodes are out of service in domain "x"`},
		},
		"one that is out moves to the domain of another": {
			events: []Observation{out("a", "x"), out("b", "y"), out("b", "x")}, limit: Limit{Key: "zone", Nodes: 1}, most: 2,
			want: []string{`2 nodes are out of service in domain "x"`},
		},
		"one is out while another soaks": {
			events: []Observation{out("a", "x"), back("a", "x"), back("a", "x"), out("b", "x"), back("b", "x")},
			limit:  Limit{Nodes: 1, Soak: 3 * time.Second}, most: 1, want: []string{"1 allowed: a, b"},
		},
		"one is out after another has soaked": {
			events: []Observation{out("a", "x"), back("a", "x"), back("a", "x"), out("b", "x")}, limit: Limit{Nodes: 1, Soak: 2 * time.Second}, most: 1,
		},
		"one that soaks goes out again": {
			events: []Observation{out("a", "x"), back("a", "x"), out("a", "x")}, limit: Limit{Nodes: 1, Soak: 5 * time.Second}, most: 1,
		},
		"one that soaks is deleted": {
			events: []Observation{out("a", "x"), back("a", "x"), node(watch.Deleted, "a", "x", false), out("b", "x")},
			limit:  Limit{Nodes: 1, Soak: 5 * time.Second}, most: 1,
		},
		"nodes of two domains are out": {
			events: []Observation{out("a", "x"), out("b", "y")}, limit: Limit{Key: "zone", Domains: 1}, most: 2,
			want: []string{"nodes of 2 domains of zone are out of service, 1 allowed"},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			found, most := Outages(Log{Observations: tc.events}, tc.limit)
			expect(t, found, tc.want...)
			is.Equal(t, most, tc.most, "most nodes")
		})
	}
}
