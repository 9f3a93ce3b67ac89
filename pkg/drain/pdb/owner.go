// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pdb

import (
	"fmt"
	"slices"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
)

// Owner is the kind of owner of a pod. The remedy for a budget that never allows an eviction
// depends on it. The zero value stands for a pod without a controller.
type Owner struct {
	kind ownerKind
	// name is the kind and the name of the controller, if it is not built into Kubernetes.
	name string
}

type ownerKind int

const (
	// ownerDeployment is a Deployment that can replace the pod before the pod leaves. The zero
	// value means no owner.
	ownerDeployment ownerKind = iota + 1
	// ownerBuiltIn is another controller of Kubernetes, which recreates the pod after it has left.
	ownerBuiltIn
	// ownerOperator is another program that owns the pod and may assign it a role, such as the
	// primary of a database.
	ownerOperator
)

var (
	// OwnerNone is the owner of a pod without a controller.
	OwnerNone = Owner{}
	// OwnerDeployment is the owner of a pod that its Deployment can replace before it leaves.
	OwnerDeployment = Owner{kind: ownerDeployment}
	// OwnerBuiltIn is the owner of a pod of another controller of Kubernetes, or of a Deployment
	// that does not replace its pods first.
	OwnerBuiltIn = Owner{kind: ownerBuiltIn}
)

// builtIn has the kinds of the Kubernetes controllers that own pods, by API group.
var builtIn = map[string][]string{
	"":      {"ReplicationController", "Node"},
	"apps":  {"ReplicaSet", "StatefulSet", "DaemonSet"},
	"batch": {"Job"},
}

// OwnerOf returns the owner of a pod with the given controller, which is nil if the pod has none.
// It never returns OwnerDeployment, since only the caller knows whether a Deployment replaces the
// pod.
func OwnerOf(controller *metav1.OwnerReference) Owner {
	if controller == nil {
		return OwnerNone
	}
	version, err := schema.ParseGroupVersion(controller.APIVersion)
	if err != nil || !slices.Contains(builtIn[version.Group], controller.Kind) {
		return Owner{kind: ownerOperator, name: controller.Kind + " " + controller.Name}
	}
	return OwnerBuiltIn
}

// IsOperator reports whether a controller that is not built into Kubernetes owns the pod. This
// controller may move the pod's role to another pod, which changes what the budget allows.
func (o Owner) IsOperator() bool { return o.kind == ownerOperator }

// neverAllows returns the message about a budget that never allows an eviction: what it asks for,
// whether it can open without a change of it, and who can change it.
func (o Owner) neverAllows(budget *policyv1.PodDisruptionBudget, why string) string {
	const narrow = "the operator of a maintenance can remove the node from its selector"
	switch o.kind {
	case ownerDeployment:
		return fmt.Sprintf("%s The owner of the app can change it (%s), or set the annotation %s: %s on the Deployment: unless an autoscaler scales it, "+
			"its pods are then replaced before they leave. Or %s.",
			wording.NeverOpens(budget.Name, why), commandOf(budget), v1alpha1.AnnotationSurge, v1alpha1.SurgeAlways, narrow)
	case ownerOperator:
		return fmt.Sprintf("%s never allows an eviction (%s). %s owns the pod: its operator may give the pod's role to another pod, and then the budget "+
			"allows the eviction. If it does not, the owner of the app can change the budget (%s). Or %s. Do not delete the pod by hand.",
			wording.Budget(budget.Name), why, o.name, commandOf(budget), narrow)
	}
	return fmt.Sprintf("%s The owner of the app can change it (%s). Otherwise %s, or the pod can be deleted by hand.",
		wording.NeverOpens(budget.Name, why), commandOf(budget), narrow)
}
