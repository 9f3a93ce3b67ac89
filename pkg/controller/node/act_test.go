// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestDecideMeddler(t *testing.T) {
	at := func(second int64) *metav1.Time { return &metav1.Time{Time: time.Unix(second, 0)} }
	entry := func(manager string, second int64, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Time: at(second), FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const (
		unschedulable = `{"f:spec":{"f:unschedulable":{}}}`
		labels        = `{"f:metadata":{"f:labels":{"f:a":{}}}}`
		taints        = `{"f:spec":{"f:taints":{}}}`
	)
	creator, ours := entry("creator", 1, labels), entry(fieldManager, 5, labels)
	kubelet := entry("kubelet", 9, labels)
	kubelet.Subresource = "status"
	for name, test := range map[string]struct {
		fields []metav1.ManagedFieldsEntry
		want   string
	}{
		"a manager that has applied the field": {
			[]metav1.ManagedFieldsEntry{creator, ours, entry("gitops", 4, unschedulable), entry("scaler", 9, labels)},
			"Field manager gitops",
		},
		"a manager that has written another field since our write": {
			[]metav1.ManagedFieldsEntry{creator, ours, entry("early", 5, labels), entry("scaler", 6, labels)},
			"Probably field manager scaler",
		},
		"writers before our write and writers of the status do not count": {
			[]metav1.ManagedFieldsEntry{creator, ours, kubelet}, "An unknown writer",
		},
		"kube-controller-manager, which adds the taint for the field, does not count": {
			[]metav1.ManagedFieldsEntry{creator, ours, entry("kube-controller-manager", 6, taints)},
			"An unknown writer",
		},
		"no manager, if the managed fields were removed": {nil, "An unknown writer"},
		"any manager, if our entry was removed with its only field": {
			[]metav1.ManagedFieldsEntry{creator}, "Probably field manager creator",
		},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, guessUncordoner(test.fields), test.want)
		})
	}
}
