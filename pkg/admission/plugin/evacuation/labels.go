// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// labelManager is the field manager that owns the labels of an Evacuation that come from its
	// pod.
	labelManager = "haulout-admission"
	// maxOwnershipBytes is the maximum length of the list of owned labels. The list and the labels
	// together have to stay within the limit for Evacuations.
	maxOwnershipBytes = 4 << 10
)

// copyLabels copies the labels of the pod to a new Evacuation, sorted by key, up to the size limit:
// the limit must not prevent the Evacuation of a pod with many labels. It returns the copied keys.
func copyLabels(ctx context.Context, evacuation *maintenance.Evacuation, pod *corev1.Pod) []string {
	room := size.MaxEvacuationMetadataBytes - size.EvacuationMetadataBytes(&evacuation.ObjectMeta)
	keys := slices.Sorted(maps.Keys(pod.Labels))
	for i, key := range keys {
		if value, there := evacuation.Labels[key]; there && value == pod.Labels[key] {
			continue
		}
		if room -= size.LabelBytes(key, pod.Labels[key]); room < 0 {
			warning.AddWarning(ctx, "", fmt.Sprintf("pod labels from %q on are not copied (%d of %d): the limit for the metadata of an Evacuation is %d bytes",
				key, len(keys)-i, len(keys), size.MaxEvacuationMetadataBytes))
			return keys[:i]
		}
		metav1.SetMetaDataLabel(&evacuation.ObjectMeta, key, pod.Labels[key])
	}
	return keys
}

// ownLabels makes the server the owner of the labels that a new Evacuation got from its pod. The
// API server computes field ownership before admission, and keys of a map without an owner are lost
// when the last manager of the map removes its own keys by server-side apply.
//
// If the list of labels would be too long, the server only owns the map. That still protects them
// from a manager that never applied them.
func ownLabels(evacuation *maintenance.Evacuation, keys []string) error {
	// Without any manager, the first apply creates one that owns all existing fields.
	if len(keys) == 0 || len(evacuation.ManagedFields) == 0 {
		return nil
	}
	theMap := fieldpath.NewSet(fieldpath.MakePathOrDie("metadata", "labels"))
	all := theMap.Copy()
	for _, key := range keys {
		all.Insert(fieldpath.MakePathOrDie("metadata", "labels", key))
	}
	fields, err := all.ToJSON()
	if err == nil && len(fields) > maxOwnershipBytes {
		fields, err = theMap.ToJSON()
	}
	if err != nil {
		return fmt.Errorf("encode the owned labels: %w", err)
	}
	// Admission may run twice. Do not change the slice, which may belong to the request.
	managed := slices.DeleteFunc(slices.Clone(evacuation.ManagedFields), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == labelManager
	})
	if len(managed) == 0 {
		return nil
	}
	managed = append(managed, metav1.ManagedFieldsEntry{
		Manager: labelManager, Operation: metav1.ManagedFieldsOperationUpdate,
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Time: managed[0].Time,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(bytes.TrimSpace(fields))),
	})
	evacuation.ManagedFields = managed
	return nil
}
