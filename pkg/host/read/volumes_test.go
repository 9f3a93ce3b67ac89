// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	kubefake "k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestPinnedClaims(t *testing.T) {
	volume := func(name string, nodes ...string) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if len(nodes) > 0 {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: build.Labelled(corev1.LabelHostname, nodes...)}
		}
		return v
	}
	claim := func(name, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume},
		}
	}
	kube := kubefake.NewClientset(
		volume("local", "held"), volume("zonal", "held", "free"), volume("network"),
		claim("local", "local"), claim("zonal", "zonal"), claim("network", "network"), claim("unbound", ""), claim("lost", "lost"),
	)
	claims := sets.New[types.NamespacedName]()
	for _, name := range []string{"local", "zonal", "network", "unbound", "lost", "unknown"} {
		claims.Insert(types.NamespacedName{Namespace: "ns", Name: name})
	}
	free := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "free", Labels: map[string]string{corev1.LabelHostname: "free"}}}
	got := must.Get(Reader{Client: kube}.PinnedClaims(t.Context(), claims, []*corev1.Node{free}))(t)
	if want := sets.New(types.NamespacedName{Namespace: "ns", Name: "local"}); !got.Equal(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
