// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package next

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestAgrees compares a decision about a node with a live read of it.
func TestAgrees(t *testing.T) {
	runsEtcd := protocol.EncodeKeptStaticPods("boot-1", true, nil)
	for name, test := range map[string]struct {
		live func(*corev1.Node)
		want bool
	}{
		"nothing has changed":     {func(*corev1.Node) {}, true},
		"a user has cordoned it":  {cordoned, false},
		"it is not Ready":         {notReady(time.Minute), false},
		"it was installed again":  {func(n *corev1.Node) { n.UID = "other" }, false},
		"it has another label":    {func(n *corev1.Node) { n.Labels["zone"] = "b" }, false},
		"etcd runs on it":         {func(n *corev1.Node) { n.Annotations[v1alpha1.AnnotationKeptStaticPods] = runsEtcd }, false},
		"it has other annotation": {func(n *corev1.Node) { n.Annotations["example.com/a"] = "b" }, true},
		"a user exempts it":       {func(n *corev1.Node) { n.Annotations[v1alpha1.AnnotationSkipRollouts] = "" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			node := aNode("n0")
			c := NewCluster(Facts{Now: now, Nodes: NewNodes([]Node{NewNode(node, nil, now)})})
			read := node.DeepCopy()
			test.live(read)
			live := NewNode(read, nil, now)
			is.Equal(t, c.Agrees(&live), test.want)
		})
	}
}
