// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package preemption has the end-to-end tests of haulout-scheduler, which makes room for important
// pods within the budgets of other pods, on a development cluster with simulated nodes.
package preemption

import (
	"os"
	"testing"

	"haulout.dev/haulout/test/e2e/framework"
)

var cluster *framework.Cluster

// stormVariable is the variable with the scheduler of the cluster, to compare kube-scheduler and
// haulout-scheduler with TestStorm.
const stormVariable = "STORM_SCHEDULER"

// stock reports whether the cluster runs kube-scheduler. Then only TestStorm runs.
func stock() bool { return os.Getenv(stormVariable) == "stock" }

func TestMain(m *testing.M) {
	os.Setenv("SCHEDULER", "haulout")
	if stock() {
		os.Setenv("SCHEDULER", "stock")
	}
	os.Setenv("NODES", "0")
	// TestBudgetHoldsUpAGroup needs this gate. The scheduler's flags may add other gates.
	os.Setenv("FEATURE_GATES", "GenericWorkload=true")
	os.Setenv("APISERVER_FLAGS", "--runtime-config=scheduling.k8s.io/v1beta1=true")
	os.Exit(framework.Run(m, &cluster))
}
