// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package previewer

import (
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestErrors(t *testing.T) {
	fails := func(resource string) func(*fixture) {
		return func(f *fixture) {
			f.kube.PrependReactor("list", resource, func(k8stesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("no"))
			})
		}
	}
	for name, fault := range map[string]func(*fixture){
		"nodes cannot be listed":      fails("nodes"),
		"namespaces cannot be listed": fails("namespaces"),
		"rights cannot be asked":      func(f *fixture) { f.host.err = errors.New("no") },
		"the selector of another maintenance is invalid": func(f *fixture) {
			f.others[0].Spec.NodeSelector.NodeSelectorTerms[0].MatchExpressions[0].Operator = "x"
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, node("blue", "blue"), pod("a", "blue"))
			f.others = []*v1alpha1.NodeMaintenance{maintenance("other", drain, "blue")}
			fault(f)
			out, err := f.preview(t.Context(), maintenance("nm", idle, "blue"))
			is.True(t, apierrors.IsInternalError(err) && out == nil, "got %v, %v", out, err)
		})
	}
}

// TestKindsThatTheServerMayNotRead covers a ClusterRole without the rights that this version of the
// server added.
func TestKindsThatTheServerMayNotRead(t *testing.T) {
	claiming, ofJob := pod("a", "blue"), pod("b", "blue")
	claiming.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	ofJob.OwnerReferences[0] = metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "backup", UID: "uid-job", Controller: ptr.To(true)}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web"}, Spec: appsv1.DeploymentSpec{Selector: selector}}
	deployment.Spec.Template.Spec.Volumes = claiming.Spec.Volumes
	replicaSet := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-rs", OwnerReferences: build.Owner("apps/v1", "Deployment", "web", "uid-web")},
		Spec:       appsv1.ReplicaSetSpec{Selector: selector},
	}
	bound := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "disk"},
	}
	for name, test := range map[string]struct {
		resources []string
		want      []string
	}{
		"it may read all":     {},
		"Jobs":                {resources: []string{"jobs"}, want: []string{"which Jobs fail"}},
		"claims":              {resources: []string{"persistentvolumeclaims"}, want: []string{"which pods can start again only"}},
		"volumes":             {resources: []string{"persistentvolumes"}, want: []string{"which pods can start again only"}},
		"Jobs and all claims": {resources: []string{"jobs", "persistentvolumeclaims"}, want: []string{"which Jobs fail", "which pods can start again only"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, node("blue", "blue"), claiming, ofJob, deployment, replicaSet, bound)
			f.evacuators = []string{v1alpha1.EvacuatorClassDeployment}
			for _, resource := range test.resources {
				f.kube.PrependReactor("get", resource, func(k8stesting.Action) (bool, runtime.Object, error) {
					return true, nil, apierrors.NewForbidden(corev1.Resource(resource), "", errors.New("no"))
				})
			}
			ctx, warnings := registrytest.WithWarnings(t.Context())
			out, err := f.preview(ctx, maintenance("nm", idle, "blue"))
			must.True(t, err == nil && len(names(out)) == 2, "got %+v, %v, want a preview of two pods", out, err)
			got := warnings.Texts()
			must.True(t, len(got) == len(test.want), "got warnings %q, want %q", got, test.want)
			for i, want := range test.want {
				is.True(t, strings.HasPrefix(got[i], "not known: "+want), "got warning %q, want it to begin with %q", got[i], want)
			}
		})
	}
}
