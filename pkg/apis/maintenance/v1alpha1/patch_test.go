// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestPatchesKeepTheHoldsOfOthers: kubectl apply and kubectl patch send such patches.
func TestPatchesKeepTheHoldsOfOthers(t *testing.T) {
	const live, file = `{"spec":{"holds":[{"name":"ceph"},{"name":"christmas"}]}}`, `{"spec":{"holds":[{"name":"christmas","reason":"freeze"}]}}`
	got := string(must.Get(strategicpatch.StrategicMergePatch([]byte(live), []byte(file), v1alpha1.NodeMaintenanceRollout{}))(t))
	is.True(t, strings.Contains(got, `"ceph"`) && strings.Contains(got, `"freeze"`), "got %s", got)
}
