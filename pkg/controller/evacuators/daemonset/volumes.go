// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

const (
	// csiVolume is the prefix of the names of CSI volumes in the status of a node. It is followed
	// by "<driver>^<handle>".
	csiVolume = "kubernetes.io/csi/"
	// maxClaims is the maximum number of claims that are read for a node. A node cannot attach many
	// more volumes.
	maxClaims = 256
)

// knownVolumes caches the volumes of a node that none of its remaining pods uses, with the state of
// the node for which they were computed. The syncs of all DaemonSet pods of a node need them.
type knownVolumes struct {
	inUse []corev1.UniqueVolumeName
	// claims are the claims of the remaining pods, sorted.
	claims []types.NamespacedName
	unused []string
	at     time.Time
}

// volumesFresh is how long a result is cached if the node and its pods do not change.
const volumesFresh = 30 * time.Second

// volumesUntil returns the end of the wait for the volumes of a node. The wait starts with the
// first Evacuation of a DaemonSet pod on the node that only drains have requested: another one may
// have waited for a drain for days. The zero time means no wait, since a node that
// is not ready unmounts no volume.
func (c *Controller) volumesUntil(node *corev1.Node, evacuation *v1alpha1.Evacuation) time.Time {
	if c.volumeDetachTimeout < 0 || protocol.NodeCondition(node, corev1.NodeReady).Status != corev1.ConditionTrue || !hasCSIVolume(node) {
		return time.Time{}
	}
	var first time.Time
	objects, err := c.Evacuations.Informer().GetIndexer().ByIndex(evacuationsByNode, node.Name)
	if err == nil {
		for _, obj := range objects {
			if e, ok := obj.(*v1alpha1.Evacuation); ok && protocol.OnlyMaintenancesDecide(e) && (first.IsZero() || e.CreationTimestamp.Time.Before(first)) {
				first = e.CreationTimestamp.Time
			}
		}
	}
	if first.IsZero() {
		first = evacuation.CreationTimestamp.Time
	}
	return first.Add(c.volumeDetachTimeout)
}

func hasCSIVolume(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.VolumesInUse, isCSIVolume)
}

func isCSIVolume(name corev1.UniqueVolumeName) bool {
	return strings.HasPrefix(string(name), csiVolume)
}

// unusedVolumes returns the CSI volumes that a node reports as in use, although none of its
// remaining pods uses them.
func (c *Controller) unusedVolumes(ctx context.Context, node *corev1.Node, now time.Time) []string {
	claims := c.claimsOn(node.Name)
	known, _ := c.volumes.Get(node.UID)
	if now.Sub(known.at) < volumesFresh && slices.Equal(known.inUse, node.Status.VolumesInUse) && slices.Equal(known.claims, claims) {
		return known.unused
	}
	used := c.volumesOf(ctx, claims)
	var unused []string
	for _, name := range node.Status.VolumesInUse {
		if isCSIVolume(name) && !used.Has(name) {
			unused = append(unused, strings.TrimPrefix(string(name), csiVolume))
		}
	}
	slices.Sort(unused)
	c.volumes.Sweep(func(known knownVolumes) bool { return now.Sub(known.at) >= volumesFresh })
	c.volumes.Set(node.UID, knownVolumes{inUse: node.Status.VolumesInUse, claims: claims, unused: unused, at: now})
	return unused
}

// claimsOn returns the claims of the remaining pods on a node.
func (c *Controller) claimsOn(node string) []types.NamespacedName {
	claims := sets.New[types.NamespacedName]()
	for _, pod := range c.Pods.OnNode(node) {
		if !drainplan.IsLive(pod) {
			continue
		}
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				claims.Insert(types.NamespacedName{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName})
			}
		}
	}
	sorted := claims.UnsortedList()
	slices.SortFunc(sorted, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return sorted[:min(maxClaims, len(sorted))]
}

// volumesOf returns the CSI volumes of claims. A claim that cannot be read is treated as if it had
// no volume. That can only lengthen the wait, which is limited.
func (c *Controller) volumesOf(ctx context.Context, claims []types.NamespacedName) sets.Set[corev1.UniqueVolumeName] {
	used := sets.New[corev1.UniqueVolumeName]()
	for _, claim := range claims {
		pvc, err := c.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil || pvc.Spec.VolumeName == "" {
			continue
		}
		pv, err := c.Client.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
		if err == nil && pv.Spec.CSI != nil {
			used.Insert(corev1.UniqueVolumeName(csiVolume + pv.Spec.CSI.Driver + "^" + pv.Spec.CSI.VolumeHandle))
		}
	}
	return used
}
