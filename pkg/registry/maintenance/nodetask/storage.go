// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
	"haulout.dev/haulout/pkg/registry/maintenance/status"
)

// Storage has the REST storage of NodeTasks and of their status.
type Storage struct {
	NodeTask *kind.REST
	Status   *status.REST
}

// NewStorage returns the storage. isServer recognizes the server's own controllers.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter, isServer func(user.Info) bool) (Storage, error) {
	return newStorage(optsGetter, NewStrategy(scheme, isServer, clock.RealClock{}))
}

func newStorage(optsGetter generic.RESTOptionsGetter, strategy *Strategy) (Storage, error) {
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
	return Storage{NodeTask: &kind.REST{Store: store, Short: "ntask"}, Status: status.New(store, NewStatusStrategy(strategy))}, nil
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
