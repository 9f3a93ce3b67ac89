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
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// workload is one line of what runs on the cluster.
type workload struct {
	kind, namespace, name string
	pods                  int
	priorityClass         string
	budget                string
}

// readWorkloads returns the workloads of a manifest on a cluster with a number of nodes.
func readWorkloads(path string, nodes int) ([]workload, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseWorkloads(content, nodes)
}

func parseWorkloads(manifest []byte, nodes int) ([]workload, error) {
	var workloads []workload
	budgets := map[string]string{}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifest), 4096)
	for {
		var object unstructured.Unstructured
		if err := documents.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		key := object.GetNamespace() + "/" + object.GetName()
		if object.GetKind() == "PodDisruptionBudget" {
			var pdb policyv1.PodDisruptionBudget
			if err := convert(&object, &pdb); err != nil {
				return nil, err
			}
			budgets[key] = describeBudget(&pdb.Spec)
			continue
		}
		w, err := newWorkload(&object, nodes)
		if err != nil {
			return nil, err
		}
		if w != nil {
			workloads = append(workloads, *w)
		}
	}
	for i := range workloads {
		workloads[i].budget = budgets[workloads[i].namespace+"/"+workloads[i].name]
	}
	return foldBarePods(workloads), nil
}

// newWorkload returns the workload that an object makes, or nil.
func newWorkload(object *unstructured.Unstructured, nodes int) (*workload, error) {
	w := &workload{kind: object.GetKind(), namespace: object.GetNamespace(), name: object.GetName()}
	switch w.kind {
	case "Deployment":
		var deployment appsv1.Deployment
		if err := convert(object, &deployment); err != nil {
			return nil, err
		}
		w.pods, w.priorityClass = int(*deployment.Spec.Replicas), deployment.Spec.Template.Spec.PriorityClassName
	case "StatefulSet":
		var set appsv1.StatefulSet
		if err := convert(object, &set); err != nil {
			return nil, err
		}
		w.pods, w.priorityClass = int(*set.Spec.Replicas), set.Spec.Template.Spec.PriorityClassName
	case "DaemonSet":
		var set appsv1.DaemonSet
		if err := convert(object, &set); err != nil {
			return nil, err
		}
		w.pods, w.priorityClass = nodes, set.Spec.Template.Spec.PriorityClassName
	case "Pod":
		var pod corev1.Pod
		if err := convert(object, &pod); err != nil {
			return nil, err
		}
		w.name, w.pods, w.priorityClass = pod.Labels["app"], 1, pod.Spec.PriorityClassName
	default:
		return nil, nil
	}
	return w, nil
}

func convert(object *unstructured.Unstructured, into any) error {
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, into, true)
	if err != nil {
		return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// foldBarePods makes one line of the bare pods with the same label.
func foldBarePods(workloads []workload) []workload {
	var folded []workload
	for _, w := range workloads {
		if last := len(folded) - 1; last >= 0 && w.kind == "Pod" && folded[last].kind == "Pod" &&
			folded[last].name == w.name {
			folded[last].pods++
			continue
		}
		folded = append(folded, w)
	}
	return folded
}

func describeBudget(spec *policyv1.PodDisruptionBudgetSpec) string {
	if spec.MaxUnavailable != nil {
		return spec.MaxUnavailable.String() + " may be missing"
	}
	if spec.MinAvailable != nil {
		return spec.MinAvailable.String() + " must be there"
	}
	return ""
}

func totalPods(workloads []workload) int {
	total := 0
	for _, w := range workloads {
		total += w.pods
	}
	return total
}

// tableOf shows workloads as kubectl would.
func tableOf(workloads []workload) []string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "KIND\tNAMESPACE\tNAME\tPODS\tPRIORITY\tBUDGET")
	for _, w := range workloads {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\n",
			w.kind, w.namespace, w.name, w.pods, orDash(w.priorityClass), orDash(w.budget))
	}
	_ = table.Flush()
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
