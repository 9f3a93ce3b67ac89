// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import "testing"

func TestClusterKeepsItsKubernetes(t *testing.T) {
	for name, test := range map[string]struct {
		stored  map[string]string
		version string
		refused bool
	}{
		"a new cluster":    {nil, "1.34", false},
		"the same version": {map[string]string{"KUBE": "1.35"}, "1.35", false},
		"an older version": {map[string]string{"KUBE": "1.35"}, "1.34", true},
		"a newer version":  {map[string]string{"KUBE": "1.35"}, "1.36", true},
		"a cluster of a program without this option": {map[string]string{"NODES": "20"}, "1.37", false},
		"an older version for such a cluster":        {map[string]string{"NODES": "20"}, "1.36", true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := keepsKube(test.stored, test.version); (err != nil) != test.refused {
				t.Errorf("got error %v, want one: %t", err, test.refused)
			}
		})
	}
}
