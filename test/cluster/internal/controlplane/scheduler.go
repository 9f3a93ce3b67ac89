// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/test/cluster/internal/kubeconfig"
	"haulout.dev/haulout/test/cluster/internal/layout"
)

// schedulerConfiguration is the name of the shipped configuration file in artifacts/scheduler.
const schedulerConfiguration = "configuration.yaml"

// writeSchedulerConfig writes the shipped configuration with the connection of this cluster: with
// --config, kube-scheduler ignores its flags for the connection.
func (c ControlPlane) writeSchedulerConfig() error {
	path := filepath.Join(c.Layout.SchedulerManifests, schedulerConfiguration)
	shipped, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("SCHEDULER=haulout: %w", err)
	}
	var config map[string]any
	if err := yaml.UnmarshalStrict(shipped, &config); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	limit, err := strconv.Atoi(unlimited)
	if err != nil {
		return err
	}
	config["clientConnection"] = map[string]any{
		"kubeconfig": c.Layout.ComponentKubeconfig(layout.Scheduler),
		"qps":        limit,
		"burst":      limit,
	}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	written, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	return kubeconfig.WriteFile(c.Layout.SchedulerConfig(), written)
}
