// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
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
	store, err := kind.NewStore(optsGetter, "nodemaintenancerollout", &maintenance.NodeMaintenanceRollout{}, &maintenance.NodeMaintenanceRolloutList{},
		strategy, newTable(strategy.Clock), func(r *maintenance.NodeMaintenanceRollout) fields.Set {
			return fields.Set{maintenance.FieldName: r.Name, maintenance.FieldStage: string(r.Spec.Stage)}
		})
	if err != nil {
		return Storage{}, err
	}
	return Storage{Rollout: &kind.REST{Store: store, Short: "nmr", NoLeader: strategy.noLeader}, Status: status.New(store, &StatusStrategy{strategy})}, nil
}
