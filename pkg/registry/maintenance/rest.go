// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package maintenance creates the storage of the API group.
package maintenance

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"

	"haulout.dev/haulout/pkg/registry/maintenance/evacuation"
	"haulout.dev/haulout/pkg/registry/maintenance/nodemaintenance"
)

// NewStorage returns the storage of all resources and subresources of the group by their names.
// isServer reports whether a user is the server itself, which may write fields that are read-only
// for other users. noLeader returns the warning that no replica leads. newest returns the creation
// time of the newest node. previewer creates the previews of maintenances. evacuatorStartDeadline
// is how long an evacuator may take to report for the first time.
func NewStorage(scheme *runtime.Scheme, opts generic.RESTOptionsGetter, isServer func(user.Info) bool, noLeader func() string,
	newest nodemaintenance.NewestNode, previewer nodemaintenance.Previewer, evacuatorStartDeadline time.Duration) (map[string]rest.Storage, error) {
	maintenances, err := nodemaintenance.NewStorage(scheme, opts, isServer, noLeader, newest, previewer)
	if err != nil {
		return nil, err
	}
	evacuations, err := evacuation.NewStorage(scheme, opts, isServer, evacuatorStartDeadline)
	if err != nil {
		return nil, err
	}
	return map[string]rest.Storage{
		"nodemaintenances":         maintenances.NodeMaintenance,
		"nodemaintenances/status":  maintenances.Status,
		"nodemaintenances/preview": maintenances.Preview,
		"evacuations":              evacuations.Evacuation,
		"evacuations/status":       evacuations.Status,
	}, nil
}
