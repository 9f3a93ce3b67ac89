// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package mergepatch

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestIfUnchanged(t *testing.T) {
	old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", ResourceVersion: "7"}}
	for name, test := range map[string]struct {
		metadata, fields map[string]any
		want             string
	}{
		"fields":   {nil, map[string]any{"spec": map[string]any{"unschedulable": true}}, `{"metadata":{"resourceVersion":"7","uid":"u"},"spec":{"unschedulable":true}}`},
		"metadata": {map[string]any{"annotations": nil}, nil, `{"metadata":{"annotations":null,"resourceVersion":"7","uid":"u"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			send := func(_ context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (string, error) {
				is.Equal(t, name, "n")
				is.Equal(t, kind, types.MergePatchType)
				is.Equal(t, string(data), test.want)
				is.Equal(t, options.FieldManager, "me")
				is.Slices(t, subresources, []string{"status"})
				return "stored", nil
			}
			got := must.Get(IfUnchanged(t.Context(), send, old, test.metadata, test.fields, metav1.PatchOptions{FieldManager: "me"}, "status"))(t)
			is.Equal(t, got, "stored")
		})
	}
}
