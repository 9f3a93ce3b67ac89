// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestUnaskedResponders(t *testing.T) {
	for name, test := range map[string]struct{ responders, want []string }{
		"none":    {},
		"ours":    {responders: []string{"maintenance.haulout.dev/evacuation"}},
		"another": {responders: []string{"app.example.com/flush"}, want: []string{"app.example.com/flush"}},
		"several": {
			responders: []string{"app.example.com/flush", "maintenance.haulout.dev/evacuation", "maintenance.haulout.dev.example.com/x"},
			want:       []string{"app.example.com/flush", "maintenance.haulout.dev.example.com/x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			for _, responder := range test.responders {
				pod.Spec.EvictionResponders = append(pod.Spec.EvictionResponders, corev1.EvictionResponder{Name: responder})
			}
			is.Slices(t, UnaskedResponders(pod), test.want)
		})
	}
}
