// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestDecideNodeAgent covers static pods. Only the node agent of their node can stop them.
func TestDecideNodeAgent(t *testing.T) {
	const agent, silent = v1alpha1.EvacuatorClassKubelet, "EvacuatorNotProgressing"
	wasSilent := withCondition(v1alpha1.ConditionBlocked, silent, 0)
	static := func(s *situation) { s.podType, s.targeted = v1alpha1.PodTypeStatic, true }
	early := func(s *situation) { s.podType = v1alpha1.PodTypeStatic }
	completed := withStatus(func(st *v1alpha1.EvacuationStatus) { st.ActiveEvacuatorCompleted = true })
	runDecide(t, map[string]decideTest{
		"the agent has time to start": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), mod: static, at: 2 * minute,
			want: outcome{Active: agent, Wake: 2*minute + 30*second},
		},
		"an agent that does not start is reported": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), mod: static, at: 2*minute + 30*second,
			want: outcome{Active: agent, Blocked: silent, Wake: 5 * minute, Events: EventBlocked},
		},
		"an agent that has not started at the deadline stays active, and the pod is not evicted": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), wasSilent), pod: newPod(), mod: static, at: 5 * minute,
			want: outcome{Active: agent, Blocked: silent},
		},
		"the agent is still active days later": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), wasSilent), pod: newPod(), mod: static, at: 50 * hour,
			want: outcome{Active: agent, Blocked: silent},
		},
		"an agent that has reported stays active, too": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), reported(minute, "stopping")), pod: newPod(), mod: static,
			at:   31 * minute,
			want: outcome{Active: agent, Progress: minute, Blocked: silent, Events: EventBlocked},
		},
		"an agent that is back continues": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), wasSilent, reported(2*hour, "stopping")), pod: newPod(), mod: static,
			at:   2 * hour,
			want: outcome{Active: agent, Progress: 2 * hour, Blocked: "not: NotBlocked", Wake: 2*hour + 15*minute},
		},
		"an agent that declines has no successor": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), reported(minute, "no"), completed), pod: newPod(), mod: static,
			at:   minute,
			want: outcome{Active: evict, Since: minute, Blocked: "NoEvacuator", Events: EventBlocked},
		},
		"another evacuator of the pod follows": {
			evacuation: newEvacuation(withEvacuators(agent, classA), active(agent)), pod: newPod(), mod: static, at: 5 * minute,
			want: outcome{Active: classA, Since: 5 * minute, Wake: 7*minute + 30*second, Events: EventHandedOver},
		},
		"the deadline does not run before the drain reaches the pod": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), mod: early, at: 2*minute + 29*second,
			want: outcome{Active: agent, Wake: 2*minute + 30*second},
		},
		"the start of the deadline moves until the drain reaches the pod": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), mod: early, at: 5 * minute,
			want: outcome{Active: agent, Since: 5 * minute, Wake: 7*minute + 30*second},
		},
		"a pod that is not static and names the agent is evicted after the deadline": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), at: 5 * minute,
			mod:  func(s *situation) { s.targeted = true },
			want: outcome{Active: evict, Since: 5 * minute, Evict: true, Events: EventHandedOver},
		},
		"a pod that is not static and names the agent waits for no drain": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent)), pod: newPod(), at: 5 * minute,
			want: outcome{Active: evict, Since: 5 * minute, Evict: true, Events: EventHandedOver},
		},
		"a withdrawn Evacuation ends at the deadline although the agent forbids that": {
			evacuation: newEvacuation(withEvacuators(agent), active(agent), withFinalizers(), withStatus(
				func(st *v1alpha1.EvacuationStatus) { st.EvacuationCancellationPolicy = forbid })),
			pod: newPod(), mod: static, at: 5 * minute,
			want: outcome{Active: agent, Policy: forbid, Complete: "Cancelled", Release: releaseAll, Events: EventCancelled},
		},
	})
}

func TestMessageAboutANodeAgentThatVanished(t *testing.T) {
	s := situation{
		now: start.Add(hour), pod: newPod(), podType: v1alpha1.PodTypeStatic, targeted: true,
		evacuation: newEvacuation(
			withEvacuators(v1alpha1.EvacuatorClassKubelet), active(v1alpha1.EvacuatorClassKubelet),
		),
		startDeadline: DefaultEvacuatorStartDeadline,
	}
	blocked := meta.FindStatusCondition(decide(s).status.Conditions, v1alpha1.ConditionBlocked)
	const want = "Evacuator kubelet.k8s.io has not reported since it became active at 2000-01-01T00:00:00Z. It is the node agent of node node-7, " +
		"and nothing else can remove a static pod: check that haulout-node-agent runs there and look for the pod in its log, " +
		"or move the manifest of the pod away."
	is.True(t, blocked != nil && blocked.Message == want, "got condition %+v, want the message %q", blocked, want)
}
