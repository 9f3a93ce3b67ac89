// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestFailsJob(t *testing.T) {
	onDisruption := func(action batchv1.PodFailurePolicyAction) *batchv1.PodFailurePolicy {
		return &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action:          action,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
		}}}
	}
	for name, test := range map[string]struct {
		spec    batchv1.JobSpec
		failed  int32
		evicted int32
		want    bool
	}{
		"a Job that allows no failure":     {spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](0)}, evicted: 1, want: true},
		"a Job with a failure left":        {spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](2)}, failed: 1, evicted: 1},
		"a Job whose failures are used up": {spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](2)}, failed: 2, evicted: 1, want: true},
		"a Job with several pods to evict": {spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](2)}, evicted: 3, want: true},
		"a Job that ignores disruptions": {
			spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](0), PodFailurePolicy: onDisruption(batchv1.PodFailurePolicyActionIgnore)}, evicted: 1,
		},
		"a Job that fails on disruptions": {
			spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](9), PodFailurePolicy: onDisruption(batchv1.PodFailurePolicyActionFailJob)}, evicted: 1, want: true,
		},
		"a Job that counts disruptions": {
			spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](0), PodFailurePolicy: onDisruption(batchv1.PodFailurePolicyActionCount)}, evicted: 1, want: true,
		},
		"a Job that allows no failure of an index": {
			spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](100), BackoffLimitPerIndex: ptr.To[int32](0)}, evicted: 1, want: true,
		},
		"a Job that allows failures of each index": {
			spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](0), BackoffLimitPerIndex: ptr.To[int32](1)}, evicted: 1,
		},
		"a Job without defaults": {evicted: 1},
	} {
		t.Run(name, func(t *testing.T) {
			job := &batchv1.Job{Spec: test.spec, Status: batchv1.JobStatus{Failed: test.failed}}
			is.Equal(t, failsJob(job, test.evicted), test.want)
		})
	}
}
