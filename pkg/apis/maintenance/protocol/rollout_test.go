// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestRolloutOf(t *testing.T) {
	const kind = "NodeMaintenanceRollout"
	labels := map[string]string{v1alpha1.LabelRollout: "kernel"}
	for name, test := range map[string]struct {
		labels map[string]string
		owners []metav1.OwnerReference
		want   bool
	}{
		"of a rollout":                    {labels, build.Owner("maintenance.haulout.dev/v1alpha1", kind, "kernel", "uid"), true},
		"of a rollout of another version": {labels, build.Owner("maintenance.haulout.dev/v1", kind, "kernel", "uid"), true},
		"by hand":                         {nil, nil, false},
		"left behind by a rollout":        {labels, nil, false},
		"with an owner that a user has set": {
			nil, build.Owner("maintenance.haulout.dev/v1alpha1", kind, "kernel", "uid"), false,
		},
		"of another kind":  {labels, build.Owner("maintenance.haulout.dev/v1alpha1", "NodeMaintenance", "kernel", "uid"), false},
		"of another group": {labels, build.Owner("argoproj.io/v1alpha1", kind, "kernel", "uid"), false},
		"of an owner that is not the controller": {
			labels, []metav1.OwnerReference{{APIVersion: "maintenance.haulout.dev/v1alpha1", Kind: kind, Name: "kernel", UID: "uid"}}, false,
		},
	} {
		nm := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Labels: test.labels, OwnerReferences: test.owners}}
		owner := RolloutOf(nm)
		is.True(t, (owner != nil) == test.want, "%s: got %v", name, owner)
		is.Equal(t, BelongsTo(nm, "uid"), test.want, name)
		is.True(t, !BelongsTo(nm, "recreated"), "%s: belongs to another rollout of the name", name)
	}
}
