// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
	"haulout.dev/haulout/pkg/registry/maintenance/status"
)

// Storage has the REST storage of NodeTasks and of their status.
type Storage struct {
	NodeTask *kind.REST
	Status   *StatusREST
}

// NewStorage returns the storage. isServer recognizes the server's own controllers. outdated
// returns why the storage may be older than the cluster; "" if it is not.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter, isServer func(user.Info) bool, outdated func() string) (Storage, error) {
	return newStorage(optsGetter, NewStrategy(scheme, isServer, clock.RealClock{}), outdated)
}

func newStorage(optsGetter generic.RESTOptionsGetter, strategy *Strategy, outdated func() string) (Storage, error) {
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &maintenance.NodeTask{} },
		NewListFunc:               func() runtime.Object { return &maintenance.NodeTaskList{} },
		DefaultQualifiedResource:  maintenance.Resource("nodetasks"),
		SingularQualifiedResource: maintenance.Resource("nodetask"),
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		ResetFieldsStrategy:       strategy,
		TableConvertor:            newTable(strategy.Clock),
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: optsGetter, AttrFunc: getAttrs}); err != nil {
		return Storage{}, fmt.Errorf("complete the store of node tasks: %w", err)
	}
	return Storage{NodeTask: &kind.REST{Store: store, Short: "ntask"}, Status: &StatusREST{
		REST: status.New(store, NewStatusStrategy(strategy)), byServer: strategy.ByServer, outdated: outdated,
	}}, nil
}

// StatusREST serves the status. It refuses the reports of workers with 503 while the storage may be
// older than the cluster: a worker reports before it begins or continues its work, and the node may
// be in service again.
type StatusREST struct {
	*status.REST

	byServer func(context.Context) bool
	outdated func() string
}

// Update implements rest.Updater.
func (r *StatusREST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc,
	updateValidation rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	if why := r.outdated(); why != "" && !r.byServer(ctx) {
		return nil, false, apierrors.NewServiceUnavailable("no worker may work on a node: " + why)
	}
	return r.REST.Update(ctx, name, objInfo, createValidation, updateValidation, forceAllowCreate, options)
}

// getAttrs returns the labels and fields for selectors of lists and watches.
func getAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	task, ok := obj.(*maintenance.NodeTask)
	if !ok {
		return nil, nil, fmt.Errorf("a %T is not a NodeTask", obj)
	}
	return task.Labels, fields.Set{
		maintenance.FieldName:   task.Name,
		maintenance.FieldWorker: task.Spec.Worker,
		maintenance.FieldState:  string(task.Status.State),
	}, nil
}
