// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command haulout-apiserver serves the maintenance API and runs the controllers behind it.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"

	"haulout.dev/haulout/pkg/cmd/server"
)

func main() {
	os.Exit(cli.Run(server.NewCommand()))
}
