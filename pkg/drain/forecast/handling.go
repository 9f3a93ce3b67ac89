// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"context"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/surge"
)

// Owners returns the owners of pods, and the objects that surges depend on.
type Owners interface {
	protocol.Owners
	// Surge returns the Deployment, or nil if it does not exist.
	Surge(namespace, deployment string) *surge.Candidate
	// Job returns the Job, or nil if it does not exist.
	Job(namespace, name string) *batchv1.Job
}

// handling describes which evacuators remove a pod.
type handling struct {
	// Classes are the evacuator classes in the order in which they become active. For a pod that
	// may be evicted, the last one is eviction. They include the evacuator of Deployments only if
	// it would not decline.
	Classes []string
	// Deployment is the name of the Deployment that Surge and Refusal are about.
	Deployment string
	// Surge is the Deployment that is scaled up before the pod leaves; nil if there is none.
	Surge *surge.Candidate
	// Refusal is the reason why the pod's Deployment is not scaled up. It is zero if the pod has no
	// Deployment, or if the pod's own annotations are the reason.
	Refusal surge.Refusal
}

// noHandling is the handling of pods that no evacuator is asked to remove.
var noHandling handling

// handlings has the handling of pods. Pods with the same traits share it.
type handlings struct {
	*decision
	known map[*traits]*handling
}

func (h handlings) of(ctx context.Context, pod *Pod) (*handling, error) {
	if known := h.known[pod.traits]; known != nil {
		return known, nil
	}
	found, err := handlingOf(ctx, pod, h.Evacuators, h.Owners)
	if err != nil {
		return nil, err
	}
	h.known[pod.traits] = &found
	return &found, nil
}

// evictionOnly is the value of Classes for most pods. It is shared to save memory.
var evictionOnly = []string{v1alpha1.EvacuatorClassEviction}

// handlingOf returns which evacuators remove a pod, as its Evacuation would list them. on has the
// enabled built-in evacuators.
func handlingOf(ctx context.Context, pod *Pod, on sets.Set[string], owners Owners) (handling, error) {
	var builtIn protocol.BuiltIn
	if pod.Owner != nil && on.Len() > 0 {
		asOwned := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, Labels: pod.Labels, Annotations: pod.Annotations, OwnerReferences: []metav1.OwnerReference{*pod.Owner},
			},
			Spec: corev1.PodSpec{NodeName: pod.Node},
		}
		var err error
		if builtIn, err = protocol.BuiltInOf(ctx, &asOwned, on, owners); err != nil {
			return handling{}, fmt.Errorf("find the owners of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	var h handling
	if builtIn.OptedOut {
		h.Deployment = builtIn.Deployment
		h.scale(owners.Surge(pod.Namespace, h.Deployment))
	}
	evicted := pod.Type == v1alpha1.PodTypeDefault
	if builtIn.Class == "" && len(pod.Annotations) == 0 && evicted {
		h.Classes = evictionOnly
		return h, nil
	}
	// The server itself would create the Evacuation, so every class is allowed.
	list, _ := protocol.OfPod(pod.Annotations, builtIn.Class, func(string) bool { return true })
	for i := range list {
		h.Classes = append(h.Classes, list[i].EvacuatorClass)
	}
	if builtIn.Class == v1alpha1.EvacuatorClassDeployment && slices.Contains(h.Classes, v1alpha1.EvacuatorClassDeployment) {
		h.Deployment = builtIn.Deployment
		h.scale(owners.Surge(pod.Namespace, h.Deployment))
	}
	if evicted {
		h.Classes = append(h.Classes, v1alpha1.EvacuatorClassEviction)
	}
	return h, nil
}

// scale determines whether the evacuator of Deployments would scale up the Deployment, or decline.
func (h *handling) scale(c *surge.Candidate) {
	if c == nil {
		return
	}
	if h.Refusal = c.Refuse(); h.Refusal.IsZero() {
		h.Surge = c
		return
	}
	h.Classes = slices.DeleteFunc(h.Classes, func(class string) bool { return class == v1alpha1.EvacuatorClassDeployment })
}
