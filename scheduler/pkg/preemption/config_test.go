// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestShippedConfigurations loads the configurations of artifacts as kube-scheduler does.
func TestShippedConfigurations(t *testing.T) {
	for folder, scheduler := range map[string]string{"scheduler": "default-scheduler", "second-scheduler": "haulout-scheduler"} {
		content := must.Get(os.ReadFile("../../../artifacts/" + folder + "/configuration.yaml"))(t)
		object, _, err := scheme.Codecs.UniversalDecoder().Decode(content, nil, nil)
		must.True(t, err == nil, "%s: %v", folder, err)
		shipped := object.(*config.KubeSchedulerConfiguration)
		if err := validation.ValidateKubeSchedulerConfiguration(shipped); err != nil {
			t.Errorf("%s: %v", folder, err)
		}
		profile := shipped.Profiles[0]
		if profile.SchedulerName != scheduler {
			t.Errorf("%s: got scheduler %q, want %q", folder, profile.SchedulerName, scheduler)
		}
		index := slices.IndexFunc(profile.PluginConfig, func(c config.PluginConfig) bool { return c.Name == Name })
		must.True(t, index >= 0, "%s: no args of %s found", folder, Name)
		if _, err := decodeArgs(profile.PluginConfig[index].Args); err != nil {
			t.Errorf("%s: %v", folder, err)
		}
	}
}

func TestArgs(t *testing.T) {
	for name, test := range map[string]struct {
		yaml      string
		threshold int32
		nodes     int32
		// want is a part of the error. If it is "", the arguments are valid.
		want string
	}{
		"none":                    {yaml: "", threshold: noThreshold, nodes: 100},
		"a threshold":             {yaml: "allowDisruptionByPriorityGreaterThanOrEqual: 5", threshold: 5, nodes: 100},
		"the highest threshold":   {yaml: "allowDisruptionByPriorityGreaterThanOrEqual: 2000000000", threshold: maxThreshold, nodes: 100},
		"the lowest threshold":    {yaml: "allowDisruptionByPriorityGreaterThanOrEqual: -2147483648", threshold: noThreshold, nodes: 100},
		"JSON":                    {yaml: `{"minCandidateNodesAbsolute": 7}`, threshold: noThreshold, nodes: 7},
		"above the maximum":       {yaml: "allowDisruptionByPriorityGreaterThanOrEqual: 2000000001", want: "from -2147483648 to 2000000000, got 2000000001"},
		"too high for int":        {yaml: "allowDisruptionByPriorityGreaterThanOrEqual: 3000000000", want: "allowDisruptionByPriorityGreaterThanOrEqual"},
		"a misspelt field":        {yaml: "allowDisruptionByPriority: 5", want: `unknown field "allowDisruptionByPriority"`},
		"a field in another case": {yaml: "AllowDisruptionByPriorityGreaterThanOrEqual: 5", want: "unknown field"},
		"a string":                {yaml: "minCandidateNodesAbsolute: many", want: "minCandidateNodesAbsolute"},
		"a field twice":           {yaml: "minCandidateNodesAbsolute: 1\nminCandidateNodesAbsolute: 2", want: "already set"},
		"not an object":           {yaml: "- 1", want: "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			args, err := decodeArgs(&runtime.Unknown{Raw: []byte(test.yaml)})
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("got error %v, want one with %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if args.threshold() != test.threshold || args.upstream().MinCandidateNodesAbsolute != test.nodes {
				t.Errorf("got threshold %d and %d nodes", args.threshold(), args.upstream().MinCandidateNodesAbsolute)
			}
		})
	}
	if args, err := decodeArgs(nil); err != nil || args.threshold() != noThreshold {
		t.Errorf("without arguments: got %v, %v", args, err)
	}
	if _, err := decodeArgs(&corev1.Pod{}); err == nil {
		t.Error("arguments of another type were accepted")
	}
}

func TestThresholdOfClass(t *testing.T) {
	for text, want := range map[string]int32{
		"0":           0,
		"-1":          -1,
		"1000":        1000,
		"2000000000":  maxThreshold,
		"-2147483648": noThreshold,
	} {
		if got, named, err := thresholdOf(class("c", text)); got != want || !named || err != nil {
			t.Errorf("%q: got %d, %v, %v", text, got, named, err)
		}
	}
	for _, text := range []string{"2000000001", "-2147483649", "1e3", "1.5", " 5", "05", "+5", "-0", "many", "99999999999999999999"} {
		got, named, err := thresholdOf(class("c", text))
		if got != maxThreshold || !named || err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: got %d, %v, %v, want the highest threshold and an error", text, got, named, err)
		}
	}
	// class() omits an empty annotation, which is malformed as well.
	empty := class("c", "")
	empty.Annotations = map[string]string{ThresholdAnnotation: ""}
	if got, _, err := thresholdOf(empty); got != maxThreshold || err == nil {
		t.Errorf("an empty one: got %d, %v", got, err)
	}
}

func TestThresholdOfPod(t *testing.T) {
	classes := []*schedulingv1.PriorityClass{
		class("low", "10"),
		class("high", "1000"),
		class("optout", "-2147483648"),
		class("plain", ""),
		class("broken", "x"),
	}
	grouped := func(pod *corev1.Pod) {
		pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("gang")}
	}
	groupClasses := []string{}
	var bad []string
	t1 := newThresholds(classes, 500, func(*corev1.Pod) []string { return groupClasses },
		func(c *schedulingv1.PriorityClass, _ error) { bad = append(bad, c.Name) })
	for name, test := range map[string]struct {
		pod    []podOption
		groups []string
		want   int32
	}{
		"of its class":                           {[]podOption{ofClass("high")}, nil, 1000},
		"of the arguments, without a class":      {nil, nil, 500},
		"of the arguments, with a plain one":     {[]podOption{ofClass("plain")}, nil, 500},
		"of the arguments, with a missing class": {[]podOption{ofClass("gone")}, nil, 500},
		"none, with a class that opts out":       {[]podOption{ofClass("optout")}, nil, noThreshold},
		"the highest, with a malformed one":      {[]podOption{ofClass("broken")}, nil, maxThreshold},
		"of its group, which is higher":          {[]podOption{ofClass("low"), grouped}, []string{"high"}, 1000},
		"of the pod, which is higher":            {[]podOption{ofClass("high"), grouped}, []string{"low"}, 1000},
		"of the second group":                    {[]podOption{ofClass("low"), grouped}, []string{"optout", "high"}, 1000},
	} {
		groupClasses = test.groups
		is.Equal(t, t1.of(runningPod("p", 1, test.pod...)), test.want, name)
	}
	if len(bad) != 1 || bad[0] != "broken" {
		t.Errorf("%q was reported as malformed", bad)
	}
	for priority, want := range map[int32]bool{499: true, 999: true, maxThreshold - 1: true, maxThreshold: false, 2000001000: false} {
		if got := t1.exceed(priority); got != want {
			t.Errorf("priority %d: got %v, want %v", priority, got, want)
		}
	}
}

// TestBadThresholds expects one event for each malformed value that is in effect; the gauge must
// have the number of classes with a malformed value.
func TestBadThresholds(t *testing.T) {
	ctx := t.Context()
	pending := runningPod("pending", 100, onNode(""))
	c := cluster{pods: []*corev1.Pod{pending}, nodes: []*corev1.Node{node("n1", 1)}, classes: []*schedulingv1.PriorityClass{class("c", "many"), class("d", "1000")}}
	f := c.framework(t, ctx, c.client(true))
	p := pluginOf(t, ctx, f)
	recorder := f.EventRecorder().(*events.FakeRecorder)
	wantGauge := func(want float64) {
		t.Helper()
		waitFor(t, "the gauge changes", func() bool { got, _ := testutil.GetGaugeMetricValue(badThresholdClasses); return got == want })
	}
	wantEvents := func(want ...string) {
		t.Helper()
		for range 3 {
			r := must.Get(p.rules(100))(t)
			if got := r.thresholds.ofClass("c"); len(want) > 0 && got != maxThreshold {
				t.Errorf("got threshold %d", got)
			}
		}
		var got []string
		for len(recorder.Events) > 0 {
			got = append(got, <-recorder.Events)
		}
		if !slices.EqualFunc(got, want, func(got, want string) bool {
			return strings.HasPrefix(got, "Warning BadPreemptionThreshold") && strings.Contains(got, want)
		}) {
			t.Errorf("got the events %q, want %q", got, want)
		}
	}
	change := func(threshold string) {
		t.Helper()
		must.Get(f.ClientSet().SchedulingV1().PriorityClasses().Update(ctx, class("c", threshold), metav1.UpdateOptions{}))(t)
		waitFor(t, "the class changes", func() bool {
			now, err := p.classes.Get("c")
			return err == nil && now.Annotations[ThresholdAnnotation] == threshold
		})
	}
	wantGauge(1)
	is.True(t, len(recorder.Events) == 0, "an event was sent before the threshold was in effect")
	wantEvents(`got "many"`)
	wantEvents()
	change("1.5")
	wantEvents(`got "1.5"`)
	wantGauge(1)
	change("1500")
	wantGauge(0)
	wantEvents()
	change("1.5")
	wantGauge(1)
	wantEvents(`got "1.5"`)
}
