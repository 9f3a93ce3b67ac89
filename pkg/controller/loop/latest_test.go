// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/testing/must"
)

func TestLatest(t *testing.T) {
	node := func(version string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: version}}
	}
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	latest := NewLatest[*corev1.Node](store)
	want := func(step, version string) {
		t.Helper()
		got, exists := latest.Get("a")
		if exists != (version != "") || exists && got.ResourceVersion != version {
			t.Errorf("%s: got %v, want version %q", step, got, version)
		}
	}
	want("neither the informer nor this process has the object", "")
	latest.Wrote(node("5"))
	want("only this process wrote the object, which may be deleted since", "")
	must.Do(t, store.Add(node("5")))
	want("the informer has the object", "5")
	latest.Wrote(node("9"))
	want("this process wrote a newer version", "9")
	latest.Wrote(node("7"))
	want("this process received an older answer later", "9")
	must.Do(t, store.Update(node("12")))
	want("the informer has a newer version", "12")
	must.Do(t, store.Delete(node("12")))
	want("the object is deleted", "")
}
