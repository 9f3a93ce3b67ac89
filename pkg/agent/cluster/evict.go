// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// Pods lists the pods of the node that have not finished.
func (c *Client) Pods(ctx context.Context) ([]shutdown.Pod, error) {
	return ask(ctx, c, func(ctx context.Context, c *Client) ([]shutdown.Pod, error) {
		list, err := c.host.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("spec.nodeName", c.node).String(),
		})
		if err != nil {
			return nil, fmt.Errorf("list the pods of node %s: %w", c.node, err)
		}
		var pods []shutdown.Pod
		for i := range list.Items {
			pod := &list.Items[i]
			if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
				pods = append(pods, podOf(pod))
			}
		}
		return pods, nil
	})
}

func podOf(pod *corev1.Pod) shutdown.Pod {
	p := shutdown.Pod{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Leaving: pod.DeletionTimestamp != nil,
		Evacuator: slices.ContainsFunc(slices.Collect(maps.Keys(pod.Annotations)), protocol.IsAnnotation),
		Priority:  ptr.Deref(pod.Spec.Priority, 0),
	}
	if owner := metav1.GetControllerOf(pod); owner != nil {
		p.Owner = owner.UID
	}
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	p.Stays = mirror || protocol.ControllerOf(pod, "DaemonSet") != nil
	return p
}

// Evict requests the eviction of a pod with the rights of the pod's node.
func (c *Client) Evict(ctx context.Context, pod shutdown.Pod) error {
	eviction := &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name,
			Annotations: map[string]string{v1alpha1.AnnotationEvictNow: component},
		},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
	}
	// Do not use the typed client: it sleeps and retries, and does not return a failure that comes
	// with code 201. The API answers with that code if several budgets select the pod.
	_, err := c.host.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		MaxRetries(0).Body(eviction).Do(ctx).Get()
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		seconds, _ := apierrors.SuggestsClientDelay(err)
		return &shutdown.RefusedEvictionError{Message: err.Error(), RetryAfter: time.Duration(seconds) * time.Second}
	}
	return err
}

// Cordon makes the node unschedulable if it is schedulable, with an annotation that names the boot.
func (c *Client) Cordon(ctx context.Context, bootID string) error {
	node, err := c.getNode(ctx)
	if err != nil {
		return err
	}
	// Take over a cordon that an earlier boot did not undo.
	boot := node.Annotations[v1alpha1.AnnotationCordonedByAgent]
	if node.Spec.Unschedulable && (boot == "" || boot == bootID) {
		return nil
	}
	klog.FromContext(ctx).Info("Making the node unschedulable, since Haulout does not answer", "node", c.node)
	return c.patchNode(ctx, node, map[string]any{v1alpha1.AnnotationCordonedByAgent: bootID}, map[string]any{"unschedulable": true})
}

// Uncordon undoes the Cordon of this or an earlier boot, unless the server has taken it over. Only
// the annotation identifies a cordon of the agent: the agent's stored state can be lost.
func (c *Client) Uncordon(ctx context.Context) error {
	node, err := c.getNode(ctx)
	if err != nil {
		return err
	}
	if _, byAgent := node.Annotations[v1alpha1.AnnotationCordonedByAgent]; !byAgent {
		return nil
	}
	spec := map[string]any{"unschedulable": false}
	if _, held := node.Annotations[v1alpha1.AnnotationCordonedBy]; held {
		spec = map[string]any{}
	}
	return c.patchNode(ctx, node, map[string]any{v1alpha1.AnnotationCordonedByAgent: nil}, spec)
}

func (c *Client) getNode(ctx context.Context) (*corev1.Node, error) {
	node, err := c.host.CoreV1().Nodes().Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", c.node, err)
	}
	return node, nil
}

// patchNode changes annotations and the spec of the node, if the node is unchanged since it was
// read.
func (c *Client) patchNode(ctx context.Context, node *corev1.Node, annotations, spec map[string]any) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": annotations}, "spec": spec,
	})
	if err != nil {
		return err
	}
	if _, err := c.host.CoreV1().Nodes().Patch(ctx, c.node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("change node %s: %w", c.node, err)
	}
	return nil
}
