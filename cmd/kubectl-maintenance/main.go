// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-maintenance is the kubectl plugin `kubectl maintenance`.
package main

import (
	"os"

	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance"
)

func main() {
	os.Exit(kubectlmaintenance.Run(os.Args[1:]))
}
