// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	_ "embed" // for podFail
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

// podFail is a stage of our own, for pods that run as long as the stages "general" make them run.
//
//go:embed pod-fail.yaml
var podFail []byte

// writeKwokConfig writes the stages and the settings of kwok to one file.
func writeKwokConfig(path, stages, podStages string) error {
	var content bytes.Buffer
	settings, err := yaml.Marshal(map[string]any{
		"apiVersion": "config.kwok.x-k8s.io/v1alpha1",
		"kind":       "KwokConfiguration",
		// The default values are 4 and 1. With these, kwok would be slower than the control plane
		// with a few thousand pods.
		"options": map[string]any{
			"podPlayStageParallelism":   32,
			"nodePlayStageParallelism":  16,
			"nodeLeaseParallelism":      8,
			"podsOnNodeSyncParallelism": 8,
			// nodeIP is the address of a pod if its node has none. Without an address, the stages
			// "general" never end: kwok repeats the creation of a pod until the pod has an address.
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
			return fmt.Errorf("no stages of kwok in %s, run `make cluster-binaries`",
				filepath.Join(stages, folder))
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
	if podStages == "general" {
		content.WriteString("---\n")
		content.Write(podFail)
	}
	return kubeconfig.WriteFile(path, content.Bytes())
}

const (
	// letGo selects pods that were deleted with a grace period of zero: kubelet and kwok delete a
	// stopped pod this way.
	letGo = ".metadata | select(.deletionGracePeriodSeconds == 0) | .name"
	// againAfter is the time after which a pod of letGo is deleted again, because kube-apiserver
	// may have been killed between its two writes for the deletion.
	againAfter = 5 * time.Second
)

// deleteOnce returns a stage unchanged, unless it deletes pods. kwok deletes a pod with a grace
// period of zero, which changes the pod, and after that change kwok deletes it again, almost always
// without effect. So kwok sends two requests for every pod; a kubelet sends one. A stage that
// deletes pods becomes two stages: the second handles only pods that still exist after againAfter.
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

// selectAlso returns a stage with another name that selects only pods that were deleted with a
// grace period of zero, or only pods that were not. A delay other than zero replaces the delay of
// the stage.
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
		field := map[string]any{"durationMilliseconds": delay.Milliseconds()}
		if err := unstructured.SetNestedMap(object.Object, field, "spec", "delay"); err != nil {
			return nil, err
		}
	}
	return yaml.Marshal(object.Object)
}
