// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"runtime"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// platformDefaults are the defaults that differ between the operating systems.
type platformDefaults struct {
	kubeconfig, kubeletConfig, kubeletService, stateDirectory string
}

// defaultsOf returns the defaults for an operating system. On Windows, they are the paths of a node
// that kubeadm set up.
func defaultsOf(goos string) platformDefaults {
	if goos == "windows" {
		return platformDefaults{
			kubeconfig:     `C:\etc\kubernetes\kubelet.conf`,
			kubeletConfig:  `C:\var\lib\kubelet\config.yaml`,
			kubeletService: "kubelet",
			stateDirectory: `C:\ProgramData\haulout-node-agent`,
		}
	}
	return platformDefaults{
		kubeconfig:     "/etc/kubernetes/kubelet.conf",
		kubeletConfig:  "/var/lib/kubelet/config.yaml",
		kubeletService: "kubelet.service",
		stateDirectory: "/var/lib/haulout-node-agent",
	}
}

// DefaultTable is the table of a configuration without one.
func DefaultTable() []ShutdownGracePeriodByPodPriority {
	return []ShutdownGracePeriodByPodPriority{
		{Priority: 0, ShutdownGracePeriodSeconds: 60},
		{Priority: 2000000000, ShutdownGracePeriodSeconds: 30},
	}
}

// SetDefaults_NodeAgentConfiguration sets the fields that are not set.
func SetDefaults_NodeAgentConfiguration(c *NodeAgentConfiguration) {
	setDefaults(c, defaultsOf(runtime.GOOS))
}

func setDefaults(c *NodeAgentConfiguration, platform platformDefaults) {
	for _, s := range []struct {
		field *string
		value string
	}{
		{&c.Kubeconfig, platform.kubeconfig},
		{&c.KubeletConfig, platform.kubeletConfig},
		{&c.KubeletService, platform.kubeletService},
		{&c.StateDirectory, platform.stateDirectory},
		{(*string)(&c.LocalEngine), string(LocalEngineCRI)},
		{(*string)(&c.OnForgottenShutdown), string(ForgottenShutdownKeep)},
		{(*string)(&c.StaticPods), string(StaticPodsEvacuate)},
	} {
		if *s.field == "" {
			*s.field = s.value
		}
	}
	for _, d := range []struct {
		field *metav1.Duration
		value time.Duration
	}{
		{&c.MaxShutdownDelay, 30 * time.Minute},
		{&c.APIGracePeriod, time.Minute},
		{&c.APILossRestorePeriod, 5 * time.Minute},
		{&c.HauloutLossRestorePeriod, time.Hour},
	} {
		if d.field.Duration == 0 {
			d.field.Duration = d.value
		}
	}
	if len(c.ShutdownGracePeriodByPodPriority) == 0 {
		c.ShutdownGracePeriodByPodPriority = DefaultTable()
	}
	if c.DrainBeforeShutdown == nil {
		c.DrainBeforeShutdown = ptr.To(true)
	}
	if c.CompleteAfterReboot == nil {
		c.CompleteAfterReboot = ptr.To(true)
	}
	if c.MetricsBindAddress == nil {
		c.MetricsBindAddress = ptr.To("127.0.0.1:10271")
	}
}
