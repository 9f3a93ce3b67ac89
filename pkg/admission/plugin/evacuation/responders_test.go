// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// responders names eviction responders in a pod.
func responders(names ...string) podMod {
	return func(pod *corev1.Pod) {
		for _, name := range names {
			pod.Spec.EvictionResponders = append(pod.Spec.EvictionResponders, corev1.EvictionResponder{Name: name, Priority: new(int32(5000))})
		}
	}
}

func TestRespondersThatAreNotAsked(t *testing.T) {
	const flush, move, ours = "app.example.com/flush", "db.example.com/move", "maintenance.haulout.dev/evacuation"
	const event = "Warning EvictionRespondersNotAsked This pod names eviction responders that Haulout does not ask: "
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		dryRun bool
		stored bool
		// times is the number of runs of the plugin for one request.
		times         int
		want, warning string
	}{
		"none":    {pod: newPod(), times: 1},
		"ours":    {pod: newPod(responders(ours)), times: 1},
		"several": {pod: newPod(responders(flush, ours, move)), times: 1, want: event + flush + ", " + move + ".", warning: flush + ", " + move},
		"a dry run": {
			pod: newPod(responders(flush)), dryRun: true, times: 1, warning: flush,
		},
		"a webhook changes the object, so that the plugin runs again": {
			pod: newPod(responders(flush)), times: 2, want: event + flush + ".", warning: flush,
		},
		"the Evacuation exists": {pod: newPod(responders(flush)), stored: true, times: 1, warning: flush},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil, []string{deletePod}, test.pod)
			if test.stored {
				must.Do(t, f.stored.Add(newEvacuation()))
			}
			evacuation := newEvacuation()
			ctx, attrs := f.attributes(request{object: evacuation, dryRun: test.dryRun})
			ctx, warnings := registrytest.WithWarnings(ctx)
			for run := range test.times {
				if run > 0 {
					attrs.GetReinvocationContext().SetIsReinvoke()
				}
				must.Do(t, f.Admit(ctx, attrs, nil))
			}
			is.True(t, (len(warnings.Texts()) > 0) == (test.warning != "") && strings.Contains(strings.Join(warnings.Texts(), " "), test.warning),
				"got the warnings %q, want %q", warnings.Texts(), test.warning)
			close(f.events)
			var got []string
			for text := range f.events {
				got = append(got, text)
			}
			is.True(t, len(got) <= 1 && strings.HasPrefix(strings.Join(got, ""), test.want) && (len(got) == 0) == (test.want == ""),
				"got the events %q, want %q", got, test.want)
			is.Slices(t, evacuation.Spec.Evacuators, []maintenance.Evacuator(nil), "evacuators")
		})
	}
}
