// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"regexp"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// workload is what a pod belongs to. The plugin needs no right to read workloads: it takes the name
// from the labels of the pod, which an Evacuation has too, and from the name of the pod.
type workload struct {
	// kind is the kind of the workload; "Pod" for a pod without a known one.
	kind, namespace, name string
}

var (
	// randomEnd is the end that Kubernetes gives to the names of the pods of a ReplicaSet, a
	// DaemonSet or a Job, and ordinalEnd that of the pods of a StatefulSet.
	randomEnd  = regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}$`)
	ordinalEnd = regexp.MustCompile(`-[0-9]+$`)
	// templateEnd is the hash of a Deployment in the name of a ReplicaSet.
	templateEnd = regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{1,10}$`)
)

// workloadOf returns the workload of a pod with the given labels.
func workloadOf(namespace, pod string, labels map[string]string) workload {
	if job := labels[batchv1.JobNameLabel]; job != "" {
		return workload{"Job", namespace, job}
	}
	base := randomEnd.ReplaceAllString(pod, "")
	if hash := labels[appsv1.DefaultDeploymentUniqueLabelKey]; hash != "" {
		if name, ok := strings.CutSuffix(base, "-"+hash); ok && base != pod {
			return workload{"Deployment", namespace, name}
		}
	}
	if labels[appsv1.StatefulSetPodNameLabel] == pod {
		return workload{"StatefulSet", namespace, ordinalEnd.ReplaceAllString(pod, "")}
	}
	if labels[appsv1.ControllerRevisionHashLabelKey] != "" && base != pod {
		return workload{"DaemonSet", namespace, base}
	}
	return workload{"Pod", namespace, pod}
}

// workloadOfPreview returns the workload of a pod of a preview, which has no labels: from the
// evacuators of the pod and its name.
func workloadOfPreview(namespace string, pod *v1alpha1.PreviewPod) workload {
	base := randomEnd.ReplaceAllString(pod.Name, "")
	for _, class := range pod.EvacuatorClasses {
		switch {
		case base == pod.Name:
		case class == v1alpha1.EvacuatorClassDeployment:
			if name := templateEnd.ReplaceAllString(base, ""); name != base {
				return workload{"Deployment", namespace, name}
			}
		case class == v1alpha1.EvacuatorClassDaemonSet:
			return workload{"DaemonSet", namespace, base}
		}
	}
	if name := ordinalEnd.ReplaceAllString(pod.Name, ""); name != pod.Name {
		return workload{"Pods", namespace, name + "-*"}
	}
	if base != pod.Name {
		return workload{"Pods", namespace, base + "-*"}
	}
	return workload{"Pod", namespace, pod.Name}
}
