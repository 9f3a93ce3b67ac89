/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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
