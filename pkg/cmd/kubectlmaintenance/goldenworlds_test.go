// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// progressing sets the condition Progressing, and the time at which it last changed.
func progressing(
	nm *v1alpha1.NodeMaintenance, status metav1.ConditionStatus, reason, message string, last time.Duration,
) *v1alpha1.NodeMaintenance {
	nm.Status.LastProgressTimestamp = new(before(last))
	nm.Status.Conditions = append(nm.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionProgressing, Status: status, Reason: reason, Message: message,
		LastTransitionTime: before(last),
	})
	return nm
}

// stuck returns the maintenance that draining returns, with all remaining pods blocked.
func stuck() *v1alpha1.NodeMaintenance {
	nm := draining()
	nm.Status.Conditions[0].Reason = v1alpha1.ReasonDrainBlocked
	nm.Status.Conditions[0].Message = "No pod is able to leave: shop/checkout-a (PodDisruptionBudget); 12 pods " +
		"left, 9 of them evacuating, 3 blocked"
	return progressing(nm, metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked,
		"All 9 pods that are asked to leave are blocked", 12*time.Minute)
}

// stalled returns the maintenance that draining returns, without blocked pods and without progress
// for a long time.
func stalled() *v1alpha1.NodeMaintenance {
	return progressing(long(), metav1.ConditionFalse, v1alpha1.ReasonProgressStalled, "No progress for 15m0s",
		17*time.Minute)
}

// syncFailed returns the maintenance that draining returns, with a node that cannot be cordoned.
// The other nodes make progress.
func syncFailed() *v1alpha1.NodeMaintenance {
	nm := draining()
	nm.Status.Conditions[0].Reason = v1alpha1.ReasonNodeNotCordoned
	nm.Status.Conditions[0].Message = "Node node-004 cannot be cordoned; 12 pods left, 9 of them evacuating, 3 blocked"
	nm.Status.NodeStatuses[1].DrainTargets, nm.Status.NodeStatuses[1].DrainMessage = nil, ""
	return progressing(nm, metav1.ConditionTrue, v1alpha1.ReasonProgressSyncFailed,
		`Node node-004: admission webhook "nodes.example.com" denied the request, since 2026-11-21T09:59:00Z`,
		20*time.Second)
}

// notAuthorized returns the maintenance that draining returns, with a node that the requester may
// not delete, and without messages about single nodes because the status is too large.
func notAuthorized() *v1alpha1.NodeMaintenance {
	nm := draining()
	nm.Status.Conditions[0].Reason = v1alpha1.ReasonNotAuthorized
	nm.Status.Conditions[0].Message = `User "alice" may not maintain 1 selected node, which stays as it is; ` +
		"12 pods left, 9 of them evacuating, 3 blocked"
	nm.Status.Conditions = append(nm.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionNodeMessagesOmitted, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonStatusTooLarge, Message: "The status is too large",
	})
	nm.Status.NodeStatuses[0].DrainTargets = nil
	for i := range nm.Status.NodeStatuses {
		nm.Status.NodeStatuses[i].DrainMessage = ""
	}
	return progressing(nm, metav1.ConditionTrue, v1alpha1.ReasonProgressDraining, "3 pods have left in the last minute",
		5*time.Second)
}

// releasing returns the maintenance that complete returns, with a node that cannot be released.
func releasing() *v1alpha1.NodeMaintenance {
	nm := complete()
	nm.Finalizers = []string{v1alpha1.FinalizerMaintenanceCompletion}
	return progressing(nm, metav1.ConditionFalse, v1alpha1.ReasonProgressSyncFailed,
		"Node node-004: the API server refuses the write", time.Hour)
}

// cordonMessage returns the maintenance that cordon returns, with a message of the server.
func cordonMessage() *v1alpha1.NodeMaintenance {
	nm := cordon()
	nm.Status.NodeStatuses[0].DrainMessage = "Cannot be cordoned: the API server refuses the write"
	return progressing(nm, metav1.ConditionTrue, v1alpha1.ReasonProgressNotRequested,
		"Stage Cordon asks no pod to leave", 0)
}

// ignoring returns the maintenance that draining returns, with a policy for new nodes.
func ignoring(policy v1alpha1.NewNodesPolicy) *v1alpha1.NodeMaintenance {
	nm := draining()
	nm.Spec.NewNodes = policy
	message := "3 pods have left in the last minute"
	if policy == v1alpha1.NewNodesPolicyIgnore {
		message += "; 2 nodes are ignored, since they were created later (spec.newNodes is Ignore): node-101, node-102"
	}
	return progressing(nm, metav1.ConditionTrue, v1alpha1.ReasonProgressDraining, message, 5*time.Second)
}

// clearPreview reduces previews to one budget that only splits the drain into groups.
func clearPreview(w *world) {
	w.haulout.PrependReactor(
		"get", "nodemaintenances/preview",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			p := newPreview(action.(clienttesting.GetAction).GetName())
			p.Blockers = p.Blockers[2:]
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

// newReasons returns a maintenance, and Evacuations that are blocked for five different reasons.
func newReasons() []runtime.Object {
	objects := []runtime.Object{draining()}
	for i, reason := range []string{
		v1alpha1.ReasonEvictionDenied, v1alpha1.ReasonSurgePending, v1alpha1.ReasonEvacuationHeld,
		v1alpha1.ReasonBudgetPodsCordoned, v1alpha1.ReasonLongGracePeriod,
	} {
		pod := fmt.Sprintf("web-%d", i)
		objects = append(objects, evacuation("shop", pod, "node-004",
			blocked(reason, "Why "+pod+" is held.", time.Duration(60-i)*time.Second)))
	}
	return objects
}

// because sets the reason in the status of the maintenances for which a node is not drained.
func because(node string, reason v1alpha1.NodeStatusReason) func(*world) {
	return func(w *world) {
		resource := v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances")
		all, err := w.haulout.Tracker().List(resource, v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance"), "")
		if err != nil {
			panic(err)
		}
		for _, nm := range all.(*v1alpha1.NodeMaintenanceList).Items {
			for i := range nm.Status.NodeStatuses {
				if n := &nm.Status.NodeStatuses[i]; n.NodeRef.Name == node {
					n.Reason = reason
				}
			}
			if err := w.haulout.Tracker().Update(resource, &nm, ""); err != nil {
				panic(err)
			}
		}
	}
}

// uncordoned marks a node as not cordoned.
func uncordoned(node string) func(*world) { return because(node, v1alpha1.NodeStatusNotCordoned) }

// refused marks a node as one that the requester may not maintain.
func refused(node string) func(*world) { return because(node, v1alpha1.NodeStatusNotAuthorized) }

// withoutWaves returns the maintenance that draining returns, as an older server reports it.
func withoutWaves() *v1alpha1.NodeMaintenance {
	nm := draining()
	nm.Status.Waves = nil
	return nm
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
		return true, nil, apierrors.NewGenericServerResponse(404, action.GetVerb(),
			v1alpha1.Resource("nodemaintenances"), "", "404 page not found", 0, true)
	})
}

func cordonsWhatIsMade(w *world) {
	w.haulout.PrependReactor(
		"create", "nodemaintenances",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			nm := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance)
			nm.Status.NodeStatuses = []v1alpha1.NodeMaintenanceNodeStatus{
				{NodeRef: v1alpha1.NodeReference{Name: "node-005"}},
			}
			return false, nil, nil
		},
	)
}

// dryRunsDelete makes the fake client ignore the deletions of a dry run.
func dryRunsDelete(w *world) {
	w.haulout.PrependReactor(
		"delete", "nodemaintenances",
		func(action clienttesting.Action) (bool, runtime.Object, error) {
			return len(action.(clienttesting.DeleteActionImpl).DeleteOptions.DryRun) > 0, nil, nil
		},
	)
}
