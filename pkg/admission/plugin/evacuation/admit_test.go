// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// outcome returns the result of a request: "" if it is admitted, otherwise the reason of the error
// and, for an invalid object, the invalid fields.
func outcome(err error) string {
	if err == nil {
		return ""
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return err.Error()
	}
	got := string(status.Status().Reason)
	if details := status.Status().Details; details != nil {
		for _, cause := range details.Causes {
			if cause.Field != "" {
				got += fmt.Sprintf(" %s %s", cause.Type, cause.Field)
			}
		}
	}
	return got
}

func TestAdmitPodReference(t *testing.T) {
	tests := map[string]struct {
		user    request
		object  *maintenance.Evacuation
		pod     *corev1.Pod
		allowed []string
		want    string
		message string
	}{
		"the pod exists": {object: newEvacuation(), pod: newPod(), allowed: []string{deletePod}},
		"the server creates it, without an access review": {
			user: request{user: server}, object: newEvacuation(), pod: newPod(),
		},
		"the pod is not bound to a node": {
			object: newEvacuation(), pod: newPod(func(p *corev1.Pod) { p.Spec.NodeName = "" }),
			allowed: []string{deletePod},
		},
		"the pod has succeeded": {
			object: newEvacuation(), pod: newPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
			allowed: []string{deletePod},
		},
		"the pod does not exist": {
			object: newEvacuation(), allowed: []string{deletePod}, want: "Invalid FieldValueNotFound spec.podRef.name",
			message: "pod not found in namespace blue",
		},
		"the pod is in another namespace": {
			object: newEvacuation(), pod: newPod(func(p *corev1.Pod) { p.Namespace = "red" }),
			allowed: []string{deletePod}, want: "Invalid FieldValueNotFound spec.podRef.name",
			message: "pod not found in namespace blue",
		},
		"the pod was recreated": {
			object: newEvacuation(), pod: newPod(func(p *corev1.Pod) { p.UID = "new" }), allowed: []string{deletePod},
			want: "Invalid FieldValueInvalid spec.podRef.uid", message: "new",
		},
		"the user may not delete the pod": {
			object: newEvacuation(), pod: newPod(), want: "Forbidden", message: deletePod,
		},
		"the user may not delete the pod, which does not exist": {
			object: newEvacuation(), want: "Forbidden", message: deletePod,
		},
		"a reference without a name, which validation refuses": {
			object: newEvacuation(func(e *maintenance.Evacuation) { e.Spec.PodRef.Name = "" }), pod: newPod(),
		},
		"a reference without a UID, which validation refuses": {
			object: newEvacuation(func(e *maintenance.Evacuation) { e.Spec.PodRef.UID = "" }), pod: newPod(),
		},
		"a reference with an invalid name, which validation refuses": {
			object: newEvacuation(func(e *maintenance.Evacuation) { e.Spec.PodRef.Name = "../web" }), pod: newPod(),
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			if tt.pod != nil {
				objects = append(objects, tt.pod)
			}
			f := newFixture(t, nil, tt.allowed, objects...)
			tt.user.object = tt.object
			_, err := f.admit(tt.user)
			if got := outcome(err); got != tt.want {
				t.Errorf("got %q (%v), want %q", got, err, tt.want)
			}
			if err != nil && (tt.message == "" || !strings.Contains(err.Error(), tt.message)) {
				t.Errorf("got error %v, want %q in it", err, tt.message)
			}
		})
	}
}

func TestAdmitFailsIfTheHostClusterFails(t *testing.T) {
	f := newFixture(t, nil, []string{deletePod}, newPod())
	f.client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("down")
	})
	if _, err := f.admit(request{object: newEvacuation()}); !apierrors.IsInternalError(err) {
		t.Errorf("the pod cannot be read: got %v, want an internal error", err)
	}
	f.authz.err = errors.New("down")
	if _, err := f.admit(request{object: newEvacuation()}); !apierrors.IsInternalError(err) {
		t.Errorf("the authorizer fails: got %v, want an internal error", err)
	}
}

func TestAdmitSetsLabelsAndNodeNameOfThePod(t *testing.T) {
	f := newFixture(t, nil, []string{deletePod}, newPod())
	evacuation := newEvacuation(func(e *maintenance.Evacuation) {
		e.Name = ""
		e.Labels = map[string]string{"app": "mine", "mine": "yes"}
		e.Spec.NodeName = "node-8"
	})
	must.Get(f.admit(request{object: evacuation}))(t)
	if want := map[string]string{"app": "web", "mine": "yes"}; !maps.Equal(evacuation.Labels, want) {
		t.Errorf("got labels %v, want %v", evacuation.Labels, want)
	}
	if evacuation.Spec.NodeName != "node-7" {
		t.Errorf("got nodeName %q, want node-7, which is that of the pod", evacuation.Spec.NodeName)
	}
}

// TestAdmitCopiesLabelsUpToALimit uses pods with more labels than an Evacuation may have: the
// Evacuation that the server creates must be valid.
func TestAdmitCopiesLabelsUpToALimit(t *testing.T) {
	withLabels := func(n, length int) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.Labels = map[string]string{}
			for i := range n {
				p.Labels[fmt.Sprintf("k%05d", i)] = strings.Repeat("v", length)
			}
		})
	}
	tests := map[string]struct {
		pod  *corev1.Pod
		want int
		warn string
	}{
		"as many labels as fit": {pod: withLabels(223, 58), want: 223},
		"one label more than fits": {
			pod: withLabels(224, 58), want: 223,
			warn: `pod labels from "k00223" on are not copied (1 of 224): ` +
				`the limit for the metadata of an Evacuation is 16384 bytes`,
		},
		"22,000 labels": {
			pod: withLabels(22000, 1), want: 1019,
			warn: `pod labels from "k01019" on are not copied (20981 of 22000): ` +
				`the limit for the metadata of an Evacuation is 16384 bytes`,
		},
		"a pod without labels": {pod: withLabels(0, 0), want: 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil, nil, tt.pod)
			evacuation := newEvacuation()
			warnings := must.Get(f.admit(request{user: server, object: evacuation}))(t)
			if len(evacuation.Labels) != tt.want || strings.Join(warnings, "\n") != tt.warn {
				t.Errorf("got %d labels and warnings %q, want %d and %q",
					len(evacuation.Labels), warnings, tt.want, tt.warn)
			}
			if errs := size.Validate(registrytest.Scheme, evacuation); len(errs) > 0 {
				t.Errorf("the Evacuation that the server creates is invalid: %v", errs)
			}
		})
	}
}

func TestAdmitIgnoresOtherRequests(t *testing.T) {
	for _, r := range []request{
		{operation: admission.Update, object: newEvacuation(), old: newEvacuation()},
		{operation: admission.Update, subresource: "status", object: newEvacuation(), old: newEvacuation()},
		{operation: admission.Delete, old: newEvacuation()},
	} {
		f := newFixture(t, nil, nil)
		if _, err := f.admit(r); err != nil {
			t.Errorf("%s %s: %v", r.operation, r.subresource, err)
		}
		if len(f.client.Actions()) > 0 || len(f.authz.asked) > 0 {
			t.Errorf("%s %s: got reads %v and questions %q, want none",
				r.operation, r.subresource, f.client.Actions(), f.authz.asked)
		}
	}
	f := newFixture(t, nil, nil)
	other := admission.NewAttributesRecord(&maintenance.NodeMaintenance{}, nil,
		v1alpha1.SchemeGroupVersion.WithKind("NodeMaintenance"), "", "x",
		v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances"), "", admission.Create, nil, false, ann)
	if err := errors.Join(f.Admit(t.Context(), other, nil), f.Validate(t.Context(), other, nil)); err != nil {
		t.Errorf("create a NodeMaintenance: %v", err)
	}
}

func TestOwnersThatPodsShareAreReadOnce(t *testing.T) {
	deployment, replicaSet := newDeployment()
	f := newFixture(t, protocol.BuiltInClasses, []string{deletePod, scaleWeb},
		newPod(ownedBy("apps/v1", "ReplicaSet", "web-6b59", "replicaset")), deployment, replicaSet)
	reads := map[string]int{}
	f.client.PrependReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		reads[action.GetResource().Resource]++
		return false, nil, nil
	})
	evacuators := func() []maintenance.Evacuator {
		t.Helper()
		evacuation := newEvacuation()
		must.Get(f.admit(request{object: evacuation}))(t)
		return evacuation.Spec.Evacuators
	}
	for range 3 {
		if got := evacuators(); len(got) != 1 || got[0].EvacuatorClass != "deployment.apps.k8s.io" {
			t.Fatalf("got evacuators %v, want deployment.apps.k8s.io", got)
		}
	}
	if reads["replicasets"] != 1 || reads["deployments"] != 1 || reads["pods"] != 3 {
		t.Errorf("got reads %v, want one of each owner and three of the pod", reads)
	}

	// A recreated owner has another UID. The pod must get its evacuator even if the plugin has
	// cached the previous owner.
	update := func(resource schema.GroupVersionResource, object runtime.Object) {
		t.Helper()
		must.Do(t, f.client.Tracker().Update(resource, object, "blue"))
	}
	deployment, replicaSet = newDeployment()
	deployment.UID, replicaSet.UID = "new", "new-too"
	replicaSet.OwnerReferences[0].UID = "new"
	update(appsv1.SchemeGroupVersion.WithResource("deployments"), deployment)
	update(appsv1.SchemeGroupVersion.WithResource("replicasets"), replicaSet)
	update(corev1.SchemeGroupVersion.WithResource("pods"),
		newPod(ownedBy("apps/v1", "ReplicaSet", "web-6b59", "new-too")))
	if got := evacuators(); len(got) != 1 || got[0].EvacuatorClass != "deployment.apps.k8s.io" {
		t.Errorf("got evacuators %v with recreated owners, want deployment.apps.k8s.io", got)
	}
}

func TestOwnersWithoutSurgeAreReadOncePerTTL(t *testing.T) {
	synctest.Test(t, testOwnersWithoutSurge)
}

func testOwnersWithoutSurge(t *testing.T) {
	t.Helper()
	deployment, replicaSet := newDeployment()
	deployment.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
	f := newFixture(t, protocol.BuiltInClasses, []string{deletePod, scaleWeb},
		newPod(ownedBy("apps/v1", "ReplicaSet", "web-6b59", "replicaset")), deployment, replicaSet)
	reads := map[string]int{}
	f.client.PrependReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		reads[action.GetResource().Resource]++
		return false, nil, nil
	})
	evacuators := func() []maintenance.Evacuator {
		t.Helper()
		evacuation := newEvacuation()
		must.Get(f.admit(request{object: evacuation}))(t)
		return evacuation.Spec.Evacuators
	}
	for range 3 {
		if got := evacuators(); len(got) != 0 {
			t.Fatalf("got evacuators %v, want none", got)
		}
	}
	is.True(t, reads["replicasets"] == 1 && reads["deployments"] == 1, "got reads %v, want one of each owner", reads)

	deployment.Annotations = nil
	must.Do(t, f.client.Tracker().Update(appsv1.SchemeGroupVersion.WithResource("deployments"), deployment, "blue"))
	time.Sleep(time.Second) //nolint:forbidigo // the clock of the bubble moves immediately
	if got := evacuators(); len(got) != 1 || got[0].EvacuatorClass != "deployment.apps.k8s.io" {
		t.Errorf("got evacuators %v after a second, want deployment.apps.k8s.io", got)
	}
}
