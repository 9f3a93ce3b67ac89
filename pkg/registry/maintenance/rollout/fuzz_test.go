// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/rollout/nodeexpr"
	"haulout.dev/haulout/pkg/rollout/window"
)

// FuzzValidate decodes generated rollouts. What validation accepts must be usable by the packages
// that decide: they parse schedules, time zones and expressions again.
func FuzzValidate(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"maintenance.haulout.dev/v1alpha1","kind":"NodeMaintenanceRollout","metadata":{"name":"kernel-6-12"},` +
		`"spec":{"stage":"Roll","nodeSelector":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"pool","operator":"In","values":["blue"]}]}]},` +
		`"limits":[{"maxUnavailable":"10%"},{"maxDomains":1,"topologyKey":"topology.kubernetes.io/zone"}],` +
		`"windows":[{"schedule":"0 22 * * *","duration":"6h","timeZone":"Europe/Berlin"},{"start":"2026-11-27T08:00:00Z","duration":"1h"}],` +
		`"holds":[{"name":"ceph","reason":"rebuild","from":"2026-11-27T08:00:00Z"}],` +
		`"template":{"drainPlan":[{"podPriority":5,"behavior":"WaitCompleted","waitSeconds":60}],` +
		`"task":{"worker":"reboot.maintenance.haulout.dev","parameters":{"a":"b"},"doneWhen":"node.status.nodeInfo.kernelVersion.startsWith('6.12.')"}}}}`))
	strategy := NewStrategy(registrytest.Scheme, func() string { return "" }, nil, clock.RealClock{})
	f.Fuzz(func(t *testing.T, data []byte) {
		obj, err := runtime.Decode(registrytest.Codecs.UniversalDecoder(maintenance.SchemeGroupVersion), data)
		rollout, ok := obj.(*maintenance.NodeMaintenanceRollout)
		if err != nil || !ok || len(strategy.Validate(t.Context(), rollout)) > 0 {
			return
		}
		versioned := &v1alpha1.NodeMaintenanceRollout{}
		if err := registrytest.Scheme.Convert(rollout, versioned, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := window.At(versioned.Spec.Windows, start); err != nil {
			t.Errorf("the windows cannot be read: %v", err)
		}
		if task := versioned.Spec.Template.Task; task != nil && task.DoneWhen != "" {
			if _, err := nodeexpr.Compile(task.DoneWhen); err != nil {
				t.Errorf("doneWhen cannot be compiled: %v", err)
			}
		}
		if errs := strategy.ValidateUpdate(t.Context(), rollout, rollout); len(errs) > 0 {
			t.Errorf("a write without a change is refused: %v", errs)
		}
	})
}
