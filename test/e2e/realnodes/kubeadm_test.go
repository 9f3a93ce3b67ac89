//go:build kubeadm

// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	// controlPlanes is the number of control planes that kubeadm creates. Another node runs the
	// server, and one more node has the manifests of other installers.
	controlPlanes = 3
	serverNode    = "real-4"
	otherNode     = "real-5"
	// balancer is the address of the API on nodes that are not control planes.
	balancer = "198.18.0.14:7443"
	// certificateKey encrypts the certificates that control planes share.
	certificateKey = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	bootstrapToken = "abcdef.0123456789abcdef"
	// bootLimit is the maximum time until a control plane serves after a reboot.
	bootLimit = 3 * time.Minute
)

// kubeadmPrograms are the static pods of kubeadm on a control plane.
var kubeadmPrograms = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// kubeadmSettings has settings for kubelets on nodes of a development cluster, which share the
// cgroups of the machine.
const kubeadmSettings = `---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
failSwapOn: false
resolvConf: ""
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 5s
`

const kubeadmInit = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens: [{token: ` + bootstrapToken + `}]
certificateKey: ` + certificateKey + `
localAPIEndpoint: {advertiseAddress: %[1]s, bindPort: 6443}
nodeRegistration: %[2]s
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: v1.37.1
imageRepository: localhost
controlPlaneEndpoint: ` + balancer + `
networking: {podSubnet: 198.18.0.0/16, serviceSubnet: 10.96.0.0/16}
controllerManager: {extraArgs: [{name: allocate-node-cidrs, value: "false"}]}
`

const kubeadmJoin = `apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery: {bootstrapToken: {token: ` + bootstrapToken + `, apiServerEndpoint: "` + balancer + `", unsafeSkipCAVerification: true}}
nodeRegistration: %[1]s
`

const kubeadmJoinControlPlane = `controlPlane: {localAPIEndpoint: {advertiseAddress: %s, bindPort: 6443}, certificateKey: ` + certificateKey + `}
`

// kubeadmProxy has the settings of haproxy, which balances connections to the API servers.
const kubeadmProxy = `defaults
  mode tcp
  timeout connect 2s
  timeout client 1h
  timeout server 1h
frontend api
  bind ` + balancer + `
  default_backend control-planes
backend control-planes
  option httpchk GET /readyz
  default-server check check-ssl verify none inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
  server one 198.18.0.11:6443
  server two 198.18.0.12:6443
  server three 198.18.0.13:6443
`

// kubeadmCluster is a cluster that kubeadm creates on real nodes: its API servers and its etcd run
// as static pods. The development cluster only provides the nodes.
type kubeadmCluster struct {
	t     *testing.T
	c     *framework.Cluster
	nodes map[string]*machine
}

// TestKubeadm runs the node agent on the control planes of a kubeadm cluster.
func TestKubeadm(t *testing.T) {
	for program, need := range map[string]string{"haproxy": "haproxy", "dbus-daemon": "dbus", "/lib/systemd/systemd-logind": "systemd"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v (Debian: package %s)", err, need)
		}
	}
	t.Setenv("HAULOUT", "false")
	t.Setenv("REAL_NODES", "5")
	k := startKubeadm(t, start(t))
	k.installHaulout()
	for node := range k.nodes {
		if node != serverNode {
			k.startAgent(node)
		}
	}
	t.Run("a drain of a control plane keeps its static pods", k.testDrainControlPlane)
	t.Run("a drain of all control planes keeps their static pods", k.testDrainAllControlPlanes)
	t.Run("a reboot of a control plane takes the time of its table", k.testReboot)
	t.Run("static pods of other installers", k.testOtherInstallers)
}

func startKubeadm(t *testing.T, c *framework.Cluster) *kubeadmCluster {
	t.Helper()
	k := &kubeadmCluster{t: t, c: c, nodes: map[string]*machine{}}
	for i := 1; i <= controlPlanes+2; i++ {
		node := fmt.Sprintf("real-%d", i)
		k.nodes[node] = &machine{t: t, c: c, node: node}
		k.takeOver(node)
		k.boot(node)
	}
	proxy := filepath.Join(c.Dir(), "haproxy.cfg")
	must.Do(t, os.WriteFile(proxy, []byte(kubeadmProxy), 0o600))
	k.nodes[serverNode].start("haproxy", nil, "haproxy", "-db", "-f", proxy)
	for i := 1; i <= controlPlanes+2; i++ {
		node := fmt.Sprintf("real-%d", i)
		registration := fmt.Sprintf(`{name: %s, criSocket: "unix:///run/containerd/containerd.sock", imagePullPolicy: Never, `+
			`kubeletExtraArgs: [{name: node-ip, value: "%s"}, {name: cgroup-root, value: "%s"}]}`, node, addressOf(i), k.cgroupRoot(node))
		switch {
		case i == 1:
			k.kubeadm(node, fmt.Sprintf(kubeadmInit, addressOf(i), registration)+kubeadmSettings,
				"init", "--upload-certs", "--skip-phases=addon/coredns,addon/kube-proxy")
		case i <= controlPlanes:
			k.kubeadm(node, fmt.Sprintf(kubeadmJoin, registration)+fmt.Sprintf(kubeadmJoinControlPlane, addressOf(i)), "join")
		default:
			k.kubeadm(node, fmt.Sprintf(kubeadmJoin, registration), "join")
			admin, err := os.ReadFile(k.nodes["real-1"].path("/etc/kubernetes/admin.conf"))
			if err == nil {
				err = os.WriteFile(k.nodes[node].path("/etc/kubernetes/admin.conf"), admin, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		k.startProxy(node)
	}
	for node := range k.nodes {
		k.kubectl("", "wait", "node/"+node, "--for=condition=Ready", "--timeout=2m")
	}
	return k
}

func addressOf(index int) string { return fmt.Sprintf("198.18.0.%d", 10+index) }

// takeOver stops the kubelet and the kube-proxy of the development cluster on a node, and disables
// them permanently.
func (k *kubeadmCluster) takeOver(node string) {
	k.t.Helper()
	m := k.nodes[node]
	for _, program := range []string{"kubelet", "kube-proxy"} {
		must.Do(k.t, os.MkdirAll(m.path("/var/lib/held"), 0o755))
		must.Do(k.t, os.WriteFile(filepath.Join(m.path("/var/lib/held"), program), nil, 0o644))
		framework.Eventually(k.t, program+" of the development cluster ends on "+node, func(context.Context) (bool, error) {
			pids := k.processes(node, program)
			for _, pid := range pids {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					return false, err
				}
			}
			return len(pids) == 0, nil
		})
	}
	must.Do(k.t, os.RemoveAll(m.path("/var/lib/kubelet/pki")))
	for _, name := range kubeadmPrograms {
		archives, err := filepath.Glob(filepath.Join(k.c.Root(), "bin", "images-kubeadm", name+"-*.tar"))
		if err != nil || len(archives) != 1 {
			k.t.Fatalf("images of %s: %q, %v: build them with `make kubeadm`", name, archives, err)
		}
		k.in(node, "", filepath.Join(k.c.Root(), "bin", "node", "ctr"), "--address=/run/containerd/containerd.sock",
			"--namespace=k8s.io", "images", "import", archives[0])
	}
}

// boot does what a machine does at its boot: it mounts a persistent /etc, and starts D-Bus, logind,
// and the kubelet as soon as kubeadm has configured it.
func (k *kubeadmCluster) boot(node string) {
	k.t.Helper()
	m := k.nodes[node]
	framework.Eventually(k.t, "containerd runs on "+node, func(context.Context) (bool, error) {
		_, err := os.Stat(m.path("/run/containerd/containerd.sock"))
		return err == nil, err
	})
	for _, folder := range []string{"/var/lib/etc/upper", "/var/lib/etc/work"} {
		must.Do(k.t, os.MkdirAll(m.path(folder), 0o755))
	}
	k.in(node, "", "mount", "-t", "overlay", "overlay", "-o", "lowerdir=/etc,upperdir=/var/lib/etc/upper,workdir=/var/lib/etc/work", "/etc")
	// The nodes have no DNS server.
	k.in(node, "", "sh", "-c", "rm -f /etc/resolv.conf && touch /etc/resolv.conf")
	*m = *startMachine(k.t, k.c, node)
	m.start("kubelet", nil, "bash", "-c", fmt.Sprintf(`while :; do
  if [ ! -e /run/held/kubelet ] && [ -e /var/lib/kubelet/config.yaml ] && [ -e /var/lib/kubelet/kubeadm-flags.env ]; then
    . /var/lib/kubelet/kubeadm-flags.env
    %s --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf \
      --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf $KUBELET_KUBEADM_ARGS
  fi
  sleep 0.5
done`, filepath.Join(k.c.Root(), "bin", "kubelet")))
}

// processes returns the processes of a program in the namespaces of a node.
func (k *kubeadmCluster) processes(node, program string) []int {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", k.c.Signal(k.t, node, 0)))
	if err != nil {
		k.t.Fatal(err)
	}
	return slices.DeleteFunc(processes(program), func(pid int) bool {
		other, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		return err != nil || other != own
	})
}

// cgroupRoot returns the cgroup of the node from the settings of the development cluster.
func (k *kubeadmCluster) cgroupRoot(node string) string {
	k.t.Helper()
	settings, err := filepath.Glob(filepath.Join(k.c.Dir(), "*", node, "kubelet.yaml"))
	if err != nil || len(settings) != 1 {
		k.t.Fatalf("settings of %s: %q, %v", node, settings, err)
	}
	content := must.Get(os.ReadFile(settings[0]))(k.t)
	for line := range strings.Lines(string(content)) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), "cgroupRoot: "); found {
			return strings.Trim(value, `"`)
		}
	}
	k.t.Fatalf("%s has no cgroupRoot", settings[0])
	return ""
}

// in runs a program in the namespaces of a node and returns its output.
func (k *kubeadmCluster) in(node, stdin, program string, args ...string) string {
	k.t.Helper()
	out, err := k.try(node, stdin, program, args...)
	if err != nil {
		k.t.Fatalf("%s %v on %s: %v\n%s", filepath.Base(program), args, node, err, out)
	}
	return out
}

func (k *kubeadmCluster) try(node, stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(k.t.Context(), "nsenter", k.nodes[node].enter(program, args...)...) //nolint:gosec // a program of the build
	cmd.Env = append(os.Environ(), "KUBECONFIG=/etc/kubernetes/admin.conf", "HOME="+k.c.Dir())
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (k *kubeadmCluster) kubeadm(node, config string, args ...string) {
	k.t.Helper()
	file := filepath.Join(k.c.Dir(), node+"-kubeadm.yaml")
	must.Do(k.t, os.WriteFile(file, []byte(config), 0o600))
	// Without a PATH, kubeadm does not find systemctl, which would call systemd on the machine of
	// the test.
	args = append([]string{"PATH=/", filepath.Join(k.c.Root(), "bin", "kubeadm")}, args...)
	k.in(node, "", "env", append(args, "--config="+file, "--ignore-preflight-errors=all")...)
}

// startProxy starts kube-proxy with the settings of the development cluster, adapted to this
// cluster.
func (k *kubeadmCluster) startProxy(node string) {
	k.t.Helper()
	settings, err := filepath.Glob(filepath.Join(k.c.Dir(), "*", node, "kube-proxy.yaml"))
	if err != nil || len(settings) != 1 {
		k.t.Fatalf("settings of %s: %q, %v", node, settings, err)
	}
	content := must.Get(os.ReadFile(settings[0]))(k.t)
	var lines []string
	for line := range strings.Lines(string(content)) {
		if strings.HasPrefix(line, "clientConnection:") {
			line = "clientConnection: {kubeconfig: /etc/kubernetes/admin.conf}\n"
		}
		lines = append(lines, line)
	}
	file := filepath.Join(k.c.Dir(), node+"-kube-proxy.yaml")
	must.Do(k.t, os.WriteFile(file, []byte(strings.Join(lines, "")), 0o600))
	k.nodes[node].start("kube-proxy", nil, filepath.Join(k.c.Root(), "bin", "kube-proxy"), "--config="+file)
}

// kubectl runs kubectl as the administrator of the cluster, on the node of the server, because the
// tests do not reboot this node.
func (k *kubeadmCluster) kubectl(stdin string, args ...string) string {
	k.t.Helper()
	return k.in(serverNode, stdin, filepath.Join(k.c.Root(), "bin", "kubectl"), args...)
}

// plugin runs kubectl maintenance.
func (k *kubeadmCluster) plugin(args ...string) string {
	k.t.Helper()
	return k.in(serverNode, "", filepath.Join(k.c.Root(), "bin", "kubectl-maintenance"), args...)
}

// serverVolume is the volume of the server's data.
const serverVolume = `apiVersion: v1
kind: PersistentVolume
metadata: {name: haulout}
spec:
  capacity: {storage: 10Gi}
  accessModes: [ReadWriteOnce]
  claimRef: {namespace: haulout-system, name: haulout-apiserver-data}
  local: {path: /var/lib/volumes/1}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [` + serverNode + `]}]}]}}
`

func (k *kubeadmCluster) installHaulout() {
	k.t.Helper()
	k.kubectl(serverVolume, "apply", "--filename=-")
	overlay := k.t.TempDir()
	base := must.Get(filepath.Rel(overlay, filepath.Join(k.c.Root(), "artifacts", "base")))(k.t)
	kustomization := fmt.Sprintf("resources: [%s]\nimages:\n- {name: haulout-apiserver, newName: localhost/haulout-apiserver, newTag: dev}\n", base)
	must.Do(k.t, os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(kustomization), 0o600))
	k.kubectl("", "apply", "--kustomize="+overlay)
	k.kubectl("", "apply", "--filename="+filepath.Join(k.c.Root(), "artifacts", "node-agent", "rbac.yaml"))
	k.kubectl("", "wait", "apiservice", apiService, "--for=condition=Available", "--timeout=2m")
}

// startAgent starts the agent with the kubeconfig of the kubelet, as its installer does.
func (k *kubeadmCluster) startAgent(node string) {
	k.t.Helper()
	file := filepath.Join(k.c.Dir(), node+"-node-agent.yaml")
	config := fmt.Sprintf("apiVersion: nodeagent.haulout.dev/v1alpha1\nkind: NodeAgentConfiguration\n"+
		"kubeconfig: /etc/kubernetes/kubelet.conf\nmaxShutdownDelay: %s\n", maxDelay) + agentTable
	must.Do(k.t, os.WriteFile(file, []byte(config), 0o600))
	k.nodes[node].start("node-agent", nil, filepath.Join(k.c.Root(), "bin", agentProgram), "run", "--config="+file)
	k.kubectl("", "wait", "node/"+node, "--for=condition="+string(v1alpha1.NodeConditionAgentReady), "--timeout=2m")
}

// containers returns the container of each static pod of the control planes, by pod.
func (k *kubeadmCluster) containers() map[string]string {
	k.t.Helper()
	var list corev1.PodList
	out := k.kubectl("", "get", "pods", "--namespace=kube-system", "--selector=tier=control-plane", "--output=json")
	must.Do(k.t, json.Unmarshal([]byte(out), &list))
	found := map[string]string{}
	for i := range list.Items {
		for _, status := range list.Items[i].Status.ContainerStatuses {
			if status.State.Running != nil {
				found[list.Items[i].Name] = status.ContainerID
			}
		}
	}
	if want := controlPlanes * len(kubeadmPrograms); len(found) != want {
		k.t.Errorf("%d static pods of control planes run, want %d: %v", len(found), want, found)
	}
	return found
}

// checkKept checks that the containers have not changed, and that the text names the static pods of
// the nodes.
func (k *kubeadmCluster) checkKept(t *testing.T, before map[string]string, text string, nodes ...string) {
	t.Helper()
	for pod, container := range k.containers() {
		if before[pod] != container {
			t.Errorf("%s had the container %s and has %s", pod, before[pod], container)
		}
	}
	for _, node := range nodes {
		for _, program := range kubeadmPrograms {
			if pod := program + "-" + node; !strings.Contains(text, pod) {
				t.Errorf("got no static pod %s in\n%s", pod, text)
			}
		}
	}
}

func (k *kubeadmCluster) testDrainControlPlane(t *testing.T) {
	k.t = t
	before := k.containers()
	out := k.plugin("drain", "real-2", "--ignore-daemonsets", "--name=one", "--timeout=3m")
	t.Log(out)
	k.checkKept(t, before, out, "real-2")
	k.plugin("complete", "one", "--wait", "--timeout=2m")
}

func (k *kubeadmCluster) testDrainAllControlPlanes(t *testing.T) {
	k.t = t
	before := k.containers()
	k.plugin("drain", "real-1", "real-2", "real-3", "--ignore-daemonsets", "--name=all", "--yes", "--timeout=3m")
	k.checkKept(t, before, "")
	k.plugin("complete", "all", "--wait", "--timeout=2m")
}

// testReboot reboots a control plane. The kubelet there connects to the API server on the same
// node.
func (k *kubeadmCluster) testReboot(t *testing.T) {
	k.t = t
	const node = "real-3"
	m := k.nodes[node]
	begin := time.Now()
	m.reboot()
	m.untilDown(maxDelay)
	took := time.Since(begin).Round(time.Second)
	t.Logf("the machine shut down after %s, the table has %s", took, tableTime)
	if limit := tableTime + 10*time.Second; took > limit {
		t.Errorf("the machine shut down after %s, want at most %s", took, limit)
	}
	k.c.Kill(t, node)
	must.Do(t, k.c.Up())
	k.boot(node)
	k.startProxy(node)
	k.startAgent(node)
	framework.EventuallyWithin(t, bootLimit, "the control plane serves again", func(context.Context) (bool, error) {
		out, err := k.try(serverNode, "", filepath.Join(k.c.Root(), "bin", "kubectl"), "get", "node", node, "--output=json")
		if err != nil {
			return false, fmt.Errorf("%w: %s", err, out)
		}
		var now corev1.Node
		if err := json.Unmarshal([]byte(out), &now); err != nil {
			return false, err
		}
		ready := slices.ContainsFunc(now.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		return ready && !now.Spec.Unschedulable, nil
	})
	k.containers()
}

// installerManifests has static pods with the labels and the commands of other installers, and one
// that a drain may park.
var installerManifests = map[string]string{
	"openshift-etcd": `metadata: {name: openshift-etcd, namespace: kube-system, labels: {app: etcd}}`,
	"openshift-kube-apiserver": `metadata: {name: openshift-kube-apiserver, namespace: kube-system,
  labels: {app: openshift-kube-apiserver, apiserver: "true"}}`,
	"rke2-kube-scheduler": `metadata: {name: rke2-kube-scheduler, namespace: kube-system, labels: {component: kube-scheduler, tier: control-plane}}`,
	"helper":              `metadata: {name: helper, namespace: kube-system, labels: {app: helper}}`,
}

const installerSpec = `
spec:
  priorityClassName: system-node-critical
  terminationGracePeriodSeconds: 1
  containers: [{name: app, image: "localhost/app:dev", imagePullPolicy: Never, args: [serve, "1"]}]
`

// testOtherInstallers checks that a drain keeps the control planes of other installers, and parks
// other static pods of a worker.
func (k *kubeadmCluster) testOtherInstallers(t *testing.T) {
	k.t = t
	folder := k.nodes[otherNode].path("/etc/kubernetes/manifests")
	must.Do(t, os.MkdirAll(folder, 0o755))
	place := func(names ...string) {
		t.Helper()
		for _, name := range names {
			manifest := "apiVersion: v1\nkind: Pod\n" + installerManifests[name] + installerSpec
			must.Do(t, os.WriteFile(filepath.Join(folder, name+".yaml"), []byte(manifest), 0o600))
			k.kubectl("", "wait", "--namespace=kube-system", "pod/"+name+"-"+otherNode, "--for=create", "--timeout=1m")
			k.kubectl("", "wait", "--namespace=kube-system", "pod/"+name+"-"+otherNode, "--for=condition=Ready", "--timeout=1m")
		}
	}
	isThere := func(name string) bool {
		_, err := os.Stat(filepath.Join(folder, name+".yaml"))
		return err == nil
	}
	place("rke2-kube-scheduler", "helper")
	k.plugin("drain", otherNode, "--ignore-daemonsets", "--name=scheduler", "--timeout=3m")
	if !isThere("rke2-kube-scheduler") || isThere("helper") {
		t.Errorf("kube-scheduler exists: %v, want true; helper exists: %v, want false", isThere("rke2-kube-scheduler"), isThere("helper"))
	}
	k.plugin("complete", "scheduler", "--wait", "--timeout=2m")
	framework.Eventually(t, "the helper runs again", func(context.Context) (bool, error) { return isThere("helper"), nil })

	place("openshift-etcd", "openshift-kube-apiserver")
	k.plugin("drain", otherNode, "--ignore-daemonsets", "--name=openshift", "--timeout=3m")
	for name := range installerManifests {
		is.True(t, isThere(name), "the drain parked static pod %s on a node with an API server", name)
	}
	k.plugin("complete", "openshift", "--wait", "--timeout=2m")
}
