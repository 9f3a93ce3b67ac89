// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/registry/generic"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/maintenance/kind"
	"haulout.dev/haulout/pkg/registry/maintenance/status"
)

// Storage has the REST storage of NodeMaintenanceRollouts and of their status.
type Storage struct {
	Rollout *kind.REST
	Status  *status.REST
}

// NewStorage returns the storage.
func NewStorage(optsGetter generic.RESTOptionsGetter, strategy *Strategy) (Storage, error) {
	store, err := kind.NewStore(optsGetter, "nodemaintenancerollout", &maintenance.NodeMaintenanceRollout{}, &maintenance.NodeMaintenanceRolloutList{},
		strategy, newTable(strategy.Clock), func(r *maintenance.NodeMaintenanceRollout) fields.Set {
			return fields.Set{maintenance.FieldName: r.Name, maintenance.FieldStage: string(r.Spec.Stage)}
		})
	if err != nil {
		return Storage{}, err
	}
	return Storage{Rollout: &kind.REST{Store: store, Short: "nmr", Warnings: strategy.WarningsOnCreate}, Status: status.New(store, &StatusStrategy{strategy})}, nil
}
