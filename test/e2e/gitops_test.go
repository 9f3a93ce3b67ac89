// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/test/e2e/framework"
)

// TestNoDriftInGit applies manifests as a GitOps tool does, and compares them with the cluster
// after the controllers have written the status: nothing may differ, even if the plan has only some
// of its entries.
func TestNoDriftInGit(t *testing.T) {
	t.Parallel()
	for name, plan := range map[string]string{
		"no plan":            "",
		"a part of the plan": "  drainPlan: [{podPriority: 5}]\n",
	} {
		for how, flags := range map[string][]string{
			"client-side": nil, "server-side": {"--server-side", "--field-manager=gitops", "--force-conflicts"},
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				pool, _ := cluster.NewPool(t, 1, true)
				nm := framework.Name("git")
				manifest := manifest(nm, pool, "Cordon") + plan
				t.Cleanup(func() { cluster.Remove(t, nm) })
				cluster.MustKubectl(t, manifest, append([]string{"apply", "--filename=-"}, flags...)...)
				cluster.MustKubectl(t, "", "wait", "nodemaintenances.maintenance.haulout.dev/"+nm, "--for=condition=Ready", "--timeout=2m")
				before := get(t, nm)
				out, errOut, err := cluster.Kubectl(t, manifest, append([]string{"diff", "--filename=-"}, flags...)...)
				is.True(t, err == nil, "kubectl diff: %v\n%s%s", err, out, errOut)
				cluster.MustKubectl(t, manifest, append([]string{"apply", "--filename=-"}, flags...)...)
				is.Equal(t, get(t, nm).Generation, before.Generation, "the generation after a second apply")
			})
		}
	}
}

// TestStageInGitGoesBack reverts a stage in git: the server refuses it, and the drain goes on.
func TestStageInGitGoesBack(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	nm := framework.Name("revert")
	t.Cleanup(func() { cluster.Remove(t, nm) })
	apply := []string{"apply", "--server-side", "--field-manager=gitops", "--force-conflicts", "--filename=-"}
	cluster.MustKubectl(t, manifest(nm, pool, "Drain"), apply...)
	unschedulable(t, true, nodes...)
	_, errOut, err := cluster.Kubectl(t, manifest(nm, pool, "Cordon"), apply...)
	is.True(t, err != nil && strings.Contains(errOut, "the stage can only change from Drain to Complete"), "error %v: %s", err, errOut)
	is.Equal(t, get(t, nm).Spec.Stage, v1alpha1.NodeMaintenanceStageDrain)
	unschedulable(t, true, nodes...)
	cluster.MustKubectl(t, manifest(nm, pool, "Complete"), apply...)
	unschedulable(t, false, nodes...)
}
