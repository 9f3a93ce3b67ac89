// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodetask is the registry of NodeTasks: it processes objects between a write request and
// etcd.
package nodetask

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
)

// Strategy is the strategy of the main resource. Admission admits only the server to it, except for
// deletions.
type Strategy struct {
	rest.DeclarativeValidation
	names.NameGenerator

	isServer func(user.Info) bool
	clock    clock.PassiveClock
}

var (
	_ rest.RESTCreateStrategy  = &Strategy{}
	_ rest.RESTUpdateStrategy  = &Strategy{}
	_ rest.RESTDeleteStrategy  = &Strategy{}
	_ rest.ResetFieldsStrategy = &Strategy{}
)

// NewStrategy returns the strategy of the main resource. isServer recognizes the server's own
// controllers.
func NewStrategy(scheme *runtime.Scheme, isServer func(user.Info) bool, clock clock.PassiveClock) *Strategy {
	return &Strategy{
		DeclarativeValidation: rest.DeclarativeValidation{Scheme: scheme},
		NameGenerator:         names.SimpleNameGenerator,
		isServer:              isServer,
		clock:                 clock,
	}
}

// NamespaceScoped implements rest.Scoper: like nodes, their tasks have no namespace.
func (*Strategy) NamespaceScoped() bool { return false }

// AllowCreateOnUpdate returns false: PUT does not create.
func (*Strategy) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate returns false: PUT needs a resourceVersion. A grant and a withdrawal of
// the server would otherwise not exclude each other.
func (*Strategy) AllowUnconditionalUpdate(context.Context) bool { return false }

// Canonicalize does nothing.
func (*Strategy) Canonicalize(runtime.Object) {}

// WarningsOnCreate returns none.
func (*Strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate returns none.
func (*Strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields returns the fields that a write to the main resource cannot change.
func (*Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(fieldpath.MakePathOrDie("status")),
	}
}

// PrepareForCreate offers the node.
func (s *Strategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	task := obj.(*maintenance.NodeTask)
	task.Generation = 1
	task.Status = maintenance.NodeTaskStatus{State: maintenance.NodeTaskOffered, StateTime: s.now()}
}

// PrepareForUpdate keeps the status.
func (*Strategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	obj.(*maintenance.NodeTask).Status = old.(*maintenance.NodeTask).Status
}

// Validate validates a new object.
func (*Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return validation.ValidateNodeTask(obj.(*maintenance.NodeTask))
}

// ValidateUpdate validates a change.
func (*Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateNodeTaskUpdate(obj.(*maintenance.NodeTask), old.(*maintenance.NodeTask))
}

// now returns the time in whole seconds, the stored precision.
func (s *Strategy) now() *metav1.Time {
	now := metav1.NewTime(s.clock.Now()).Rfc3339Copy()
	return &now
}

func (s *Strategy) byServer(ctx context.Context) bool {
	u, ok := genericapirequest.UserFrom(ctx)
	return ok && s.isServer(u)
}

// StatusStrategy is the strategy of the status subresource, which the server and the workers write.
type StatusStrategy struct {
	*Strategy
}

// NewStatusStrategy returns the strategy of the status subresource.
func NewStatusStrategy(s *Strategy) *StatusStrategy { return &StatusStrategy{s} }

// GetResetFields returns the fields that a status write cannot change.
func (*StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("metadata"), fieldpath.MakePathOrDie("spec")),
	}
}

// PrepareForUpdate keeps metadata and spec, and sets the times and the user of a claim. Deadlines
// start at these times, so clients cannot choose them. Every write of a worker is a heartbeat.
func (s *StatusStrategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	task, before := obj.(*maintenance.NodeTask), old.(*maintenance.NodeTask)
	task.Spec = before.Spec
	metav1.ResetObjectMetaForStatus(&task.ObjectMeta, &before.ObjectMeta)
	status, was := &task.Status, &before.Status
	status.StateTime, status.ProgressTime, status.ClaimedBy = was.StateTime, was.ProgressTime, was.ClaimedBy
	if s.byServer(ctx) {
		if status.State != was.State {
			status.StateTime = s.now()
		}
		return
	}
	status.ProgressTime = s.now()
	if u, ok := genericapirequest.UserFrom(ctx); ok && was.Holder == "" && status.Holder != "" {
		status.ClaimedBy = u.GetName()
	}
}

// ValidateUpdate validates a write of the status.
func (s *StatusStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	if s.byServer(ctx) {
		return nil
	}
	return validation.ValidateNodeTaskReport(&obj.(*maintenance.NodeTask).Status, &old.(*maintenance.NodeTask).Status)
}
