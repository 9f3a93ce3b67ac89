/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package node

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDecideMeddler(t *testing.T) {
	at := func(second int64) *metav1.Time { return &metav1.Time{Time: time.Unix(second, 0)} }
	entry := func(manager string, second int64, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Time: at(second), FieldsV1: metav1.NewFieldsV1(fields)}
	}
	const theField, another, taints = `{"f:spec":{"f:unschedulable":{}}}`, `{"f:metadata":{"f:labels":{"f:a":{}}}}`, `{"f:spec":{"f:taints":{}}}`
	creator, ours := entry("creator", 1, another), entry(fieldManager, 5, another)
	kubelet := entry("kubelet", 9, another)
	kubelet.Subresource = "status"
	for name, test := range map[string]struct {
		fields []metav1.ManagedFieldsEntry
		want   string
	}{
		"who has applied the field": {
			[]metav1.ManagedFieldsEntry{creator, ours, entry("gitops", 4, theField), entry("scaler", 9, another)},
			"Field manager gitops",
		},
		"who has written anything since": {
			[]metav1.ManagedFieldsEntry{creator, ours, entry("early", 5, another), entry("scaler", 6, another)},
			"Probably field manager scaler",
		},
		"nobody who wrote before us, or the status": {
			[]metav1.ManagedFieldsEntry{creator, ours, kubelet}, "An unknown writer",
		},
		"not who follows with the taint": {
			[]metav1.ManagedFieldsEntry{creator, ours, entry("kube-controller-manager", 6, taints)},
			"An unknown writer",
		},
		"nobody, if the managed fields have been taken off": {nil, "An unknown writer"},
		"anybody, if our own entry went with the only field it had": {
			[]metav1.ManagedFieldsEntry{creator}, "Probably field manager creator",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decideMeddler(test.fields); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
