// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// unable is a Local that cannot end pods on this machine.
type unable struct{ Local }

func (unable) End(context.Context, state.Local, time.Time, func(state.Local, []state.KilledPod) bool) error {
	return fmt.Errorf("%w: the runtime does not answer", ErrNothingToEnd)
}

// If the engine cannot end pods on a machine, the machine goes down immediately after the agent has
// reported this to the cluster.
func TestNothingCanBeEnded(t *testing.T) {
	scenario(t, func(w *world) {
		w.configure = func(c *Config) {
			c.Local = unable{c.Local}
			c.Limited = func() (string, string) { return ReasonKubeletUnit, "it is another unit's" }
		}
	}, func(w *world) {
		w.wait(20 * time.Second)
		for _, of := range []corev1.NodeConditionType{v1alpha1.NodeConditionAgentReady, v1alpha1.NodeConditionAgentRunning} {
			if c := w.condition(of); c.Status != corev1.ConditionFalse || c.Reason != ReasonKubeletUnit {
				t.Errorf("condition %+v, want False with reason %s", c, ReasonKubeletUnit)
			}
		}
		w.set(func() {
			w.mode = apiDown
			for _, pod := range w.pods {
				pod.alive = false // the machine has no container runtime
			}
		})
		w.request()
		w.wait(time.Minute)
		expect(t, "releases", 1, len(w.releases))
		expect(t, "the kubelet runs", true, w.kubelet)
	})
}
