// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestIsControlPlane(t *testing.T) {
	for label, want := range map[string]bool{
		"node-role.kubernetes.io/control-plane": true,
		"node-role.kubernetes.io/master":        true,
		"node-role.kubernetes.io/etcd":          true,
		"node-role.kubernetes.io/controlplane":  true,
		"node-role.kubernetes.io/api-server":    true,
		"node-role.kubernetes.io/worker":        false,
		"kubernetes.io/role":                    false,
	} {
		t.Run(label, func(t *testing.T) {
			if got := IsControlPlane(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{label: ""}}}); got != want {
				t.Errorf("IsControlPlane() = %v, want %v", got, want)
			}
		})
	}
	is.True(t, !IsControlPlane(nil), "got true without a Node")
}

func TestRunsControlPlane(t *testing.T) {
	many := map[string]KeptReason{}
	for i := range MaxKeptStaticPods + 1 {
		many[fmt.Sprintf("default/pod-%02d", i)] = KeptByConfiguration
	}
	for name, test := range map[string]struct {
		published, label string
		want             bool
	}{
		"nothing is published":          {},
		"a label":                       {label: "node-role.kubernetes.io/etcd", want: true},
		"neither":                       {published: EncodeKeptStaticPods("boot-1", false, map[string]KeptReason{"default/web": KeptServesAPI})},
		"etcd runs on it":               {published: EncodeKeptStaticPods("boot-1", true, nil), want: true},
		"etcd ran on it before a boot":  {published: EncodeKeptStaticPods("boot-0", true, nil), want: true},
		"etcd is one of many pods":      {published: EncodeKeptStaticPods("boot-1", true, many), want: true},
		"a pod that listens as it does": {published: EncodeKeptStaticPods("boot-1", false, map[string]KeptReason{"default/proxy": KeptControlPlane})},
		"another type":                  {published: `{"bootID":"boot-1","controlPlane":"true"}`},
		"not a JSON object":             {published: `"controlPlane":true`},
	} {
		t.Run(name, func(t *testing.T) {
			node := nodeWith()
			node.Status.NodeInfo.BootID = "boot-1"
			node.Annotations = map[string]string{"maintenance.haulout.dev/kept-static-pods": test.published}
			if test.label != "" {
				node.Labels = map[string]string{test.label: ""}
			}
			is.Equal(t, RunsControlPlane(node), test.want)
		})
	}
	is.True(t, !RunsControlPlane(nil), "got true without a Node")
}

func TestKeptStaticPods(t *testing.T) {
	many := map[string]KeptReason{}
	for i := range MaxKeptStaticPods {
		many[fmt.Sprintf("default/pod-%02d", i)] = KeptByConfiguration
	}
	atMost := EncodeKeptStaticPods("boot-1", false, many)
	many["default/one-more"] = KeptByConfiguration
	tooMany := EncodeKeptStaticPods("boot-1", false, many)
	for name, test := range map[string]struct {
		published, label, pod string
		want                  KeptReason
	}{
		"nothing is published":                {want: KeptUnpublished},
		"no pod is kept":                      {published: EncodeKeptStaticPods("boot-1", false, nil)},
		"another pod is kept":                 {published: `{"bootID":"boot-1","pods":{"default/other":"ServesTheAPI"}}`},
		"a pod of another namespace":          {published: `{"bootID":"boot-1","pods":{"kube-system/web":"ServesTheAPI"}}`},
		"the pod is kept":                     {published: `{"bootID":"boot-1","pods":{"default/web":"ServesTheAPI"}}`, want: KeptServesAPI},
		"all pods are kept":                   {published: `{"bootID":"boot-1","pods":{"*":"ControlPlaneNode"}}`, want: KeptControlPlane},
		"published in another boot":           {published: EncodeKeptStaticPods("boot-0", false, nil), want: KeptUnpublished},
		"the annotation is not a JSON object": {published: `x`, want: KeptUnpublished},
		"an unknown reason":                   {published: `{"bootID":"boot-1","pods":{"default/web":"\u001b[31m"}}`, want: KeptUndecided},
		"a label of a control plane, regardless of the annotation": {
			published: EncodeKeptStaticPods("boot-1", false, nil), label: "node-role.kubernetes.io/etcd", want: KeptControlPlane,
		},
		"as many as fit":                           {published: atMost, pod: "pod-07", want: KeptByConfiguration},
		"as many as fit keep no other pod":         {published: atMost},
		"more than fit keep every pod of the node": {published: tooMany, want: KeptByConfiguration},
	} {
		t.Run(name, func(t *testing.T) {
			node := nodeWith(agentReady(corev1.ConditionTrue))
			node.Status.NodeInfo.BootID = "boot-1"
			if test.published != "" {
				node.Annotations = map[string]string{"maintenance.haulout.dev/kept-static-pods": test.published}
			}
			if test.label != "" {
				node.Labels = map[string]string{test.label: ""}
			}
			if test.pod == "" {
				test.pod = "web"
			}
			if got := StaticPodFactsOf(node).Kept("default", test.pod); got != test.want {
				t.Errorf("Kept() = %q, want %q", got, test.want)
			}
		})
	}
	is.True(t, len(tooMany) <= 128, "got %d bytes for more pods than fit: %s", len(tooMany), tooMany)
}
