// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestACreationThatArrivesLate: the answer to the creation of a maintenance is lost, and it is
// stored half a minute later. No other unit gets its place meanwhile.
func TestACreationThatArrivesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout())
		w.scripts["a"], w.scripts["b"] = drainStuck, drainStuck
		var lost atomic.Pointer[v1alpha1.NodeMaintenance]
		w.api.PrependReactor("create", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
			nm := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance).DeepCopy()
			if !lost.CompareAndSwap(nil, nm) {
				return false, nil, nil
			}
			return true, nil, errors.New("etcdserver: request timed out")
		})
		w.start()
		w.until("a creation is lost", 0, func() bool { return lost.Load() != nil })
		first := lost.Load()
		w.rest(30 * time.Second)
		for _, nm := range w.maintenances() {
			is.Equal(t, nm.Name, first.Name, "a maintenance while another one may still be stored")
		}
		if w.maintenance(first.Name) == nil {
			first.UID, first.ResourceVersion, first.Generation = "uid-late", "7", 1
			must.Do(t, w.api.Tracker().Create(v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances"), first, ""))
		}
		w.rest(5 * time.Minute)
		is.Equal(t, len(w.maintenances()), 1, "maintenances")
		w.scripts["a"], w.scripts["b"] = "", ""
		w.untilReason(v1alpha1.ReasonRolloutComplete)
	})
}

// TestALostCreationIsGivenUp: no answer comes, and nothing is stored. The other unit starts after a
// minute, and immediately if the API refuses.
func TestALostCreationIsGivenUp(t *testing.T) {
	for name, test := range map[string]struct {
		err      error
		from, to time.Duration
	}{
		"no answer": {errors.New("etcdserver: request timed out"), time.Minute, 2 * time.Minute},
		"refused":   {apierrors.NewForbidden(v1alpha1.Resource("nodemaintenances"), "kernel-a-1", errors.New("no")), 0, 10 * time.Second},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, newNode("a"), newNode("b"), newRollout())
			w.api.PrependReactor("create", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
				nm := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance)
				return nm.Annotations[v1alpha1.AnnotationRolloutUnit] == "a", nil, test.err
			})
			w.start()
			began := time.Now()
			w.until("the other unit starts", time.Second, func() bool { return len(w.maintenances()) > 0 })
			is.Equal(t, w.maintenances()[0].Name, "kernel-b-1")
			took := time.Since(began)
			is.True(t, took >= test.from && took <= test.to, "unit b started after %s", took)
		})
	}
}
