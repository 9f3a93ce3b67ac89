// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func TestConditionWrites(t *testing.T) {
	scenario(t, nil, func(w *world) {
		w.wait(21 * time.Minute)
		ready, running := v1alpha1.NodeConditionAgentReady, v1alpha1.NodeConditionAgentRunning
		// The agent writes each condition at the start, when it knows the state of the machine, and
		// as a heartbeat every five minutes. The heartbeat of the condition that the server needs
		// is every minute.
		counts := map[corev1.NodeConditionType]int{}
		for _, c := range w.written {
			counts[c.Type]++
		}
		if counts[ready] < 21 || counts[ready] > 23 || counts[running] < 5 || counts[running] > 7 || counts[inProgress] < 5 || counts[inProgress] > 6 {
			t.Errorf("%d, %d and %d writes in 21 minutes", counts[ready], counts[running], counts[inProgress])
		}
		if c := w.condition(ready); c.Status != corev1.ConditionTrue || c.Message != "haulout-node-agent v1; delays shutdowns by up to 5m0s" {
			t.Errorf("condition %+v", c)
		}
		before := len(w.written)
		w.set(func() {
			for range 100 {
				w.addPod(0, false)
			}
		})
		w.request()
		w.wait(2 * time.Minute)
		if n := len(w.written) - before; n > 2*60/10+6 {
			t.Errorf("%d writes in two minutes of a drain, at most one in ten seconds is allowed", n)
		}
		w.vanish(false)
	})
}

func TestLastConditionIsWritten(t *testing.T) {
	scenario(t, func(w *world) { w.latency = 500 * time.Millisecond }, func(w *world) {
		w.mu.Lock()
		p := w.process
		w.mu.Unlock()
		w.request()
		<-p.manager.Down()
		p.cancel()
		<-p.done
		expect(t, "reason", ReasonReleasing, w.condition(inProgress).Reason)
	})
}

func TestMetrics(t *testing.T) {
	scenario(t, func(w *world) { w.mode, w.engineOK = apiDown, false }, func(w *world) {
		w.request()
		w.wait(2*time.Minute + 100*time.Millisecond)
		want := `
# HELP haulout_node_agent_lock_held [ALPHA] 1 while the node agent delays shutdowns of the machine, else 0.
# TYPE haulout_node_agent_lock_held gauge
haulout_node_agent_lock_held 1
# HELP haulout_node_agent_pods [ALPHA] Pods on the node, by the lowest priority of their bucket in the configured table.
# TYPE haulout_node_agent_pods gauge
haulout_node_agent_pods{bucket="0"} 2
haulout_node_agent_pods{bucket="2000000000"} 1
# HELP haulout_node_agent_problems [ALPHA] Problems that the node agent reports in the node condition NodeAgentReady.
# TYPE haulout_node_agent_problems gauge
haulout_node_agent_problems 1
# HELP haulout_node_agent_shutdown_delay_seconds [ALPHA] Maximum time that the machine waits for the node agent before it shuts down.
# TYPE haulout_node_agent_shutdown_delay_seconds gauge
haulout_node_agent_shutdown_delay_seconds 300
# HELP haulout_node_agent_shutdown_phase [ALPHA] 1 for the current phase of the shutdown, else 0. Armed means that no shutdown is pending.
# TYPE haulout_node_agent_shutdown_phase gauge
haulout_node_agent_shutdown_phase{phase="Armed"} 0
haulout_node_agent_shutdown_phase{phase="Cancelled"} 0
haulout_node_agent_shutdown_phase{phase="Detected"} 0
haulout_node_agent_shutdown_phase{phase="Down"} 0
haulout_node_agent_shutdown_phase{phase="Evicting"} 0
haulout_node_agent_shutdown_phase{phase="Local"} 1
haulout_node_agent_shutdown_phase{phase="Maintaining"} 0
haulout_node_agent_shutdown_phase{phase="Releasing"} 0
`
		err := testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "haulout_node_agent_lock_held", "haulout_node_agent_pods",
			"haulout_node_agent_problems", "haulout_node_agent_shutdown_delay_seconds", "haulout_node_agent_shutdown_phase")
		if err != nil {
			t.Error(err)
		}
		status := w.process.manager.Status()
		if status.TimeLeft > 181*time.Second || status.TimeLeft < 178*time.Second || !strings.Contains(status.Why, "has not answered") {
			t.Errorf("status %+v", status)
		}
	})
}

// An agent that has just started does not know yet whether it can stop static pods. The condition
// of the earlier process stays: a drain would end without these pods.
func TestTheConditionOfAnEarlierProcessStays(t *testing.T) {
	ready := v1alpha1.NodeConditionAgentReady
	scenario(t, func(w *world) {
		w.configure = func(c *Config) { c.StaticPodProblem = func() string { return "not known yet" } }
	}, func(w *world) {
		w.wait(20 * time.Second)
		expect(t, "status", "", w.condition(ready).Status)
		w.wait(time.Minute)
		expect(t, "status", corev1.ConditionFalse, w.condition(ready).Status)
	})
}
