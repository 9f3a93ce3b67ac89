// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command kube is kube-apiserver, kube-controller-manager or kube-scheduler of the development
// cluster, depending on the name of its file: one program is linked once. The Makefile builds it
// with the go.mod of each version of Kubernetes. test/cluster/go.mod keeps it out of `./...`, where
// `go test` and the linters would compile Kubernetes to read it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // for the time zones of CronJobs

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // for --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // for the metrics of client-go
	_ "k8s.io/component-base/metrics/prometheus/version"  // for the metric kubernetes_build_info
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// newCommand returns the command of the program with this name, or nil if the name is unknown. It
// creates no other command, because each of them changes global state, such as feature gates.
func newCommand(name string) *cobra.Command {
	switch name {
	case "kube-apiserver":
		return apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		return controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		return scheduler.NewSchedulerCommand()
	}
	return nil
}

func main() {
	command := newCommand(filepath.Base(os.Args[0]))
	if command == nil {
		fmt.Fprintln(os.Stderr, "Error: the name of this program must be one of kube-apiserver, kube-controller-manager, kube-scheduler")
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}
