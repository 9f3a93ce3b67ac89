// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"testing"

	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestPoolOf(t *testing.T) {
	for name, test := range map[string]struct {
		pools []string
		node  *v1alpha1.NodeMaintenanceNodeStatus
		want  string
	}{
		"the first pool":                {[]string{"blue", "red"}, &v1alpha1.NodeMaintenanceNodeStatus{PoolIndex: ptr.To[int32](0)}, "blue"},
		"the last pool":                 {[]string{"blue", "red"}, &v1alpha1.NodeMaintenanceNodeStatus{PoolIndex: ptr.To[int32](1)}, "red"},
		"an index behind the last pool": {[]string{"blue", "red"}, &v1alpha1.NodeMaintenanceNodeStatus{PoolIndex: ptr.To[int32](2)}, ""},
		"a negative index":              {[]string{"blue"}, &v1alpha1.NodeMaintenanceNodeStatus{PoolIndex: ptr.To[int32](-1)}, ""},
		"no pools":                      {nil, &v1alpha1.NodeMaintenanceNodeStatus{PoolIndex: ptr.To[int32](0)}, ""},
		"a node without a pool":         {[]string{"blue"}, &v1alpha1.NodeMaintenanceNodeStatus{}, ""},
		"a node that is not listed":     {[]string{"blue"}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			nm := &v1alpha1.NodeMaintenance{Status: v1alpha1.NodeMaintenanceStatus{Pools: test.pools}}
			is.Equal(t, v1alpha1.PoolOf(nm, test.node), test.want, "pool")
		})
	}
}
