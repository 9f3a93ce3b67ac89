// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// TestDecideNodeAgent covers static pods, which only the node agent of their node can stop.
func TestDecideNodeAgent(t *testing.T) {
	const agent, silent = maintenancev1alpha1.EvacuatorClassKubelet, "EvacuatorNotProgressing"
	wasSilent := withCondition(maintenancev1alpha1.ConditionBlocked, silent, 0)
	static := func(s *situation) { s.podType, s.targeted = maintenancev1alpha1.PodTypeStatic, true }
	early := func(s *situation) { s.podType = maintenancev1alpha1.PodTypeStatic }
	completed := withStatus(func(st *maintenancev1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true })
	runDecide(t, map[string]decideTest{
		"the agent has time to start": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), mod: static, at: 2 * time.Minute,
			want: outcome{Active: agent, Policy: allow, Wake: 2*time.Minute + 30*time.Second},
		},
		"an agent that does not start is reported": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), mod: static, at: 2*time.Minute + 30*time.Second,
			want: outcome{Active: agent, Policy: allow, Blocked: silent, Wake: 5 * time.Minute, Events: EventBlocked},
		},
		"an agent that has not started at the deadline stays active, and the pod is not evicted": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), wasSilent), pod: newPod(), mod: static, at: 5 * time.Minute,
			want: outcome{Active: agent, Policy: allow, Blocked: silent},
		},
		"so it is days later": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), wasSilent), pod: newPod(), mod: static, at: 50 * time.Hour,
			want: outcome{Active: agent, Policy: allow, Blocked: silent},
		},
		"an agent that has reported stays active, too": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), reported(time.Minute, "stopping")), pod: newPod(), mod: static,
			at:   31 * time.Minute,
			want: outcome{Active: agent, Progress: time.Minute, Policy: allow, Blocked: silent, Events: EventBlocked},
		},
		"an agent that is back continues": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), wasSilent, reported(2*time.Hour, "stopping")), pod: newPod(), mod: static,
			at:   2 * time.Hour,
			want: outcome{Active: agent, Progress: 2 * time.Hour, Policy: allow, Blocked: "not: NotBlocked", Wake: 2*time.Hour + 15*time.Minute},
		},
		"an agent that declines has no successor": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), reported(time.Minute, "no"), completed), pod: newPod(), mod: static,
			at:   time.Minute,
			want: outcome{Active: evict, Since: time.Minute, Policy: allow, Blocked: "NoEvacuator", Events: EventBlocked},
		},
		"another evacuator of the pod follows": {
			evacuation: newEvacuation(withEvacuators(agent, classA), active(agent)), pod: newPod(), mod: static, at: 5 * time.Minute,
			want: outcome{Active: classA, Since: 5 * time.Minute, Policy: allow, Wake: 7*time.Minute + 30*time.Second, Events: EventHandedOver},
		},
		"before the drain reaches the pod no time runs": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), mod: early, at: 2*time.Minute + 29*time.Second,
			want: outcome{Active: agent, Policy: allow, Wake: 2*time.Minute + 30*time.Second},
		},
		"before the drain reaches the pod the start of the deadline moves": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), mod: early, at: 5 * time.Minute,
			want: outcome{Active: agent, Since: 5 * time.Minute, Policy: allow, Wake: 7*time.Minute + 30*time.Second},
		},
		"a pod that is not static and names the agent is evicted after the deadline": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), at: 5 * time.Minute,
			mod:  func(s *situation) { s.targeted = true },
			want: outcome{Active: evict, Since: 5 * time.Minute, Policy: allow, Evict: true, Events: EventHandedOver},
		},
		"a withdrawn Evacuation ends at the deadline although the agent forbids that": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), withFinalizers(), withStatus(
				func(st *maintenancev1alpha1.EvacuationStatus) { st.EvacuationCancellationPolicy = forbid })),
			pod: newPod(), mod: static, at: 5 * time.Minute,
			want: outcome{Active: agent, Policy: forbid, Complete: "Cancelled", Release: releaseAll, Events: EventCancelled},
		},
	})
}

func TestMessageAboutANodeAgentThatVanished(t *testing.T) {
	s := situation{
		now: start.Add(time.Hour), pod: newPod(), podType: maintenancev1alpha1.PodTypeStatic, targeted: true,
		evacuation: newEvacuation(
			withEvacuators(maintenancev1alpha1.EvacuatorClassKubelet), active(maintenancev1alpha1.EvacuatorClassKubelet),
		),
		startDeadline: DefaultEvacuatorStartDeadline,
	}
	blocked := meta.FindStatusCondition(decide(s).status.Conditions, maintenancev1alpha1.ConditionBlocked)
	const want = "Evacuator kubelet.k8s.io has not reported since it became active at 2000-01-01T00:00:00Z. It is the node agent of node node-7, " +
		"and nothing else can remove a static pod: check that haulout-node-agent runs there and what it says about the pod, " +
		"or move the manifest of the pod away."
	if blocked == nil || blocked.Message != want {
		t.Errorf("got condition %+v, want the message %q", blocked, want)
	}
}
