// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
	"haulout.dev/haulout/pkg/agent/kubelet"
	"haulout.dev/haulout/pkg/version"
)

// userPrefix is the prefix of the user name of every kubelet, before the node name.
const userPrefix = "system:node:"

// betterPeriod is the interval at which an agent with limitations checks whether a new process
// would have fewer limitations.
const betterPeriod = 10 * time.Second

// restConfig returns the configuration of the API client. The kubeconfig is read once, see
// clientChanged. The certificate that a kubelet's kubeconfig refers to is read again whenever the
// kubelet has renewed it.
func restConfig(kubeconfig string) (*rest.Config, error) {
	if err := noticeDeadConnections(); err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	config.UserAgent = "haulout-node-agent/" + version.Get()
	// After an outage of the API, the agent reports every pod of the node.
	config.QPS, config.Burst = 100, 200
	return config, nil
}

// noticeDeadConnections makes the clients of this process close a dead connection after ten seconds
// instead of 45. Only an environment variable can set this time.
func noticeDeadConnections() error {
	for _, name := range []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"} {
		if _, set := os.LookupEnv(name); set {
			continue
		}
		if err := os.Setenv(name, "5"); err != nil {
			return err
		}
	}
	return nil
}

// clientOf returns the configuration of the API client, and the name of the node. It returns an
// error if no client can be created, for example because the CA data has no certificates.
func clientOf(ctx context.Context, c *configv1alpha1.NodeAgentConfiguration) (*rest.Config, string, error) {
	config, err := restConfig(c.Kubeconfig)
	if err != nil {
		return nil, "", err
	}
	if _, err := kubernetes.NewForConfig(config); err != nil {
		return nil, "", fmt.Errorf("kubeconfig %s: %w", c.Kubeconfig, err)
	}
	node, err := nodeName(ctx, c, config)
	return config, node, err
}

// clientFiles returns the data by which clients of two clusters or nodes differ: the kubeconfig,
// the content of its CA file, and the node in its certificate. It returns nil if there is no
// kubeconfig.
func clientFiles(kubeconfig string) ([]byte, error) {
	data, err := os.ReadFile(kubeconfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	authorities, err := authoritiesIn(config)
	if err != nil {
		return nil, err
	}
	node, err := certifiedNode(config)
	return slices.Concat(data, authorities, []byte(node)), err
}

// clientChanged reports whether the result of clientFiles has changed. A kubeconfig that cannot be
// read does not count as a change: another process may be writing it.
func clientChanged(kubeconfig string, before []byte) bool {
	now, err := clientFiles(kubeconfig)
	return err == nil && !bytes.Equal(now, before)
}

func authoritiesIn(config *rest.Config) ([]byte, error) {
	if len(config.CAData) > 0 || config.CAFile == "" {
		return config.CAData, nil
	}
	return os.ReadFile(config.CAFile)
}

// nodeName returns the name of the Node object: the configured name; else the name in the kubelet's
// certificate; else the name with which the kubelet registers.
func nodeName(ctx context.Context, c *configv1alpha1.NodeAgentConfiguration, config *rest.Config) (string, error) {
	certified, err := certifiedNode(config)
	if c.NodeName != "" {
		if err == nil && certified != "" && certified != c.NodeName {
			return "", fmt.Errorf("nodeName is %q: must be %q, the node name in the certificate of %s", c.NodeName, certified, c.Kubeconfig)
		}
		return c.NodeName, nil
	}
	if err != nil {
		return "", err
	}
	if certified != "" {
		return certified, nil
	}
	facts, err := kubelet.Discover(ctx, c.KubeletConfig)
	if err != nil {
		return "", fmt.Errorf("nodeName is not set, and the name that the kubelet uses cannot be found: %w", err)
	}
	return facts.NodeName, nil
}

// certifiedNode returns the node name in the client certificate; empty if there is no certificate
// or its user is not a node.
func certifiedNode(config *rest.Config) (string, error) {
	if config == nil {
		return "", nil
	}
	data := config.CertData
	if len(data) == 0 && config.CertFile != "" {
		var err error
		if data, err = os.ReadFile(config.CertFile); err != nil {
			return "", fmt.Errorf("read the client certificate: %w", err)
		}
	}
	for len(data) > 0 {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			return "", errors.New("the client certificate is not PEM-encoded")
		}
		if block.Type != "CERTIFICATE" {
			continue // the kubelet stores the key in the same file
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return "", fmt.Errorf("read the client certificate: %w", err)
		}
		node, ok := strings.CutPrefix(certificate.Subject.CommonName, userPrefix)
		if !ok {
			return "", nil
		}
		return node, nil
	}
	return "", nil
}
