// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// rig is a development cluster in which everything can fail.
type rig struct {
	*framework.Cluster

	// flags are the flags of the server.
	flags []string
	// second is the address at which a second server may listen.
	second string
	// toHost is the link from the server to kube-apiserver, and toServer the link from
	// kube-apiserver to the server.
	toHost, toServer *link
	// disk is the volume with the data of the embedded etcd. It is nil if the machine allows no
	// volume or if etcd is set.
	disk *volume
	// etcd is the etcd cluster that the server uses in place of the embedded etcd, or nil.
	etcd *etcdCluster
	// observer uses a kube-apiserver of its own, which does not fail.
	observer framework.Clients
}

// newRig starts a cluster whose server stores its data in a separate volume or in an etcd cluster.
func newRig(t *testing.T, withEtcd bool) *rig {
	t.Helper()
	t.Setenv("HAULOUT", "external")
	// Nodes may be silent for longer than any fault, so that their pods stay ready.
	t.Setenv("CONTROLLER_MANAGER_FLAGS", "--node-monitor-grace-period=5m")
	c := must.Get(framework.Start())(t)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{Cluster: c}
	state := must.Get(stateOf(c))(t)
	server := freeAddress(t)
	r.second = freeAddress(t)
	at := func(component string) string { return "127.0.0.1:" + strconv.Itoa(state.Ports[component]) }
	r.toHost = newLink(t, "the link to kube-apiserver", "127.0.0.1:0", at("kube-apiserver"))
	r.toServer = newLink(t, "the link to the server", at("haulout-apiserver"), server, r.second)
	r.flags = []string{"--kubeconfig=" + r.kubeconfig(t)}
	if withEtcd {
		r.etcd = newEtcdCluster(t, c.Root(), nil)
		r.flags = append(r.flags, "--etcd-servers="+r.etcd.servers())
	} else if r.disk = newVolume(t); r.disk != nil {
		r.flags = append(r.flags, "--data-dir="+r.disk.path)
	}
	t.Setenv("HAULOUT", "true")
	t.Setenv("HAULOUT_FLAGS", strings.Join(append(r.flags, "--secure-port="+portOf(t, server)), " "))
	must.Do(t, c.Up())
	r.observe(t)
	return r
}

func portOf(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// clusterState is the state file of the development cluster.
type clusterState struct {
	Ports     map[string]int `json:"ports"`
	Processes map[string]struct {
		PID int `json:"pid"`
	} `json:"processes"`
}

func stateOf(c *framework.Cluster) (clusterState, error) {
	var state clusterState
	content, err := os.ReadFile(filepath.Join(c.Dir(), "state.json"))
	if err != nil {
		return state, err
	}
	return state, json.Unmarshal(content, &state)
}

// kubeconfig writes the kubeconfig of the server, with the link in place of kube-apiserver.
func (r *rig) kubeconfig(t *testing.T) string {
	t.Helper()
	config := must.Get(clientcmd.LoadFromFile(filepath.Join(r.Dir(), "haulout-apiserver.kubeconfig")))(t)
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + r.toHost.address()
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*config, path))
	return path
}

// observe starts a second kube-apiserver with the same etcd. It has no watch cache, so its watches
// send all events, including events during a failure of etcd.
func (r *rig) observe(t *testing.T) {
	t.Helper()
	const program = "kube-apiserver"
	state := must.Get(stateOf(r.Cluster))(t)
	content := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", state.Processes[program].PID)))(t)
	args := strings.Split(string(bytes.TrimRight(content, "\x00")), "\x00")
	args = slices.DeleteFunc(args[1:], func(arg string) bool {
		return strings.HasPrefix(arg, "--audit-") || strings.HasPrefix(arg, "--secure-port=")
	})
	address := freeAddress(t)
	observer := exec.Command(filepath.Join(r.Root(), "bin", program), //nolint:gosec // the build made the program
		append(args, "--secure-port="+portOf(t, address), "--watch-cache=false")...)
	observer.Dir = r.Dir()
	observer.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must.Do(t, observer.Start())
	t.Cleanup(func() { _ = observer.Process.Kill(); _ = observer.Wait() })
	config := r.As(t).Config
	config.Host = "https://" + address
	r.observer = framework.Clients{
		Config: config, Kube: kubernetes.NewForConfigOrDie(config), Haulout: clientset.NewForConfigOrDie(config),
	}
	framework.Eventually(t, "the observer's kube-apiserver is ready", func(ctx context.Context) (bool, error) {
		_, err := r.observer.Kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil, err
	})
}
