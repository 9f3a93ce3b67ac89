// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"strings"
	"testing"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"haulout.dev/haulout/pkg/testing/must"
)

func TestSamplesForgetKeys(t *testing.T) {
	gauge := metrics.NewGaugeVec(
		&metrics.GaugeOpts{Name: "samples", Help: "Of a test.", StabilityLevel: metrics.ALPHA}, []string{"name", "state"},
	)
	legacyregistry.MustRegister(gauge)
	type key struct{ name, state string }
	samples := Samples[key]{Gauge: gauge, LabelValues: func(k key) []string { return []string{k.name, k.state} }}
	for _, test := range []struct {
		set  map[key]float64
		want string
	}{
		{map[key]float64{{"a", "on"}: 1, {"b", "on"}: 0}, `samples{name="a",state="on"} 1` + "\n" + `samples{name="b",state="on"} 0`},
		{map[key]float64{{"a", "off"}: 1, {"b", "on"}: 2}, `samples{name="a",state="off"} 1` + "\n" + `samples{name="b",state="on"} 2`},
		{nil, ""},
		{map[key]float64{{"a", "on"}: 3}, `samples{name="a",state="on"} 3`},
	} {
		samples.Set(test.set)
		want := "# HELP samples [ALPHA] Of a test.\n# TYPE samples gauge\n" + test.want + "\n"
		if test.want == "" {
			want = ""
		}
		must.Do(t, testutil.GatherAndCompare(legacyregistry.DefaultGatherer, strings.NewReader(want), "samples"))
	}
}
