// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package layout contains the paths of the files of a development cluster.
package layout

import "path/filepath"

// These are the names of the processes of a cluster. The log files, the entries of the state file
// and the ports use the same names.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	// HauloutScheduler is a program that can run as the process Scheduler.
	HauloutScheduler = "haulout-scheduler"
	Kwok             = "kwok"
	Haulout          = "haulout-apiserver"
	// Network is the process that connects the real nodes.
	Network = "network"
)

// Kube is the minor version of Kubernetes whose programs are in BinDir itself.
const Kube = "1.37"

// Layout contains the absolute paths from which the other paths are derived.
type Layout struct {
	// Dir is the folder of the cluster (CLUSTER_DIR).
	Dir string
	// BinDir is the folder of the programs that the cluster runs.
	BinDir string
	// Manifests is the folder of the kustomization for haulout-apiserver.
	Manifests string
	// SchedulerManifests is the folder of the kustomization for haulout-scheduler, which also
	// contains its configuration.
	SchedulerManifests string
}

// Binary returns the path of a program.
func (l Layout) Binary(name string) string { return filepath.Join(l.BinDir, name) }

// KubeBin returns the folder of kube-apiserver, kubelet, kubectl and the other programs of a minor
// version of Kubernetes.
func (l Layout) KubeBin(version string) string {
	if version == Kube {
		return l.BinDir
	}
	return filepath.Join(l.BinDir, "kube-"+version)
}

// KwokStages returns the folder with the stage files of kwok.
func (l Layout) KwokStages() string { return filepath.Join(l.BinDir, "kwok-stages") }

// NodePrograms returns the folder of containerd and the CNI plugins.
func (l Layout) NodePrograms() string { return filepath.Join(l.BinDir, "node") }

// Images returns the folder with the images of real nodes.
func (l Layout) Images() string { return filepath.Join(l.BinDir, "images") }

// Nodes returns the folder of the files of real nodes.
func (l Layout) Nodes() string { return filepath.Join(l.Dir, "nodes") }

// EgressSelector returns the file that names kube-apiserver's proxy to real nodes.
func (l Layout) EgressSelector() string { return filepath.Join(l.Dir, "egress.yaml") }

// StateFile returns the path of the file with processes, ports and options.
func (l Layout) StateFile() string { return filepath.Join(l.Dir, "state.json") }

// LockFile returns the path of the file that a program locks while it changes the cluster.
func (l Layout) LockFile() string { return filepath.Join(l.Dir, "lock") }

// PKI returns the folder of keys and certificates.
func (l Layout) PKI() string { return filepath.Join(l.Dir, "pki") }

// Logs returns the folder of log files.
func (l Layout) Logs() string { return filepath.Join(l.Dir, "logs") }

// Log returns the log file of a process.
func (l Layout) Log(name string) string { return filepath.Join(l.Logs(), name+".log") }

// AuditLog returns the file to which kube-apiserver logs evictions and deletions of pods.
func (l Layout) AuditLog() string { return filepath.Join(l.Logs(), APIServer+"-audit.log") }

// AuditPolicy returns the file with the policy of the audit log.
func (l Layout) AuditPolicy() string { return filepath.Join(l.Dir, "audit-policy.yaml") }

// EtcdData returns the data folder of the host cluster's etcd.
func (l Layout) EtcdData() string { return filepath.Join(l.Dir, "etcd") }

// HauloutData returns the data folder of haulout-apiserver.
func (l Layout) HauloutData() string { return filepath.Join(l.Dir, "haulout") }

// HauloutToken returns the file with the service account token of haulout-apiserver.
func (l Layout) HauloutToken() string { return filepath.Join(l.Dir, "haulout-apiserver.token") }

// HauloutKubeconfig returns the kubeconfig of haulout-apiserver.
func (l Layout) HauloutKubeconfig() string {
	return filepath.Join(l.Dir, "haulout-apiserver.kubeconfig")
}

// AdminKubeconfig returns the kubeconfig of the cluster administrator.
func (l Layout) AdminKubeconfig() string { return filepath.Join(l.Dir, "kubeconfig") }

// ComponentKubeconfig returns the kubeconfig of a control-plane process.
func (l Layout) ComponentKubeconfig(name string) string {
	return filepath.Join(l.PKI(), name+".kubeconfig")
}

// SchedulerConfig returns the configuration file of haulout-scheduler.
func (l Layout) SchedulerConfig() string { return filepath.Join(l.Dir, "scheduler.yaml") }

// KwokConfig returns the configuration file of kwok.
func (l Layout) KwokConfig() string { return filepath.Join(l.Dir, "kwok.yaml") }

// KwokHome returns the working folder of kwok, so that kwok does not read the ~/.kwok of the user.
func (l Layout) KwokHome() string { return filepath.Join(l.Dir, "kwok") }

// Data returns the files and folders in Dir that `down` removes, without the log files, the state
// and the lock. It is a list of names and not the folder itself, so that `down` keeps other files
// in a CLUSTER_DIR.
func (l Layout) Data() []string {
	return []string{
		l.PKI(), l.EtcdData(), l.HauloutData(), l.HauloutToken(), l.HauloutKubeconfig(), l.AdminKubeconfig(),
		l.KwokConfig(), l.KwokHome(), l.AuditPolicy(), l.SchedulerConfig(), l.Nodes(), l.EgressSelector(),
		filepath.Join(l.Dir, EgressSocket),
		filepath.Join(l.Dir, EtcdClientSocket), filepath.Join(l.Dir, EtcdPeerSocket),
	}
}

// These are the names of etcd's sockets. They are relative to Dir, which is the working directory
// of the processes: the path of a unix socket is limited to 107 bytes, and the path of a
// CLUSTER_DIR may be longer.
const (
	EtcdClientSocket = "etcd-client.sock"
	EtcdPeerSocket   = "etcd-peer.sock"
	// EgressSocket is the socket of the proxy to real nodes.
	EgressSocket = "egress.sock"
)

// DefaultDir returns the default folder of the cluster: .cluster beside the folder of the programs.
func DefaultDir(binDir string) string { return filepath.Join(filepath.Dir(binDir), ".cluster") }
