// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package wording

import (
	"slices"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Remedy names the user or component that must act on a pod that stays on its node.
type Remedy struct {
	// Reason is the reason why the pod stays.
	Reason string
	// Who is the user or component that must act, and Look is a command that shows details. In
	// both, %s stands for the namespace, %[2]s for the pod, %[3]s for the node and %[4]s for the
	// evacuator.
	Who, Look string
	// OfBudget is set if a PodDisruptionBudget is the cause.
	OfBudget bool
}

const (
	// Administrator must act on problems of the cluster as a whole.
	Administrator = "an administrator of the cluster"

	ownerOfApp = "the owner of the app in namespace %s"
	operator   = "the operator of node %[3]s"
	budgets    = "kubectl describe poddisruptionbudgets -n %s"
	pod        = "kubectl describe pod -n %s %[2]s"
	podsOf     = "kubectl get pods -n %s -o wide"
	explainPod = "kubectl maintenance explain pod/%[2]s --namespace=%[1]s"
	manifestOf = "kubectl get pod -n %s %[2]s -o yaml"
	webhooks   = "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicybindings"
	finalizers = "kubectl get evacuations -n %s -o custom-columns=POD:.spec.podRef.name,FINALIZERS:.metadata.finalizers"
)

// Blocked has all reasons of the condition Blocked.
var Blocked = []Remedy{
	{v1alpha1.ReasonPodDisruptionBudget, ownerOfApp, budgets, true},
	{v1alpha1.ReasonPodDisruptionBudgetSyncFailed, ownerOfApp, budgets, true},
	{v1alpha1.ReasonMultiplePodDisruptionBudgets, ownerOfApp, budgets, true},
	{v1alpha1.ReasonUnhealthyPodsHoldBudget, ownerOfApp, podsOf, true},
	{v1alpha1.ReasonTooManyDisruptedPods, Administrator, budgets, true},
	{
		v1alpha1.ReasonBudgetPodsCordoned,
		Administrator + ", who can complete the maintenance of one of the nodes or add nodes for the other pods of the budget", podsOf, true,
	},
	{v1alpha1.ReasonSurgePending, ownerOfApp + ", who can correct its image, or " + Administrator + ", who can add capacity for the replacement pod", podsOf, false},
	{v1alpha1.ReasonReplicaFailure, ownerOfApp + ", or the owner of the webhook or policy that the message quotes", podsOf, false},
	{v1alpha1.ReasonEvacuatorNotProgressing, "the operator of the evacuator %[4]s", "kubectl get evacuations -n %s -o wide", false},
	{v1alpha1.ReasonEvacuationHeld, "the owner of the finalizers that the message names", finalizers, false},
	{v1alpha1.ReasonPodTerminating, operator, pod, false},
	{
		v1alpha1.ReasonPodFinalizer, "the owner of the controllers that must remove the finalizers",
		"kubectl get pod -n %s %[2]s -o jsonpath='{.metadata.finalizers}'", false,
	},
	{v1alpha1.ReasonLongGracePeriod, ownerOfApp + ", who can check why it does not stop earlier", pod, false},
	{v1alpha1.ReasonNodeUnreachable, operator, "kubectl describe node %[3]s", false},
	{v1alpha1.ReasonNoEvacuator, Administrator, pod, false},
	{v1alpha1.ReasonRecreated, ownerOfApp, podsOf, false},
	{v1alpha1.ReasonEvictionForbidden, Administrator, explainPod, false},
	{v1alpha1.ReasonEvictionDenied, "the owner of the webhook or admission policy that the message quotes", webhooks, false},
	{v1alpha1.ReasonEvictionError, Administrator, explainPod, false},
}

// notBlocked has the reasons of pods that stay but are not blocked: the pod only waits, or only a
// preview uses the reason.
var notBlocked = []Remedy{
	{v1alpha1.ReasonPodStopping, "no action needed: the kubelet stops the pod within its grace period", pod, false},
	{v1alpha1.ReasonPodWaits, "no action needed: the server will evict the pod", explainPod, false},
	{v1alpha1.ReasonPaused, "the user who paused the NodeMaintenance that the message names", explainPod, false},
	{v1alpha1.ReasonNoController, ownerOfApp, manifestOf, false},
	{
		v1alpha1.ReasonJobFails,
		ownerOfApp + ", who can ignore disruptions in the Job's podFailurePolicy, raise its backoffLimit, or wait until the Job ends",
		"kubectl describe jobs -n %s", false,
	},
	{
		v1alpha1.ReasonProgressWaitingForCompletion, "the user who requested the NodeMaintenance, who can create it again with another drain plan",
		manifestOf, false,
	},
	{v1alpha1.ReasonEvictionResponders, ownerOfApp + ", who can name an evacuator in an annotation of the pod", manifestOf, false},
	{v1alpha1.ReasonPodNominated, Administrator, manifestOf, false},
	{v1alpha1.ReasonNamespaceTerminating, "the user who deleted namespace %s", "kubectl describe namespace %s", false},
}

// RemedyFor returns the remedy for a reason why a pod stays on its node.
func RemedyFor(reason string) Remedy {
	for _, known := range [][]Remedy{Blocked, notBlocked} {
		if at := slices.IndexFunc(known, func(r Remedy) bool { return r.Reason == reason }); at >= 0 {
			return known[at]
		}
	}
	return Remedy{reason, Administrator, explainPod, false}
}

// IsBlocked reports whether the condition Blocked can have a reason.
func IsBlocked(reason string) bool {
	return slices.ContainsFunc(Blocked, func(r Remedy) bool { return r.Reason == reason })
}
