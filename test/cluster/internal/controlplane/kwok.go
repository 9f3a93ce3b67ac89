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
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
		// The defaults are 4 and 1: with them kwok, not the control plane, is what a few thousand
		// pods wait for.
		"options": map[string]any{
			"podPlayStageParallelism":   32,
			"nodePlayStageParallelism":  16,
			"nodeLeaseParallelism":      8,
			"podsOnNodeSyncParallelism": 8,
			// What a pod's address is if its node has none. Without one the stages "general" never
			// end: creating a pod is done again and again until it has an address.
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
			return fmt.Errorf(
				"no stages of kwok in %s, `make cluster-binaries` puts them there", filepath.Join(stages, folder),
			)
		}
		for _, file := range files {
			stage, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			once, again, err := deleteOnce(stage)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			for _, stage := range [][]byte{once, again} {
				if stage != nil {
					content.WriteString("---\n")
					content.Write(stage)
				}
			}
		}
	}
	return kubeconfig.WriteFile(path, content.Bytes())
}

const (
	// letGo names pods that were deleted with a grace period of zero, which is how a kubelet, and
	// kwok, lets go of them.
	letGo = ".metadata | select(.deletionGracePeriodSeconds == 0) | .name"
	// againAfter is how long such a pod may stay before it is deleted once more: kube-apiserver may
	// have been killed between its two writes.
	againAfter = 5 * time.Second
)

// deleteOnce returns a stage as it is, unless it deletes pods. The grace period of zero with which
// kwok deletes a pod changes it, and upon that kwok deletes it once more, nearly always in vain:
// two requests for every pod, of which a kubelet makes one. Such a stage becomes two, the second of
// which acts only on pods that do not go.
func deleteOnce(stage []byte) (once, again []byte, err error) {
	pods, err := deletesPods(stage)
	if err != nil || !pods {
		return stage, nil, err
	}
	if once, err = selectAlso(stage, "", 0, "DoesNotExist"); err != nil {
		return nil, nil, err
	}
	again, err = selectAlso(stage, "-again", againAfter, "Exists")
	return once, again, err
}

func deletesPods(stage []byte) (bool, error) {
	var fields struct {
		Spec struct {
			ResourceRef struct {
				Kind string `json:"kind"`
			} `json:"resourceRef"`
			Next struct {
				Delete bool `json:"delete"`
			} `json:"next"`
		} `json:"spec"`
	}
	err := yaml.Unmarshal(stage, &fields)
	return fields.Spec.ResourceRef.Kind == "Pod" && fields.Spec.Next.Delete, err
}

// selectAlso returns a stage for those of its pods only that are let go already, or are not, with
// another name, and with another delay if that is not zero.
func selectAlso(stage []byte, suffix string, delay time.Duration, operator string) ([]byte, error) {
	var object unstructured.Unstructured
	if err := yaml.Unmarshal(stage, &object.Object); err != nil {
		return nil, err
	}
	object.SetName(object.GetName() + suffix)
	path := []string{"spec", "selector", "matchExpressions"}
	expressions, _, err := unstructured.NestedSlice(object.Object, path...)
	if err != nil {
		return nil, err
	}
	expressions = append(expressions, map[string]any{"key": letGo, "operator": operator})
	if err := unstructured.SetNestedSlice(object.Object, expressions, path...); err != nil {
		return nil, err
	}
	if delay != 0 {
		if err := unstructured.SetNestedMap(
			object.Object, map[string]any{"durationMilliseconds": delay.Milliseconds()}, "spec", "delay",
		); err != nil {
			return nil, err
		}
	}
	return yaml.Marshal(object.Object)
}
