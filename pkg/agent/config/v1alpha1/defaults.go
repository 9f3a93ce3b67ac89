// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"runtime"
	"time"

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

// SetDefaults_NodeAgentConfiguration sets the fields that are not set.
func SetDefaults_NodeAgentConfiguration(c *NodeAgentConfiguration) {
	setDefaults(c, defaultsOf(runtime.GOOS))
}

func setDefaults(c *NodeAgentConfiguration, platform platformDefaults) {
	setDefault(&c.Kubeconfig, platform.kubeconfig)
	setDefault(&c.KubeletConfig, platform.kubeletConfig)
	setDefault(&c.KubeletService, platform.kubeletService)
	setDefault(&c.StateDirectory, platform.stateDirectory)
	setDefault(&c.LocalEngine, LocalEngineCRI)
	setDefault(&c.OnForgottenShutdown, ForgottenShutdownKeep)
	setDefault(&c.StaticPods, StaticPodsEvacuate)
	setDefault(&c.MaxShutdownDelay.Duration, 30*time.Minute)
	setDefault(&c.APIGracePeriod.Duration, time.Minute)
	setDefault(&c.APILossRestorePeriod.Duration, 5*time.Minute)
	setDefault(&c.HauloutLossRestorePeriod.Duration, time.Hour)
	setDefault(&c.DrainBeforeShutdown, ptr.To(true))
	setDefault(&c.CompleteAfterReboot, ptr.To(true))
	setDefault(&c.MetricsBindAddress, ptr.To("127.0.0.1:10271"))
	if len(c.ShutdownGracePeriodByPodPriority) == 0 {
		c.ShutdownGracePeriodByPodPriority = []ShutdownGracePeriodByPodPriority{
			{Priority: 0, ShutdownGracePeriodSeconds: 60},
			{Priority: 2000000000, ShutdownGracePeriodSeconds: 30},
		}
	}
}

// setDefault sets a field that has its zero value.
func setDefault[T comparable](field *T, value T) { *field = cmp.Or(*field, value) }
