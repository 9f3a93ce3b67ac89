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

package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"haulout.dev/haulout/test/internal/program"
)

// programs runs the programs in bin/.
type programs struct {
	settings settings
}

// startCluster starts the cluster and returns what the program printed.
func (p *programs) startCluster(ctx context.Context) (string, error) {
	// Flags, since they win over variables of the user that are meant for another cluster. kwok's
	// general stages let pods take their time.
	return p.run(
		ctx, "cluster", "up", "--cluster-dir="+p.settings.path(p.settings.dir),
		"--nodes="+strconv.Itoa(p.settings.nodes),
		"--haulout=true", "--pod-stages=general",
	)
}

// stopCluster stops the cluster and removes its data.
func (p *programs) stopCluster(ctx context.Context) (string, error) {
	return p.run(ctx, "cluster", "down", "--cluster-dir="+p.settings.path(p.settings.dir), "--keep-data=0")
}

// kubectl runs kubectl as the cluster's administrator.
func (p *programs) kubectl(ctx context.Context, args ...string) (string, error) {
	return p.run(ctx, "kubectl", args...)
}

// run runs a program and returns what it printed to both of its outputs.
func (p *programs) run(ctx context.Context, name string, args ...string) (string, error) {
	result, err := program.Program{
		Path: filepath.Join(p.settings.root, "bin", name), Dir: p.settings.root,
		Environment: []string{"KUBECONFIG=" + p.settings.path(p.settings.kubeconfig())},
	}.Run(ctx, args...)
	return result.Output, err
}

// log returns the log of haulout-apiserver, for when something went wrong.
func (p *programs) log() string {
	content, err := os.ReadFile(filepath.Join(p.settings.path(p.settings.dir), "logs", "haulout-apiserver.log"))
	if err != nil {
		return ""
	}
	return string(content)
}

// complaints returns the last warnings and errors of a log in klog's format.
func complaints(log string, limit int) []string {
	var found []string
	for line := range strings.Lines(log) {
		if line[0] == 'W' || line[0] == 'E' || line[0] == 'F' {
			found = append(found, strings.TrimRight(line, "\n"))
		}
	}
	return found[max(0, len(found)-limit):]
}
