// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// claimsRead is the maximum number of claims whose volumes are read: one by one, so that the server
// does not need the right to list all claims.
const claimsRead = 200

// PinnedClaims returns those of the claims whose volumes none of the nodes can use. It reads the
// first 200 claims by name; claims and volumes that do not exist are not among them.
func (r Reader) PinnedClaims(ctx context.Context, claims sets.Set[types.NamespacedName], nodes []*corev1.Node) (sets.Set[types.NamespacedName], error) {
	names := sorted(claims)
	names = names[:min(len(names), claimsRead)]
	pinned := sets.New[types.NamespacedName]()
	var mu sync.Mutex
	err := inParallel(ctx, len(names), func(ctx context.Context, i int) error {
		claim, err := r.Client.CoreV1().PersistentVolumeClaims(names[i].Namespace).Get(ctx, names[i].Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && claim.Spec.VolumeName == "" {
			return nil
		}
		if err != nil {
			return err
		}
		volume, err := r.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if fitsNone(volume, nodes) {
			mu.Lock()
			defer mu.Unlock()
			pinned.Insert(names[i])
		}
		return nil
	})
	return pinned, err
}

// fitsNone reports whether none of the nodes can use a volume. A malformed selector fits all.
func fitsNone(volume *corev1.PersistentVolume, nodes []*corev1.Node) bool {
	if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return false
	}
	selector, err := nodeaffinity.NewNodeSelector(volume.Spec.NodeAffinity.Required)
	if err != nil {
		return false
	}
	for _, node := range nodes {
		if selector.Match(node) {
			return false
		}
	}
	return true
}

func sorted(names sets.Set[types.NamespacedName]) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(names), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
}
