// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package upstream has the end-to-end tests of what Haulout does about EvictionRequests (KEP-4563),
// on a development cluster whose API server has them.
package upstream

import (
	"os"
	"testing"

	"haulout.dev/haulout/test/e2e/framework"
)

var cluster *framework.Cluster

func TestMain(m *testing.M) {
	os.Setenv("NODES", "0")
	os.Setenv("FEATURE_GATES", "EvictionRequestAPI=true")
	os.Setenv("APISERVER_FLAGS", "--runtime-config=lifecycle.k8s.io/v1alpha1=true")
	os.Exit(framework.Run(m, &cluster))
}
