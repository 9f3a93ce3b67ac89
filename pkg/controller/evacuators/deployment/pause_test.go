// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/deletioncost"
	"haulout.dev/haulout/pkg/drain/surge"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func paused(p *pod) { p.isPaused = true }

// covered makes a pod one that a maintenance covers, and whose Evacuation does not exist.
func covered(p *pod) { p.isCovered, p.staysUp = true, false }

func TestDecidePaused(t *testing.T) {
	const web1 = "uid-web-1-web-1"
	later, late := 9*time.Second, 24*time.Hour
	for name, tc := range map[string]struct {
		s    situation
		want string
	}{
		"no surge starts": {s: at(0, newDeployment(1), newTestPod("web-0", leaves(ours), paused))},
		"a surge starts for the pods of another maintenance": {
			s:    at(0, newDeployment(2, surging("2")), newTestPod("web-0", leaves(ours), paused), newTestPod("web-1", leaves(ours))),
			want: "scale to 3 for 1;",
		},
		"a surge is not widened": {
			s: at(later, newDeployment(3, surging("2"), recorded(2, 3, web0)),
				newTestPod("web-0", leaves(ours), minOne(3, 2)), newTestPod("web-1", leaves(ours), paused), newTestPod("web-2", fresh, unready)),
		},
		"a surge stays for a pod that the pause has withdrawn": {
			s: at(late, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", covered, paused), newTestPod("web-1", fresh)),
		},
		"a surge stays after the pause until the Evacuation is requested again": {
			s: at(late, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", covered), newTestPod("web-1", fresh)),
		},
		"a surge stays for a paused pod that was never in it": {
			s: at(late, newDeployment(3, recorded(2, 3, "gone")), newTestPod("web-0", covered, paused), newTestPod("web-1"), newTestPod("web-2", fresh)),
		},
		"a surge stays for a paused pod whose eviction never ends": {
			s: at(late, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", leaves(lanes), under(nil, ptrTo(0), 2, 2), paused), newTestPod("web-1", fresh)),
		},
		"a refused surge stays for a pod that the pause has withdrawn": {
			s: changed(at(later, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", covered, paused), newTestPod("web-1", fresh)),
				func(s *situation) { s.off = true }),
		},
		"a withdrawn pod has not left, so its replacement is available for another pod": {
			s: at(later, newDeployment(3, surging("1"), recorded(2, 3, web0, web1)),
				newTestPod("web-0", covered, paused), newTestPod("web-1", leaves(ours), reported(0), minOne(3, 3)), newTestPod("web-2", fresh)),
			want: "hand over web-1;",
		},
		"a surge stays for a pod that has begun": {
			s: at(late, newDeployment(2, recorded(1, 2, web0)), newTestPod("web-0", leaves(ours), reported(0), paused), newTestPod("web-1", fresh)),
		},
		"a pod with the lowest deletion cost is not scaled down": {
			s: at(later, newDeployment(2, recorded(1, 2, web0)),
				newTestPod("web-0", leaves(ours), reported(0), cheapest, paused), newTestPod("web-1", fresh)),
		},
		"a pod with a budget is not handed over": {
			s: at(later, newDeployment(2, recorded(1, 2, web0)),
				newTestPod("web-0", leaves(ours), reported(0), minOne(2, 2), paused), newTestPod("web-1", fresh)),
		},
		"the turn of a pod without a replacement does not end": {
			s: at(late, newDeployment(2, recorded(1, 2, web0)),
				newTestPod("web-0", leaves(ours), reported(0), paused), newTestPod("web-1", fresh, unready)),
		},
		"a pod whose budget never allows an eviction is not declined": {
			s: at(later, newDeployment(1), newTestPod("web-0", leaves(ours), reported(0), under(nil, ptrTo(0), 1, 1), paused)),
		},
		"the pod of another maintenance is handed over, since a scale-down could delete the paused pod": {
			s: at(later, newDeployment(4, surging("2"), recorded(2, 4, web0, web1)),
				newTestPod("web-0", leaves(ours), reported(0), paused), newTestPod("web-1", leaves(ours), reported(0)),
				newTestPod("web-2", fresh), newTestPod("web-3", fresh)),
			want: "hand over web-1;",
		},
		"a pod of another maintenance that never leaves by eviction waits": {
			s: at(later, newDeployment(4, surging("2"), recorded(2, 4, web0, web1), always),
				newTestPod("web-0", leaves(ours), reported(0), paused), newTestPod("web-1", leaves(ours), reported(0), under(nil, ptrTo(0), 4, 4)),
				newTestPod("web-2", fresh), newTestPod("web-3", fresh)),
		},
		"a surge for others does not end by a scale-down that could delete a paused pod": {
			s: at(later, newDeployment(3, surging("1"), recorded(2, 3, web1)),
				newTestPod("web-0", leaves(ours), reported(0), cheapest, paused), newTestPod("web-1", leaves(ours), reported(0), cheapest),
				newTestPod("web-2", fresh)),
			want: "hand over web-1;",
		},
		"a surge is not taken back if that could delete a paused pod": {
			s: at(later, newDeployment(3, surging("1"), recorded(2, 3, web1)),
				newTestPod("web-0", leaves(ours), reported(0), paused), newTestPod("web-1"), newTestPod("web-2", fresh)),
		},
		"a blocked pod is not taken up again": {
			s: at(late, newDeployment(1), newTestPod("web-0", leaves(lanes), blocked, paused)),
		},
		"a refused surge stays for a paused pod, and the next evacuator of another pod becomes active": {
			s: changed(at(later, newDeployment(3, surging("1"), recorded(2, 3, web0, web1)),
				newTestPod("web-0", leaves(ours), reported(0), paused), newTestPod("web-1", leaves(ours), reported(0)),
				newTestPod("web-2", fresh)), func(s *situation) { s.off = true }),
			want: "hand over web-1;",
		},
	} {
		t.Run(name, func(t *testing.T) { is.Equal(t, summary(decide(tc.s)), tc.want) })
	}
}

// TestIsPaused covers the moment after the resume, in which the deadlines of the Evacuation have
// not been restarted.
func TestIsPaused(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid-node-1"}}
	maintenance := func(paused bool) *v1alpha1.NodeMaintenance {
		return &v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("paused-%t", paused)},
			Spec:       v1alpha1.NodeMaintenanceSpec{Stage: v1alpha1.NodeMaintenanceStageDrain, Paused: paused},
			Status: v1alpha1.NodeMaintenanceStatus{NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{{
				NodeRef:      v1alpha1.NodeReference{Name: node.Name, UID: node.UID},
				DrainTargets: []v1alpha1.DrainPlanEntry{{PodType: v1alpha1.PodTypeDefault, PodPriority: 1000}},
			}}},
		}
	}
	told := func(p *pod) {
		p.evacuation.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionBlocked, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPaused,
		}}
	}
	important := func(p *pod) { p.Spec.Priority = ptr.To[int32](1001) }
	foreign := func(p *pod) {
		p.evacuation.Finalizers = append(p.evacuation.Finalizers, v1alpha1.FinalizerInstigatorPrefix+"autoscaler.example.com")
	}
	evicted := func(p *pod) {
		p.evacuation.Finalizers = append(p.evacuation.Finalizers, v1alpha1.FinalizerInstigatorRawEviction)
	}
	for name, tc := range map[string]struct {
		by        []*v1alpha1.NodeMaintenance
		mods      []podMod
		withdrawn bool
		want      bool
	}{
		"no maintenance":                          {},
		"a maintenance":                           {by: []*v1alpha1.NodeMaintenance{maintenance(false)}},
		"a paused maintenance":                    {by: []*v1alpha1.NodeMaintenance{maintenance(true)}, want: true},
		"a paused maintenance, and another one":   {by: []*v1alpha1.NodeMaintenance{maintenance(true), maintenance(false)}},
		"a paused maintenance, and an autoscaler": {by: []*v1alpha1.NodeMaintenance{maintenance(true)}, mods: []podMod{foreign}},
		"a paused maintenance, and an eviction":   {by: []*v1alpha1.NodeMaintenance{maintenance(true)}, mods: []podMod{evicted}, want: true},
		"a maintenance that was paused a moment ago": {
			by: []*v1alpha1.NodeMaintenance{maintenance(false)}, mods: []podMod{told}, want: true,
		},
		"withdrawn, no maintenance":      {withdrawn: true},
		"withdrawn, a maintenance":       {by: []*v1alpha1.NodeMaintenance{maintenance(false)}, withdrawn: true},
		"withdrawn, a paused one":        {by: []*v1alpha1.NodeMaintenance{maintenance(true)}, withdrawn: true, want: true},
		"withdrawn, and another asks":    {by: []*v1alpha1.NodeMaintenance{maintenance(true), maintenance(false)}, withdrawn: true},
		"not reached by the paused plan": {by: []*v1alpha1.NodeMaintenance{maintenance(true)}, mods: []podMod{important}, withdrawn: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPod("web-0", append([]podMod{leaves(ours)}, tc.mods...)...)
			if tc.withdrawn {
				p.evacuation = nil
			}
			is.Equal(t, drain{node: node, by: tc.by}.isPaused(p.Pod, p.evacuation), tc.want)
		})
	}
}

// pause pauses or resumes all pods that are asked to leave. Those without a report are withdrawn,
// as the nodemaintenance controller does. At the resume the deadlines are restarted, and askAgain
// requests what was withdrawn.
func (w *simulation) pause(pause bool) {
	w.log = append(w.log, fmt.Sprintf("paused: %t", pause))
	for i := range w.pods {
		p := &w.pods[i]
		switch {
		case p.evacuation == nil:
			p.isPaused = false
		case pause && !p.isEvicting && (p.evacuation.Status.EvacuationProgressTimestamp == nil || p.evacuation.Status.ActiveEvacuatorClass == lanes):
			p.evacuation, p.isPaused, p.isCovered = nil, true, true
		case pause:
			p.isPaused = true
		case p.isPaused:
			p.isPaused = false
			p.evacuation = p.evacuation.DeepCopy()
			p.evacuation.Status.ActiveEvacuatorSince = &metav1.Time{Time: w.now}
		}
	}
}

// askAgain asks the pods to leave that a pause has withdrawn.
func (w *simulation) askAgain() {
	for i := range w.pods {
		if p := &w.pods[i]; p.isCovered {
			p.isCovered = false
			leaves(ours)(p)
			p.evacuation.Status.ActiveEvacuatorSince = &metav1.Time{Time: w.now}
		}
	}
}

// TestPausesDoNotRemovePods pauses a Deployment of a simulation at random moments. During a pause,
// and until the withdrawn Evacuations are requested again, no paused pod leaves: neither by a
// scale-down, nor by an eviction that was not in flight before. In the end all pods that were asked
// to leave have left, as without a pause.
func TestPausesDoNotRemovePods(t *testing.T) {
	for seed := range uint64(300) {
		w := newSimulation(t, seed)
		w.calm = true
		for range 30 {
			for range 8 {
				w.step()
			}
			w.pause(true)
			// A scale-down that was written before the pause takes effect.
			w.replicaSet()
			stay := w.names(func(p *pod) bool { return p.isPaused && !p.isEvicting })
			for range w.rng.IntN(60) {
				w.now = w.now.Add(10 * time.Second)
				w.replicaSet()
				w.kubelet()
				w.us(true)
			}
			w.mustHave("during a pause", stay)
			w.pause(false)
			stay = w.names(func(p *pod) bool { return p.isCovered && (&situation{}).isAvailable(p) })
			for range w.rng.IntN(4) {
				w.us(true)
				w.replicaSet()
			}
			w.mustHave("after a pause", stay)
			w.askAgain()
		}
		w.settle()
		is.Equal(t, surge.Replicas(w.d), w.wish, fmt.Sprintf("replicas in the end, seed %d", seed))
		for i := range w.pods {
			p := &w.pods[i]
			if deletioncost.IsLowered(p.Pod) && p.evacuation == nil {
				w.fail("seed %d: %s ends with a lowered cost", seed, p.Name)
			}
			if p.evacuation != nil && !(w.budget > 0 && w.ready() <= w.budget) {
				w.fail("seed %d: %s has not left: %s", seed, p.Name, p.evacuation.Status.Message)
			}
		}
	}
}

// names returns the names of the pods that satisfy a condition.
func (w *simulation) names(matches func(*pod) bool) []string {
	var names []string
	for i := range w.pods {
		if p := &w.pods[i]; matches(p) {
			names = append(names, p.Name)
		}
	}
	return names
}

// mustHave fails unless all pods are there, and no other evacuator was made active for them.
func (w *simulation) mustHave(when string, names []string) {
	w.t.Helper()
	kept := w.names(func(p *pod) bool { return p.evacuation == nil || p.evacuation.Status.ActiveEvacuatorClass == ours })
	for _, name := range names {
		if !slices.Contains(kept, name) {
			w.fail("%s has left %s", name, when)
		}
	}
}

// TestPausedMaintenanceKeepsTheSurge follows a surge whose pod a pause has withdrawn. At its end
// the maintenance neither releases the node nor is paused, so no event tells that it is over.
func TestPausedMaintenanceKeepsTheSurge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nm := drains("rack-7", "")
		nm.Spec.Paused = true
		w := newWorld(t, []runtime.Object{nm}, newDeployment(2, recorded(1, 2, web0)), newReplicaSet(),
			newTestPod("web-0", on("drained")).Pod, newTestPod("web-1", on("good"), fresh).Pod, newNode("drained", true), newNode("good", false))
		<-time.After(10 * time.Minute)
		w.scaled(2, true)
		t.Log("the Evacuation of the pod is not requested again yet")
		nm = w.change(nm, func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = false })
		<-time.After(10 * time.Minute)
		w.scaled(2, true)
		w.change(nm, func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = v1alpha1.NodeMaintenanceStageComplete })
		<-time.After(coverRetry)
		w.scaled(1, false)
	})
}

// TestNoScaleDownAfterAPause takes a surge back, and pauses the maintenance in the last moment,
// while the controller tries once more to write a deletion cost that a policy refuses.
func TestNoScaleDownAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, nm := newTestPod("web-0", leaves(ours), on("drained"), cheapest), drains("rack-7", "")
		d := newDeployment(2, recorded(1, 2, web0))
		d.Annotations[v1alpha1.AnnotationSurge] = v1alpha1.SurgeDisabled
		w := newUnstartedWorld(t, []runtime.Object{p.evacuation, nm}, d, newReplicaSet(), p.Pod,
			newTestPod("web-1", on("good"), fresh).Pod, newNode("drained", true), newNode("good", false))
		began := time.Now()
		w.host.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			if !nm.Spec.Paused && time.Since(began) >= costPatience {
				nm = w.change(nm, func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = true })
				synctest.Wait()
			}
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "web-0", errors.New("a policy refuses it"))
		})
		w.run()
		<-time.After(10 * time.Minute)
		is.True(t, nm.Spec.Paused, "the maintenance was not paused")
		w.scaled(2, true)
		w.change(nm, func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Paused = false })
		<-time.After(2 * costPatience)
		w.scaled(1, false)
	})
}

// TestNoScaleDownIfNoMaintenanceAsks follows surges whose maintenance ends in the last moment. The
// Evacuation is not withdrawn yet.
func TestNoScaleDownIfNoMaintenanceAsks(t *testing.T) {
	for name, budgets := range map[string][]runtime.Object{"under a budget": {newBudget()}, "without a budget": nil} {
		bubble.Run(t, name, func(t *testing.T) {
			var asks atomic.Bool
			evacuations, host := scene(budgets...)
			w := newUnstartedWorld(t, evacuations, host...)
			w.asks = func(*v1alpha1.Evacuation) bool { return asks.Load() }
			w.run()
			w.scaled(2, true)
			w.create(newTestPod("web-1", on("good"), fresh))
			if len(budgets) > 0 {
				w.allows(2)
			}
			<-time.After(time.Minute)
			w.scaled(2, true)
			w.c.removals.Lock()
			is.Equal(t, len(w.c.removals.byDeployment), 0, "scale-downs for which evictions wait")
			w.c.removals.Unlock()
			asks.Store(true)
			w.scaled(1, false)
		})
	}
}

// change changes a NodeMaintenance.
func (w *world) change(nm *v1alpha1.NodeMaintenance, change func(*v1alpha1.NodeMaintenance)) *v1alpha1.NodeMaintenance {
	w.Helper()
	nm = nm.DeepCopy()
	change(nm)
	return must.Get(w.own.MaintenanceV1alpha1().NodeMaintenances().Update(w.Context(), nm, metav1.UpdateOptions{}))(w)
}
