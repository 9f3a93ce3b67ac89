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
// the pod within its grace period. The pod does not start again after a restart of the kubelet, of
// the agent or of the machine, since its manifest is not in the folder. The Keeper holds the pod:
// if a tool puts a manifest of the pod into the folder, the Keeper parks this manifest as well.
// When no NodeMaintenance in stage Drain targets the pod any longer, the manifests return to their
// paths, and the pod has its previous UID again.
//
// All changes can be interrupted at any point. The Keeper adds an entry to the index before it
// moves the manifest, and every operation first compares the index with the disk: it drops an entry
// without a parked manifest, and adds an entry for a parked manifest without one, from the path and
// the content of the manifest.
//
// The Keeper parks a manifest only while the kubelet is healthy: a kubelet that starts without the
// manifest of a running pod kills its containers immediately.
package staticpods

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/agent/local/pods"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/holds"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

const indexVersion = 1

// Maintenance identifies a NodeMaintenance.
type Maintenance struct {
	Name string    `json:"name,omitempty"`
	UID  types.UID `json:"uid"`
	// reason is spec.reason of the maintenance, for messages.
	reason string
}

// Entry is a parked manifest in the index.
type Entry struct {
	// File is the path of the parked manifest in the parking folder, with slashes.
	File string `json:"file"`
	// Origin is the original path of the manifest.
	Origin string `json:"origin"`
	// SHA256 is the checksum of the content, Link is the target of a symbolic link, and Mode has
	// the permissions. They only inform users: the Keeper moves the file and does not copy it.
	SHA256 string `json:"sha256,omitempty"`
	Link   string `json:"link,omitempty"`
	Mode   string `json:"mode,omitempty"`
	// Namespace and Name identify the pod in the API; empty if the file is not a manifest.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// StaticUIDs are the UIDs of the pod in the kubelet and the container runtime.
	StaticUIDs []types.UID `json:"staticUIDs,omitempty"`
	// Priority, Labels and GracePeriodSeconds are fields of the pod.
	Priority           int32             `json:"priority"`
	Labels             map[string]string `json:"labels,omitempty"`
	GracePeriodSeconds int64             `json:"gracePeriodSeconds"`
	// Cluster is the cluster in which the manifest was parked; nil in an index of an older version.
	Cluster *Cluster `json:"cluster,omitempty"`
	// Maintenances are the maintenances that targeted the pod at the last check.
	Maintenances []Maintenance `json:"maintenances"`
	// ParkedAt is the time at which the manifest was moved.
	ParkedAt time.Time `json:"parkedAt"`
	// KubeletInstance is the process of the kubelet at that time, empty if unknown.
	KubeletInstance string `json:"kubeletInstance,omitempty"`
	// Stopped is set if the pod has stopped since.
	Stopped bool `json:"stopped,omitempty"`
	// Restoring is set before the manifest is moved back.
	Restoring bool `json:"restoring,omitempty"`
}

// Pod returns the key of the pod.
func (e *Entry) Pod() types.NamespacedName {
	return types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
}

func (e *Entry) describe(pod *corev1.Pod) {
	e.Namespace, e.Name, e.Labels = pod.Namespace, pod.Name, pod.Labels
	e.Priority, e.GracePeriodSeconds = pods.PriorityOf(pod), pods.GraceSeconds(pod)
	if uid := types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey]); uid != "" && !slices.Contains(e.StaticUIDs, uid) {
		e.StaticUIDs = append(e.StaticUIDs, uid)
	}
}

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
	slices.SortFunc(i.Entries, func(a, b *Entry) int { return cmp.Or(a.ParkedAt.Compare(b.ParkedAt), strings.Compare(a.File, b.File)) })
	return json.MarshalIndent(i, "", "  ")
}

func (i *index) file(name string) *Entry {
	for _, e := range i.Entries {
		if e.File == name {
			return e
		}
	}
	return nil
}

func (i *index) pod(key types.NamespacedName) []*Entry {
	var entries []*Entry
	for _, e := range i.Entries {
		if e.Pod() == key {
			entries = append(entries, e)
		}
	}
	return entries
}

// isOf reports whether an entry of the status of a maintenance is about a node, and not about an
// earlier Node with the same name.
func isOf(status *v1alpha1.NodeMaintenanceNodeStatus, node v1alpha1.NodeReference) bool {
	ref := status.NodeRef
	return ref.Name == node.Name && (ref.UID == node.UID || ref.UID == "" || node.UID == "")
}

// taskOn returns the state of the work on the node that a maintenance records, "" if there is none.
func taskOn(nm *v1alpha1.NodeMaintenance, node v1alpha1.NodeReference) v1alpha1.NodeTaskState {
	for i := range nm.Status.NodeStatuses {
		if status := &nm.Status.NodeStatuses[i]; isOf(status, node) && status.Task != nil {
			return status.Task.State
		}
	}
	return ""
}

// handsOn returns the worker that has ended its work on the node, according to maintenances.
func handsOn(list []v1alpha1.NodeMaintenance, node v1alpha1.NodeReference) holds.Hands {
	for i := range list {
		if state := taskOn(&list[i], node); holds.IsWorkedOn(state) {
			return holds.Hands{State: state, HasPods: holds.WorksBesidePods(&list[i])}
		}
	}
	return holds.Hands{}
}

// targeting returns the maintenances in stage Drain that target a static pod of the node and whose
// plan does not keep it. After the work of a worker on the node, none does that the worker stops:
// without its static pods, for example those of the network, the node may not become Ready, and
// nobody drains it before it is released.
func targeting(list []v1alpha1.NodeMaintenance, node v1alpha1.NodeReference, priority int32, labels map[string]string) ([]Maintenance, error) {
	pod, hands := drainplan.Pod{Type: v1alpha1.PodTypeStatic, Priority: priority, Labels: labels}, handsOn(list, node)
	var found []Maintenance
	for i := range list {
		nm := &list[i]
		if hands.LetsPodsBack(nm, node.Name) {
			continue
		}
		rules, err := holds.RulesOf(nm)
		if err != nil {
			return nil, err
		}
		if rules.Skips(pod) {
			continue
		}
		for j := range nm.Status.NodeStatuses {
			status := &nm.Status.NodeStatuses[j]
			if !isOf(status, node) {
				continue
			}
			targets, err := drainplan.CompileTargets(status.DrainTargets)
			if err != nil {
				return nil, fmt.Errorf("drain targets of NodeMaintenance %s: %w", nm.Name, err)
			}
			if targets.Cover(pod) {
				found = append(found, Maintenance{Name: nm.Name, UID: nm.UID, reason: nm.Spec.Reason})
			}
		}
	}
	return found, nil
}

func isMirrorPod(pod *corev1.Pod, node string) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	return pod.Annotations[corev1.MirrorPodAnnotationKey] != "" && pod.Spec.NodeName == node &&
		owner != nil && owner.APIVersion == "v1" && owner.Kind == "Node" && owner.Name == node
}

func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
