// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package evacuation serves the kind Evacuation from storage.
package evacuation

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/operation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
)

// Strategy is the strategy of the main resource.
type Strategy struct {
	kind.Base

	startDeadline time.Duration
}

// NewStrategy returns the strategy. isServer recognizes the server's own controllers; startDeadline
// is the time in which an evacuator must send its first report.
func NewStrategy(scheme *runtime.Scheme, isServer func(user.Info) bool, startDeadline time.Duration, clock clock.PassiveClock) *Strategy {
	return &Strategy{kind.NewBase(scheme, isServer, clock), startDeadline}
}

// NamespaceScoped returns true: Evacuations are in the namespace of their pod.
func (*Strategy) NamespaceScoped() bool {
	return true
}

// PrepareForCreate drops the client's status, and sets the name if the client omitted it. It keeps
// the fields that admission set. The first evacuator is active from the start: this saves one write
// per pod in a drain.
func (s *Strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	evacuation := obj.(*maintenance.Evacuation)
	now := s.Now()
	class, account := protocol.FirstTurn(evacuation.Spec.Evacuators)
	evacuation.Status = maintenance.EvacuationStatus{
		ActiveEvacuatorClass: class,
		ActiveEvacuatorSince: &now,
		Message:              protocol.TurnMessage(class, account) + s.takeLeavesFor(ctx, evacuation),
		// Defaulting sets this field on stored objects, and declarative validation requires it.
		EvacuationCancellationPolicy: maintenance.EvacuationCancellationPolicyAllow,
		Conditions:                   []metav1.Condition{v1alpha1.NotObserved(now)},
	}
	evacuation.Generation = 1
	if !s.ByServer(ctx) {
		delete(evacuation.Annotations, v1alpha1.AnnotationEvictionAsked)
	}
	podRef := evacuation.Spec.PodRef
	if evacuation.Name == "" && evacuation.GenerateName == "" && podRef.Name != "" && podRef.UID != "" {
		evacuation.Name = protocol.CanonicalName(podRef.Name, podRef.UID)
	}
}

// takeLeavesFor removes the annotation that names the maintenance, and returns the text for the
// first message. It ignores the annotation of other users, because readers trust the message.
func (s *Strategy) takeLeavesFor(ctx context.Context, evacuation *maintenance.Evacuation) string {
	mention, ok := evacuation.Annotations[v1alpha1.AnnotationLeavesFor]
	if !ok {
		return ""
	}
	delete(evacuation.Annotations, v1alpha1.AnnotationLeavesFor)
	if !s.ByServer(ctx) {
		return ""
	}
	return protocol.LeavesFor(mention)
}

// Validate checks a new object.
func (s *Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return append(validation.ValidateEvacuation(obj.(*maintenance.Evacuation)), size.Validate(s.Scheme, obj)...)
}

// ValidateDeclaratively adds the errors of the validation tags. At this point, an object has no
// name only if its podRef is incomplete. The tags report the podRef, and an additional error about
// the missing name would be misleading.
func (s *Strategy) ValidateDeclaratively(ctx context.Context, obj, old runtime.Object, errs field.ErrorList, operationType operation.Type,
	config rest.DeclarativeValidationConfig) field.ErrorList {
	errs = slices.DeleteFunc(errs, func(err *field.Error) bool {
		return err.Type == field.ErrorTypeRequired && err.Field == "metadata.name"
	})
	return s.DeclarativeValidation.ValidateDeclaratively(ctx, obj, old, errs, operationType, config)
}

// WarningsOnCreate warns about probably unintended settings.
func (*Strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	return validation.WarnEvacuation(obj.(*maintenance.Evacuation))
}

// Canonicalize sorts the evacuators in the order in which they act. It runs after validation, so
// that errors have the client's indexes.
func (*Strategy) Canonicalize(obj runtime.Object) {
	protocol.SortInternal(obj.(*maintenance.Evacuation).Spec.Evacuators)
}

// PrepareForUpdate keeps the status and, unless the server writes, the time of the last eviction:
// with it a client could keep an Evacuation for which no client asks, or end one.
func (s *Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	evacuation, before := obj.(*maintenance.Evacuation), old.(*maintenance.Evacuation)
	evacuation.Status = before.Status
	// An apply changes their order to that of the manifest.
	protocol.SortInternal(evacuation.Spec.Evacuators)
	if s.ByServer(ctx) {
		return
	}
	if asked, ok := before.Annotations[v1alpha1.AnnotationEvictionAsked]; ok {
		metav1.SetMetaDataAnnotation(&evacuation.ObjectMeta, v1alpha1.AnnotationEvictionAsked, asked)
	} else {
		delete(evacuation.Annotations, v1alpha1.AnnotationEvictionAsked)
	}
}

// ValidateUpdate checks an update. The size limit does not apply to the server, which only adds and
// removes its own finalizer. Otherwise a client could prevent this with an Evacuation of the
// maximum size.
func (s *Strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	evacuation, before := obj.(*maintenance.Evacuation), old.(*maintenance.Evacuation)
	errs := validation.ValidateEvacuationUpdate(evacuation, before)
	if s.ByServer(ctx) {
		return errs
	}
	return append(errs, size.ValidateGrowth(s.Scheme, evacuation, before)...)
}

// StatusStrategy is the strategy of the status subresource.
type StatusStrategy struct {
	*Strategy
}

// PrepareForUpdate keeps metadata and spec, sets the time of a report, and clears the report of the
// previous evacuator if the active evacuator changes. Deadlines start at these timestamps, so
// clients cannot choose them.
func (s *StatusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	evacuation, oldEvacuation := obj.(*maintenance.Evacuation), old.(*maintenance.Evacuation)
	evacuation.Spec = oldEvacuation.Spec
	metav1.ResetObjectMetaForStatus(&evacuation.ObjectMeta, &oldEvacuation.ObjectMeta)
	evacuation.GenerateName = oldEvacuation.GenerateName
	if validation.IsEvacuationComplete(oldEvacuation) {
		return
	}
	status, oldStatus := &evacuation.Status, &oldEvacuation.Status
	// Use whole seconds, the stored precision.
	now := s.Now()
	if status.ActiveEvacuatorClass != oldStatus.ActiveEvacuatorClass && s.ByServer(ctx) {
		status.ActiveEvacuatorSince = &now
		status.ActiveEvacuatorCompleted = false
		status.EvacuationProgressTimestamp = nil
		status.ExpectedEvacuationFinishTime = nil
		status.EvacuationCancellationPolicy = maintenance.EvacuationCancellationPolicyAllow
		return
	}
	reports := !s.ByServer(ctx)
	if reports {
		if status.ActiveEvacuatorSince == nil {
			// A client without this field cannot intend to change it.
			status.ActiveEvacuatorSince = oldStatus.ActiveEvacuatorSince
		}
		// Every write of an evacuator is a report. The timestamp in the write is ignored.
		status.EvacuationProgressTimestamp = &now
	} else {
		status.ActiveEvacuatorSince = restamp(status.ActiveEvacuatorSince, oldStatus.ActiveEvacuatorSince, now)
		status.EvacuationProgressTimestamp = restamp(status.EvacuationProgressTimestamp, oldStatus.EvacuationProgressTimestamp, now)
		reports = !status.EvacuationProgressTimestamp.Equal(oldStatus.EvacuationProgressTimestamp)
	}
	if reports && oldStatus.EvacuationProgressTimestamp == nil && status.Message == oldStatus.Message {
		// The message is still the server's message about the new active evacuator, and not a
		// message of this evacuator.
		status.Message = ""
	}
}

// restamp returns the time to store for a timestamp that a controller of the server writes: an
// unset timestamp keeps its stored value, and a changed one becomes now.
func restamp(written, stored *metav1.Time, now metav1.Time) *metav1.Time {
	if written == nil || written.Equal(stored) {
		return stored
	}
	return &now
}

// ValidateUpdate checks a write of the status.
func (s *StatusStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	evacuation, oldEvacuation := obj.(*maintenance.Evacuation), old.(*maintenance.Evacuation)
	if !s.ByServer(ctx) {
		// Return early: the rules for all writers would repeat these errors.
		if errs := validation.ValidateEvacuationReport(evacuation, oldEvacuation); len(errs) > 0 {
			return errs
		}
	}
	return validation.ValidateEvacuationStatusUpdate(evacuation, oldEvacuation, validation.Turns{Now: s.Clock.Now(), StartDeadline: s.startDeadline})
}

// GetAttrs returns the labels and fields for selectors.
func GetAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	evacuation, ok := obj.(*maintenance.Evacuation)
	if !ok {
		return nil, nil, fmt.Errorf("not an Evacuation: %T", obj)
	}
	return evacuation.Labels, fields.Set{
		maintenance.FieldName:                 evacuation.Name,
		maintenance.FieldNamespace:            evacuation.Namespace,
		maintenance.FieldNodeName:             evacuation.Spec.NodeName,
		maintenance.FieldPodName:              evacuation.Spec.PodRef.Name,
		maintenance.FieldActiveEvacuatorClass: evacuation.Status.ActiveEvacuatorClass,
		maintenance.FieldBlocked:              blocked(evacuation),
	}, nil
}

// MatchEvacuation returns the selection predicate of Evacuations. The index fields are in the order
// of their selectivity.
func MatchEvacuation(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	return storage.SelectionPredicate{
		Label:       label,
		Field:       field,
		GetAttrs:    GetAttrs,
		IndexFields: []string{maintenance.FieldNodeName, maintenance.FieldBlocked, maintenance.FieldActiveEvacuatorClass},
	}
}

func blocked(evacuation *maintenance.Evacuation) string {
	return strconv.FormatBool(meta.IsStatusConditionTrue(evacuation.Status.Conditions, v1alpha1.ConditionBlocked))
}
