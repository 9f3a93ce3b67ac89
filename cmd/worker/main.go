// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command haulout-worker does the work for which a maintenance takes nodes out of service: it
// reboots them, or runs Jobs on them.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json

	"haulout.dev/haulout/pkg/cmd/worker"
)

func main() {
	os.Exit(cli.Run(worker.NewCommand()))
}
