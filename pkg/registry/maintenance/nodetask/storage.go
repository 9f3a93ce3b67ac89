// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
	"haulout.dev/haulout/pkg/registry/maintenance/status"
)

// Storage has the REST storage of NodeTasks and of their status.
type Storage struct {
	NodeTask *kind.REST
	Status   *StatusREST
}

// NewStorage returns the storage. noLeader returns the warning that no replica leads; empty if a
// replica leads. outdated returns why the storage may be older than the cluster; "" if it is not.
func NewStorage(optsGetter generic.RESTOptionsGetter, strategy *Strategy, noLeader, outdated func() string) (Storage, error) {
	store, err := kind.NewStore(optsGetter, "nodetask", &maintenance.NodeTask{}, &maintenance.NodeTaskList{}, strategy, newTable(strategy.Clock),
		func(task *maintenance.NodeTask) fields.Set {
			return fields.Set{
				maintenance.FieldName:   task.Name,
				maintenance.FieldWorker: task.Spec.Worker,
				maintenance.FieldState:  string(task.Status.State),
			}
		})
	if err != nil {
		return Storage{}, err
	}
	warnings := func(context.Context, runtime.Object) []string {
		if text := noLeader(); text != "" {
			return []string{text}
		}
		return nil
	}
	return Storage{NodeTask: &kind.REST{Store: store, Short: "ntask", Warnings: warnings}, Status: &StatusREST{
		REST: status.New(store, &StatusStrategy{strategy}), byServer: strategy.ByServer, outdated: outdated,
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
