// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command haulout-scheduler is kube-scheduler with an additional plugin, HauloutPreemption, which
// makes room for important pods without breaking PodDisruptionBudgets (KEP-3280).
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the client and its queues
	_ "k8s.io/component-base/metrics/prometheus/version"  // metric kubernetes_build_info
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"haulout.dev/haulout/scheduler/pkg/preemption"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(preemption.Name, preemption.New))))
}
