// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
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
		pods, gone, deployments int
		want                    time.Duration
	}{
		"some pods":                        {100, 0, 1, sayFirst},
		"some pods of several Deployments": {100, 0, 4, 40 * time.Second},
		"hundreds of pods":                 {600, 0, 1, time.Minute},
		"hundreds of pods, most have left": {250, 350, 1, time.Minute},
		"thousands of pods":                {3000, 0, 1, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			for _, after := range []time.Duration{tc.want - time.Second, tc.want} {
				s := manyLeaving(tc.pods)
				s.now, s.startDeadline, s.target.record.Gone = start.Add(after), 5*time.Minute, tc.gone
				s.tracked = tc.deployments
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
			known.replacements()
			for i := range s.pods {
				p := &s.pods[i]
				is.Equal(t, known.isRecorded(p), slices.Contains(r.Evacuations, protocol.CanonicalName(p.Name, p.UID)), "the pod is in the record")
				if p.evacuation == nil {
					continue
				}
				alone, unknown := decision{}, s
				is.Equal(t, shared.endOf(known, p, known.trouble), alone.endOf(unknown, p, unknown.trouble), "the reason to end is")
			}
		}
	}
	is.True(t, surges > 100, "only %d states with a surge", surges)
}

// BenchmarkIsSurging asks for a pod whether its Deployment surges, with the longest record.
func BenchmarkIsSurging(b *testing.B) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web"}}
	r := record{UID: d.UID, From: 5625, To: 5825, Keep: 5625, Since: &metav1.Time{Time: time.Unix(0, 0)}}
	for i := range maxRecorded {
		r.Evacuations = append(r.Evacuations, fmt.Sprintf("web-7c9f6d5b8c-%05d-0a1b2c3d", i))
	}
	d.Annotations = map[string]string{v1alpha1.AnnotationSurgeRecord: string(must.Get(json.Marshal(r))(b))}
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if r, _ := readRecord(d, 1); !r.isUp() {
				b.Fatal("no surge")
			}
		}
	})
	b.Run("ask", func(b *testing.B) {
		for b.Loop() {
			if !isSurgeUp(d) {
				b.Fatal("no surge")
			}
		}
	})
}

// TestIsSurgeUp compares it with the whole record.
func TestIsSurgeUp(t *testing.T) {
	for value, want := range map[string]bool{
		"":                  false,
		`{"`:                false,
		`[]`:                false,
		`{"uid":"uid-web"}`: false,
		`{"uid":"uid-other","from":2,"to":4,"keep":2,"since":"2026-11-28T00:00:00Z"}`:                       false,
		`{"uid":"uid-web","from":2,"to":4,"keep":2,"since":"2026-11-28T00:00:00Z","evacuations":["a","b"]}`: true,
	} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{UID: "uid-web"}}
		is.Equal(t, isSurgeUp(d), false, "without an annotation")
		d.Annotations = map[string]string{v1alpha1.AnnotationSurgeRecord: value}
		r, _ := readRecord(d, 1)
		is.True(t, isSurgeUp(d) == want && r.isUp() == want, "%s: got %t, and %t from the whole record", value, isSurgeUp(d), r.isUp())
	}
}
