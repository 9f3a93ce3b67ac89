// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// ofOlderServer is a reason that this version of the server does not know.
const ofOlderServer = "BudgetsHoldEachOther"

// TestBlockedMetricForgetsUnknownReasons: the sample of a reason of an older server disappears with
// the last Evacuation that has the reason.
func TestBlockedMetricForgetsUnknownReasons(t *testing.T) {
	registerMetrics()
	publishBlocked([]*v1alpha1.Evacuation{
		newEvacuation(withCondition(v1alpha1.ConditionBlocked, ofOlderServer, 0)),
		newEvacuation(withCondition(v1alpha1.ConditionBlocked, v1alpha1.ReasonEvictionError, 0)),
	})
	got := samplesOfBlocked(t)
	is.Equal(t, got[ofOlderServer], 1, "Evacuations with the reason of an older server")
	is.Equal(t, got[v1alpha1.ReasonEvictionError], 1, "Evacuations with a known reason")
	publishBlocked(nil)
	got = samplesOfBlocked(t)
	for reason, count := range got {
		is.Equal(t, count, 0, "Evacuations with the reason "+reason)
	}
	_, shown := got[v1alpha1.ReasonEvictionError]
	is.True(t, shown, "got no sample of a known reason, want 0")
}

// samplesOfBlocked returns the samples of haulout_evacuation_blocked by reason.
func samplesOfBlocked(t *testing.T) map[string]float64 {
	t.Helper()
	samples := map[string]float64{}
	for _, family := range must.Get(legacyregistry.DefaultGatherer.Gather())(t) {
		if family.GetName() != "haulout_evacuation_blocked" {
			continue
		}
		for _, metric := range family.GetMetric() {
			samples[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
		}
	}
	return samples
}
