// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

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

// NewStorage returns the endpoints on the storage of optsGetter. isServer recognizes the server's
// own controllers; startDeadline is the time in which an evacuator must send its first report.
func NewStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter, isServer func(user.Info) bool, startDeadline time.Duration) (Storage, error) {
	return newStorage(scheme, optsGetter, isServer, startDeadline, clock.RealClock{})
}

func newStorage(scheme *runtime.Scheme, optsGetter generic.RESTOptionsGetter, isServer func(user.Info) bool, startDeadline time.Duration,
	clock clock.PassiveClock) (Storage, error) {
	strategy := NewStrategy(scheme, isServer, startDeadline, clock)
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
		TableConvertor: newTable(clock),
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
	return Storage{Evacuation: &kind.REST{Store: store, Short: "evac"}, Status: status.New(store, NewStatusStrategy(strategy))}, nil
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
