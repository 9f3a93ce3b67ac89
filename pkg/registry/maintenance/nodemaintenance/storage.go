// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
	"haulout.dev/haulout/pkg/registry/maintenance/status"
)

// Storage has the REST storage of NodeMaintenances and of their subresources.
type Storage struct {
	NodeMaintenance *REST
	Status          *status.REST
	Preview         *PreviewREST
}

// NewStorage returns the storage. isServer recognizes the server's own controllers. noLeader
// returns the warning that no replica leads; empty if a replica leads.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter, isServer func(user.Info) bool, noLeader func() string,
	newest NewestNode, previewer Previewer) (Storage, error) {
	return newStorage(optsGetter, NewStrategy(scheme, isServer, noLeader, newest, clock.RealClock{}), previewer)
}

func newStorage(optsGetter generic.RESTOptionsGetter, strategy *Strategy, previewer Previewer) (Storage, error) {
	store, err := kind.NewStore(optsGetter, "nodemaintenance", &maintenance.NodeMaintenance{}, &maintenance.NodeMaintenanceList{},
		strategy, NewTableConvertor(strategy.Clock), func(nm *maintenance.NodeMaintenance) fields.Set {
			return fields.Set{
				maintenance.FieldName:           nm.Name,
				maintenance.FieldStage:          string(nm.Spec.Stage),
				maintenance.FieldNodeOfShutdown: protocol.NodeOfShutdown(&nm.ObjectMeta, nm.Spec.NodeSelector),
			}
		})
	if err != nil {
		return Storage{}, err
	}
	return Storage{
		NodeMaintenance: &REST{Store: store, observed: strategy.observed},
		Status:          status.New(store, NewStatusStrategy(strategy)),
		Preview:         newPreview(store, strategy.Scheme, previewer),
	}, nil
}

// REST serves nodemaintenances.
type REST struct {
	*genericregistry.Store

	observed observation
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.ShortNamesProvider = &REST{}
)

// Get implements rest.Getter. It warns if no controller acts on the maintenance.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := r.Store.Get(ctx, name, options)
	if err == nil {
		r.observed.warnOf(ctx, obj)
	}
	return obj, err
}

// Create creates a maintenance. It refuses a maintenance for which the line between old and new
// nodes is required and unknown, see drawLine.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	return r.Store.Create(ctx, obj, withLine(validate), options)
}

// Update updates a maintenance. It refuses a change for which the line between old and new nodes is
// required and unknown, see drawLine.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, validate rest.ValidateObjectFunc,
	validateUpdate rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.Store.Update(ctx, name, info, withLine(validate), func(ctx context.Context, obj, old runtime.Object) error {
		if err := refuseWithoutLine(obj.(*maintenance.NodeMaintenance)); err != nil {
			return err
		}
		return validateUpdate(ctx, obj, old)
	}, forceAllowCreate, options)
}

// withLine returns a validation of new objects that first refuses an object without the required
// line, see drawLine.
func withLine(validate rest.ValidateObjectFunc) rest.ValidateObjectFunc {
	return func(ctx context.Context, obj runtime.Object) error {
		if err := refuseWithoutLine(obj.(*maintenance.NodeMaintenance)); err != nil {
			return err
		}
		return validate(ctx, obj)
	}
}

// ShortNames implements rest.ShortNamesProvider.
func (*REST) ShortNames() []string { return []string{"nm"} }
