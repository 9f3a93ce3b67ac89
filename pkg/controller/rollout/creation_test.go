// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

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

// TestCreationsWithoutAnAnswer: the creation of a maintenance has no answer for ten minutes, and
// stores nothing. It is repeated, the condition says so, and no other unit starts.
func TestCreationsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout())
		var repaired atomic.Bool
		w.api.PrependReactor("create", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return !repaired.Load() && unitOf(action) == "a", nil, errors.New("etcdserver: request timed out")
		})
		w.start()
		w.rest(10 * time.Minute)
		is.Equal(t, len(w.maintenances()), 0, "maintenances")
		is.True(t, strings.Contains(w.message(), "; requests fail since ") && strings.Contains(w.message(), "request timed out"), "got the message %q", w.message())
		repaired.Store(true)
		w.untilReason(v1alpha1.ReasonRolloutComplete)
	})
}

// TestOtherUnitsAfterAFailedCreation: a unit whose creation has failed may not start again. Another
// one gets its place after a minute, and immediately if the API has refused, but not if the API
// refuses after a request without an answer.
func TestOtherUnitsAfterAFailedCreation(t *testing.T) {
	lost, refused := errors.New("etcdserver: request timed out"), apierrors.NewTooManyRequests("busy", 0)
	for name, test := range map[string]struct {
		errs     []error
		from, to time.Duration
	}{
		"no answer":                       {[]error{lost}, time.Minute, 70 * time.Second},
		"refused":                         {[]error{refused}, 0, 10 * time.Second},
		"refused, no answer":              {[]error{refused, lost}, 0, 10 * time.Second},
		"no answer, and refused the next": {[]error{lost, refused}, time.Minute, 70 * time.Second},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, newNode("a"), newNode("b"), newRollout())
			var tries atomic.Int32
			var left atomic.Bool
			w.api.PrependReactor("create", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
				if unitOf(action) != "a" {
					return false, nil, nil
				}
				n := int(tries.Add(1))
				if n == len(test.errs) {
					left.Store(true)
				}
				return true, nil, test.errs[min(n, len(test.errs))-1]
			})
			w.start()
			began := time.Now()
			w.until("the node leaves the pool", 0, func() bool { return left.Load() || len(w.maintenances()) > 0 })
			w.relabel("a", "green")
			w.until("the other unit starts", time.Second, func() bool { return len(w.maintenances()) > 0 })
			is.Equal(t, w.maintenances()[0].Name, "kernel-b-1")
			took := time.Since(began)
			is.True(t, took >= test.from && took <= test.to, "unit b started after %s", took)
		})
	}
}

// TestAUnitDoesNotStartAgainWithOtherNodes: one of the two nodes of a unit leaves the pool after a
// creation without an answer. The unit does not start with the other one, and no unit gets a place,
// before the maintenance of both can no longer appear.
func TestAUnitDoesNotStartAgainWithOtherNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rack := func(name string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels["rack"] = name } }
		w := newWorld(t, newNode("a", rack("1")), newNode("b", rack("1")), newNode("c", rack("2")), newNode("d", rack("2")), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Spec.UnitKey, r.Spec.Limits = "rack", []v1alpha1.RolloutLimit{{MaxUnavailable: ptr.To(intstr.FromInt32(2))}}
		}))
		var lost atomic.Bool
		w.api.PrependReactor("create", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
			return lost.CompareAndSwap(false, true), nil, errors.New("etcdserver: request timed out")
		})
		w.start()
		w.until("a creation is lost", 0, lost.Load)
		w.relabel("a", "green")
		w.relabel("c", "green")
		began := time.Now()
		w.until("a unit starts", time.Second, func() bool { return len(w.maintenances()) > 0 })
		took := time.Since(began)
		is.True(t, took >= 55*time.Second && took < 70*time.Second, "%s started after %s", w.maintenances()[0].Name, took)
		w.untilReason(v1alpha1.ReasonRolloutComplete)
	})
}

// TestARefusalAfterALeader: a leader ends while a creation has no answer. The next one is refused,
// which says nothing about that creation.
func TestARefusalAfterALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newNode("a"), newNode("b"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Status.Current = []v1alpha1.RolloutUnit{{
				Unit: "a", Maintenance: "kernel-a-1", Nodes: []v1alpha1.NodeReference{{Name: "a", UID: "uid-a"}},
				Phase: v1alpha1.RolloutPhaseStarting, Since: metav1.NewTime(time.Now()),
			}}
		}))
		w.api.PrependReactor("create", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return unitOf(action) == "a", nil, apierrors.NewTooManyRequests("busy", 0)
		})
		w.start()
		began := time.Now()
		w.until("the other unit starts", time.Second, func() bool { return len(w.maintenances()) > 0 })
		took := time.Since(began)
		is.True(t, took >= 55*time.Second && took < 2*time.Minute, "%s started after %s", w.maintenances()[0].Name, took)
	})
}

func unitOf(action clienttesting.Action) string {
	return action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance).Annotations[v1alpha1.AnnotationRolloutUnit]
}

// TestPlacesOfUnsettledUnits: the maintenances of two units may still appear. The node of one has
// left the pool, and the other unit has to wait for it. Neither loses its place within a minute,
// and a stopped rollout is not Ready before that.
func TestPlacesOfUnsettledUnits(t *testing.T) {
	for name, stage := range map[string]v1alpha1.RolloutStage{"goes on": v1alpha1.RolloutStageRoll, "is stopped": v1alpha1.RolloutStageComplete} {
		bubble.Run(t, name, func(t *testing.T) {
			entry := func(unit string) v1alpha1.RolloutUnit {
				return v1alpha1.RolloutUnit{
					Unit: unit, Maintenance: "kernel-" + unit + "-1", Nodes: []v1alpha1.NodeReference{{Name: unit, UID: types.UID("uid-" + unit)}},
					Phase: v1alpha1.RolloutPhaseStarting, Since: metav1.NewTime(time.Now()),
				}
			}
			w := newWorld(t, newNode("a"), newNode("b"), newNode("c", func(n *corev1.Node) { n.Labels["pool"] = "green" }), newNode("d"), newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
				r.Spec.Stage = stage
				r.Spec.Limits = []v1alpha1.RolloutLimit{{MaxUnavailable: ptr.To(intstr.FromInt32(2))}}
				r.Status.Current = []v1alpha1.RolloutUnit{entry("c"), entry("d")}
			}))
			for _, unit := range []string{"a", "b", "d"} {
				w.scripts[unit] = drainStuck
			}
			w.start()
			w.rest(40 * time.Second)
			var names []string
			for _, nm := range w.maintenances() {
				names = append(names, nm.Name)
			}
			isReady := meta.IsStatusConditionTrue(w.rollout().Status.Conditions, v1alpha1.ConditionReady)
			is.Equal(t, strings.Join(names, " "), "", "maintenances while others may still appear")
			is.Equal(t, len(w.rollout().Status.Current), 2, "units that keep their places")
			is.True(t, !isReady, "Ready while a maintenance may still appear")
			w.rest(2 * time.Minute)
			if stage == v1alpha1.RolloutStageRoll {
				is.Equal(t, len(w.maintenances()), 1, "maintenances of the first round")
			} else {
				is.Equal(t, len(w.maintenances()), 0, "maintenances of a stopped rollout")
				is.True(t, meta.IsStatusConditionTrue(w.rollout().Status.Conditions, v1alpha1.ConditionReady), "not Ready afterwards")
			}
		})
	}
}
