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

// Package nodemaintenance is the registry of NodeMaintenances: what happens to one between the
// request that writes it and etcd.
package nodemaintenance

import (
	"context"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
)

// Strategy is what the main resource does with a NodeMaintenance before it is stored.
type Strategy struct {
	rest.DeclarativeValidation
	names.NameGenerator

	// isServer tells the server's own controllers from everybody else, cluster administrators
	// included.
	isServer func(user.Info) bool
	clock    clock.PassiveClock
}

var (
	_ rest.RESTCreateStrategy         = &Strategy{}
	_ rest.RESTUpdateStrategy         = &Strategy{}
	_ rest.RESTGracefulDeleteStrategy = &Strategy{}
	_ rest.ResetFieldsStrategy        = &Strategy{}
)

// NewStrategy returns the strategy of the main resource.
func NewStrategy(scheme *runtime.Scheme, isServer func(user.Info) bool, clock clock.PassiveClock) *Strategy {
	return &Strategy{
		DeclarativeValidation: rest.DeclarativeValidation{Scheme: scheme},
		NameGenerator:         names.SimpleNameGenerator,
		isServer:              isServer,
		clock:                 clock,
	}
}

// NamespaceScoped implements rest.Scoper: nodes have no namespace, neither have their maintenances.
func (*Strategy) NamespaceScoped() bool { return false }

// AllowCreateOnUpdate lets only POST and server-side apply make objects.
func (*Strategy) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate demands a resourceVersion of a PUT. Who replaces the object as it was
// some time ago would undo somebody's narrowing of the selector unawares, and the nodes would be
// drained. Patches and server-side apply say what they change; kubectl replace looks the version
// up.
func (*Strategy) AllowUnconditionalUpdate(context.Context) bool { return false }

// Canonicalize changes nothing.
func (*Strategy) Canonicalize(runtime.Object) {}

// WarningsOnCreate has none: warnings depend on the cluster, so admission gives them.
func (*Strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate has none, see WarningsOnCreate.
func (*Strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// GetResetFields names what clients may send but not set, so that server-side apply does not make
// them its owners.
func (*Strategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("status"),
			fieldpath.MakePathOrDie("spec", "requestedBy"),
		),
	}
}

// PrepareForCreate drops what only the server says, and says it.
func (s *Strategy) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	nm := obj.(*maintenance.NodeMaintenance)
	nm.Generation = 1
	nm.Status = maintenance.NodeMaintenanceStatus{}
	nm.Spec.RequestedBy = requester(ctx)
	s.enterStage(nm)
	setCompletionFinalizer(nm, nm.Spec.Stage != maintenance.NodeMaintenanceStageIdle)
}

// PrepareForUpdate keeps what only the server says, and says it anew where the change asks for it.
func (s *Strategy) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	nm, before := obj.(*maintenance.NodeMaintenance), old.(*maintenance.NodeMaintenance)
	nm.Status = before.Status
	nm.Spec.RequestedBy = before.Spec.RequestedBy
	if validation.SameDrainPlan(nm.Spec.DrainPlan, before.Spec.DrainPlan) {
		// Another way to write the same plan is not a change.
		nm.Spec.DrainPlan = before.Spec.DrainPlan
	}

	stageChanged := nm.Spec.Stage != before.Spec.Stage
	if stageChanged && before.DeletionTimestamp == nil {
		nm.Status.StageStatuses = slices.Clone(before.Status.StageStatuses)
		s.enterStage(nm)
	}
	if stageChanged || nm.Spec.NewNodes != before.Spec.NewNodes ||
		!apiequality.Semantic.DeepEqual(nm.Spec.NodeSelector, before.Spec.NodeSelector) {
		s.setRequestedBy(ctx, nm)
	}
	setCompletionFinalizer(nm, s.wantsCompletionFinalizer(ctx, nm, before))

	if !apiequality.Semantic.DeepEqual(nm.Spec, before.Spec) {
		nm.Generation = before.Generation + 1
	}
}

// CheckGracefulDelete is the only hook in the transaction that marks an object as deleting, so the
// stage moves to Complete here. It answers two different questions with its result.
//
// A maintenance that is not Idle has the completion finalizer, and false makes the store mark it as
// deleting and raise its generation.
//
// An Idle one has no such finalizer and goes at once. But the store decides that from a copy which
// it reads before the transaction, and then deletes whatever is there: a request that moves the
// maintenance to Drain in between would be lost together with the memory of the nodes it has just
// claimed. True, with a grace period of zero, makes it mark the object as deleting within a
// transaction first, in which this function looks at the stage again; after that no stage can
// change, and the object is deleted in the same request.
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
	// To delete is to advance the stage: who does it has been authorized for the nodes it releases,
	// and is whom to ask about it.
	s.setRequestedBy(ctx, nm)
	return false
}

// Validate validates a new object.
func (s *Strategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	return append(validation.ValidateNodeMaintenance(obj.(*maintenance.NodeMaintenance)), size.Validate(s.Scheme, obj)...)
}

// ValidateUpdate validates a change.
func (s *Strategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return append(validation.ValidateNodeMaintenanceUpdate(obj.(*maintenance.NodeMaintenance), old.(*maintenance.NodeMaintenance)), size.Validate(s.Scheme, obj)...)
}

// enterStage records the stages that a maintenance is in from now on. Drain cordons too, so it
// enters both.
func (s *Strategy) enterStage(nm *maintenance.NodeMaintenance) {
	// To the second, as it is stored: the answer to the request must not differ from what is read
	// later.
	now := metav1.NewTime(s.clock.Now()).Rfc3339Copy()
	var stages []maintenance.NodeMaintenanceStage
	switch nm.Spec.Stage {
	case maintenance.NodeMaintenanceStageDrain:
		stages = append(stages, maintenance.NodeMaintenanceStageCordon, maintenance.NodeMaintenanceStageDrain)
	case maintenance.NodeMaintenanceStageIdle, maintenance.NodeMaintenanceStageCordon, maintenance.NodeMaintenanceStageComplete:
		stages = append(stages, nm.Spec.Stage)
	default:
		// Validation refuses an unknown stage; recorded, it would be reported a second time.
	}
	for _, stage := range stages {
		entered := slices.ContainsFunc(nm.Status.StageStatuses, func(s maintenance.StageStatus) bool { return s.Name == stage })
		if !entered {
			nm.Status.StageStatuses = append(nm.Status.StageStatuses, maintenance.StageStatus{Name: stage, StartTimestamp: now.DeepCopy()})
		}
	}
}

// setRequestedBy names the user of this request, unless it is the server: its controllers act for
// whoever asked before.
func (s *Strategy) setRequestedBy(ctx context.Context, nm *maintenance.NodeMaintenance) {
	if u, ok := genericapirequest.UserFrom(ctx); ok && !s.isServer(u) {
		nm.Spec.RequestedBy = userInfo(u)
	}
}

func requester(ctx context.Context) *authenticationv1.UserInfo {
	u, ok := genericapirequest.UserFrom(ctx)
	if !ok {
		return nil
	}
	return userInfo(u)
}

// userInfo copies: what an authenticator hands out may be shared with its cache.
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

// wantsCompletionFinalizer decides for an update. The finalizer stands for nodes that still have to
// be released, so it is the server's: what clients do to it has no effect.
func (s *Strategy) wantsCompletionFinalizer(ctx context.Context, nm, old *maintenance.NodeMaintenance) bool {
	had := hasCompletionFinalizer(old)
	wasIdle := old.Spec.Stage == maintenance.NodeMaintenanceStageIdle
	switch {
	case old.DeletionTimestamp != nil && !had:
		// Nothing may be added to an object that is being deleted.
		return false
	case nm.Spec.Stage == maintenance.NodeMaintenanceStageIdle:
		// Nobody would ever take it off.
		return false
	case wasIdle, nm.Spec.Stage != maintenance.NodeMaintenanceStageComplete:
		return true
	case had && !hasCompletionFinalizer(nm):
		u, ok := genericapirequest.UserFrom(ctx)
		released := ok && s.isServer(u) && old.Spec.Stage == maintenance.NodeMaintenanceStageComplete
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

// StatusStrategy is what the status subresource does.
type StatusStrategy struct {
	*Strategy
}

// NewStatusStrategy returns the strategy of the status subresource.
func NewStatusStrategy(s *Strategy) *StatusStrategy {
	return &StatusStrategy{s}
}

// GetResetFields names what a status write leaves alone.
func (*StatusStrategy) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(v1alpha1.SchemeGroupVersion.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("metadata"),
			fieldpath.MakePathOrDie("spec"),
		),
	}
}

// PrepareForUpdate keeps spec and metadata.
func (*StatusStrategy) PrepareForUpdate(_ context.Context, obj, old runtime.Object) {
	nm, before := obj.(*maintenance.NodeMaintenance), old.(*maintenance.NodeMaintenance)
	nm.Spec = before.Spec
	metav1.ResetObjectMetaForStatus(&nm.ObjectMeta, &before.ObjectMeta)
}

// ValidateUpdate validates a status.
func (*StatusStrategy) ValidateUpdate(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return validation.ValidateNodeMaintenanceStatusUpdate(obj.(*maintenance.NodeMaintenance), old.(*maintenance.NodeMaintenance))
}
