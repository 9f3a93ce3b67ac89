// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
)

type modifier func(*configv1alpha1.NodeAgentConfiguration)

// config returns a configuration that is valid for an operating system and applies the modifiers.
func config(goos string, modifiers ...modifier) *configv1alpha1.NodeAgentConfiguration {
	c := Default()
	if goos == "windows" {
		c.Kubeconfig, c.KubeletConfig, c.StateDirectory = `C:\k\kubelet.conf`, `C:\k\config.yaml`, `C:\ProgramData\a`
		c.RuntimeEndpoint, c.KubeletService = "npipe:////./pipe/containerd-containerd", "kubelet"
	}
	for _, modify := range modifiers {
		modify(c)
	}
	return c
}

// table sets the table from pairs of a priority and its seconds.
func table(pairs ...int64) modifier {
	return func(c *configv1alpha1.NodeAgentConfiguration) {
		c.ShutdownGracePeriodByPodPriority = nil
		for i := 0; i < len(pairs); i += 2 {
			c.ShutdownGracePeriodByPodPriority = append(c.ShutdownGracePeriodByPodPriority,
				configv1alpha1.ShutdownGracePeriodByPodPriority{Priority: int32(pairs[i]), ShutdownGracePeriodSeconds: pairs[i+1]})
		}
	}
}

func longTable(n int) modifier {
	var pairs []int64
	for i := range n {
		pairs = append(pairs, int64(i), 1)
	}
	return table(pairs...)
}

func delay(d time.Duration) modifier {
	return func(c *configv1alpha1.NodeAgentConfiguration) { c.MaxShutdownDelay = metav1.Duration{Duration: d} }
}

func apiGrace(d time.Duration) modifier {
	return func(c *configv1alpha1.NodeAgentConfiguration) { c.APIGracePeriod = metav1.Duration{Duration: d} }
}

func set(field func(*configv1alpha1.NodeAgentConfiguration) *string, value string) modifier {
	return func(c *configv1alpha1.NodeAgentConfiguration) { *field(c) = value }
}

func runtimeEndpoint(c *configv1alpha1.NodeAgentConfiguration) *string { return &c.RuntimeEndpoint }
func kubeletService(c *configv1alpha1.NodeAgentConfiguration) *string  { return &c.KubeletService }
func staticPodPath(c *configv1alpha1.NodeAgentConfiguration) *string   { return &c.StaticPodPath }
func stateDirectory(c *configv1alpha1.NodeAgentConfiguration) *string  { return &c.StateDirectory }
func nodeName(c *configv1alpha1.NodeAgentConfiguration) *string        { return &c.NodeName }
func engine(c *configv1alpha1.NodeAgentConfiguration) *string          { return (*string)(&c.LocalEngine) }
func forgotten(c *configv1alpha1.NodeAgentConfiguration) *string {
	return (*string)(&c.OnForgottenShutdown)
}
func kubeconfig(c *configv1alpha1.NodeAgentConfiguration) *string    { return &c.Kubeconfig }
func kubeletConfig(c *configv1alpha1.NodeAgentConfiguration) *string { return &c.KubeletConfig }
func bindAddress(c *configv1alpha1.NodeAgentConfiguration) *string   { return c.MetricsBindAddress }

func restorePeriod(d time.Duration) modifier {
	return func(c *configv1alpha1.NodeAgentConfiguration) { c.APILossRestorePeriod = metav1.Duration{Duration: d} }
}

func withoutDrain(c *configv1alpha1.NodeAgentConfiguration) { c.DrainBeforeShutdown = ptr.To(false) }

func TestValidate(t *testing.T) {
	const entries = "shutdownGracePeriodByPodPriority"
	for name, test := range map[string]struct {
		windows bool
		modify  []modifier
		// want are the fields and types of the errors; each of them must contain text.
		want []string
		text string
	}{
		"the defaults":         {},
		"the paths of Windows": {windows: true},

		"a table from low to high": {modify: []modifier{table(0, 60, 1000, 120, 10000, 180)}},
		"a table from high to low": {modify: []modifier{table(10000, 180, 1000, 120, 0, 60)}},
		"an unsorted table":        {modify: []modifier{table(1000, 120, 0, 60, 10000, 180)}},
		"negative priorities":      {modify: []modifier{table(-10, 5, math.MinInt32, 5)}},
		"the highest priority":     {modify: []modifier{table(math.MaxInt32, 5)}},
		"the longest table":        {modify: []modifier{longTable(33)}},
		"no table": {
			modify: []modifier{table()},
			want:   []string{entries + " FieldValueRequired"},
			text:   "at least one",
		},
		"a table that is too long": {
			modify: []modifier{longTable(34)},
			want:   []string{entries + " FieldValueTooMany"},
			text:   "33",
		},
		"a priority twice": {
			modify: []modifier{table(0, 60, 10, 5, 0, 70)},
			want:   []string{entries + "[2].priority FieldValueDuplicate"},
			text:   "0",
		},
		"a priority three times": {
			modify: []modifier{table(7, 6, 7, 5, 7, 6)},
			want:   []string{entries + "[1].priority FieldValueDuplicate", entries + "[2].priority FieldValueDuplicate"},
		},
		"no time": {
			modify: []modifier{table(0, 60, 10, 0)},
			want:   []string{entries + "[1].shutdownGracePeriodSeconds FieldValueInvalid"},
			text:   "between 1 and 86400",
		},
		"a negative time": {
			modify: []modifier{table(0, -1)},
			want:   []string{entries + "[0].shutdownGracePeriodSeconds FieldValueInvalid"},
			text:   "between 1 and 86400",
		},
		"a time of more than a day": {
			modify: []modifier{delay(24 * time.Hour), table(0, 86401)},
			want:   []string{entries + "[0].shutdownGracePeriodSeconds FieldValueInvalid", "maxShutdownDelay FieldValueInvalid"},
		},
		"a delay that Windows cannot store in milliseconds": {
			windows: true, modify: []modifier{delay((math.MaxUint32 + 1) * time.Millisecond)},
			want: []string{"maxShutdownDelay FieldValueInvalid"},
		},
		"a time that would overflow": {
			modify: []modifier{table(0, math.MaxInt64, 1, math.MaxInt64)},
			want: []string{
				entries + "[0].shutdownGracePeriodSeconds FieldValueInvalid",
				entries + "[1].shutdownGracePeriodSeconds FieldValueInvalid",
				"maxShutdownDelay FieldValueInvalid",
			},
		},

		"the minimum delay": {modify: []modifier{table(0, 60, 10, 30), delay(95 * time.Second)}},
		"a table longer than the delay": {
			modify: []modifier{table(0, 60, 10, 30), delay(94 * time.Second)},
			want:   []string{"maxShutdownDelay FieldValueInvalid"},
			text:   "at least 1m35s",
		},
		"a critical period above the delay": {
			modify: []modifier{table(0, 1, 2000000000, 1800)},
			want:   []string{"maxShutdownDelay FieldValueInvalid"},
			text:   "at least 30m6s",
		},
		"the longest delay": {modify: []modifier{delay(24 * time.Hour)}},
		"a delay of more than a day": {
			modify: []modifier{delay(24*time.Hour + 1)},
			want:   []string{"maxShutdownDelay FieldValueInvalid"},
			text:   "between 1s and 24h",
		},
		"a negative delay": {
			modify: []modifier{delay(-time.Minute)},
			want:   []string{"maxShutdownDelay FieldValueInvalid"},
			text:   "between 1s and 24h",
		},
		"an API grace of less than a second": {
			modify: []modifier{apiGrace(time.Millisecond)},
			want:   []string{"apiGracePeriod FieldValueInvalid"},
			text:   "between 1s and 10m",
		},
		"an API grace longer than the delay, of which a quarter counts": {modify: []modifier{table(0, 5), delay(10 * time.Second)}},
		"neither a drain nor an engine": {
			modify: []modifier{withoutDrain, set(engine, string(configv1alpha1.LocalEngineNone))},
			want:   []string{"drainBeforeShutdown FieldValueInvalid"},
			text:   "must be true if localEngine is None",
		},
		"no drain, and an engine": {modify: []modifier{withoutDrain}},
		"an API grace above ten minutes": {
			modify: []modifier{apiGrace(11 * time.Minute)},
			want:   []string{"apiGracePeriod FieldValueInvalid"},
			text:   "between 1s and 10m",
		},
		"a short restore period": {
			modify: []modifier{restorePeriod(time.Second)},
			want:   []string{"apiLossRestorePeriod FieldValueInvalid"},
			text:   "between 10s and 24h",
		},

		"a short restore period without Haulout": {
			modify: []modifier{func(c *configv1alpha1.NodeAgentConfiguration) {
				c.HauloutLossRestorePeriod = metav1.Duration{Duration: time.Second}
			}},
			want: []string{"hauloutLossRestorePeriod FieldValueInvalid"},
			text: "between 10s and 24h",
		},
		"all static pods but one are kept": {modify: []modifier{func(c *configv1alpha1.NodeAgentConfiguration) {
			c.StaticPods, c.KeepStaticPods, c.EvacuateStaticPods = "Keep", []string{"kube-system/*"}, []string{"*/logs-[a-c]*"}
		}}},
		"an unknown policy for static pods": {
			modify: []modifier{set(func(c *configv1alpha1.NodeAgentConfiguration) *string { return (*string)(&c.StaticPods) }, "Kill")},
			want:   []string{"staticPods FieldValueNotSupported"},
		},
		"invalid patterns": {
			modify: []modifier{func(c *configv1alpha1.NodeAgentConfiguration) {
				c.KeepStaticPods, c.EvacuateStaticPods = []string{"kube-system/a", "web"}, []string{"kube-system/[", "a/b/c"}
			}},
			want: []string{"keepStaticPods[1] FieldValueInvalid", "evacuateStaticPods[0] FieldValueInvalid", "evacuateStaticPods[1] FieldValueInvalid"},
			text: "<namespace>/<name>",
		},
		"too many patterns": {
			modify: []modifier{func(c *configv1alpha1.NodeAgentConfiguration) { c.KeepStaticPods = slices.Repeat([]string{"a/b"}, 65) }},
			want:   []string{"keepStaticPods FieldValueTooMany"},
		},

		"a node name": {modify: []modifier{set(nodeName, "node-1.example.org")}},
		"an invalid node name": {
			modify: []modifier{set(nodeName, "Node_1")},
			want:   []string{"nodeName FieldValueInvalid"},
		},
		"an unknown engine": {
			modify: []modifier{set(engine, "cri")},
			want:   []string{"localEngine FieldValueNotSupported"},
			text:   `"CRI", "None"`,
		},
		"the engine of an older version": {
			modify: []modifier{set(engine, "KubeletBus")},
			want:   []string{"localEngine FieldValueInvalid"},
			text:   `must be "CRI" or "None"; first remove shutdownGracePeriodByPodPriority`,
		},
		"an unknown policy": {
			modify: []modifier{set(forgotten, "Forget")},
			want:   []string{"onForgottenShutdown FieldValueNotSupported"},
			text:   `"Keep", "Cancel"`,
		},

		"a relative state directory": {
			modify: []modifier{set(stateDirectory, "state")},
			want:   []string{"stateDirectory FieldValueInvalid"},
			text:   "absolute",
		},
		"no state directory": {
			modify: []modifier{set(stateDirectory, "")},
			want:   []string{"stateDirectory FieldValueInvalid"},
			text:   "absolute",
		},
		"a relative kubeconfig": {
			modify: []modifier{set(kubeconfig, "k")},
			want:   []string{"kubeconfig FieldValueInvalid"},
			text:   "absolute",
		},
		"a relative configuration": {
			modify: []modifier{set(kubeletConfig, "./c")},
			want:   []string{"kubeletConfig FieldValueInvalid"},
			text:   "absolute",
		},
		"a relative static pod path": {
			modify: []modifier{set(staticPodPath, "manifests")},
			want:   []string{"staticPodPath FieldValueInvalid"},
			text:   "absolute",
		},
		"the root as static pod path": {
			modify: []modifier{set(staticPodPath, "/.//")},
			want:   []string{"staticPodPath FieldValueInvalid"},
			text:   "root",
		},
		"a drive as static pod path": {
			windows: true,
			modify:  []modifier{set(staticPodPath, `D:\`)},
			want:    []string{"staticPodPath FieldValueInvalid"},
			text:    "root",
		},
		"a static pod path": {modify: []modifier{set(staticPodPath, "/etc/kubernetes/manifests")}},
		"a static pod path on Windows": {
			windows: true,
			modify:  []modifier{set(staticPodPath, `C:\etc\kubernetes\manifests`)},
		},
		"a share as state directory": {
			windows: true,
			modify:  []modifier{set(stateDirectory, `\\server\share\a`)},
		},
		"a Linux path on Windows": {
			windows: true,
			modify:  []modifier{set(stateDirectory, "/var/lib/a")},
			want:    []string{"stateDirectory FieldValueInvalid"},
			text:    "absolute",
		},
		"a Windows path on Linux": {
			modify: []modifier{set(stateDirectory, `C:\a`)},
			want:   []string{"stateDirectory FieldValueInvalid"},
			text:   "absolute",
		},
		"an endpoint without a scheme": {
			modify: []modifier{set(runtimeEndpoint, "/run/containerd/containerd.sock")},
			want:   []string{"runtimeEndpoint FieldValueInvalid"},
			text:   "unix:///",
		},
		"an endpoint over TCP": {
			modify: []modifier{set(runtimeEndpoint, "tcp://127.0.0.1:1")},
			want:   []string{"runtimeEndpoint FieldValueInvalid"},
			text:   "unix:///",
		},
		"an endpoint without a path": {
			modify: []modifier{set(runtimeEndpoint, "unix:///")},
			want:   []string{"runtimeEndpoint FieldValueInvalid"},
			text:   "path",
		},
		"a socket on Windows": {
			windows: true,
			modify:  []modifier{set(runtimeEndpoint, "unix:///run/c")},
			want:    []string{"runtimeEndpoint FieldValueInvalid"},
			text:    "npipe:////./pipe/",
		},
		"a unit without its suffix": {
			modify: []modifier{set(kubeletService, "kubelet")},
			want:   []string{"kubeletService FieldValueInvalid"},
			text:   ".service",
		},
		"a unit with a path": {
			modify: []modifier{set(kubeletService, "../kubelet.service")},
			want:   []string{"kubeletService FieldValueInvalid"},
			text:   ".service",
		},
		"an instance of a unit": {modify: []modifier{set(kubeletService, "snap.kubelet@1.service")}},
		"a service name with a slash": {
			windows: true,
			modify:  []modifier{set(kubeletService, `a\b`)},
			want:    []string{"kubeletService FieldValueInvalid"},
			text:    "256",
		},

		"no endpoints":      {modify: []modifier{set(bindAddress, "")}},
		"endpoints for all": {modify: []modifier{set(bindAddress, "[::]:10271")}},
		"an address without a port": {
			modify: []modifier{set(bindAddress, "127.0.0.1")},
			want:   []string{"metricsBindAddress FieldValueInvalid"},
			text:   "port",
		},
		"a name as address": {
			modify: []modifier{set(bindAddress, "localhost:10271")},
			want:   []string{"metricsBindAddress FieldValueInvalid"},
			text:   "IP address",
		},
		"port 0": {
			modify: []modifier{set(bindAddress, "127.0.0.1:0")},
			want:   []string{"metricsBindAddress FieldValueInvalid"},
			text:   "port",
		},
	} {
		t.Run(name, func(t *testing.T) {
			goos := "linux"
			if test.windows {
				goos = "windows"
			}
			errs := validate(config(goos, test.modify...), goos)
			var got []string
			for _, err := range errs {
				got = append(got, err.Field+" "+string(err.Type))
				if len(test.want) == 1 && !strings.Contains(err.Error(), test.text) {
					t.Errorf("the error does not name %q: %v", test.text, err)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("errors are %q, want %q: %v", got, test.want, errs)
			}
		})
	}
}
