// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodemaintenance"
)

// waitGoldens are the cases of the ends of a wait, and of commands that find less than they ask
// for: no rights, no object, nothing to change.
var waitGoldens = map[string]golden{
	"wait-cordon": {
		line:    "stage zone-a Cordon --wait --timeout=1m",
		objects: []runtime.Object{doesNotHold(v1alpha1.NodeStatusNotCordoned, failing("node-005", fmt.Sprintf(noCordon, 5), time.Minute))},
	},
	"wait-cordon-refused": {
		line: "stage zone-a Cordon --wait --timeout=1h30m", objects: []runtime.Object{doesNotHold(v1alpha1.NodeStatusNotAuthorized)},
	},
	"wait-cordon-too-many": {
		line: "wait zone-a --for=cordoned --timeout=90s", objects: []runtime.Object{doesNotHold(v1alpha1.NodeStatusTooManyMaintenances)},
	},
	"wait-paused-meanwhile": {line: "wait kernel-update --timeout=1h", arrange: pausedAfter(time.Hour)},
	"wait-complete-paused":  {line: "wait kernel-update --for=complete --timeout=90m", arrange: isPaused},
	"wait-recreated":        {line: "wait kernel-update --for=complete", arrange: recreated},
	"wait-recreated-drain":  {line: "wait kernel-update", arrange: recreated},
	"wait-not-served":       {line: "wait kernel-update --for=complete", arrange: losesAPI},
	"complete-released":     {line: "complete kernel-update", objects: []runtime.Object{released()}},
	"stage-paused":          {line: "stage window Drain", objects: []runtime.Object{pausedIdle()}},

	"stage-may-not-list":      {line: "stage zone-a Drain", arrange: forbid("list", "nodes")},
	"stage-may-not-list-cp":   {line: "stage window Drain", objects: []runtime.Object{idle("node-001")}, arrange: forbid("list", "nodes")},
	"stage-may-not-list-gone": {line: "stage window Cordon", objects: []runtime.Object{idle("node-009")}, arrange: forbid("list", "nodes")},
	"complete-idle-may-not-read": {
		line: "complete window", objects: []runtime.Object{idle("node-003")}, arrange: all(forbid("list", "nodes"), forbid("get", "nodes")),
	},
	"complete-idle-eof": {line: "complete window", objects: []runtime.Object{idle("node-003")}, arrange: interactive},

	"explain-no-pod-kept":    {line: "explain logs-1 --namespace=kube-system", objects: withPods(), arrange: forbid("get", "pods")},
	"explain-no-pod-unknown": {line: "explain dns-1 --namespace=shop", objects: withPods(), arrange: forbid("get", "pods")},
	"explain-no-pod-no-preview": {
		line: "explain dns-1 --namespace=kube-system", objects: withPods(),
		arrange: all(forbid("get", "pods"), forbid("get", "nodemaintenances/preview")),
	},

	"evacuate-again":            {line: "evacuate held --namespace=shop", objects: withPodsAnd(byHand)},
	"evacuate-deleting":         {line: "evacuate held --namespace=shop", objects: withPodsAnd(beingDeleted)},
	"evacuate-daemonset":        {line: "evacuate logs-1 --namespace=kube-system", objects: withPods()},
	"evacuate-cancel-forbidden": {line: "evacuate --cancel checkout-a --namespace=shop", arrange: forbid("list", "nodemaintenances")},
	"evacuate-cancel-eviction":  {line: "evacuate --cancel held --namespace=shop", objects: withPodsAnd(forEviction)},
	"evacuate-wait-no-answer":   {line: "evacuate far --namespace=shop --wait --timeout=10s", objects: withPods(), arrange: answersNoMore},

	"history-drained": {line: "history kernel-update", objects: []runtime.Object{drained()}},

	"unknown-stop": {line: "stop kernel-update"},
	"unknown-list": {line: "list"},
	"unknown-who":  {line: "who kernel-update"},
	"unknown-why":  {line: "why pod/web-1"},
}

// doesNotHold returns the maintenance that cordon returns, which does not hold its node, for the
// reason in the status of the node.
func doesNotHold(reason v1alpha1.NodeStatusReason, modify ...func(*nodemaintenance.Described)) *v1alpha1.NodeMaintenance {
	nm := cordoning()
	nm.Status.NodeStatuses[0].Reason = reason
	return described(nm, nil, modify...)
}

// released returns the maintenance that draining returns, whose nodes the server releases
// immediately.
func released() *v1alpha1.NodeMaintenance {
	nm := draining()
	nm.Finalizers = nil
	return nm
}

// pausedIdle returns a maintenance in stage Idle that bob has paused.
func pausedIdle() *v1alpha1.NodeMaintenance {
	nm := idle("node-003")
	nm.Spec.Paused = true
	nm.Status.Pause = &v1alpha1.NodeMaintenancePause{By: "bob", Since: before(5 * time.Minute)}
	return described(nm, nil)
}

// pausedAfter makes the reads of a maintenance return a paused one after a duration: a user has
// paused it meanwhile. Watches do not report it.
func pausedAfter(d time.Duration) func(*world) {
	return func(w *world) {
		start := time.Now()
		w.haulout.PrependReactor("get", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
			return time.Since(start) >= d, pausedDrain(), nil
		})
	}
}

// recreated makes a get return another maintenance than the one that the cluster has: a user has
// deleted the former and has created the latter under the same name.
func recreated(w *world) {
	w.haulout.PrependReactor("get", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
		nm := draining()
		nm.UID = "uid-of-the-first"
		return true, nm, nil
	})
}

// losesAPI makes the API disappear after the first read of a maintenance.
func losesAPI(w *world) {
	reads := 0
	w.haulout.PrependReactor("get", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		reads++
		return reads > 1, nil, notServed(action.GetVerb())
	})
}

// withPodsAnd returns the objects of withPods, with a modified Evacuation of the pod held.
func withPodsAnd(modify func(*v1alpha1.Evacuation)) []runtime.Object {
	objects := withPods()
	for _, object := range objects {
		if e, ok := object.(*v1alpha1.Evacuation); ok && e.Name == protocol.CanonicalName("held", "shopheld") {
			modify(e)
		}
	}
	return objects
}

// forEviction makes an eviction the only request of an Evacuation.
func forEviction(e *v1alpha1.Evacuation) {
	e.Finalizers = []string{v1alpha1.FinalizerInstigatorRawEviction}
}

func beingDeleted(e *v1alpha1.Evacuation) { e.DeletionTimestamp = new(before(time.Second)) }

// answersNoMore makes the reads of an Evacuation fail, as they do without a network. The clock
// advances while the command waits, so that it writes a line for each change.
func answersNoMore(w *world) {
	start := time.Now()
	w.environment.now = func() time.Time { return now.Add(time.Since(start)) }
	w.haulout.PrependReactor("get", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("dial tcp 192.0.2.1:6443: connect: no route to host")
	})
}
