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

package nodemaintenance

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
)

// Storage has the REST storage of NodeMaintenances and of their subresources.
type Storage struct {
	NodeMaintenance *REST
	Status          *StatusREST
}

// NewStorage returns the storage. isServer tells requests of the server's own controllers from all others.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter, isServer func(user.Info) bool) (Storage, error) {
	return newStorage(optsGetter, NewStrategy(scheme, isServer, clock.RealClock{}))
}

func newStorage(optsGetter generic.RESTOptionsGetter, strategy *Strategy) (Storage, error) {
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &maintenance.NodeMaintenance{} },
		NewListFunc:               func() runtime.Object { return &maintenance.NodeMaintenanceList{} },
		DefaultQualifiedResource:  maintenance.Resource("nodemaintenances"),
		SingularQualifiedResource: maintenance.Resource("nodemaintenance"),
		CreateStrategy:            strategy,
		UpdateStrategy:            strategy,
		DeleteStrategy:            strategy,
		ResetFieldsStrategy:       strategy,
		TableConvertor:            tableConvertor{},
	}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: optsGetter, AttrFunc: getAttrs}); err != nil {
		return Storage{}, err
	}
	statusStrategy := NewStatusStrategy(strategy)
	statusStore := *store
	statusStore.UpdateStrategy = statusStrategy
	statusStore.ResetFieldsStrategy = statusStrategy
	return Storage{NodeMaintenance: &REST{store}, Status: &StatusREST{&statusStore}}, nil
}

// getAttrs returns what selectors of lists and watches look at.
func getAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	nm, ok := obj.(*maintenance.NodeMaintenance)
	if !ok {
		return nil, nil, fmt.Errorf("a %T is not a NodeMaintenance", obj)
	}
	return nm.Labels, fields.Set{
		maintenance.FieldName:  nm.Name,
		maintenance.FieldStage: string(nm.Spec.Stage),
	}, nil
}

// REST serves nodemaintenances.
type REST struct {
	*genericregistry.Store
}

var (
	_ rest.StandardStorage    = &REST{}
	_ rest.ShortNamesProvider = &REST{}
)

// ShortNames implements rest.ShortNamesProvider.
func (*REST) ShortNames() []string { return []string{"nm"} }

// StatusREST serves nodemaintenances/status.
type StatusREST struct {
	store *genericregistry.Store
}

var (
	_ rest.Patcher             = &StatusREST{}
	_ rest.ResetFieldsStrategy = &StatusREST{}
	_ rest.TableConvertor      = &StatusREST{}
)

// New implements rest.Storage.
func (*StatusREST) New() runtime.Object { return &maintenance.NodeMaintenance{} }

// Destroy leaves the store to REST, which shares it.
func (*StatusREST) Destroy() {}

// Get implements rest.Getter.
func (r *StatusREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update implements rest.Updater. A subresource never creates its object, whatever the request allows.
func (r *StatusREST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc,
	updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, objInfo, createValidation, updateValidation, false, options)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (r *StatusREST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable implements rest.TableConvertor.
func (r *StatusREST) ConvertToTable(ctx context.Context, object, tableOptions runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, tableOptions)
}
