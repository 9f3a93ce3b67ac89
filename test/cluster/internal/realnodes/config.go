// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"text/template"

	"haulout.dev/haulout/test/cluster/internal/kubeconfig"
)

// Config is the configuration of the process of a node. All paths are absolute.
type Config struct {
	Index int
	// Dir is the folder of the node's files: /var/lib, /var/log, and the settings.
	Dir string
	// Logs is the folder of the log files.
	Logs string
	// Programs is the folder of containerd and the CNI plugins, Binaries the folder of kubelet and
	// kube-proxy.
	Programs, Binaries string
	// Runc is the path of runc, Path the list of folders with the programs that kube-proxy and
	// containerd call.
	Runc, Path string
	// CA is the CA certificate for the clients of the kubelet.
	CA string
	// KubeletKubeconfig and ProxyKubeconfig are the kubeconfigs of kubelet and kube-proxy.
	KubeletKubeconfig, ProxyKubeconfig string
	// Images are the image files that the node imports at its start.
	Images []string
	// Snapshotter is the snapshotter of containerd: overlayfs, or native on an overlay file system.
	Snapshotter string
	// Cgroup is the cgroup of the node, below the root of each hierarchy.
	Cgroup string
	// Volumes is the number of folders for local PersistentVolumes.
	Volumes int
}

// Save writes the configuration.
func (c Config) Save(path string) error {
	content, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return kubeconfig.WriteFile(path, content)
}

// Load reads the configuration.
func Load(path string) (Config, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	var c Config
	err = json.Unmarshal(content, &c)
	return c, err
}

func (c Config) file(name string) string { return filepath.Join(c.Dir, name) }

// The methods below are called by the templates.

// Name returns the name of the node.
func (c Config) Name() string { return Name(c.Index) }

// Address returns the address of the node.
func (c Config) Address() string { return Address(c.Index) }

// PodRange returns the addresses of the pods of the node.
func (c Config) PodRange() string { return PodRange(c.Index) }

// AllPods returns the addresses of the pods of all nodes.
func (c Config) AllPods() string { return podRange }

// CNIDir returns the folder with the configuration of the network of pods.
func (c Config) CNIDir() string { return c.file("cni") }

// Names of the files that writeSettings writes.
const (
	containerdSettings = "containerd.toml"
	kubeletSettings    = "kubelet.yaml"
	proxySettings      = "kube-proxy.yaml"
	cniSettings        = "cni/10-pods.conflist"
)

// settings are the templates of the files.
var settings = map[string]string{
	containerdSettings: `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{{.Snapshotter}}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/pause:dev"
[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE no process may lower its oom_score_adj, and runc would fail.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
      BinaryName = "{{.Runc}}"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{{.Programs}}"]
    conf_dir = "{{.CNIDir}}"
`,
	kubeletSettings: `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /var/lib/kubelet/static-pods
failCgroupV1: false
cgroupDriver: cgroupfs
# The kubelets of all nodes share the hierarchies of the machine.
cgroupRoot: "/{{.Cgroup}}"
enforceNodeAllocatable: []
failSwapOn: false
address: "{{.Address}}"
healthzBindAddress: 127.0.0.1
authentication: {x509: {clientCAFile: "{{.CA}}"}, anonymous: {enabled: false}, webhook: {enabled: true}}
authorization: {mode: Webhook}
resolvConf: ""
makeIPTablesUtilChains: false
# The pods of the test must not be evicted because the disk of the machine is full.
localStorageCapacityIsolation: false
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 5s
`,
	proxySettings: `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: "{{.ProxyKubeconfig}}"}
clusterCIDR: {{.AllPods}}
hostnameOverride: {{.Name}}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
# The limit belongs to the machine, not to the node.
conntrack: {maxPerCore: 0, min: 0}
`,
	cniSettings: `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "{{.PodRange}}"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`,
}

// writeSettings writes the files that containerd, kubelet and kube-proxy read.
func (c Config) writeSettings() error {
	if err := os.MkdirAll(c.CNIDir(), 0o700); err != nil {
		return err
	}
	for name, text := range settings {
		var content bytes.Buffer
		if err := template.Must(template.New(name).Parse(text)).Execute(&content, c); err != nil {
			return err
		}
		if err := kubeconfig.WriteFile(c.file(name), content.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
