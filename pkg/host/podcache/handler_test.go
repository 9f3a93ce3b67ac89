// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestHandlerOf(t *testing.T) {
	node := func(uid types.UID) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: uid}}
	}
	uid := func(node *corev1.Node) string {
		if node == nil {
			return "none"
		}
		return string(node.UID)
	}
	for name, test := range map[string]struct {
		event func(cache.ResourceEventHandler)
		want  []string
	}{
		"a new object":     {func(h cache.ResourceEventHandler) { h.OnAdd(node("1"), false) }, []string{"none 1"}},
		"a changed object": {func(h cache.ResourceEventHandler) { h.OnUpdate(node("1"), node("1")) }, []string{"1 1"}},
		"an object that was deleted": {
			func(h cache.ResourceEventHandler) { h.OnDelete(node("1")) }, []string{"1 none"},
		},
		"an object whose deletion was missed": {
			func(h cache.ResourceEventHandler) {
				h.OnDelete(cache.DeletedFinalStateUnknown{Key: "one", Obj: node("1")})
			},
			[]string{"1 none"},
		},
		"another object of the same name": {
			func(h cache.ResourceEventHandler) { h.OnUpdate(node("1"), node("2")) }, []string{"1 none", "none 2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			test.event(HandlerOf(func(old, now *corev1.Node) { got = append(got, fmt.Sprint(uid(old), " ", uid(now))) }))
			is.Slices(t, got, test.want)
		})
	}
}
