// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package staticpods stops static pods and keeps them stopped: it is the evacuator kubelet.k8s.io.
//
// A static pod runs as long as its manifest is in the kubelet's static pod folder. So the Keeper
// moves ("parks") the manifest to a folder beside it, on the same mount:
//
//	<parent>/manifests/web.yaml  ->  <parent>/.nm-parked/<UID of the NodeMaintenance>/web.yaml
//
// <parent>/.nm-parked/index.json has an entry for each parked manifest. The kubelet then terminates
// the pod within its grace period, and does not start it again after a restart of the kubelet, of
// the agent or of the machine: nothing has to be done for that. The Keeper holds the pod: a
// manifest of it that a tool puts into the folder is parked as well. When no NodeMaintenance in
// stage Drain targets the pod any more, the manifests return to their paths, and the pod gets the
// UID that it had.
//
// All changes can be interrupted at any point. An entry is in the index before its manifest is
// moved, and every operation first brings the index in line with what is on the disk: an entry
// without a parked manifest is dropped, and a parked manifest without an entry gets one, made from
// its path and its content.
//
// The Keeper parks a manifest only while the kubelet is healthy: a kubelet that starts without the
// manifest of a running pod kills its containers immediately.
package staticpods

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// indexVersion is the version of the format of the index.
const indexVersion = 1

// Maintenance identifies a NodeMaintenance.
type Maintenance struct {
	Name string    `json:"name,omitempty"`
	UID  types.UID `json:"uid"`
	// reason is for messages.
	reason string
}

// Entry is a parked manifest in the index.
type Entry struct {
	// File is the path of the parked manifest in the parking folder, with slashes.
	File string `json:"file"`
	// Origin is the path from which it was moved.
	Origin string `json:"origin"`
	// SHA256 is the checksum of its content, Link the target if it is a symbolic link, and Mode its
	// permissions. They are for people: the file is moved, not copied.
	SHA256 string `json:"sha256,omitempty"`
	Link   string `json:"link,omitempty"`
	Mode   string `json:"mode,omitempty"`
	// Namespace and Name are those of the pod in the API; empty if the file is no manifest.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// StaticUIDs are the UIDs of the pod that the kubelet and the container runtime know.
	StaticUIDs []types.UID `json:"staticUIDs,omitempty"`
	// Priority, Labels and GracePeriodSeconds are those of the pod.
	Priority           int32             `json:"priority"`
	Labels             map[string]string `json:"labels,omitempty"`
	GracePeriodSeconds int64             `json:"gracePeriodSeconds"`
	// Cluster is the cluster in which the manifest was parked; nil in an index of an older version.
	Cluster *Cluster `json:"cluster,omitempty"`
	// Maintenances are those that target the pod, as last seen.
	Maintenances []Maintenance `json:"maintenances"`
	// ParkedAt is when the manifest was moved.
	ParkedAt time.Time `json:"parkedAt"`
	// KubeletInstance is the process of the kubelet at that time, empty if unknown.
	KubeletInstance string `json:"kubeletInstance,omitempty"`
	// Stopped: the pod has stopped since.
	Stopped bool `json:"stopped,omitempty"`
	// Restoring: the manifest is about to return.
	Restoring bool `json:"restoring,omitempty"`
}

// Pod returns the key of the pod.
func (e *Entry) Pod() types.NamespacedName {
	return types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
}

// describe copies what an entry has about its pod.
func (e *Entry) describe(pod *corev1.Pod) {
	e.Namespace, e.Name, e.Labels = pod.Namespace, pod.Name, pod.Labels
	e.Priority, e.GracePeriodSeconds = pods.PriorityOf(pod), pods.GraceSeconds(pod)
	if uid := types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey]); uid != "" && !slices.Contains(e.StaticUIDs, uid) {
		e.StaticUIDs = append(e.StaticUIDs, uid)
	}
}

// index is what the file has.
type index struct {
	Version int      `json:"version"`
	Entries []*Entry `json:"entries"`
}

func parseIndex(data []byte) (*index, error) {
	i := &index{}
	if err := json.Unmarshal(data, i); err != nil {
		return nil, err
	}
	if i.Version != indexVersion {
		return nil, fmt.Errorf("version %d, must be %d", i.Version, indexVersion)
	}
	if slices.Contains(i.Entries, nil) {
		return nil, errors.New("an entry is null")
	}
	return i, nil
}

func (i *index) bytes() ([]byte, error) {
	i.Version = indexVersion
	slices.SortFunc(i.Entries, func(a, b *Entry) int {
		if c := a.ParkedAt.Compare(b.ParkedAt); c != 0 {
			return c
		}
		if a.File < b.File {
			return -1
		}
		return 1
	})
	return json.MarshalIndent(i, "", "  ")
}

// file returns the entry of a parked file, or nil.
func (i *index) file(name string) *Entry {
	for _, e := range i.Entries {
		if e.File == name {
			return e
		}
	}
	return nil
}

// pod returns the entries of a pod.
func (i *index) pod(key types.NamespacedName) []*Entry {
	var entries []*Entry
	for _, e := range i.Entries {
		if e.Pod() == key {
			entries = append(entries, e)
		}
	}
	return entries
}

// targeting returns which of the maintenances in stage Drain ask a static pod to leave the node.
// They do not mean a Node that was created again with the same name.
func targeting(list []v1alpha1.NodeMaintenance, node v1alpha1.NodeReference, priority int32, labels map[string]string) ([]Maintenance, error) {
	var found []Maintenance
	for i := range list {
		nm := &list[i]
		for _, status := range nm.Status.NodeStatuses {
			if ref := status.NodeRef; ref.Name != node.Name || ref.UID != node.UID && ref.UID != "" && node.UID != "" {
				continue
			}
			targets, err := drainplan.CompileTargets(status.DrainTargets)
			if err != nil {
				return nil, fmt.Errorf("drain targets of NodeMaintenance %s: %w", nm.Name, err)
			}
			if targets.Cover(drainplan.Pod{Type: v1alpha1.PodTypeStatic, Priority: priority, Labels: labels}) {
				found = append(found, Maintenance{Name: nm.Name, UID: nm.UID, reason: nm.Spec.Reason})
			}
		}
	}
	return found, nil
}

// isMirrorPod reports whether a pod is the mirror pod of a static pod of the node.
func isMirrorPod(pod *corev1.Pod, node string) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return pod.Annotations[corev1.MirrorPodAnnotationKey] != "" && pod.Spec.NodeName == node &&
		owner != nil && owner.APIVersion == "v1" && owner.Kind == "Node" && owner.Name == node
}

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
