// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package status serves the status subresource, in the same way for all kinds.
package status

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/registry/maintenance/kind"
)

// REST serves the status of the objects of a store.
type REST struct {
	store *genericregistry.Store
}

var (
	_ rest.Patcher             = &REST{}
	_ rest.ResetFieldsStrategy = &REST{}
	_ rest.TableConvertor      = &REST{}
)

// fields are the fields that a write of a status cannot change.
type fields struct{}

func (fields) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return kind.Fields(fieldpath.MakePathOrDie("metadata"), fieldpath.MakePathOrDie("spec"))
}

// New returns the status subresource of a complete store. It uses a copy of the store with a
// different strategy.
func New(store *genericregistry.Store, strategy rest.RESTUpdateStrategy) *REST {
	statusStore := *store
	statusStore.UpdateStrategy = strategy
	statusStore.ResetFieldsStrategy = fields{}
	return &REST{store: &statusStore}
}

// New implements rest.Storage.
func (r *REST) New() runtime.Object { return r.store.New() }

// Destroy does nothing, since the storage belongs to the main resource.
func (*REST) Destroy() {}

// Get implements rest.Getter; patches need it.
func (r *REST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return r.store.Get(ctx, name, options)
}

// Update implements rest.Updater. A subresource never creates its object, even if the request
// allows it.
func (r *REST) Update(ctx context.Context, name string, objInfo rest.UpdatedObjectInfo, createValidation rest.ValidateObjectFunc,
	updateValidation rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return r.store.Update(ctx, name, objInfo, createValidation, updateValidation, false, options)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (r *REST) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return r.store.GetResetFields()
}

// ConvertToTable implements rest.TableConvertor.
func (r *REST) ConvertToTable(ctx context.Context, object, tableOptions runtime.Object) (*metav1.Table, error) {
	return r.store.ConvertToTable(ctx, object, tableOptions)
}
