// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"testing"
	"testing/synctest"

	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func TestMetricsOfLanesAndAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, worldConfig{answer: success},
			newBudget("web", 0), newBudget("api", 1, forApp("api")), newPod("web-0"), newPod("api-0", ofApp("api")))
		value := func(get func() (float64, error)) float64 {
			t.Helper()
			return must.Get(get())(w)
		}
		lanes := func(state string) float64 {
			return value(func() (float64, error) { return testutil.GetGaugeMetricValue(evictionLanes.WithLabelValues(state)) })
		}
		accepted := func() float64 {
			return value(func() (float64, error) {
				return testutil.GetCounterMetricValue(evictionsTotal.WithLabelValues("accepted"))
			})
		}
		before := accepted()
		w.add("web-0", "api-0")
		w.settled()
		if open, closed := lanes("open"), lanes("closed"); open != 1 || closed != 1 {
			t.Errorf("got %v open and %v closed lanes, want one of each", open, closed)
		}
		is.Equal(t, accepted()-before, 1, "accepted evictions")
		if got := value(func() (float64, error) { return testutil.GetGaugeMetricValue(evictionsInFlight) }); got != 0 {
			t.Errorf("got %v evictions in flight, want none", got)
		}
	})
}
