/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Command haulout-scheduler is kube-scheduler with one more plugin, HauloutPreemption, which makes
// room for important pods without breaking PodDisruptionBudgets (KEP-3280).
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
