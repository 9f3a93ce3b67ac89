// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestInHands(t *testing.T) {
	at := func(seconds int) time.Time { return dawn.Add(time.Duration(seconds) * time.Second) }
	task := func(seconds int, state v1alpha1.NodeTaskState, holder string) Observation {
		return observe(at(seconds), watch.Modified, &v1alpha1.NodeTask{
			ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "task", ResourceVersion: "1"}, Spec: v1alpha1.NodeTaskSpec{NodeUID: "uid-a"},
			Status: v1alpha1.NodeTaskStatus{State: state, Holder: holder},
		})
	}
	node := func(seconds int, unschedulable bool) Observation {
		return observe(at(seconds), watch.Modified, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "uid-a", ResourceVersion: "1"}, Spec: corev1.NodeSpec{Unschedulable: unschedulable},
		})
	}
	pod := observe(at(0), watch.Added, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web", UID: podUID, ResourceVersion: "1"}, Spec: corev1.PodSpec{NodeName: "a"},
	})
	eviction := func(seconds int, user string) Call {
		return Call{
			Verb: "create", Subresource: "eviction", Namespace: "blue", Name: "web", UID: podUID, User: user, Code: http.StatusCreated,
			Received: at(seconds),
		}
	}
	relisted := func(o Observation) Observation {
		o.relisted = true
		return o
	}
	since := func(seconds int, o Observation) Observation {
		o.Object.(*v1alpha1.NodeTask).Status.StateTime = &metav1.Time{Time: at(seconds)}
		return o
	}
	claimed := []Observation{pod, node(0, true), task(1, v1alpha1.NodeTaskOffered, ""), task(2, v1alpha1.NodeTaskClaimed, "w")}
	done := []Observation{task(10, v1alpha1.NodeTaskVerifying, "w"), task(20, v1alpha1.NodeTaskDone, "w")}
	for sentence, tc := range map[string]struct {
		events []Observation
		calls  []Call
		gaps   []Gap
		want   []string
	}{
		"nothing happens": {events: done},
		"a pod leaves before and after": {
			events: append(done, node(30, false)), calls: []Call{eviction(1, sender), eviction(30, sender)},
		},
		"a pod is evicted by another client": {events: done, calls: []Call{eviction(5, "drain")}},
		"a pod is evicted by the server": {
			events: done, calls: []Call{eviction(15, sender)},
			want: []string{"the server removed pod blue/web although worker w works on node a"},
		},
		"the node is made schedulable": {
			events: []Observation{node(5, false), node(6, true)},
			want:   []string{"node a is schedulable at 10:00:05.000 although worker w works on it since 10:00:02.000"},
		},
		"the end of the work is seen late": {
			events: []Observation{node(9, false), since(8, task(10, v1alpha1.NodeTaskDone, "w"))},
		},
		"the node is made schedulable before the end, which is seen late": {
			events: []Observation{node(7, false), node(8, true), since(8, task(10, v1alpha1.NodeTaskDone, "w"))},
			want:   []string{"node a is schedulable at 10:00:07.000 although worker w works on it from 10:00:02.000 to 10:00:08.000"},
		},
		"the end of the work is found in a list": {
			events: []Observation{node(5, false), relisted(task(10, v1alpha1.NodeTaskDone, "w"))},
		},
		"the end of the work is seen after a restart": {
			events: []Observation{node(5, false), task(10, v1alpha1.NodeTaskDone, "w")}, gaps: []Gap{{at(9), at(11)}},
		},
		"the node is made schedulable before a restart": {
			events: []Observation{node(3, false), task(4, v1alpha1.NodeTaskVerifying, "w"), node(6, true), task(10, v1alpha1.NodeTaskDone, "w")},
			gaps:   []Gap{{at(9), at(11)}},
			want:   []string{"node a is schedulable at 10:00:03.000 although worker w works on it from 10:00:02.000 to 10:00:04.000"},
		},
		"another worker gets the node": {
			events: []Observation{task(5, v1alpha1.NodeTaskClaimed, "x")},
			want:   []string{`the task of node a went from worker w to "x"`},
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			log := Log{Observations: append(append([]Observation{}, claimed...), tc.events...), Calls: tc.calls, Gaps: tc.gaps}
			is.Slices(t, inHands(log, sender), tc.want, "what happened")
		})
	}
}

// TestMissing looks for a NodeTask that another client has read and whose events have not come yet.
func TestMissing(t *testing.T) {
	task := func(version string) *v1alpha1.NodeTask {
		return &v1alpha1.NodeTask{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "task", ResourceVersion: version}}
	}
	seen := func(version moment, eventType watch.EventType) Observation {
		o := observe(dawn, eventType, task("0"))
		o.version = version
		return o
	}
	for sentence, tc := range map[string]struct {
		log    []Observation
		listed []v1alpha1.NodeTask
		want   string
	}{
		"no task":                          {},
		"a task is seen":                   {log: []Observation{seen(5, watch.Added)}, listed: []v1alpha1.NodeTask{*task("5")}},
		"a later version is seen":          {log: []Observation{seen(12, watch.Modified)}, listed: []v1alpha1.NodeTask{*task("5")}},
		"a task is seen after the list":    {log: []Observation{seen(12, watch.Added)}},
		"its deletion is seen":             {log: []Observation{seen(5, watch.Added), seen(9, watch.Deleted)}},
		"its deletion after the list, too": {log: []Observation{seen(12, watch.Deleted)}, listed: []v1alpha1.NodeTask{*task("5")}},
		"a task is not seen":               {listed: []v1alpha1.NodeTask{*task("5")}, want: "version 5 of the task of node a has not come"},
		"an older version is seen": {
			log: []Observation{seen(4, watch.Added)}, listed: []v1alpha1.NodeTask{*task("5")}, want: "version 5 of the task of node a has not come",
		},
		"its deletion is not seen": {log: []Observation{seen(5, watch.Added)}, want: "the deletion of the task of node a has not come"},
	} {
		t.Run(sentence, func(t *testing.T) {
			list := &v1alpha1.NodeTaskList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: tc.listed}
			is.Equal(t, missing(Log{Observations: tc.log}, list), tc.want)
		})
	}
}
