// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/show"
	"haulout.dev/haulout/pkg/controller/nodemaintenance"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// stuck returns a drain all of whose pods that are asked to leave are blocked.
func stuck() []runtime.Object {
	evacuations := slices.DeleteFunc(evacuations(), func(object runtime.Object) bool {
		e := object.(*v1alpha1.Evacuation)
		return !show.Blocked(e) && !protocol.IsComplete(e)
	})
	nm := undescribed()
	nm.Status.LastProgressTimestamp = new(before(12 * time.Second))
	return append([]runtime.Object{counted(nm, evacuations)}, evacuations...)
}

// stalled returns a long drain that has made no progress for a while, although some pods are not
// blocked.
func stalled() *v1alpha1.NodeMaintenance {
	return long(func(nm *v1alpha1.NodeMaintenance) { nm.Status.LastProgressTimestamp = new(before(17 * time.Minute)) })
}

// stalledEvacuations returns the Evacuations of the drain that stalled returns: no pod has left for
// a while.
func stalledEvacuations() []runtime.Object {
	return slices.DeleteFunc(evacuations(), func(object runtime.Object) bool { return protocol.IsComplete(object.(*v1alpha1.Evacuation)) })
}

// outsideOf returns a drain with a node outside its waves: the other nodes make progress. Its pods
// are not asked to leave.
func outsideOf(node string, reason v1alpha1.NodeStatusReason, modify ...func(*nodemaintenance.Described)) []runtime.Object {
	evacuations := slices.DeleteFunc(evacuations(), func(object runtime.Object) bool { return object.(*v1alpha1.Evacuation).Spec.NodeName == node })
	nm := undescribed()
	for i := range nm.Status.NodeStatuses {
		if n := &nm.Status.NodeStatuses[i]; n.NodeRef.Name == node {
			n.Reason, n.DrainTargets, n.PodsPendingEvacuation = reason, nil, 7
		}
	}
	nm.Status.Waves[1].PodsPeak, nm.Status.Waves[1].PodsLeft = 1, 1
	if node == "node-004" {
		nm.Status.Waves[1].PodsPeak, nm.Status.Waves[1].PodsLeft = 2, 2
	}
	return append([]runtime.Object{counted(nm, evacuations, modify...)}, evacuations...)
}

// noCordon is the text about a node whose cordon a webhook refuses.
const noCordon = `cordon node node-00%d: admission webhook "nodes.example.com" denied the request: frozen until Monday`

// syncFailed returns a drain with a node that cannot be cordoned.
func syncFailed() []runtime.Object {
	return outsideOf("node-004", v1alpha1.NodeStatusNotCordoned, failing("node-004", fmt.Sprintf(noCordon, 4), 70*time.Second))
}

// notAuthorized returns a drain with a node that the requester may not maintain, and without
// messages about single nodes because the status is too large.
func notAuthorized() []runtime.Object {
	objects := outsideOf("node-003", v1alpha1.NodeStatusNotAuthorized)
	nm := objects[0].(*v1alpha1.NodeMaintenance)
	nm.Status.Conditions = append(nm.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionNodeMessagesOmitted, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonStatusTooLarge, Message: "The status is too large",
	})
	return objects
}

// withoutNodeMessages removes the messages about single nodes, as the server does if the status is
// too large.
func withoutNodeMessages(w *world) {
	for _, nm := range w.maintenances() {
		for i := range nm.Status.NodeStatuses {
			nm.Status.NodeStatuses[i].DrainMessage = ""
		}
		w.store(nm)
	}
}

// store replaces a maintenance of the world.
func (w *world) store(nm *v1alpha1.NodeMaintenance) {
	if err := w.haulout.Tracker().Update(v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances"), nm, ""); err != nil {
		panic(err)
	}
}

// tooMany returns a drain of a node that too many other maintenances hold.
func tooMany() []runtime.Object { return outsideOf("node-004", v1alpha1.NodeStatusTooManyMaintenances) }

// waitingForOthers returns a drain whose nodes wait for another maintenance.
func waitingForOthers() *v1alpha1.NodeMaintenance {
	nm := undescribed()
	for i := range nm.Status.NodeStatuses {
		n := &nm.Status.NodeStatuses[i]
		n.PodsPendingEvacuation, n.PodsPeak, n.DrainTargets, n.DrainMessage = 3, 3, nil, "Waiting for node node-001 (memory)."
	}
	nm.Status.Waves = []v1alpha1.NodeMaintenanceWave{{Entry: 0, PodsPeak: 6, PodsLeft: 6}}
	return described(nm, nil)
}

// completing returns a drain that only waits until the pods of a Job have completed.
func completing() *v1alpha1.NodeMaintenance {
	nm := undescribed()
	nm.Status.NodeStatuses[0].PodsPendingEvacuation, nm.Status.NodeStatuses[0].PodsWaiting = 3, new(int32(2))
	nm.Status.NodeStatuses[0].PodsPeak, nm.Status.NodeStatuses[1].PodsPeak = 6, 2
	nm.Status.NodeStatuses[1].DrainMessage = "Waiting for node node-003."
	nm.Status.Waves = []v1alpha1.NodeMaintenanceWave{
		{Entry: 0, PodsPeak: 6, PodsLeft: 2, StartTime: new(before(90 * time.Second))}, {Entry: 1, PodsPeak: 2, PodsLeft: 2},
	}
	nm.Status.PodsGone = 4
	return described(nm, nil, func(by *nodemaintenance.Described) { by.Completing = "shop/backup-1" })
}

// lettingComplete returns a drain that lets the pods of an app complete.
func lettingComplete(app string) *v1alpha1.NodeMaintenance {
	nm := draining()
	nm.Spec.DrainPlan = append([]v1alpha1.DrainPlanEntry{{
		PodType: v1alpha1.PodTypeDefault, PodPriority: 1000000000, Behavior: new(v1alpha1.DrainBehaviorWaitCompleted), WaitSeconds: new(int32(3600)),
		PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
	}}, plan...)
	return nm
}

// withoutNodes returns a drain whose selector matches no node.
func withoutNodes() *v1alpha1.NodeMaintenance {
	nm := undescribed()
	nm.Status.NodeStatuses, nm.Status.Waves = nil, nil
	return described(nm, nil)
}

// releasing returns the maintenance that complete returns, with a node that cannot be released.
func releasing() *v1alpha1.NodeMaintenance {
	nm := completed()
	nm.Finalizers = []string{v1alpha1.FinalizerMaintenanceCompletion}
	return described(nm, nil, failing("node-004", `uncordon node node-004: admission webhook "nodes.example.com" denied the request`, time.Hour))
}

// cordonMessage returns the maintenance that cordon returns, with a node that cannot be cordoned.
func cordonMessage() *v1alpha1.NodeMaintenance {
	nm := cordoning()
	nm.Status.NodeStatuses[0].Reason = v1alpha1.NodeStatusNotCordoned
	return described(nm, nil, failing("node-005", fmt.Sprintf(noCordon, 5), time.Hour))
}

// ignoring returns the drain that drainOf returns, with a policy for new nodes.
func ignoring(policy v1alpha1.NewNodesPolicy) []runtime.Object {
	nm := undescribed()
	nm.Spec.NewNodes = policy
	counted(nm, evacuations(), func(by *nodemaintenance.Described) {
		if policy == v1alpha1.NewNodesPolicyIgnore {
			by.Ignored = []string{"node-101", "node-102"}
		}
	})
	return append([]runtime.Object{nm}, evacuations()...)
}

// clearPreview reduces previews to one budget that only splits the drain into groups.
func clearPreview(w *world) {
	w.haulout.PrependReactor(
		"get", "nodemaintenances/preview",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			p := newPreview(action.(clienttesting.GetAction).GetName())
			p.Blockers = slices.DeleteFunc(p.Blockers, func(b v1alpha1.PreviewBlocker) bool { return b.Effect != v1alpha1.PreviewEffectDelayed })
			return true, p, nil
		},
	)
}

// omittingPreview makes the server omit pods of a wave, as it does in a very large drain.
func omittingPreview(w *world) {
	w.haulout.PrependReactor(
		"get", "nodemaintenances/preview",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			p := newPreview(action.(clienttesting.GetAction).GetName())
			p.Waves[0].Nodes, p.Waves[0].PodsOmitted = p.Waves[0].Nodes[:1], p.Waves[0].Nodes[1].PodCount
			return true, p, nil
		},
	)
}

// staticPreview adds static pods that are kept to previews.
func staticPreview(w *world) {
	w.haulout.PrependReactor(
		"get", "nodemaintenances/preview",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			p := newPreview(action.(clienttesting.GetAction).GetName())
			p.Blockers, p.Waves = nil, nil
			p.PodsKeptCount += 5
			p.PodsKept = append(p.PodsKept,
				v1alpha1.PreviewPodsKept{Reason: "static pod (ControlPlaneNode)", PodCount: 4},
				v1alpha1.PreviewPodsKept{Reason: "static pod", PodCount: 1})
			return true, p, nil
		},
	)
}

// respondersPreview adds a pod that names an eviction responder to previews.
func respondersPreview(w *world) {
	w.haulout.PrependReactor(
		"get", "nodemaintenances/preview",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			nm := draining()
			flushed := newPod("shop", "cache-1", "node-003", ofApp("StatefulSet", "cache"), func(pod *corev1.Pod) {
				pod.Spec.EvictionResponders = []corev1.EvictionResponder{{Name: "app.example.com/flush", Priority: new(int32(5000))}}
			})
			return true, previewOf(nm, selected(nm, nodesOfCluster()), nil, *flushed), nil
		},
	)
}

// manyWarnings adds more blockers to previews than are printed; the first blocker is a workload
// without a budget.
func manyWarnings(w *world) {
	w.haulout.PrependReactor(
		"get", "nodemaintenances/preview",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			p := newPreview(action.(clienttesting.GetAction).GetName())
			p.Blockers, p.BlockersOmitted, p.NodesRefused = nil, 5, 1
			for i := range 10 {
				p.Blockers = append(p.Blockers, v1alpha1.PreviewBlocker{
					Effect: v1alpha1.PreviewEffectDelayed, Reason: "NoBudget", PodCount: 3, Rounds: 3,
					Message: fmt.Sprintf("StatefulSet db-%d has no budget.", i),
				})
			}
			return true, p, nil
		},
	)
}

// newReasons returns a drain with pods that are blocked for five different reasons.
func newReasons() []runtime.Object {
	var objects []runtime.Object
	for i, is := range []struct{ reason, message string }{
		{
			v1alpha1.ReasonEvictionDenied, `The eviction is refused: admission webhook "pods.example.com" denied the request: not on Fridays. ` +
				"The server retries. Ask the owner of the webhook or policy, or delete the pod by hand.",
		},
		{v1alpha1.ReasonSurgePending, surgeMessage},
		{
			v1alpha1.ReasonEvacuationHeld, "The Evacuation is being deleted and is held by the finalizers example.com/audit, while a NodeMaintenance " +
				"still asks the pod to leave. No evacuator works on it. Remove these finalizers or repair the controllers that set them.",
		},
		{
			v1alpha1.ReasonBudgetPodsCordoned, "PodDisruptionBudget web allows no disruption because some of its pods are not ready on nodes that are under " +
				"maintenance: web-9 on node-002. It allows a disruption when they are ready elsewhere: complete the maintenance of one of these nodes, " +
				"or delete these pods if they may start on another node.",
		},
		{
			v1alpha1.ReasonLongGracePeriod, "Pod web-4 is stopping until 2026-11-21T15:00:00Z, 6h0m0s after it was told to stop, which is longer than " +
				"--long-grace (1h0m0s). Check why it does not stop earlier; kubectl delete pod with a shorter --grace-period ends it sooner.",
		},
	} {
		objects = append(objects, evacuation("shop", fmt.Sprintf("web-%d", i), "node-004", blocked(is.reason, is.message, time.Duration(60-i)*time.Second)))
	}
	return drainOf(objects...)
}

// because sets the reason in the status of the maintenances for which a node is not drained.
func because(node string, reason v1alpha1.NodeStatusReason) func(*world) {
	return func(w *world) {
		for _, nm := range w.maintenances() {
			for i := range nm.Status.NodeStatuses {
				if n := &nm.Status.NodeStatuses[i]; n.NodeRef.Name == node {
					n.Reason = reason
				}
			}
			if !v1alpha1.IsEnding(nm) {
				described(nm, nil)
			}
			w.store(nm)
		}
	}
}

// workedOn lets a worker have a node for another maintenance.
func workedOn(node string) func(*world) {
	return all(because(node, v1alpha1.NodeStatusNodeTaskInProgress), func(w *world) {
		for _, nm := range w.maintenances() {
			for i := range nm.Status.NodeStatuses {
				if n := &nm.Status.NodeStatuses[i]; n.NodeRef.Name == node {
					n.DrainMessage = drainplan.NotDrained + `worker "kubelet-137" works on it for NodeMaintenance kernel-6-12-node-003-1`
				}
			}
			w.store(nm)
		}
	})
}

// uncordoned marks a node as not cordoned.
func uncordoned(node string) func(*world) { return because(node, v1alpha1.NodeStatusNotCordoned) }

// refused marks a node as one that the requester may not maintain.
func refused(node string) func(*world) { return because(node, v1alpha1.NodeStatusNotAuthorized) }

// withoutWaves returns the maintenance that draining returns, as an older server reports it.
func withoutWaves() *v1alpha1.NodeMaintenance {
	nm := undescribed()
	nm.Status.Waves = nil
	return counted(nm, evacuations())
}

func interactive(w *world) { w.environment.interactive = func() bool { return true } }

func forbid(verb, resource string) func(*world) {
	return func(w *world) {
		w.denied.Insert(verb + " " + resource)
		react := func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(v1alpha1.Resource(resource), "",
				fmt.Errorf("user bob may not %s %s", verb, resource))
		}
		w.kube.PrependReactor(verb, resource, react)
		w.haulout.PrependReactor(verb, resource, react)
	}
}

func notInstalled(w *world) {
	w.haulout.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, notServed(action.GetVerb())
	})
}

// notServed is the answer if no server serves the API.
func notServed(verb string) error {
	return apierrors.NewGenericServerResponse(404, verb, v1alpha1.Resource("nodemaintenances"), "", "404 page not found", 0, true)
}

func cordonsWhatIsMade(w *world) {
	w.haulout.PrependReactor(
		"create", "nodemaintenances",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			w.observe(action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance))
			return false, nil, nil
		},
	)
}

// dryRunsDelete makes the fake client ignore the deletions of a dry run.
func dryRunsDelete(w *world) {
	w.haulout.PrependReactor(
		"delete", "*",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			return len(action.(clienttesting.DeleteActionImpl).DeleteOptions.DryRun) > 0, nil, nil
		},
	)
}
