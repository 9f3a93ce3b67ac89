// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
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
