// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/host/owners"
)

// claimsRead is the maximum number of claims whose volumes are read. They are read one by one, so
// that the server does not need the right to list all claims.
const claimsRead = 200

// PinnedClaims returns the claims whose volumes cannot be used on any of the nodes. It reads only
// the first 200 claims by name, and omits claims and volumes that do not exist.
func (r Reader) PinnedClaims(ctx context.Context, claims sets.Set[types.NamespacedName], nodes []*corev1.Node) (sets.Set[types.NamespacedName], error) {
	names := sorted(claims)
	names = names[:min(len(names), claimsRead)]
	pinned, err := collect(ctx, len(names), func(ctx context.Context, i int) ([]types.NamespacedName, error) {
		required, err := ClaimSelector(ctx, r.Client, names[i])
		if apierrors.IsNotFound(err) || err == nil && !fitsNone(required, nodes) {
			return nil, nil
		}
		return names[i : i+1], err
	})
	return sets.New(pinned...), err
}

// ClaimSelector returns the selector of the nodes that can use the volume of a claim. It returns
// nil if any node can use the volume, or if there is no claim or no volume yet.
func ClaimSelector(ctx context.Context, client kubernetes.Interface, claim types.NamespacedName) (*corev1.NodeSelector, error) {
	found, err := owners.Claims(client).Get(ctx, claim.Namespace, claim.Name)
	if err != nil || found == nil || found.Spec.VolumeName == "" {
		return nil, err
	}
	volume, err := client.CoreV1().PersistentVolumes().Get(ctx, found.Spec.VolumeName, metav1.GetOptions{})
	if err != nil || volume.Spec.NodeAffinity == nil {
		return nil, err
	}
	return volume.Spec.NodeAffinity.Required, nil
}

// fitsNone reports whether a selector matches none of the nodes. A nil or malformed selector
// matches all nodes.
func fitsNone(required *corev1.NodeSelector, nodes []*corev1.Node) bool {
	if required == nil {
		return false
	}
	selector, err := nodeaffinity.NewNodeSelector(required)
	return err == nil && !slices.ContainsFunc(nodes, selector.Match)
}

func sorted(names sets.Set[types.NamespacedName]) []types.NamespacedName {
	return slices.SortedFunc(maps.Keys(names), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
}
