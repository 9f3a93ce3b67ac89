// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodestate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestViewIsNotCachedAfterAnEventDuringItsBuild(t *testing.T) {
	v := &views{}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "first"}}
	old, current := &View{}, &View{Plan: &drainplan.Node{}}
	got, err := v.of(node, func(*corev1.Node) (*View, error) {
		v.drop("n")
		return old, nil
	})
	must.True(t, err == nil && got == old, "got %v, %v, want the view that was built", got, err)
	for range 2 {
		got, err = v.of(node, func(*corev1.Node) (*View, error) { return current, nil })
		must.True(t, err == nil && got == current, "got %v, %v, want the newer view", got, err)
	}
	recreated := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "other"}}
	got, err = v.of(recreated, func(*corev1.Node) (*View, error) { return old, nil })
	is.True(t, err == nil && got == old, "got %v, %v, want a new view for a recreated node", got, err)
}

// TestViewOfAForgottenNodeIsNotKept: an event makes the view that worker A builds outdated. Then
// the node is forgotten, and worker B begins to build a view before A has finished.
func TestViewOfAForgottenNodeIsNotKept(t *testing.T) {
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "other"}}
	for name, forget := range map[string]func(*views){
		"no maintenance selects the node": func(v *views) { v.Forget("n") },
		"another node had the name meanwhile": func(v *views) {
			_, err := v.of(other, func(*corev1.Node) (*View, error) { return &View{}, nil })
			must.Do(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := &views{}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "first"}}
			old, current := &View{}, &View{}
			begun, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			buildB := func(*corev1.Node) (*View, error) {
				close(begun)
				<-release
				return current, nil
			}
			_, err := v.of(node, func(*corev1.Node) (*View, error) {
				v.drop("n")
				forget(v)
				go func() {
					defer close(done)
					_, _ = v.of(node, buildB)
				}()
				<-begun
				return old, nil
			})
			must.Do(t, err)
			close(release)
			<-done
			got, err := v.of(node, func(*corev1.Node) (*View, error) { return current, nil })
			is.True(t, err == nil && got == current, "got %p, %v, want the newer view %p and not %p", got, err, current, old)
		})
	}
}

// TestViewDependsOnTheNodeAgent: a worker builds a view from a Node that it read before the node
// agent changed the Node. That view must not be used for the changed Node.
func TestViewDependsOnTheNodeAgent(t *testing.T) {
	v := &views{}
	plain := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "first"}}
	withAgent := plain.DeepCopy()
	withAgent.Status.Conditions = []corev1.NodeCondition{{Type: v1alpha1.NodeConditionAgentReady, Status: corev1.ConditionTrue}}
	publishing := withAgent.DeepCopy()
	publishing.Annotations = map[string]string{v1alpha1.AnnotationKeptStaticPods: `{"bootID":"boot-1"}`}
	booted := publishing.DeepCopy()
	booted.Status.NodeInfo.BootID = "boot-1"
	controlPlane := booted.DeepCopy()
	controlPlane.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""}
	for _, node := range []*corev1.Node{plain, withAgent, publishing, booted, controlPlane, plain} {
		want := &View{}
		got, err := v.of(node, func(*corev1.Node) (*View, error) { return want, nil })
		must.True(t, err == nil && got == want, "got %v, %v, want a new view after the node agent has changed", got, err)
		heartbeat := node.DeepCopy()
		heartbeat.Status.Conditions = append(heartbeat.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady})
		got, err = v.of(heartbeat, func(*corev1.Node) (*View, error) { return &View{}, nil })
		must.True(t, err == nil && got == want, "got %v, %v, want the same view after a heartbeat", got, err)
	}
}

// TestOwnersWithAnyName: the name goes into conditions, which have a maximum length.
func TestOwnersWithAnyName(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0"}}
	for name, want := range map[string]int{"web": 3, "a\nb": 3, strings.Repeat("x", 33_000): 253} {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v9", Kind: "DaemonSet", Name: name, Controller: new(true)}}
		got := ownerOf(pod)
		is.True(t, len(got) == want && !strings.Contains(got, "\n"), "got %d bytes: %.20q", len(got), got)
	}
}
