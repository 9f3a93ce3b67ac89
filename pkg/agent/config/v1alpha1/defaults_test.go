// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func duration(d time.Duration) metav1.Duration {
	return metav1.Duration{Duration: d}
}

func TestDefaults(t *testing.T) {
	for name, test := range map[string]struct {
		goos string
		in   NodeAgentConfiguration
		want NodeAgentConfiguration
	}{
		"everything on Linux": {
			goos: "linux",
			want: NodeAgentConfiguration{
				Kubeconfig:    "/etc/kubernetes/kubelet.conf",
				KubeletConfig: "/var/lib/kubelet/config.yaml",
				ShutdownGracePeriodByPodPriority: []ShutdownGracePeriodByPodPriority{
					{Priority: 0, ShutdownGracePeriodSeconds: 60}, {Priority: 2000000000, ShutdownGracePeriodSeconds: 30},
				},
				MaxShutdownDelay:     duration(30 * time.Minute),
				DrainBeforeShutdown:  ptr.To(true),
				APIGracePeriod:       duration(time.Minute),
				LocalEngine:          "CRI",
				KubeletService:       "kubelet.service",
				StateDirectory:       "/var/lib/haulout-node-agent",
				CompleteAfterReboot:  ptr.To(true),
				OnForgottenShutdown:  "Keep",
				StaticPods:           "Evacuate",
				APILossRestorePeriod: duration(5 * time.Minute), HauloutLossRestorePeriod: duration(time.Hour),
				MetricsBindAddress: ptr.To("127.0.0.1:10271"),
			},
		},
		"the paths of Windows": {
			goos: "windows",
			in: NodeAgentConfiguration{
				ShutdownGracePeriodByPodPriority: []ShutdownGracePeriodByPodPriority{{Priority: 5, ShutdownGracePeriodSeconds: 7}},
				MaxShutdownDelay:                 duration(time.Minute),
				APIGracePeriod:                   duration(time.Second),
				LocalEngine:                      LocalEngineNone,
				CompleteAfterReboot:              ptr.To(false),
				OnForgottenShutdown:              ForgottenShutdownCancel,
				StaticPods:                       StaticPodsKeep,
				APILossRestorePeriod:             duration(time.Hour),
				HauloutLossRestorePeriod:         duration(time.Minute),
				MetricsBindAddress:               ptr.To(""),
			},
			want: NodeAgentConfiguration{
				Kubeconfig:    `C:\etc\kubernetes\kubelet.conf`,
				KubeletConfig: `C:\var\lib\kubelet\config.yaml`,
				ShutdownGracePeriodByPodPriority: []ShutdownGracePeriodByPodPriority{
					{Priority: 5, ShutdownGracePeriodSeconds: 7},
				},
				MaxShutdownDelay:     duration(time.Minute),
				DrainBeforeShutdown:  ptr.To(true),
				APIGracePeriod:       duration(time.Second),
				LocalEngine:          "None",
				KubeletService:       "kubelet",
				StateDirectory:       `C:\ProgramData\haulout-node-agent`,
				CompleteAfterReboot:  ptr.To(false),
				OnForgottenShutdown:  "Cancel",
				StaticPods:           StaticPodsKeep,
				APILossRestorePeriod: duration(time.Hour), HauloutLossRestorePeriod: duration(time.Minute),
				MetricsBindAddress: ptr.To(""),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.in.DeepCopy()
			setDefaults(got, defaultsOf(test.goos))
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Errorf("defaults are wrong (-want +got):\n%s", diff)
			}
			again := got.DeepCopy()
			setDefaults(again, defaultsOf(test.goos))
			if diff := cmp.Diff(got, again); diff != "" {
				t.Errorf("a second defaulting changes the configuration:\n%s", diff)
			}
		})
	}
}

// Two configurations must not share a table: sorting one would sort the other.
func TestDefaultTableIsNotShared(t *testing.T) {
	var a, b NodeAgentConfiguration
	SetDefaults_NodeAgentConfiguration(&a)
	SetDefaults_NodeAgentConfiguration(&b)
	a.ShutdownGracePeriodByPodPriority[0].Priority = 99
	if got := b.ShutdownGracePeriodByPodPriority[0].Priority; got != 0 {
		t.Errorf("the priority of another configuration changed to %d", got)
	}
}

// Every field has a default except those whose zero value has a meaning.
func TestEachFieldHasADefault(t *testing.T) {
	var c NodeAgentConfiguration
	SetDefaults_NodeAgentConfiguration(&c)
	empty := map[string]bool{"TypeMeta": true, "NodeName": true, "StaticPodPath": true, "RuntimeEndpoint": true, "KeepStaticPods": true, "EvacuateStaticPods": true}
	value := reflect.ValueOf(c)
	for i := range value.NumField() {
		if name := value.Type().Field(i).Name; value.Field(i).IsZero() != empty[name] {
			t.Errorf("%s: is empty after defaulting: %v, want %v", name, value.Field(i).IsZero(), empty[name])
		}
	}
}
