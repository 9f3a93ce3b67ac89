// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package mergepatch sends JSON merge patches.
package mergepatch

import (
	"context"
	"encoding/json"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// IfUnchanged changes fields of the metadata of an object, and other fields. send is the method
// Patch of its client. The API server answers with a conflict if the object has changed since old
// was read, or if another object has its name now.
func IfUnchanged[T any](
	ctx context.Context, send func(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error),
	old metav1.Object, metadata, fields map[string]any, options metav1.PatchOptions, subresources ...string,
) (stored T, err error) {
	versioned := map[string]any{"uid": old.GetUID(), "resourceVersion": old.GetResourceVersion()}
	maps.Copy(versioned, metadata)
	patch := map[string]any{"metadata": versioned}
	maps.Copy(patch, fields)
	data, err := json.Marshal(patch)
	if err != nil {
		return stored, err
	}
	return send(ctx, old.GetName(), types.MergePatchType, data, options, subresources...)
}
