// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/eventref"
)

// resolveEvacuators sets the evacuators of a new Evacuation: the evacuators of its pod and the
// evacuators that the client adds.
func (p *Plugin) resolveEvacuators(ctx context.Context, attrs admission.Attributes, evacuation *maintenance.Evacuation, pod *corev1.Pod) error {
	builtIn, err := p.builtIn.Of(ctx, pod)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	mayUse, err := p.usableClasses(ctx, attrs, evacuation, pod, builtIn)
	if err != nil {
		return err
	}
	ofPod, ignored := protocol.OfPod(pod.Annotations, builtIn.Class, mayUse)
	p.report(ctx, attrs, pod, ignored)

	resolved, err := p.mergeClients(ctx, attrs, evacuation.Spec.Evacuators, ofPod, mayUse)
	if err != nil {
		return err
	}
	evacuation.Spec.Evacuators = resolved
	return nil
}

// usableClasses returns a function that reports whether the Evacuation may have an evacuator of a
// class. It only restricts the evacuator of Deployments, which scales Deployments with the rights
// of the server. Otherwise a user who may delete a pod, but may not scale its Deployment, could
// scale it through an Evacuation.
func (p *Plugin) usableClasses(ctx context.Context, attrs admission.Attributes, evacuation *maintenance.Evacuation, pod *corev1.Pod,
	builtIn protocol.BuiltIn) (func(class string) bool, error) {
	const scaling = v1alpha1.EvacuatorClassDeployment
	_, annotated := pod.Annotations[v1alpha1.AnnotationEvacuatorPrefix+scaling]
	named := slices.ContainsFunc(evacuation.Spec.Evacuators, func(e maintenance.Evacuator) bool { return e.EvacuatorClass == scaling })
	if builtIn.Class != scaling && !annotated && !named {
		return func(string) bool { return true }, nil
	}
	allowed, err := p.mayScale(ctx, attrs, builtIn.Deployment)
	if err != nil {
		return nil, err
	}
	if !allowed {
		warning.AddWarning(ctx, "", fmt.Sprintf("evacuator %s is omitted: you cannot update deployments/scale in this namespace", scaling))
	}
	return func(class string) bool { return allowed || class != scaling }, nil
}

// mergeClients returns the evacuators of the client, followed by those of the pod. The client's
// evacuators keep their indexes for validation errors. If both have a class, the priority from the
// pod wins.
func (p *Plugin) mergeClients(ctx context.Context, attrs admission.Attributes, named, ofPod []maintenance.Evacuator,
	mayUse func(class string) bool) ([]maintenance.Evacuator, error) {
	var merged []maintenance.Evacuator
	for _, evacuator := range named {
		class := evacuator.EvacuatorClass
		if i := slices.IndexFunc(ofPod, func(e maintenance.Evacuator) bool { return e.EvacuatorClass == class }); i >= 0 {
			if ofPod[i] != evacuator {
				warning.AddWarning(ctx, "", fmt.Sprintf("spec.evacuators: the priority of %s is %d, as the pod defines it", class, ofPod[i].Priority))
			}
			merged = append(merged, ofPod[i])
			continue
		}
		if !mayUse(class) {
			continue
		}
		// Validation refuses an invalid class. A SubjectAccessReview without a name would be about
		// all classes.
		if len(validation.IsDNS1123Subdomain(class)) == 0 {
			if err := p.mayAssign(ctx, attrs, class); err != nil {
				return nil, err
			}
		}
		merged = append(merged, evacuator)
	}
	for _, evacuator := range ofPod {
		if !protocol.HasClass(merged, evacuator.EvacuatorClass) {
			merged = append(merged, evacuator)
		}
	}
	return merged, nil
}

// mostIgnored is the number of ignored annotations that an event, and the warnings, name.
const mostIgnored = 3

// report reports the ignored annotations: to the pod's owner with one event, and to the client with
// warnings.
func (p *Plugin) report(ctx context.Context, attrs admission.Attributes, pod *corev1.Pod, ignored []protocol.IgnoredAnnotation) {
	if len(ignored) == 0 {
		return
	}
	var texts []string
	for _, annotation := range ignored[:min(len(ignored), mostIgnored)] {
		texts = append(texts, protocol.OneLine(fmt.Sprintf("pod annotation %s is ignored: %s", annotation.Key, annotation.Why), protocol.MaxMessage/4))
	}
	if more := len(ignored) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("more annotations of the pod are ignored: %d", more))
	}
	for _, text := range texts {
		warning.AddWarning(ctx, "", text)
	}
	if p.storesNew(attrs, pod) {
		p.recorder.Eventf(pod, nil, corev1.EventTypeWarning, EventEvacuatorIgnored, actionResolve, "%s", eventref.Note("Evacuators are not asked: %s", strings.Join(texts, "; ")))
	}
}

// storesNew reports whether a request stores a new Evacuation of a pod. Others get no event: dry
// runs, and those of a second instigator, which are refused because the Evacuation exists.
func (p *Plugin) storesNew(attrs admission.Attributes, pod *corev1.Pod) bool {
	_, exists, err := p.stored.GetByKey(pod.Namespace + "/" + protocol.CanonicalName(pod.Name, pod.UID))
	return !exists && err == nil && !attrs.IsDryRun() && !attrs.GetReinvocationContext().IsReinvoke()
}

const (
	// labelManager is the field manager that owns the labels of an Evacuation that come from its
	// pod.
	labelManager = "haulout-admission"
	// maxOwnershipBytes is the maximum length of the list of owned labels. The list and the labels
	// together must stay within the limit for Evacuations.
	maxOwnershipBytes = 4 << 10
)

// copyLabels copies the labels of the pod to a new Evacuation, sorted by key, up to the size limit:
// a pod with many labels must not be impossible to evacuate. It returns the copied keys.
func copyLabels(ctx context.Context, evacuation *maintenance.Evacuation, pod *corev1.Pod) []string {
	room := size.MaxEvacuationMetadataBytes - size.EvacuationMetadataBytes(&evacuation.ObjectMeta)
	keys := slices.Sorted(maps.Keys(pod.Labels))
	for i, key := range keys {
		if value, there := evacuation.Labels[key]; there && value == pod.Labels[key] {
			continue
		}
		if room -= size.LabelBytes(key, pod.Labels[key]); room < 0 {
			warning.AddWarning(ctx, "", fmt.Sprintf("pod labels from %q on are not copied (%d of %d): the limit for the metadata of an Evacuation is %d bytes",
				key, len(keys)-i, len(keys), size.MaxEvacuationMetadataBytes))
			return keys[:i]
		}
		metav1.SetMetaDataLabel(&evacuation.ObjectMeta, key, pod.Labels[key])
	}
	return keys
}

// ownLabels makes the server the owner of the labels that a new Evacuation got from its pod. The
// API server computes field ownership before admission. Without an owner, keys of a map are lost
// when the last manager of the map removes its own keys by server-side apply.
//
// If the list of labels would be too long, the server only owns the map. This still protects the
// labels from managers that never applied them.
func ownLabels(evacuation *maintenance.Evacuation, keys []string) error {
	// Without any manager, the first apply creates one that owns all existing fields.
	if len(keys) == 0 || len(evacuation.ManagedFields) == 0 {
		return nil
	}
	theMap := fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "labels"))
	all := theMap.Copy()
	for _, key := range keys {
		all.Insert(fieldpath.MakePathOrDie("metadata", "labels", key))
	}
	fields, err := all.ToJSON()
	if err == nil && len(fields) > maxOwnershipBytes {
		fields, err = theMap.ToJSON()
	}
	if err != nil {
		return fmt.Errorf("encode the owned labels: %w", err)
	}
	// Admission may run twice. Do not change the slice, which may belong to the request.
	managed := slices.DeleteFunc(slices.Clone(evacuation.ManagedFields), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == labelManager
	})
	if len(managed) == 0 {
		return nil
	}
	managed = append(managed, metav1.ManagedFieldsEntry{
		Manager: labelManager, Operation: metav1.ManagedFieldsOperationUpdate,
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Time: managed[0].Time,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(bytes.TrimSpace(fields))),
	})
	evacuation.ManagedFields = managed
	return nil
}
