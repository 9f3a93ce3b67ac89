// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
	"haulout.dev/haulout/pkg/registry/maintenance/status"
)

// Storage has the endpoints of the kind.
type Storage struct {
	// Evacuation serves evacuations.
	Evacuation *kind.REST
	// Status serves evacuations/status.
	Status *status.REST
}

// NewStorage returns the endpoints on the storage of optsGetter.
func NewStorage(optsGetter generic.RESTOptionsGetter, strategy *Strategy) (Storage, error) {
	store := &genericregistry.Store{
		NewFunc:                   func() runtime.Object { return &maintenance.Evacuation{} },
		NewListFunc:               func() runtime.Object { return &maintenance.EvacuationList{} },
		DefaultQualifiedResource:  maintenance.Resource("evacuations"),
		SingularQualifiedResource: maintenance.Resource("evacuation"),

		CreateStrategy:      strategy,
		UpdateStrategy:      strategy,
		DeleteStrategy:      strategy,
		ResetFieldsStrategy: strategy,

		PredicateFunc:  MatchEvacuation,
		TableConvertor: newTable(strategy.Clock),
	}
	options := &generic.StoreOptions{
		RESTOptions: optsGetter,
		AttrFunc:    GetAttrs,
		// Evacuators watch their own class. Because of this trigger, the watch cache passes an
		// event only to the watchers of the class in the event.
		TriggerFunc: storage.IndexerFuncs{maintenance.FieldActiveEvacuatorClass: activeEvacuatorClass},
		Indexers: &cache.Indexers{
			storage.FieldIndex(maintenance.FieldActiveEvacuatorClass): index(activeEvacuatorClass),
			storage.FieldIndex(maintenance.FieldNodeName):             index(nodeName),
			storage.FieldIndex(maintenance.FieldBlocked):              index(func(obj runtime.Object) string { return blocked(obj.(*maintenance.Evacuation)) }),
		},
	}
	if err := store.CompleteWithOptions(options); err != nil {
		return Storage{}, fmt.Errorf("complete the store of evacuations: %w", err)
	}
	return Storage{Evacuation: &kind.REST{Store: store, Short: "evac"}, Status: status.New(store, &StatusStrategy{strategy})}, nil
}

func activeEvacuatorClass(obj runtime.Object) string {
	return obj.(*maintenance.Evacuation).Status.ActiveEvacuatorClass
}

func nodeName(obj runtime.Object) string {
	return obj.(*maintenance.Evacuation).Spec.NodeName
}

func index(value func(runtime.Object) string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		evacuation, ok := obj.(*maintenance.Evacuation)
		if !ok {
			return nil, fmt.Errorf("not an Evacuation: %T", obj)
		}
		return []string{value(evacuation)}, nil
	}
}
