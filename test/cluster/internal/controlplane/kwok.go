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

package controlplane

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sort"

	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/test/cluster/internal/kubeconfig"
)

// NodeAnnotation marks the nodes that kwok simulates.
const (
	NodeAnnotation      = "kwok.x-k8s.io/node"
	NodeAnnotationValue = "fake"
)

// writeKwokConfig puts the stages and the settings of kwok into one file.
func writeKwokConfig(path, stages, podStages string) error {
	var content bytes.Buffer
	settings, err := yaml.Marshal(map[string]any{
		"apiVersion": "config.kwok.x-k8s.io/v1alpha1",
		"kind":       "KwokConfiguration",
		// The defaults are 4 and 1: with them kwok, not the control plane, is what a few thousand pods wait for.
		"options": map[string]any{
			"podPlayStageParallelism":   32,
			"nodePlayStageParallelism":  16,
			"nodeLeaseParallelism":      8,
			"podsOnNodeSyncParallelism": 8,
			// What a pod's address is if its node has none. Without one the stages "general" never end: creating a pod is done
			// again and again until it has an address.
			"nodeIP": "10.0.0.1",
		},
	})
	if err != nil {
		return err
	}
	content.Write(settings)
	for _, folder := range stageFolders(podStages) {
		files, err := filepath.Glob(filepath.Join(stages, folder, "*.yaml"))
		if err != nil {
			return err
		}
		sort.Strings(files)
		if len(files) == 0 {
			return fmt.Errorf("no stages of kwok in %s, `make cluster-binaries` puts them there", filepath.Join(stages, folder))
		}
		for _, file := range files {
			stage, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			content.WriteString("---\n")
			content.Write(stage)
		}
	}
	return kubeconfig.WriteFile(path, content.Bytes())
}
