// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodemaintenance

import (
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/nodestate"
)

func TestRefusedJoinsAreBlockers(t *testing.T) {
	evacuation := v1alpha1.SchemeGroupVersion.WithKind("Evacuation").GroupKind()
	for name, tt := range map[string]struct {
		answer  error
		blocked int32
	}{
		"a join that is invalid": {apierrors.NewInvalid(evacuation, "p", nil), 1},
		"a join that admission forbids": {
			apierrors.NewForbidden(v1alpha1.Resource("evacuations"), "p", nil), 1,
		},
		"a join that conflicts with another write": {
			apierrors.NewConflict(v1alpha1.Resource("evacuations"), "p", nil), 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, newNode("one"), newPod("p", "one", 0), newMaintenance("m"),
					ourEvacuation("p", "one", instigatedBy(foreignInstigator)))
				refuses := true
				f.maintenance.PrependReactor("patch", "evacuations", func(clienttesting.Action) (bool, runtime.Object, error) {
					return refuses, nil, tt.answer
				})
				for range 3 {
					f.step("m")
					f.wait(nodestate.RequestPatience)
				}
				f.step("m")
				got := f.nodeStatus("m", "one")
				if got.PodsBlocked != tt.blocked || got.PodsEvacuating != 1 ||
					strings.Contains(got.DrainMessage, "such as default/p: join evacuation ") != (tt.blocked > 0) {
					t.Errorf("got status %+v, want %d blocked pods", got, tt.blocked)
				}
				if tt.blocked > 0 {
					f.wantProgressing("m", metav1.ConditionFalse, v1alpha1.ReasonProgressBlocked)
				}
				refuses = false
				f.wait(8 * nodestate.RequestPatience)
				f.step("m")
				f.wait(statusPace)
				f.step("m")
				if got := f.nodeStatus("m", "one"); got.PodsBlocked != 0 || !nodestate.IsOurs(f.evacuationList()[0]) {
					t.Errorf("got status %+v after the join was accepted, want no blocked pod", got)
				}
			})
		})
	}
}

func TestRequestsForEvacuationsNameTheMaintenance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, newNode("one"), newPod("p", "one",
			0), newMaintenance("m", func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Reason = "kernel\nupdate"
		}))
		f.step("m")
		for _, e := range f.evacuationList() {
			if got := e.Annotations[v1alpha1.AnnotationLeavesFor]; got != "NodeMaintenance m (kernel update)" {
				t.Errorf("got message %q of the request", got)
			}
		}
		f.wantEvacuating("p")
	})
}
