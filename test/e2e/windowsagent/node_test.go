// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windowsagent

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	service = "haulout-node-agent"
	// These files of the machine have the paths that kubeadm uses.
	kubeconfigFile = `C:\etc\kubernetes\kubelet.conf`
	kubeletFile    = `C:\var\lib\kubelet\config.yaml`
	manifests      = `C:\etc\kubernetes\manifests`
	stateFolder    = `C:\ProgramData\haulout-node-agent`
	configFile     = `C:\test\config.yaml`
	pipe           = `\\.\pipe\containerd-containerd`
	// maxDelay is the maxShutdownDelay of the tests.
	maxDelay = time.Minute
)

const agentConfig = `apiVersion: nodeagent.haulout.dev/v1alpha1
kind: NodeAgentConfiguration
maxShutdownDelay: %s
apiGracePeriod: 3s
metricsBindAddress: 127.0.0.1:%d
shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 10}
- {priority: 10000, shutdownGracePeriodSeconds: 8}
- {priority: 2000000000, shutdownGracePeriodSeconds: 6}
`

const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: 'C:\etc\kubernetes\manifests'
containerRuntimeEndpoint: npipe:////./pipe/containerd-containerd
healthzPort: %d
`

// node is a node of the cluster with a Windows machine. kwok simulates its pods.
type node struct {
	*machine
	name, pool string
	metrics    int
}

// newNode creates the node and its machine, with the files and services that exist before the agent
// is installed.
func newNode(t *testing.T) *node {
	t.Helper()
	pool, names := cluster.NewPool(t, 1, true)
	n := &node{machine: newMachine(t), name: names[0], pool: pool, metrics: freePort(t)}
	n.write(kubeconfigFile, nodeKubeconfig(t, n.name))
	healthz := freePort(t)
	n.write(kubeletFile, fmt.Appendf(nil, kubeletConfig, healthz))
	n.write(manifests+`\none\none`, nil)
	n.write(configFile, fmt.Appendf(nil, agentConfig, maxDelay, n.metrics))
	n.run("helper.exe", "create", "kubelet", fmt.Sprintf(`C:\test\kubelet.exe kubelet 127.0.0.1:%d`, healthz))
	return n
}

func freePort(t *testing.T) int {
	t.Helper()
	listener := must.Get((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// nodeKubeconfig returns the kubeconfig of a kubelet.
func nodeKubeconfig(t *testing.T, name string) []byte {
	t.Helper()
	block := func(file string) []byte {
		content := must.Get(os.ReadFile(filepath.Join(cluster.Dir(), "pki", file)))(t)
		first, _ := pem.Decode(content)
		return first.Bytes
	}
	ca, err := x509.ParseCertificate(block("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	var caKey any
	if caKey, err = x509.ParsePKCS8PrivateKey(block("ca.key")); err != nil {
		caKey, err = x509.ParseECPrivateKey(block("ca.key"))
	}
	if err != nil {
		t.Fatal(err)
	}
	key := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		Subject:  pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	certificate := must.Get(x509.CreateCertificate(rand.Reader, template, ca, key.Public(), caKey.(crypto.Signer)))(t)
	keyBytes := must.Get(x509.MarshalECPrivateKey(key))(t)
	config := must.Get(clientcmd.LoadFromFile(cluster.Kubeconfig()))(t)
	user := config.Contexts[config.CurrentContext].AuthInfo
	config.AuthInfos[user] = &api.AuthInfo{
		ClientCertificateData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		ClientKeyData:         pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyBytes}),
	}
	return must.Get(clientcmd.Write(*config))(t)
}

// condition returns a condition of the node.
func (n *node) condition(ctx context.Context, t *testing.T, kind corev1.NodeConditionType) (corev1.NodeCondition, error) {
	t.Helper()
	object, err := cluster.As(t).Kube.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return corev1.NodeCondition{}, err
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == kind {
			return condition, nil
		}
	}
	return corev1.NodeCondition{}, nil
}

// until waits until a condition of the node has a status and a reason.
func (n *node) until(t *testing.T, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) {
	t.Helper()
	framework.Eventually(t, fmt.Sprintf("condition %s of the node is %s (%s)", kind, status, reason), func(ctx context.Context) (bool, error) {
		condition, err := n.condition(ctx, t, kind)
		if err == nil && (condition.Status != status || condition.Reason != reason) {
			err = fmt.Errorf("it is %s (%s): %s", condition.Status, condition.Reason, condition.Message)
		}
		return err == nil, err
	})
}

// podsByPriority creates a pod of each priority on the node.
func (n *node) podsByPriority(t *testing.T, namespace string) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod
	for _, p := range []struct{ name, class string }{
		{"critical", "system-cluster-critical"}, {"high", cluster.PriorityClass(t, 20000)}, {"low", cluster.PriorityClass(t, 100)},
	} {
		pods = append(pods, cluster.PodOn(t, namespace, p.name, n.pool, n.name, func(pod *corev1.Pod) {
			pod.Spec.PriorityClassName = p.class
			grace := int64(5)
			pod.Spec.TerminationGracePeriodSeconds = &grace
		}))
	}
	return pods
}
