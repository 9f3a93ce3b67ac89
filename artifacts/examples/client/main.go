// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command client lists the maintenances of the cluster of $KUBECONFIG with the typed client.
package main

import (
	"context"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"haulout.dev/haulout/pkg/generated/clientset/versioned"
)

func main() {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	exitOn(err)
	client, err := versioned.NewForConfig(config)
	exitOn(err)
	list, err := client.MaintenanceV1alpha1().NodeMaintenances().List(context.Background(), metav1.ListOptions{})
	exitOn(err)
	for _, nm := range list.Items {
		fmt.Printf("%s\t%s\t%d nodes\n", nm.Name, nm.Spec.Stage, len(nm.Status.NodeStatuses))
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
