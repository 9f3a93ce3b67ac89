// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodes creates the simulated nodes of a development cluster.
package nodes

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/test/cluster/internal/controlplane"
)

// zones are the zones of the nodes, so that workloads and maintenances have labels to select.
var zones = []string{"zone-a", "zone-b", "zone-c"}

// Name returns the name of the node with an index.
func Name(index int) string { return fmt.Sprintf("node-%03d", index) }

// New returns the node with an index, as a kubelet would register it.
func New(index int) *corev1.Node {
	name := Name(index)
	room := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse("128"),
		corev1.ResourceMemory:           resource.MustParse("512Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
		corev1.ResourcePods:             resource.MustParse("250"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{controlplane.NodeAnnotation: controlplane.NodeAnnotationValue},
			Labels: map[string]string{
				corev1.LabelHostname:           name,
				corev1.LabelOSStable:           "linux",
				corev1.LabelArchStable:         "amd64",
				corev1.LabelInstanceTypeStable: "simulated",
				corev1.LabelTopologyRegion:     "region-1",
				corev1.LabelTopologyZone:       zones[index%len(zones)],
			},
		},
		Status: corev1.NodeStatus{Capacity: room, Allocatable: room},
	}
}

// EnsureExist creates the missing nodes of the first count nodes and returns their names. It does
// not delete other nodes, because pods may run there; surplus is the number of these nodes.
func EnsureExist(ctx context.Context, client kubernetes.Interface, count int) (made []string, surplus int, err error) {
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, 0, err
	}
	existing := sets.New[string]()
	for i := range list.Items {
		existing.Insert(list.Items[i].Name)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(32)
	for index := range count {
		if existing.Has(Name(index)) {
			continue
		}
		made = append(made, Name(index))
		group.Go(func() error {
			_, err := client.CoreV1().Nodes().Create(ctx, New(index), metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	}
	return made, existing.Len() + len(made) - count, group.Wait()
}

// WaitReady waits until the named nodes are Ready, with a status reported at or after since, and
// have no taint of a node that is not ready.
func WaitReady(ctx context.Context, client kubernetes.Interface, names []string, since time.Time) error {
	if len(names) == 0 {
		return nil
	}
	var waiting int
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		// Read from the watch cache: with thousands of nodes, reads from etcd would slow down the
		// start of the nodes.
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return false, nil
		}
		pending := sets.New(names...)
		for i := range list.Items {
			if usable(&list.Items[i], since.Truncate(time.Second)) {
				pending.Delete(list.Items[i].Name)
			}
		}
		waiting = pending.Len()
		return waiting == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%d of %d nodes did not become ready: %w", waiting, len(names), context.Cause(ctx))
	}
	return nil
}

// CheckReady returns an error if a node is not Ready.
func CheckReady(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !usable(node, time.Time{}) {
		return fmt.Errorf("node %s is not Ready", name)
	}
	return nil
}

// usable reports whether a node is Ready and the node lifecycle controller has removed its taints.
func usable(node *corev1.Node, since time.Time) bool {
	for _, taint := range node.Spec.Taints {
		if taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable {
			return false
		}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue && !condition.LastHeartbeatTime.Time.Before(since)
		}
	}
	return false
}
