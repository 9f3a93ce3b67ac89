// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// evacuator returns an evacuator with the role for its priority.
func evacuator(class string, priority int32) maintenance.Evacuator {
	e := maintenance.Evacuator{EvacuatorClass: class, Priority: priority}
	if priority == v1alpha1.ControllerEvacuatorPriority {
		e.Role = maintenance.EvacuatorRoleController
	}
	return e
}

func TestAdmitEvacuators(t *testing.T) {
	type list = []maintenance.Evacuator
	const classA = "a.example.com"
	a5 := evacuator(classA, 5)
	const (
		deploymentClass = "deployment.apps.k8s.io"
		daemonSetClass  = "daemonset.apps.k8s.io"
		kubeletClass    = "kubelet.k8s.io"
	)
	all := protocol.BuiltInClasses
	deployment, replicaSet := newDeployment()
	fixed, fixedReplicaSet := newDeployment()
	fixed.Name, fixed.UID, fixed.Annotations = "fixed", "fixed", map[string]string{
		v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled,
	}
	fixedReplicaSet.Name, fixedReplicaSet.UID = "fixed-6b59", "fixed-replicaset"
	fixedReplicaSet.OwnerReferences[0].Name, fixedReplicaSet.OwnerReferences[0].UID = fixed.Name, fixed.UID
	daemonSet := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "agent", UID: "daemonset"},
		Spec:       appsv1.DaemonSetSpec{Selector: selectWeb},
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-7", UID: "node"},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: "maintenance.haulout.dev/NodeAgentReady", Status: corev1.ConditionTrue},
		}},
	}
	plainNode := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-9", UID: "plain"}}
	mirror := func(pod *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, corev1.MirrorPodAnnotationKey, "hash")
	}
	byReplicaSet := ownedBy("apps/v1", "ReplicaSet", "web-6b59", "replicaset")
	byDaemonSet := ownedBy("apps/v1", "DaemonSet", "agent", "daemonset")
	byNode := ownedBy("v1", "Node", "node-7", "node")
	relabelled := func(pod *corev1.Pod) { pod.Labels = map[string]string{"app": "other"} }
	pods, scale := newPod, []string{scaleWeb}
	toDeployment, a50 := list{evacuator(deploymentClass, 10000)}, list{evacuator(classA, 50)}
	daemonSet10000, says50, b50 := evacuator(daemonSetClass, 10000), annotated(classA, "50"), annotated("b.example.com", "50")

	tests := map[string]struct {
		builtIn  []string
		pod      *corev1.Pod
		named    []maintenance.Evacuator
		user     request
		allowed  []string
		want     []maintenance.Evacuator
		outcome  string
		events   int
		warnings int
	}{
		"a bare pod has no evacuator": {builtIn: all, pod: pods()},

		"a pod of a Deployment": {builtIn: all, pod: pods(byReplicaSet), allowed: scale, want: toDeployment},
		"a pod of a Deployment, and the server creates": {
			builtIn: all, pod: pods(byReplicaSet), user: request{user: server}, want: toDeployment,
		},
		"a pod of a Deployment that the user may not scale": {builtIn: all, pod: pods(byReplicaSet), warnings: 1},
		"a pod of a Deployment with surge disabled": {
			builtIn: all, pod: pods(ownedBy("apps/v1", "ReplicaSet", "fixed-6b59", "fixed-replicaset")), allowed: scale,
		},
		"a pod of a Deployment, and its evacuator is disabled": {
			builtIn: []string{daemonSetClass}, pod: pods(byReplicaSet), allowed: scale,
		},
		"a pod whose owner reference has another UID than the ReplicaSet": {
			builtIn: all, allowed: scale, pod: pods(ownedBy("apps/v1", "ReplicaSet", "web-6b59", "old")),
		},
		"a pod whose ReplicaSet does not exist": {
			builtIn: all, allowed: scale, pod: pods(ownedBy("apps/v1", "ReplicaSet", "gone", "gone")),
		},
		"a pod that the ReplicaSet does not select": {
			builtIn: all, allowed: scale, pod: pods(byReplicaSet, relabelled),
		},
		"a ReplicaSet of another group": {
			builtIn: all, allowed: scale, pod: pods(ownedBy("example.com/v1", "ReplicaSet", "web-6b59", "replicaset")),
		},
		"an owner that is not the controller of the pod": {
			builtIn: all, allowed: scale,
			pod: pods(byReplicaSet, func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }),
		},
		"an owner with an invalid apiVersion": {
			builtIn: all, pod: pods(ownedBy("a/b/c", "ReplicaSet", "web-6b59", "replicaset")),
		},
		"a pod of a DaemonSet": {builtIn: all, pod: pods(byDaemonSet), want: list{daemonSet10000}},
		"a pod of a DaemonSet, and its evacuator is disabled": {
			builtIn: []string{deploymentClass}, pod: pods(byDaemonSet),
		},
		"a pod that the DaemonSet does not select": {builtIn: all, pod: pods(byDaemonSet, relabelled)},
		"a pod whose owner reference has another UID than the DaemonSet": {
			builtIn: all, pod: pods(ownedBy("apps/v1", "DaemonSet", "agent", "old")),
		},
		"a static pod": {builtIn: all, pod: pods(byNode, mirror), want: list{evacuator(kubeletClass, 10000)}},
		"a static pod, and its evacuator is disabled":      {builtIn: nil, pod: pods(byNode, mirror)},
		"the annotation of a mirror pod without the owner": {builtIn: all, pod: pods(mirror)},
		"the owner of a mirror pod without the annotation": {builtIn: all, pod: pods(byNode)},
		"a mirror pod of a deleted node":                   {builtIn: all, pod: pods(ownedBy("v1", "Node", "node-7", "old"), mirror)},
		"a static pod on a node without a node agent": {
			builtIn: all,
			pod:     pods(ownedBy("v1", "Node", "node-9", "plain"), mirror, func(p *corev1.Pod) { p.Spec.NodeName = "node-9" }),
		},
		"a mirror pod on another node": {
			builtIn: all, pod: pods(byNode, mirror, func(p *corev1.Pod) { p.Spec.NodeName = "node-8" }),
		},

		"evacuators in annotations": {
			pod:  pods(says50, annotated("b.example.com", "10000/controller")),
			want: list{evacuator("b.example.com", 10000), evacuator(classA, 50)},
		},
		"an evacuator in an annotation, and a built-in one": {
			builtIn: all, pod: pods(byDaemonSet, says50), want: list{daemonSet10000, evacuator(classA, 50)},
		},
		"a controller in an annotation replaces the built-in evacuator": {
			builtIn: all, pod: pods(byDaemonSet, annotated(classA, "10000/controller")),
			want: list{evacuator(classA, 10000)},
		},
		"the priority in an annotation replaces that of the built-in evacuator": {
			builtIn: all, pod: pods(byDaemonSet, annotated(daemonSetClass, "7")),
			want: list{evacuator(daemonSetClass, 7)},
		},
		"a malformed annotation": {
			pod:  pods(annotated(classA, "high"), annotated("b.example.com", "5")),
			want: list{evacuator("b.example.com", 5)}, events: 1, warnings: 1,
		},
		"a malformed annotation in a dry run": {
			pod: pods(annotated(classA, "high")), user: request{dryRun: true}, warnings: 1,
		},
		"two controllers in annotations": {
			pod:  pods(annotated("b.example.com", "10000/controller"), annotated(classA, "10000/controller")),
			want: list{evacuator(classA, 10000)}, events: 1, warnings: 1,
		},
		"a reserved priority for a class of the domain of the controller": {
			builtIn: all, pod: pods(byDaemonSet, annotated("before.apps.k8s.io", "10050")),
			want: list{evacuator("before.apps.k8s.io", 10050), daemonSet10000},
		},
		"a reserved priority for a class of another domain": {
			builtIn: all, pod: pods(byDaemonSet, annotated("before.example.com", "10050")),
			want: list{daemonSet10000}, events: 1, warnings: 1,
		},
		"a reserved priority without a controller": {
			pod: pods(annotated("before.apps.k8s.io", "10050")), events: 1, warnings: 1,
		},
		"an annotation for the evacuator of Deployments": {
			pod:     pods(annotated(deploymentClass, "10000/controller"), annotated(classA, "5")),
			allowed: []string{scaleAny},
			want:    list{evacuator(deploymentClass, 10000), a5},
		},
		"an annotation for the evacuator of Deployments, and the user may not scale": {
			pod: pods(annotated(deploymentClass, "10000/controller"), annotated("before.apps.k8s.io", "10050"),
				annotated(classA, "5")),
			want: list{a5}, warnings: 1,
		},

		"the client names an evacuator that it may assign": {
			pod: pods(b50), named: list{a5}, allowed: []string{assignA}, want: list{a5, evacuator("b.example.com", 50)},
		},
		"the client names an evacuator that it may not assign": {pod: pods(), named: list{a5}, outcome: "Forbidden"},
		"the server names an evacuator":                        {pod: pods(), user: request{user: server}, named: list{a5}, want: list{a5}},
		"the client names an evacuator of the pod":             {pod: pods(says50), named: a50, want: a50},
		"the client names an evacuator of the pod with another priority": {
			pod: pods(says50), named: list{evacuator(classA, 90000)}, want: a50, warnings: 1,
		},
		"the client names the evacuator of Deployments and may not scale": {
			pod: pods(), named: toDeployment, warnings: 1,
		},
		"an invalid class, which validation refuses": {pod: pods(), named: list{{EvacuatorClass: ""}}, want: list{{}}},
		"a second controller, which validation refuses": {
			builtIn: all, pod: pods(byDaemonSet), named: list{evacuator(classA, 10000)},
			allowed: []string{assignA},
			want:    list{evacuator(classA, 10000), daemonSet10000},
		},
		"duplicates, which validation refuses": {
			pod: pods(annotated(classA, "5")), named: list{a5, a5}, want: list{a5, a5},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(
				t, tt.builtIn, append(tt.allowed, deletePod), tt.pod, deployment, replicaSet, fixed, fixedReplicaSet,
				daemonSet, node, plainNode,
			)
			tt.user.object = newEvacuation(named(tt.named...))
			warnings, err := f.admit(tt.user)
			if got := outcome(err); got != tt.outcome {
				t.Fatalf("got %q (%v), want %q", got, err, tt.outcome)
			}
			if err != nil {
				return
			}
			is.Slices(t, tt.user.object.Spec.Evacuators, tt.want, "evacuators")
			is.Equal(t, len(f.events), tt.events, "events")
			is.True(t, len(warnings) == tt.warnings, "got warnings %q, want %d", warnings, tt.warnings)
			// The API server calls a plugin again after a webhook has changed the object.
			before := slices.Clone(tt.user.object.Spec.Evacuators)
			if _, err := f.admit(tt.user); err != nil || !slices.Equal(tt.user.object.Spec.Evacuators, before) {
				t.Errorf("second call: got evacuators %v (%v), want %v", tt.user.object.Spec.Evacuators, err, before)
			}
		})
	}
}

func TestAdmitKeepsAtMostSixteenEvacuators(t *testing.T) {
	mods := []podMod{annotated("controller.example.com", "10000/controller")}
	for i := range 20 {
		mods = append(mods, annotated(fmt.Sprintf("e%02d.example.org", i), fmt.Sprint(20000+i)))
	}
	f := newFixture(t, nil, []string{deletePod}, newPod(mods...))
	evacuation := newEvacuation()
	must.Get(f.admit(request{object: evacuation}))(t)
	got := evacuation.Spec.Evacuators
	if len(got) != 16 || got[0].EvacuatorClass != "e19.example.org" || got[14].EvacuatorClass != "e05.example.org" ||
		got[15].EvacuatorClass != "controller.example.com" {
		t.Errorf("got evacuators %v, want the 15 first ones and the controller", got)
	}
	event := ""
	if is.Equal(t, len(f.events), 1, "events"); len(f.events) > 0 {
		event = <-f.events
	}
	is.True(t, strings.Contains(event, "more annotations of the pod are ignored: 2") && len(event) < 1100, "got event %q", event)
}

func TestBuiltInEvacuatorsNeedTheOwner(t *testing.T) {
	for _, kind := range []string{"replicasets", "deployments"} {
		deployment, replicaSet := newDeployment()
		f := newFixture(t, protocol.BuiltInClasses, []string{deletePod, scaleWeb},
			newPod(ownedBy("apps/v1", "ReplicaSet", "web-6b59", "replicaset")), deployment, replicaSet)
		f.client.PrependReactor("get", kind, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewServiceUnavailable("down")
		})
		if _, err := f.admit(request{object: newEvacuation()}); !apierrors.IsInternalError(err) {
			t.Errorf("%s cannot be read: got %v, want an internal error", kind, err)
		}
	}
	for name, change := range map[string]func(*appsv1.Deployment, *appsv1.ReplicaSet){
		"the ReplicaSet has no owner": func(_ *appsv1.Deployment, rs *appsv1.ReplicaSet) {
			rs.OwnerReferences = nil
		},
		"the owner of the ReplicaSet is of another kind": func(_ *appsv1.Deployment, rs *appsv1.ReplicaSet) {
			rs.OwnerReferences[0].Kind = "Rollout"
		},
		"the Deployment is of another group": func(_ *appsv1.Deployment, rs *appsv1.ReplicaSet) {
			rs.OwnerReferences[0].APIVersion = "example.com/v1"
		},
		"the Deployment was recreated": func(d *appsv1.Deployment, _ *appsv1.ReplicaSet) { d.UID = "new" },
		"the Deployment does not select the pod": func(d *appsv1.Deployment, _ *appsv1.ReplicaSet) {
			d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		},
		"the selector of the Deployment is malformed": func(d *appsv1.Deployment, _ *appsv1.ReplicaSet) {
			d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "%"}}
		},
		"the Deployment has no selector": func(d *appsv1.Deployment, _ *appsv1.ReplicaSet) { d.Spec.Selector = nil },
		"the Deployment does not exist":  func(d *appsv1.Deployment, _ *appsv1.ReplicaSet) { d.Name = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			deployment, replicaSet := newDeployment()
			change(deployment, replicaSet)
			f := newFixture(t, protocol.BuiltInClasses, []string{deletePod, scaleWeb},
				newPod(ownedBy("apps/v1", "ReplicaSet", "web-6b59", "replicaset")), deployment, replicaSet)
			evacuation := newEvacuation()
			must.Get(f.admit(request{object: evacuation}))(t)
			is.True(t, len(evacuation.Spec.Evacuators) == 0, "got evacuators %v, want none", evacuation.Spec.Evacuators)
		})
	}
}
