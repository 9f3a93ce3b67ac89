// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package clients creates the clients with which the cluster program acts as the administrator.
package clients

import (
	"fmt"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Clients are the clients of one cluster.
type Clients struct {
	Kubernetes kubernetes.Interface
	Dynamic    dynamic.Interface
}

// FromKubeconfig returns the clients of a kubeconfig, without client-side limits.
func FromKubeconfig(path string) (*Clients, error) {
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	config.UserAgent = "haulout-cluster"
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	typed, err := kubernetes.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", path, err)
	}
	untyped, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("client of %s: %w", path, err)
	}
	return &Clients{Kubernetes: typed, Dynamic: untyped}, nil
}
