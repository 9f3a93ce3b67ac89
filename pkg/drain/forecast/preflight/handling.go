/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package preflight

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/surge"
)

// Owners finds the owners of pods, and what decides whether a Deployment is scaled up.
type Owners interface {
	protocol.Owners
	// Surge returns the Deployment; nil if it does not exist.
	Surge(namespace, deployment string) *surge.Candidate
}

// Handling is who takes a pod away.
type Handling struct {
	// Classes are the evacuators, in the order of their turns, and at last eviction for a pod that
	// may be evicted. The evacuator of Deployments is only among them if it does something.
	Classes []string
	// Deployment is the name of the Deployment that Surge and Refusal are about.
	Deployment string
	// Surge is the Deployment that is scaled up before the pod leaves; nil if none is.
	Surge *surge.Candidate
	// Refusal is why the pod's Deployment is not scaled up, if it has one and that is not because
	// of the pod's own annotations.
	Refusal surge.Refusal
}

// evictionOnly are the classes of most pods.
var evictionOnly = []string{maintenancev1alpha1.EvacuatorClassEviction}

// HandlingOf returns who takes a pod away, as an Evacuation of it would have it, given the built-in
// evacuators that are on.
func HandlingOf(ctx context.Context, pod *Pod, on sets.Set[string], owners Owners) (Handling, error) {
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
			return Handling{}, fmt.Errorf("find out who owns pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
	var h Handling
	if builtIn.OptedOut {
		h.Deployment = builtIn.Deployment
		h.scale(owners.Surge(pod.Namespace, h.Deployment))
	}
	evicted := pod.Type == maintenancev1alpha1.PodTypeDefault
	if builtIn.Class == "" && len(pod.Annotations) == 0 && evicted {
		h.Classes = evictionOnly
		return h, nil
	}
	// The server makes the Evacuation itself, and may use every class.
	list, _ := protocol.OfPod(pod.Annotations, builtIn.Class, func(string) bool { return true })
	for i := range list {
		h.Classes = append(h.Classes, list[i].EvacuatorClass)
	}
	if builtIn.Class == maintenancev1alpha1.EvacuatorClassDeployment && slices.Contains(h.Classes, maintenancev1alpha1.EvacuatorClassDeployment) {
		h.Deployment = builtIn.Deployment
		h.scale(owners.Surge(pod.Namespace, h.Deployment))
	}
	if evicted {
		h.Classes = append(h.Classes, maintenancev1alpha1.EvacuatorClassEviction)
	}
	return h, nil
}

// scale looks whether the evacuator of Deployments would do something, or pass the turn on.
func (h *Handling) scale(c *surge.Candidate) {
	if c == nil {
		return
	}
	if h.Refusal = c.Refuse(); h.Refusal.IsZero() {
		h.Surge = c
		return
	}
	h.Classes = slices.DeleteFunc(h.Classes, func(class string) bool { return class == maintenancev1alpha1.EvacuatorClassDeployment })
}

// Weigh looks again at what was found out about a pod that is handled like this. A budget that
// never allows an eviction does not hold a pod whose Deployment is scaled up first.
func (h *Handling) Weigh(f *Finding) {
	if f.Kind != BudgetNeverAllows {
		return
	}
	if h.Surge == nil {
		f.Refusal = h.Refusal
		return
	}
	if f.Refusal = h.Surge.RefuseUnder(f.Budgets[0]); f.Refusal.IsZero() {
		f.Kind = ReplacedFirst
	}
}
