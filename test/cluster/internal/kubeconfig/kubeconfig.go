// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubeconfig writes the kubeconfigs of a development cluster.
package kubeconfig

import (
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"haulout.dev/haulout/test/cluster/internal/pki"
)

const clusterName = "haulout-development"

// WriteClient writes a kubeconfig for a client certificate. It embeds all certificates, so that the
// file can be copied.
func WriteClient(path, server, pkiDir, user string) error {
	certificate, err := os.ReadFile(pki.CertFile(pkiDir, user))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(pki.KeyFile(pkiDir, user))
	if err != nil {
		return err
	}
	return write(path, server, pkiDir, user, &api.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key})
}

// WriteToken writes a kubeconfig that reads its token from a file. client-go reads the file again
// every minute, so a running server uses a renewed token.
func WriteToken(path, server, pkiDir, user, tokenFile string) error {
	return write(path, server, pkiDir, user, &api.AuthInfo{TokenFile: tokenFile})
}

func write(path, server, pkiDir, user string, auth *api.AuthInfo) error {
	ca, err := os.ReadFile(pki.CertFile(pkiDir, pki.CA))
	if err != nil {
		return err
	}
	config := api.NewConfig()
	config.Clusters[clusterName] = &api.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[user] = auth
	config.Contexts[clusterName] = &api.Context{Cluster: clusterName, AuthInfo: user}
	config.CurrentContext = clusterName
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return WriteFile(path, content)
}

// WriteFile replaces a file that processes may read at the same time. Only the user can read the
// new file.
func WriteFile(path string, content []byte) error {
	temporary, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	if _, err := temporary.Write(content); err != nil {
		temporary.Close()
		return err
	}
	if err := temporary.Close(); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}
