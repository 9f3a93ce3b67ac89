// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// LocalEngine is the way in which the agent ends pods without the API.
type LocalEngine string

const (
	// LocalEngineCRI stops the kubelet and ends the containers through the container runtime.
	LocalEngineCRI LocalEngine = "CRI"
	// LocalEngineNone never ends pods without the API. The shutdown continues at the deadline with
	// the pods that are left.
	LocalEngineNone LocalEngine = "None"
)

// ForgottenShutdownPolicy is what the agent does with its NodeMaintenance when the login manager
// forgets a pending shutdown without a cancellation, because it was restarted.
type ForgottenShutdownPolicy string

const (
	// ForgottenShutdownKeep keeps the NodeMaintenance. The user must then either request the reboot
	// again, for which the node is already drained, or complete the maintenance.
	ForgottenShutdownKeep ForgottenShutdownPolicy = "Keep"
	// ForgottenShutdownCancel completes the NodeMaintenance, as after a cancelled shutdown.
	ForgottenShutdownCancel ForgottenShutdownPolicy = "Cancel"
)

// StaticPodPolicy is what happens to the static pods of a node under maintenance.
type StaticPodPolicy string

const (
	// StaticPodsEvacuate stops static pods when a maintenance asks them to leave.
	StaticPodsEvacuate StaticPodPolicy = "Evacuate"
	// StaticPodsKeep keeps static pods running.
	StaticPodsKeep StaticPodPolicy = "Keep"
)

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// NodeAgentConfiguration is the configuration file of haulout-node-agent.
type NodeAgentConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// nodeName is the name of the Node object. The default is the name in the kubelet's client
	// certificate (kubeconfig).
	NodeName string `json:"nodeName,omitempty"`

	// kubeconfig is the path of the kubeconfig file of the agent. It must authenticate as
	// system:node:<nodeName>. The default is the kubeconfig file of the kubelet,
	// /etc/kubernetes/kubelet.conf (Windows: C:\etc\kubernetes\kubelet.conf).
	Kubeconfig string `json:"kubeconfig,omitempty"`

	// kubeletConfig is the path of the kubelet's configuration file, which is read if the command
	// line of the kubelet does not name another one. The default is /var/lib/kubelet/config.yaml
	// (Windows: C:\var\lib\kubelet\config.yaml).
	KubeletConfig string `json:"kubeletConfig,omitempty"`

	// shutdownGracePeriodByPodPriority is the table of KEP-2712, with the meaning that it has in
	// the kubelet's configuration: the pods with at least the priority of an entry, and less than
	// the priority of the next entry, have the entry's time to end. Pods below the lowest entry
	// belong to the lowest entry. Entries may be in any order and must have different priorities;
	// at most 33 entries. The default is 60 seconds for all pods and 30 seconds for pods of
	// priority 2000000000 (system-cluster-critical) and above.
	ShutdownGracePeriodByPodPriority []ShutdownGracePeriodByPodPriority `json:"shutdownGracePeriodByPodPriority,omitempty"`

	// maxShutdownDelay is the longest time for which the agent delays a shutdown, from 1s to 24h,
	// and at least 5s longer than all periods of the table together. The default is 30m.
	MaxShutdownDelay metav1.Duration `json:"maxShutdownDelay"`

	// drainBeforeShutdown specifies whether the agent drains the node, or evicts its pods, before
	// it ends the remaining pods on the node. If false, the agent follows KEP-2712 and KEP-4802: it
	// ends the pods by priority, without regard to their budgets, as soon as the shutdown begins.
	// Then localEngine must not be None. The default is true.
	DrainBeforeShutdown *bool `json:"drainBeforeShutdown,omitempty"`

	// apiGracePeriod is how long an API may not respond during a shutdown, from 1s to 10m. After
	// that, the agent evicts the pods itself (Haulout does not respond), or ends the pods on the
	// node (kube-apiserver does not respond). If a quarter of the remaining time of the shutdown is
	// shorter than apiGracePeriod, the quarter applies. The default is 60s.
	APIGracePeriod metav1.Duration `json:"apiGracePeriod"`

	// localEngine is the way in which the agent ends pods without the API: CRI or None. The default
	// is CRI.
	LocalEngine LocalEngine `json:"localEngine,omitempty"`

	// staticPodPath is the absolute path of the directory with the manifests of static pods. If
	// empty, the agent uses the path in the kubelet's configuration.
	StaticPodPath string `json:"staticPodPath,omitempty"`

	// runtimeEndpoint is the CRI endpoint of the container runtime. The agent uses it only until it
	// has found the endpoint in the kubelet's configuration, and reports a difference between the
	// two. The default is the default of the kubelet.
	RuntimeEndpoint string `json:"runtimeEndpoint,omitempty"`

	// kubeletService is the name of the kubelet's service: a systemd unit, on Windows a service.
	// The default is kubelet.service (Windows: kubelet).
	KubeletService string `json:"kubeletService,omitempty"`

	// stateDirectory is the absolute path of the directory in which the agent stores its state. The
	// default is /var/lib/haulout-node-agent (Windows: C:\ProgramData\haulout-node-agent).
	StateDirectory string `json:"stateDirectory,omitempty"`

	// completeAfterReboot specifies whether the agent completes the NodeMaintenance of a shutdown
	// after the machine has booted again, which makes the node schedulable. If false, a user must
	// complete the NodeMaintenance. The default is true.
	CompleteAfterReboot *bool `json:"completeAfterReboot,omitempty"`

	// onForgottenShutdown is what happens to the NodeMaintenance when the login manager forgets a
	// pending shutdown: Keep or Cancel. The default is Keep.
	OnForgottenShutdown ForgottenShutdownPolicy `json:"onForgottenShutdown,omitempty"`

	// staticPods is what happens to the static pods of a node under maintenance: Evacuate or Keep.
	// With Keep, all static pods keep running. The default is Evacuate, which stops all of them
	// except those of a control plane.
	StaticPods StaticPodPolicy `json:"staticPods,omitempty"`

	// keepStaticPods are patterns of static pods that are kept, as <namespace>/<name>; * stands for
	// any characters but /. The name may be the name in the manifest or the name of the mirror pod,
	// which ends with the name of the node. At most 64.
	KeepStaticPods []string `json:"keepStaticPods,omitempty"`

	// evacuateStaticPods are patterns of static pods that leave although staticPods is Keep or a
	// part of a control plane runs on the node. They do not apply to the programs of a control
	// plane, to pods through which the kubelet may reach the API server, and to Nodes with a label
	// of a control plane. keepStaticPods has precedence. At most 64.
	EvacuateStaticPods []string `json:"evacuateStaticPods,omitempty"`

	// apiLossRestorePeriod is the time after which the agent restores the parked static pods if
	// neither Kubernetes nor Haulout responds, from 10s to 24h. The default is 5m.
	APILossRestorePeriod metav1.Duration `json:"apiLossRestorePeriod"`

	// hauloutLossRestorePeriod is the time after which the agent restores the parked static pods if
	// Kubernetes responds and Haulout does not, from 10s to 24h. The default is 1h.
	HauloutLossRestorePeriod metav1.Duration `json:"hauloutLossRestorePeriod"`

	// metricsBindAddress is the IP address and port of the endpoints /metrics, /healthz and
	// /statusz. They need no authentication, so the address should be a loopback address. If "",
	// there are no endpoints. The default is 127.0.0.1:10271.
	MetricsBindAddress *string `json:"metricsBindAddress,omitempty"`
}

// ShutdownGracePeriodByPodPriority is an entry of the table of KEP-2712.
type ShutdownGracePeriodByPodPriority struct {
	// priority is the lowest priority of a pod to which the entry applies.
	Priority int32 `json:"priority"`
	// shutdownGracePeriodSeconds is the time in which the pods must end, in seconds, from 1 to
	// 86400.
	ShutdownGracePeriodSeconds int64 `json:"shutdownGracePeriodSeconds"`
}
