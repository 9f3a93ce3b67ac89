// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/testing/is"
)

// TestEveryTraitIsCompared changes each field: pods whose traits differ must not share them.
func TestEveryTraitIsCompared(t *testing.T) {
	plain := func() *traits { return &traits{Owner: &metav1.OwnerReference{UID: "1"}} }
	changes := map[string]func(*traits){
		"Namespace":   func(t *traits) { t.Namespace = "x" },
		"Labels":      func(t *traits) { t.Labels = map[string]string{"a": "b"} },
		"Type":        func(t *traits) { t.Type = "x" },
		"Priority":    func(t *traits) { t.Priority = 1 },
		"Kept":        func(t *traits) { t.Kept = "x" },
		"Owner":       func(t *traits) { t.Owner = &metav1.OwnerReference{UID: "1", Name: "x"} },
		"Annotations": func(t *traits) { t.Annotations = map[string]string{"a": "b"} },
		"Restarts":    func(t *traits) { t.Restarts = true },
		"Claims":      func(t *traits) { t.Claims = []string{"x"} },
		"finalizers":  func(t *traits) { t.finalizers = []string{"x"} },
		"responders":  func(t *traits) { t.responders = []string{"x"} },
	}
	is.True(t, plain().equal(plain()), "equal traits differ")
	for field := range reflect.TypeFor[traits]().Fields() {
		change := changes[field.Name]
		if change == nil {
			t.Errorf("this test does not change field %s", field.Name)
			continue
		}
		changed := plain()
		change(changed)
		is.True(t, !changed.equal(plain()), "traits with another %s are equal", field.Name)
	}
}

func TestPodsOfAControllerShareTraits(t *testing.T) {
	n := node("n1")
	collected := NewPods([]*corev1.Node{n}, nil, nodeOf)
	added := pods(3, "web", "n1")
	added[2].Labels = map[string]string{"app": "canary"}
	for _, p := range added {
		collected.Add(p)
		collected.Add(p)
	}
	found := collected.on("n1")
	is.Equal(t, len(found), 3, "pods")
	is.True(t, found[0].traits == found[1].traits, "equal traits are not shared")
	is.Equal(t, found[2].Labels["app"], "canary", "the label of another pod of the same controller")
}

// TestSiblingsOfSeveralZonesShareTraits adds pods with the labels of the zones of their nodes, each
// in another zone than the last one.
func TestSiblingsOfSeveralZonesShareTraits(t *testing.T) {
	const zones = 3
	collected := NewPods([]*corev1.Node{node("n1")}, nil, nodeOf)
	for i, p := range pods(10*zones, "web", "n1") {
		p.Labels = map[string]string{corev1.LabelTopologyZone: fmt.Sprint("zone-", i%zones)}
		collected.Add(p)
	}
	is.Equal(t, len(collected.traits), zones, "traits in memory")
}
