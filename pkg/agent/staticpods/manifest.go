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

package staticpods

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// defaultGracePeriod is the default of a pod's spec.terminationGracePeriodSeconds.
const defaultGracePeriod = 30 * time.Second

// parseManifest returns the pod in a manifest as the API shows it.
func parseManifest(data []byte, nodeName string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := yaml.Unmarshal(data, pod); err != nil {
		return nil, err
	}
	if pod.APIVersion != "v1" || pod.Kind != "Pod" {
		return nil, fmt.Errorf("must be of apiVersion v1 and kind Pod, is %q, %q", pod.APIVersion, pod.Kind)
	}
	if pod.Name == "" {
		return nil, errors.New("the pod has no name")
	}
	pod.Name += "-" + strings.ToLower(nodeName)
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Spec.NodeName = nodeName
	return pod, nil
}

// priorityOf returns the priority of a pod. In a manifest it may be missing: then it is that of a
// class of the system, or 0.
func priorityOf(pod *corev1.Pod) int32 {
	switch {
	case pod.Spec.Priority != nil:
		return *pod.Spec.Priority
	case pod.Spec.PriorityClassName == "system-node-critical":
		return maintenancev1alpha1.SystemNodeCritical
	case pod.Spec.PriorityClassName == "system-cluster-critical":
		return maintenancev1alpha1.SystemClusterCritical
	}
	return 0
}

func gracePeriodOf(pod *corev1.Pod) time.Duration {
	if seconds := pod.Spec.TerminationGracePeriodSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return defaultGracePeriod
}

// isIgnored reports whether the kubelet ignores a file of the static pod folder because of its
// name.
func isIgnored(name string) bool { return strings.HasPrefix(name, ".") }

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// The programs that the API of a cluster consists of.
const (
	programAPIServer = "kube-apiserver"
	programEtcd      = "etcd"
)

// clientPrograms use the network of the node as well, and are only clients of the API.
var clientPrograms = []string{"kube-proxy", "kube-scheduler", "kube-controller-manager", "cloud-controller-manager"}

// programOf returns which program of the API a pod runs, or "".
func programOf(pod *corev1.Pod) string {
	return oneOf(pod, programAPIServer, programEtcd)
}

// oneOf returns which of the programs a pod runs, or "".
func oneOf(pod *corev1.Pod, programs ...string) string {
	for _, program := range programs {
		if pod.Labels["component"] == program || slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
			return len(c.Command) > 0 && filepath.Base(c.Command[0]) == program || imageName(c.Image) == program
		}) {
			return program
		}
	}
	return ""
}

// imageName returns the last part of an image's repository.
func imageName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	image = image[strings.LastIndexByte(image, '/')+1:]
	name, _, _ := strings.Cut(image, ":")
	return name
}

// mayServeAPI reports whether clients of the API may reach it through the pod: it is a program of
// the API, or a proxy or a keeper of its address, which need the network of the node.
func mayServeAPI(pod *corev1.Pod) bool {
	if programOf(pod) != "" {
		return true
	}
	if oneOf(pod, clientPrograms...) != "" {
		return false
	}
	return pod.Spec.HostNetwork || slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
	})
}
