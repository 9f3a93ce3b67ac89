// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package pages runs the commands of README and docs on a development cluster. It has a cluster of
// its own, so that the commands can use any node.
package pages

import (
	"os"
	"testing"

	"haulout.dev/haulout/test/e2e/framework"
)

var cluster *framework.Cluster

func TestMain(m *testing.M) { os.Exit(framework.Run(m, &cluster)) }
