// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// chaos interrupts the controller at random: requests fail, with or without an effect, leaders
// change, and users hold the rollout and let it go on.
type chaos struct {
	*world
	// users is used by the test, and network by the reactors of the fake cluster, which it locks.
	users, network *rand.Rand
	quiet          atomic.Bool
	most           int
}

func newChaos(t *testing.T, seed uint64) *chaos {
	t.Helper()
	inRack := func(rack string) func(*corev1.Node) { return func(n *corev1.Node) { n.Labels["rack"] = rack } }
	w := newWorld(t, newNode("a", inRack("1")), newNode("b", inRack("2")), newNode("c", inRack("1")), newNode("d", inRack("2")), newNode("e"),
		newRollout(func(r *v1alpha1.NodeMaintenanceRollout) {
			r.Spec.ProgressDeadlineSeconds = new(int32(604800))
			switch seed % 3 {
			case 1:
				r.Spec.UnitKey = "rack"
			case 2:
				r.Spec.SoakSeconds = 20
				r.Spec.Windows = []v1alpha1.RolloutWindow{{Schedule: "*/2 * * * *", Duration: metav1.Duration{Duration: time.Minute}}}
			}
		}))
	c := &chaos{world: w, users: rand.New(rand.NewPCG(seed, 1)), network: rand.New(rand.NewPCG(seed, 2))}
	w.api.PrependReactor("create", "nodemaintenances", c.create)
	w.api.PrependReactor("patch", "nodemaintenances", c.lose)
	w.api.PrependReactor("update", "nodemaintenancerollouts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "status" {
			return false, nil, nil
		}
		return c.lose(action)
	})
	w.played = c.interrupt
	w.start()
	return c
}

var errLost = errors.New("connection lost")

// lose loses a request.
func (c *chaos) lose(clienttesting.Action) (bool, runtime.Object, error) {
	return !c.quiet.Load() && c.network.IntN(4) == 0, nil, errLost
}

// create loses a request, or only its answer.
func (c *chaos) create(action clienttesting.Action) (bool, runtime.Object, error) {
	if c.quiet.Load() || c.network.IntN(2) == 0 {
		return false, nil, nil
	}
	if c.network.IntN(2) == 0 {
		nm := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance).DeepCopy()
		nm.UID, nm.ResourceVersion, nm.Generation = types.UID("uid-of-"+nm.Name), "5", 1
		err := c.api.Tracker().Create(action.GetResource(), nm, "")
		is.True(c, err == nil || apierrors.IsAlreadyExists(err), "create %s: %v", nm.Name, err)
	}
	return true, nil, errLost
}

// interrupt does what users and failures do between two steps, and checks the limit.
func (c *chaos) interrupt() {
	out := map[string]bool{}
	for _, nm := range c.maintenances() {
		for _, name := range nodesOf(nm) {
			if !v1alpha1.IsDone(nm) {
				out[name] = true
			}
		}
	}
	c.most = max(c.most, len(out))
	tasks := must.Get(c.api.MaintenanceV1alpha1().NodeTasks().List(c.Context(), metav1.ListOptions{}))(c)
	for i := range tasks.Items {
		if task := &tasks.Items[i]; task.Status.State == v1alpha1.NodeTaskFailed && (c.quiet.Load() || c.users.IntN(4) == 0) {
			must.Do(c, c.api.MaintenanceV1alpha1().NodeTasks().Delete(c.Context(), task.Name, metav1.DeleteOptions{}))
		}
	}
	if c.quiet.Load() {
		return
	}
	switch c.users.IntN(12) {
	case 0:
		c.stop()
		c.start()
	case 1:
		c.change(func(spec *v1alpha1.NodeMaintenanceRolloutSpec) {
			spec.Holds = []v1alpha1.RolloutHold{{Name: "ceph", Stops: v1alpha1.RolloutHoldDrains}}
		})
	case 2, 3:
		c.change(func(spec *v1alpha1.NodeMaintenanceRolloutSpec) { spec.Holds = nil })
	case 4:
		c.scripts[string(rune('a'+c.users.IntN(5)))] = workFails
	case 5:
		clear(c.scripts)
	}
}

// TestRandomInterruptions: whatever is interrupted, each node makes one trip, and never more are
// out than the limit allows. A third of the rollouts has units of two nodes, and another third a
// soak time, and a window that opens every two minutes. E2E_FULL=1 runs 2,000 rollouts.
func TestRandomInterruptions(t *testing.T) {
	seeds := uint64(30)
	if value := os.Getenv("E2E_FULL"); value != "" && must.Get(strconv.ParseBool(value))(t) {
		seeds = 2000
	}
	for seed := range seeds {
		bubble.Run(t, fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := newChaos(t, seed)
			c.rest(2 * time.Minute)
			c.quiet.Store(true)
			clear(c.scripts)
			c.change(func(spec *v1alpha1.NodeMaintenanceRolloutSpec) { spec.Holds = nil })
			c.untilReason(v1alpha1.ReasonRolloutComplete)
			is.True(t, c.most <= 2, "%d nodes were out, want at most 2", c.most)
			trips := map[string]int{}
			for _, nm := range c.maintenances() {
				for _, name := range nodesOf(nm) {
					if next.OutcomeOf(nm) == next.Done {
						trips[name]++
					}
				}
			}
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				is.Equal(t, trips[name], 1, "trips of node "+name)
			}
		})
	}
}
