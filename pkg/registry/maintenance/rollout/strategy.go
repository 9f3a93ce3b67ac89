// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package rollout is the registry of NodeMaintenanceRollouts: it processes objects between a write
// request and etcd.
package rollout

import (
	"context"
	"slices"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
	"haulout.dev/haulout/pkg/registry/maintenance/nodemaintenance"
)

// Strategy is the strategy of the main resource.
type Strategy struct {
	kind.Base

	noLeader func() string
	newest   nodemaintenance.NewestNode
}

// NewStrategy returns the strategy of the main resource. noLeader returns the warning that no
// replica leads; empty if a replica leads. newest returns the newest node of the cluster.
func NewStrategy(scheme *runtime.Scheme, noLeader func() string, newest nodemaintenance.NewestNode, clock clock.PassiveClock) *Strategy {
	return &Strategy{Base: kind.NewBase(scheme, nil, clock), noLeader: noLeader, newest: newest}
}

// WarningsOnCreate warns if no replica leads. Admission adds the warnings that depend on the
// cluster.
func (s *Strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return s.warnings() }

// WarningsOnUpdate warns if no replica leads.
func (s *Strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return s.warnings()
}

func (s *Strategy) warnings() []string {
	if text := s.noLeader(); text != "" {
		return []string{text}
	}
	return nil
}

// GetResetFields returns the fields that clients cannot set even if they send them.
func (*Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return kind.Fields(fieldpath.MakePathOrDie("status"), fieldpath.MakePathOrDie("spec", "requestedBy"))
}

// PrepareForCreate sets the fields that only the server may set, and ignores the values of the
// client.
func (s *Strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	r := obj.(*maintenance.NodeMaintenanceRollout)
	r.Generation = 1
	r.Status = maintenance.NodeMaintenanceRolloutStatus{Conditions: []metav1.Condition{v1alpha1.NotObserved(s.Now())}}
	r.Spec.RequestedBy = nodemaintenance.Requester(ctx)
	s.signHolds(ctx, r.Spec.Holds, nil)
	s.drawLine(r)
}

// PrepareForUpdate keeps the fields that only the server sets, and changes them only if the update
// requires it. A user who only adds or removes holds does not become the requester: the controller
// acts with the rights of the requester.
func (s *Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	r, before := obj.(*maintenance.NodeMaintenanceRollout), old.(*maintenance.NodeMaintenanceRollout)
	r.Status = before.Status
	r.Spec.RequestedBy = before.Spec.RequestedBy
	s.signHolds(ctx, r.Spec.Holds, before.Spec.Holds)
	s.drawLine(r)
	if apiequality.Semantic.DeepEqual(r.Spec, before.Spec) {
		return
	}
	r.Generation = before.Generation + 1
	if !validation.OnlyHoldsChange(&r.Spec, &before.Spec) {
		r.Spec.RequestedBy = nodemaintenance.Requester(ctx)
	}
}

// signHolds records who added or changed each hold, and when. The records of clients are ignored.
func (s *Strategy) signHolds(ctx context.Context, holds, before []maintenance.RolloutHold) {
	by, now := kind.UserName(ctx), s.Now()
	for i := range holds {
		hold := &holds[i]
		was := slices.IndexFunc(before, func(old maintenance.RolloutHold) bool { return old.Name == hold.Name })
		if was >= 0 && validation.SameHold(hold, &before[was]) {
			hold.By, hold.Since = before[was].By, before[was].Since
			continue
		}
		hold.By, hold.Since = by, now.DeepCopy()
	}
}

// drawLine records the line between old and new nodes when the rollout leaves stage Idle, as for a
// NodeMaintenance. A replica that has not read the nodes yet leaves it to the next write, at the
// latest to the one that announces the first unit.
func (s *Strategy) drawLine(r *maintenance.NodeMaintenanceRollout) {
	if r.Spec.Stage == maintenance.RolloutStageIdle || r.Status.NewestNodeTimestamp != nil {
		return
	}
	r.Status.NewestNodeTimestamp = nodemaintenance.Line(s.newest)
}

// Validate validates a new object.
func (s *Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	r := obj.(*maintenance.NodeMaintenanceRollout)
	errs := validation.ValidateNodeMaintenanceRollout(r)
	errs = append(errs, nodemaintenance.ValidateDoneWhen(r.Spec.Template.Task, field.NewPath("spec", "template", "task"))...)
	return append(errs, size.Validate(s.Scheme, obj)...)
}

// ValidateUpdate validates a change. The template cannot change.
func (s *Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return append(validation.ValidateNodeMaintenanceRolloutUpdate(obj.(*maintenance.NodeMaintenanceRollout), old.(*maintenance.NodeMaintenanceRollout)),
		size.Validate(s.Scheme, obj)...)
}

// StatusStrategy is the strategy of the status subresource.
type StatusStrategy struct {
	*Strategy
}

// PrepareForUpdate keeps spec and metadata.
func (s *StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	r, before := obj.(*maintenance.NodeMaintenanceRollout), old.(*maintenance.NodeMaintenanceRollout)
	r.Spec = before.Spec
	metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &before.ObjectMeta)
	s.drawLine(r)
}

// WarningsOnUpdate returns none: a controller writes the status.
func (*StatusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// ValidateUpdate validates a status.
func (*StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateNodeMaintenanceRolloutStatusUpdate(obj.(*maintenance.NodeMaintenanceRollout), old.(*maintenance.NodeMaintenanceRollout))
}
