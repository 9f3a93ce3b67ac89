// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestTheCostOfADecisionGrowsWithThePods compares the allocations of a decision about a surge with
// those for twice as many pods. Most functions that iterate over all pods allocate.
func TestTheCostOfADecisionGrowsWithThePods(t *testing.T) {
	allocations := func(pods int) float64 {
		s := manyLeaving(pods)
		is.True(t, len(decide(s).reports) > 0, "the decision reports nothing")
		return testing.AllocsPerRun(2, func() { decide(s) })
	}
	const pods = 800
	if few, many := allocations(pods), allocations(2*pods); many > 2.5*few {
		t.Errorf("a decision makes %v allocations for %d pods, and %v for twice as many", few, pods, many)
	}
}

// manyLeaving returns the situation of a Deployment whose pods all leave, and whose replacements
// for a quarter of them are available.
func manyLeaving(pods int) situation {
	extra := pods / 4
	all, names := make([]pod, 0, pods+extra), make([]string, 0, pods)
	budget := under(nil, percent("10%"), int32(pods+extra), int32(pods+extra))
	for i := range pods {
		p := newTestPod(fmt.Sprintf("web-%04d", i), leaves(ours), budget)
		all, names = append(all, p), append(names, p.evacuation.Name)
	}
	for i := range extra {
		all = append(all, newTestPod(fmt.Sprintf("web-new-%04d", i), fresh, budget))
	}
	return at(time.Minute, newDeployment(int32(pods+extra), recorded(int32(pods), int32(pods+extra), names[:min(pods, maxRecorded)]...)), all...)
}

// TestFirstReportsOfManyPodsWait covers reports to pods that wait for others of their Deployment.
func TestFirstReportsOfManyPodsWait(t *testing.T) {
	for name, tc := range map[string]struct {
		pods, gone int
		want       time.Duration
	}{
		"some pods":                        {100, 0, sayFirst},
		"hundreds of pods":                 {600, 0, time.Minute},
		"hundreds of pods, most have left": {250, 350, time.Minute},
		"thousands of pods":                {3000, 0, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			for _, after := range []time.Duration{tc.want - time.Second, tc.want} {
				s := manyLeaving(tc.pods)
				s.now, s.startDeadline, s.target.record.Gone = start.Add(after), 5*time.Minute, tc.gone
				says := slices.ContainsFunc(decide(s).reports, func(r report) bool { return !r.completed })
				is.Equal(t, says, after == tc.want, fmt.Sprintf("reports progress after %s", after))
			}
		})
	}
}

// TestWhatIsComputedOnceHoldsForEachPod compares, in the states of random simulations, the results
// that a decision computes once for all pods with those that it computes for one pod alone.
func TestWhatIsComputedOnceHoldsForEachPod(t *testing.T) {
	surges := 0
	for seed := range uint64(300) {
		w := newSimulation(t, seed)
		for range 100 {
			w.step()
			s := at(0, w.d, slices.Clone(w.pods)...)
			s.now, s.memory = w.now, w.memory
			r := s.target.record
			if !r.isUp() {
				continue
			}
			surges++
			shared, known := decision{}, s
			known.recordedPods()
			known.created()
			for i := range s.pods {
				p := &s.pods[i]
				is.Equal(t, known.isRecorded(p), slices.Contains(r.Evacuations, protocol.CanonicalName(p.Name, p.UID)), "the pod is in the record")
				if p.evacuation == nil {
					continue
				}
				alone, unknown := decision{}, s
				is.Equal(t, shared.endOf(known, p), alone.endOf(unknown, p), "the reason to end is")
			}
		}
	}
	is.True(t, surges > 100, "only %d states with a surge", surges)
}
