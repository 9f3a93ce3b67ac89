// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
	"haulout.dev/haulout/pkg/registry/maintenance/nodemaintenance"
	"haulout.dev/haulout/pkg/registry/maintenance/status"
)

// Storage has the REST storage of NodeMaintenanceRollouts and of their status.
type Storage struct {
	Rollout *kind.REST
	Status  *status.REST
}

// NewStorage returns the storage. noLeader returns the warning that no replica leads; empty if a
// replica leads. newest returns the newest node of the cluster.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter, noLeader func() string, newest nodemaintenance.NewestNode) (Storage, error) {
	return newStorage(optsGetter, NewStrategy(scheme, noLeader, newest, clock.RealClock{}))
}

func newStorage(optsGetter generic.RESTOptionsGetter, strategy *Strategy) (Storage, error) {
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &maintenance.NodeMaintenanceRollout{} },
		NewListFunc:               func() runtime.Object { return &maintenance.NodeMaintenanceRolloutList{} },
		DefaultQualifiedResource:  maintenance.Resource("nodemaintenancerollouts"),
		SingularQualifiedResource: maintenance.Resource("nodemaintenancerollout"),
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		ResetFieldsStrategy:       strategy,
		TableConvertor:            newTable(strategy.Clock),
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: optsGetter, AttrFunc: getAttrs}); err != nil {
		return Storage{}, fmt.Errorf("complete the store of rollouts: %w", err)
	}
	return Storage{Rollout: &kind.REST{Store: store, Short: "nmr"}, Status: status.New(store, NewStatusStrategy(strategy))}, nil
}

// getAttrs returns the labels and fields for selectors of lists and watches.
func getAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	r, ok := obj.(*maintenance.NodeMaintenanceRollout)
	if !ok {
		return nil, nil, fmt.Errorf("a %T is not a NodeMaintenanceRollout", obj)
	}
	return r.Labels, fields.Set{maintenance.FieldName: r.Name, maintenance.FieldStage: string(r.Spec.Stage)}, nil
}
