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

package evacuation

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/evacuators"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// reasonEvacuatorIgnored is the reason of the event on a pod whose annotation cannot be followed.
	reasonEvacuatorIgnored = "EvacuatorAnnotationIgnored"
	// actionResolve is the action of that event.
	actionResolve = "ResolveEvacuators"
)

// ignoredAnnotation is an annotation of a pod that cannot be followed, and why.
type ignoredAnnotation struct {
	key, why string
}

// resolveEvacuators sets the evacuators of a new Evacuation: those of its pod and those that the client names beside them.
func (p *Plugin) resolveEvacuators(ctx context.Context, attrs admission.Attributes, evacuation *maintenance.Evacuation, pod *corev1.Pod) error {
	builtIn, err := p.builtInFor(ctx, pod)
	if err != nil {
		return err
	}
	mayUse, err := p.usableClasses(ctx, attrs, evacuation, pod, builtIn)
	if err != nil {
		return err
	}
	ofPod, ignored := evacuatorsOf(pod, builtIn.class, mayUse)
	p.report(ctx, attrs, pod, ignored)

	resolved, err := p.mergeClients(ctx, attrs, evacuation.Spec.Evacuators, ofPod, mayUse)
	if err != nil {
		return err
	}
	evacuation.Spec.Evacuators = resolved
	return nil
}

// usableClasses returns what says whether the Evacuation may have an evacuator of a class. Only the Deployment's is in question: it scales
// with the server's rights, so that whoever may delete a pod but not scale would get more than is his.
func (p *Plugin) usableClasses(ctx context.Context, attrs admission.Attributes, evacuation *maintenance.Evacuation, pod *corev1.Pod,
	builtIn builtInEvacuator) (func(class string) bool, error) {
	const scaling = v1alpha1.EvacuatorClassDeployment
	_, annotated := pod.Annotations[v1alpha1.AnnotationEvacuatorPrefix+scaling]
	named := slices.ContainsFunc(evacuation.Spec.Evacuators, func(e maintenance.Evacuator) bool { return e.EvacuatorClass == scaling })
	if builtIn.class != scaling && !annotated && !named {
		return func(string) bool { return true }, nil
	}
	allowed, err := p.mayScale(ctx, attrs, builtIn.deployment)
	if err != nil {
		return nil, err
	}
	if !allowed {
		warning.AddWarning(ctx, "", fmt.Sprintf("evacuator %s is left out: you cannot update deployments/scale in this namespace", scaling))
	}
	return func(class string) bool { return allowed || class != scaling }, nil
}

// evacuatorsOf returns the evacuators that a pod names and has by its owner, in their order, and the annotations that are not followed.
// A pod's owner must not be able to make it impossible to evacuate: whatever validation would refuse is left out here.
func evacuatorsOf(pod *corev1.Pod, builtIn string, mayUse func(class string) bool) ([]maintenance.Evacuator, []ignoredAnnotation) {
	var list []maintenance.Evacuator
	var ignored []ignoredAnnotation
	ignore := func(class, why string) {
		ignored = append(ignored, ignoredAnnotation{key: v1alpha1.AnnotationEvacuatorPrefix + class, why: why})
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Annotations)) {
		if !evacuators.IsAnnotation(key) {
			continue
		}
		class, priority, role, err := evacuators.ParseAnnotation(key, pod.Annotations[key])
		if err != nil {
			ignored = append(ignored, ignoredAnnotation{key: key, why: err.Error()})
			continue
		}
		list = append(list, maintenance.Evacuator{EvacuatorClass: class, Priority: priority, Role: maintenance.EvacuatorRole(role)})
	}
	evacuators.SortInternal(list)

	controller := ""
	list = slices.DeleteFunc(list, func(e maintenance.Evacuator) bool {
		if e.Role != maintenance.EvacuatorRoleController {
			return false
		}
		if controller == "" {
			controller = e.EvacuatorClass
			return false
		}
		ignore(e.EvacuatorClass, fmt.Sprintf("there is at most one controller, and %s is it", controller))
		return true
	})
	// What the pod says itself goes first: another controller's evacuator, or another priority.
	if builtIn != "" && controller == "" && !contains(list, builtIn) {
		controller = builtIn
		list = append(list, maintenance.Evacuator{
			EvacuatorClass: builtIn, Priority: v1alpha1.ControllerEvacuatorPriority, Role: maintenance.EvacuatorRoleController,
		})
		evacuators.SortInternal(list)
	}
	list = slices.DeleteFunc(list, func(e maintenance.Evacuator) bool {
		if !evacuators.IsReserved(e.Priority) || evacuators.SharesParentDomain(e.EvacuatorClass, controller) {
			return false
		}
		ignore(e.EvacuatorClass, fmt.Sprintf("priorities from %d to %d are kept for classes that share the parent domain of the controller's (%q)",
			evacuators.LowestReservedPriority, evacuators.HighestReservedPriority, controller))
		return true
	})
	list = atMost(list, ignore)
	return withoutUnusable(list, controller, mayUse), ignored
}

// withoutUnusable takes out what this client may not use, and with the controller those that are allowed only beside it. The pod's
// annotations are right, so nobody is told.
func withoutUnusable(list []maintenance.Evacuator, controller string, mayUse func(class string) bool) []maintenance.Evacuator {
	return slices.DeleteFunc(list, func(e maintenance.Evacuator) bool {
		return !mayUse(e.EvacuatorClass) || controller != "" && !mayUse(controller) && evacuators.IsReserved(e.Priority)
	})
}

// atMost cuts a sorted list to what an Evacuation may have. The controller stays: it is what the pod's workload depends on.
func atMost(list []maintenance.Evacuator, ignore func(class, why string)) []maintenance.Evacuator {
	kept := slices.Clone(list)
	for i := len(kept) - 1; len(kept) > evacuators.MaxEvacuators; i-- {
		if kept[i].Role == maintenance.EvacuatorRoleController {
			continue
		}
		ignore(kept[i].EvacuatorClass, fmt.Sprintf("a pod has at most %d evacuators, and others have higher priorities", evacuators.MaxEvacuators))
		kept = slices.Delete(kept, i, i+1)
	}
	return kept
}

// mergeClients returns the evacuators that the client names, in their places so that errors of validation name the client's own indexes,
// and then those of the pod. Where both have a class the pod's priority wins.
func (p *Plugin) mergeClients(ctx context.Context, attrs admission.Attributes, named, ofPod []maintenance.Evacuator,
	mayUse func(class string) bool) ([]maintenance.Evacuator, error) {
	var merged []maintenance.Evacuator
	for _, evacuator := range named {
		class := evacuator.EvacuatorClass
		if i := slices.IndexFunc(ofPod, func(e maintenance.Evacuator) bool { return e.EvacuatorClass == class }); i >= 0 {
			if ofPod[i] != evacuator {
				warning.AddWarning(ctx, "", fmt.Sprintf("spec.evacuators: the pod itself gives %s the priority %d", class, ofPod[i].Priority))
			}
			merged = append(merged, ofPod[i])
			continue
		}
		if !mayUse(class) {
			continue
		}
		// What is no class at all is refused by validation; a right without a name would be that to all of them.
		if len(validation.IsDNS1123Subdomain(class)) == 0 {
			if err := p.mayAssign(ctx, attrs, class); err != nil {
				return nil, err
			}
		}
		merged = append(merged, evacuator)
	}
	for _, evacuator := range ofPod {
		if !contains(merged, evacuator.EvacuatorClass) {
			merged = append(merged, evacuator)
		}
	}
	return merged, nil
}

func contains(list []maintenance.Evacuator, class string) bool {
	return slices.ContainsFunc(list, func(e maintenance.Evacuator) bool { return e.EvacuatorClass == class })
}

// report tells the pod's owner, with an event, and the client, with a warning, which annotations are not followed.
func (p *Plugin) report(ctx context.Context, attrs admission.Attributes, pod *corev1.Pod, ignored []ignoredAnnotation) {
	for _, annotation := range ignored {
		warning.AddWarning(ctx, "", fmt.Sprintf("pod annotation %s is ignored: %s", annotation.key, annotation.why))
		if !attrs.IsDryRun() {
			p.recorder.Eventf(pod, nil, corev1.EventTypeWarning, reasonEvacuatorIgnored, actionResolve,
				"Annotation %s is ignored: %s", annotation.key, annotation.why)
		}
	}
}
