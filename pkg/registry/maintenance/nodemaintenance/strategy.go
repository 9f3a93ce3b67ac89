// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodemaintenance is the registry of NodeMaintenances: it processes objects between a write
// request and etcd.
package nodemaintenance

import (
	"context"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
	"haulout.dev/haulout/pkg/rollout/nodeexpr"
)

// Strategy is the strategy of the main resource.
type Strategy struct {
	kind.Base

	newest   NewestNode
	observed observation
}

// NewestNode returns the newest creation time among the nodes of the host cluster; nil if there are
// no nodes. ok is false until this replica has read the nodes.
type NewestNode func() (*metav1.Time, bool)

var _ rest.RESTGracefulDeleteStrategy = &Strategy{}

// NewStrategy returns the strategy of the main resource. isServer recognizes the server's own
// controllers. noLeader returns the warning that no replica leads; empty if a replica leads.
func NewStrategy(scheme *runtime.Scheme, isServer func(user.Info) bool, noLeader func() string, newest NewestNode, clock clock.PassiveClock) *Strategy {
	return &Strategy{
		Base: kind.NewBase(scheme, isServer, clock), newest: newest, observed: observation{clock: clock, noLeader: noLeader},
	}
}

// WarningsOnCreate warns if no replica leads. Admission adds the warnings that depend on the
// cluster.
func (s *Strategy) WarningsOnCreate(_ context.Context, obj runtime.Object) []string {
	return s.observed.warnings(obj.(*maintenance.NodeMaintenance))
}

// WarningsOnUpdate warns if no replica leads, or if no controller has observed the last change.
func (s *Strategy) WarningsOnUpdate(_ context.Context, _, old runtime.Object) []string {
	return s.observed.warnings(old.(*maintenance.NodeMaintenance))
}

// GetResetFields returns the fields that clients cannot set even if they send them, so that
// server-side apply does not make clients the owners of these fields.
func (*Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return kind.Fields(fieldpath.MakePathOrDie("status"), fieldpath.MakePathOrDie("spec", "requestedBy"))
}

// PrepareForCreate sets the fields that only the server may set, and ignores the values of the
// client. The condition Ready is part of this write, so that no client ever sees an object without
// it.
func (s *Strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	nm := obj.(*maintenance.NodeMaintenance)
	nm.Generation = 1
	nm.Status = maintenance.NodeMaintenanceStatus{
		Conditions: []metav1.Condition{v1alpha1.NotObserved(s.Now())},
	}
	if nm.Spec.RequestedBy == nil || !s.ByServer(ctx) {
		// The server creates the maintenances of a rollout for the requester of the rollout.
		nm.Spec.RequestedBy = Requester(ctx)
	}
	s.enterStage(nm)
	s.drawLine(nm)
	s.recordPause(ctx, nm)
	setCompletionFinalizer(nm, nm.Spec.Stage != maintenance.NodeMaintenanceStageIdle)
}

// PrepareForUpdate keeps the fields that only the server sets, and changes them only if the update
// requires it.
func (s *Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	nm, before := obj.(*maintenance.NodeMaintenance), old.(*maintenance.NodeMaintenance)
	nm.Status = before.Status
	nm.Spec.RequestedBy = before.Spec.RequestedBy
	if validation.SameDrainPlan(nm.Spec.DrainPlan, before.Spec.DrainPlan) {
		// An equivalent plan in a different form is not a change.
		nm.Spec.DrainPlan = before.Spec.DrainPlan
	}

	stageChanged := nm.Spec.Stage != before.Spec.Stage
	if stageChanged && before.DeletionTimestamp == nil {
		nm.Status.StageStatuses = slices.Clone(before.Status.StageStatuses)
		s.enterStage(nm)
	}
	s.drawLine(nm)
	s.recordPause(ctx, nm)
	if stageChanged || nm.Spec.NewNodes != before.Spec.NewNodes ||
		!apiequality.Semantic.DeepEqual(nm.Spec.NodeSelector, before.Spec.NodeSelector) {
		s.setRequestedBy(ctx, nm)
	}
	setCompletionFinalizer(nm, s.wantsCompletionFinalizer(ctx, nm, before))

	if !apiequality.Semantic.DeepEqual(nm.Spec, before.Spec) {
		nm.Generation = before.Generation + 1
	}
}

// CheckGracefulDelete is the only hook in the transaction that marks an object as deleting, so it
// moves the stage to Complete. Its result has a different meaning for each kind of maintenance.
//
// A maintenance that is not Idle has the completion finalizer. The result false makes the store
// mark this maintenance as deleting and increase its generation.
//
// A maintenance in stage Idle has no such finalizer and is deleted immediately. But the store
// decides this with a copy that it reads before the transaction, and then deletes the current
// object. If another request moves the maintenance to Drain in between, that maintenance would be
// lost, together with the list of its cordoned nodes. The result true, with a grace period of zero,
// makes the store first mark the object as deleting within a transaction, in which this function
// checks the stage again. After that, the stage cannot change, and the store deletes the object in
// the same request.
func (s *Strategy) CheckGracefulDelete(ctx context.Context, obj runtime.Object, options *metav1.DeleteOptions) bool {
	nm := obj.(*maintenance.NodeMaintenance)
	switch nm.Spec.Stage {
	case maintenance.NodeMaintenanceStageIdle:
		options.GracePeriodSeconds = ptr.To[int64](0)
		return true
	case maintenance.NodeMaintenanceStageComplete:
		return false
	}
	nm.Spec.Stage = maintenance.NodeMaintenanceStageComplete
	nm.Status.StageStatuses = slices.Clone(nm.Status.StageStatuses)
	s.enterStage(nm)
	// A deletion advances the stage. Admission has authorized its user for the released nodes, so
	// this user becomes the requester.
	s.setRequestedBy(ctx, nm)
	return false
}

// Validate validates a new object.
func (s *Strategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	nm := obj.(*maintenance.NodeMaintenance)
	errs := append(validation.ValidateNodeMaintenance(nm), size.Validate(s.Scheme, obj)...)
	errs = append(errs, ValidateDoneWhen(nm.Spec.Task, field.NewPath("spec", "task"))...)
	return append(errs, s.validateMarks(ctx, nm, &maintenance.NodeMaintenance{})...)
}

// ValidateUpdate validates a change. The task cannot change.
func (s *Strategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	nm, before := obj.(*maintenance.NodeMaintenance), old.(*maintenance.NodeMaintenance)
	errs := append(validation.ValidateNodeMaintenanceUpdate(nm, before), size.Validate(s.Scheme, obj)...)
	return append(errs, s.validateMarks(ctx, nm, before)...)
}

// ValidateDoneWhen checks the expression of a task.
func ValidateDoneWhen(task *maintenance.NodeMaintenanceTask, path *field.Path) field.ErrorList {
	if task == nil || task.DoneWhen == "" {
		return nil
	}
	if err := nodeexpr.Check(task.DoneWhen); err != nil {
		return field.ErrorList{field.Invalid(path.Child("doneWhen"), field.OmitValueType{}, err.Error())}
	}
	return nil
}

// validateMarks refuses changes of the label and the annotations with which a rollout finds its
// maintenances, except by the server: they are the memory of the rollout.
func (s *Strategy) validateMarks(ctx context.Context, nm, old *maintenance.NodeMaintenance) field.ErrorList {
	if s.ByServer(ctx) {
		return nil
	}
	var errs field.ErrorList
	const text = "only the server may set, change or remove it"
	metadata := field.NewPath("metadata")
	if label := v1alpha1.LabelRollout; !sameValue(nm.Labels, old.Labels, label) {
		errs = append(errs, field.Forbidden(metadata.Child("labels").Key(label), text))
	}
	for _, annotation := range []string{v1alpha1.AnnotationRolloutUnit, v1alpha1.AnnotationWithdrawn} {
		if !sameValue(nm.Annotations, old.Annotations, annotation) {
			errs = append(errs, field.Forbidden(metadata.Child("annotations").Key(annotation), text))
		}
	}
	return errs
}

func sameValue(a, b map[string]string, key string) bool {
	x, inA := a[key]
	y, inB := b[key]
	return inA == inB && x == y
}

// enterStage records the stages that a maintenance enters. Drain includes Cordon, so it enters
// both.
func (s *Strategy) enterStage(nm *maintenance.NodeMaintenance) {
	now := s.Now()
	var stages []maintenance.NodeMaintenanceStage
	switch nm.Spec.Stage {
	case maintenance.NodeMaintenanceStageDrain:
		stages = append(stages, maintenance.NodeMaintenanceStageCordon, maintenance.NodeMaintenanceStageDrain)
	case maintenance.NodeMaintenanceStageIdle, maintenance.NodeMaintenanceStageCordon, maintenance.NodeMaintenanceStageComplete:
		stages = append(stages, nm.Spec.Stage)
	default:
		// Do not record an unknown stage: validation refuses it, and the record would cause a
		// second error.
	}
	for _, stage := range stages {
		entered := slices.ContainsFunc(nm.Status.StageStatuses, func(s maintenance.StageStatus) bool { return s.Name == stage })
		if !entered {
			nm.Status.StageStatuses = append(nm.Status.StageStatuses, maintenance.StageStatus{Name: stage, StartTimestamp: now.DeepCopy()})
		}
	}
}

// drawLine records the line between old and new nodes when a maintenance begins to hold its nodes:
// the creation time of the newest node in the cache of this replica. Nodes that are created later
// are new. This is part of the write that changes the stage, so that the node controller need not
// wait for another write. It uses only the clock of the host cluster. If an older server stored a
// maintenance without the line, the next write adds it.
func (s *Strategy) drawLine(nm *maintenance.NodeMaintenance) {
	if !isHolding(nm) || nm.Status.NewestNodeTimestamp != nil {
		return
	}
	nm.Status.NewestNodeTimestamp = Line(s.newest)
}

// Line returns the line between old and new nodes; nil if this replica has not read the nodes yet.
func Line(newest NewestNode) *metav1.Time {
	line, known := newest()
	if known && line == nil {
		// The cluster has no nodes yet: all nodes that join are new.
		line = &metav1.Time{Time: time.Unix(1, 0)}
	}
	return line
}

// recordPause records who pauses a maintenance in the request that does so, and removes the record
// in the request that resumes it. A rollout resumes only what the server has paused, so the record
// also has pauses by the server. A resumed maintenance counts as having made progress, so that the
// time of the pause does not count towards --stall-timeout and the deadline of a rollout, whichever
// replica leads.
func (s *Strategy) recordPause(ctx context.Context, nm *maintenance.NodeMaintenance) {
	now := s.Now()
	switch {
	case nm.Spec.Paused && nm.Status.Pause == nil:
		nm.Status.Pause = &maintenance.NodeMaintenancePause{By: kind.UserName(ctx), Since: now}
	case !nm.Spec.Paused && nm.Status.Pause != nil:
		nm.Status.Pause = nil
		if last := nm.Status.LastProgressTimestamp; last == nil || last.Before(&now) {
			nm.Status.LastProgressTimestamp = &now
		}
	}
}

func isHolding(nm *maintenance.NodeMaintenance) bool {
	return nm.DeletionTimestamp == nil && (nm.Spec.Stage == maintenance.NodeMaintenanceStageCordon || nm.Spec.Stage == maintenance.NodeMaintenanceStageDrain)
}

// refuseWithoutLine refuses a write of a maintenance that holds its nodes but has no line, because
// this replica has not read the nodes. Such writes only come from clients that connect before the
// replica is ready.
func refuseWithoutLine(nm *maintenance.NodeMaintenance) error {
	if isHolding(nm) && nm.Status.NewestNodeTimestamp == nil {
		return apierrors.NewServiceUnavailable("this replica of haulout-apiserver has just started and has not read the nodes of the cluster yet, " +
			"so it cannot record which nodes are new to the maintenance: try again")
	}
	return nil
}

// setRequestedBy records the user of this request as the requester. It does nothing for the server,
// whose controllers act for the previous requester.
func (s *Strategy) setRequestedBy(ctx context.Context, nm *maintenance.NodeMaintenance) {
	if u, ok := genericapirequest.UserFrom(ctx); ok && !s.IsServer(u) {
		nm.Spec.RequestedBy = userInfo(u)
	}
}

// Requester returns a copy of the user of a request; nil if it has none.
func Requester(ctx context.Context) *authenticationv1.UserInfo {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil
	}
	return userInfo(u)
}

// userInfo returns a copy of the user, because the cache of the authenticator may share the object.
func userInfo(u user.Info) *authenticationv1.UserInfo {
	info := &authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: slices.Clone(u.GetGroups())}
	if extra := u.GetExtra(); len(extra) > 0 {
		info.Extra = make(map[string]authenticationv1.ExtraValue, len(extra))
		for key, values := range extra {
			info.Extra[key] = slices.Clone(values)
		}
	}
	return info
}

// wantsCompletionFinalizer reports whether the object must have the finalizer after an update. The
// finalizer means that nodes must still be released. Only the server adds and removes it: changes
// by clients have no effect.
func (s *Strategy) wantsCompletionFinalizer(ctx context.Context, nm, old *maintenance.NodeMaintenance) bool {
	had := hasCompletionFinalizer(old)
	wasIdle := old.Spec.Stage == maintenance.NodeMaintenanceStageIdle
	switch {
	case old.DeletionTimestamp != nil && !had:
		// The API server does not accept new finalizers on an object that is being deleted.
		return false
	case nm.Spec.Stage == maintenance.NodeMaintenanceStageIdle:
		// The controllers would never remove the finalizer.
		return false
	case wasIdle, nm.Spec.Stage != maintenance.NodeMaintenanceStageComplete:
		return true
	case had && !hasCompletionFinalizer(nm):
		released := s.ByServer(ctx) && old.Spec.Stage == maintenance.NodeMaintenanceStageComplete
		return !released
	}
	return had
}

func hasCompletionFinalizer(nm *maintenance.NodeMaintenance) bool {
	return slices.Contains(nm.Finalizers, v1alpha1.FinalizerMaintenanceCompletion)
}

func setCompletionFinalizer(nm *maintenance.NodeMaintenance, wanted bool) {
	switch {
	case wanted == hasCompletionFinalizer(nm):
	case wanted:
		nm.Finalizers = append(slices.Clone(nm.Finalizers), v1alpha1.FinalizerMaintenanceCompletion)
	default:
		nm.Finalizers = slices.DeleteFunc(slices.Clone(nm.Finalizers), func(f string) bool {
			return f == v1alpha1.FinalizerMaintenanceCompletion
		})
	}
}

// StatusStrategy is the strategy of the status subresource.
type StatusStrategy struct {
	*Strategy
}

// PrepareForUpdate keeps spec, metadata, and the record of a pause, which belongs to spec.paused.
func (s *StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	nm, before := obj.(*maintenance.NodeMaintenance), old.(*maintenance.NodeMaintenance)
	nm.Spec = before.Spec
	metav1.ResetObjectMetaForStatus(&nm.ObjectMeta, &before.ObjectMeta)
	nm.Status.Pause = before.Status.Pause
	s.drawLine(nm)
}

// WarningsOnUpdate returns none: a controller writes the status.
func (*StatusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// ValidateUpdate validates a status.
func (*StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateNodeMaintenanceStatusUpdate(obj.(*maintenance.NodeMaintenance), old.(*maintenance.NodeMaintenance))
}
