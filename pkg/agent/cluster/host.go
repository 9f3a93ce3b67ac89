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
	"k8s.io/client-go/util/retry"
	"k8s.io/client-go/util/workqueue"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/mergepatch"
)

const (
	// The kubelet sets this status on pods that it ends during a shutdown. failedReason is the
	// reason of its conditions Ready and ContainersReady of failed pods.
	killedReason  = "Terminated"
	killedMessage = "Pod was terminated in response to imminent node shutdown."
	failedReason  = "PodFailed"
	reportWorkers = 8
)

// ReportKilled sets the phase of pods that the agent ended on the node to Failed.
func (c *Client) ReportKilled(ctx context.Context, pods []state.KilledPod, since time.Time) ([]state.KilledPod, error) {
	errs := make([]error, len(pods))
	// Do not cancel this with ctx: a skipped pod would count as reported.
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), reportWorkers, len(pods), func(i int) { errs[i] = c.reportPod(ctx, &pods[i], since) })
	var reported []state.KilledPod
	for i, err := range errs {
		if err == nil {
			pod := pods[i]
			pod.Reported = true
			reported = append(reported, pod)
		}
	}
	return reported, errors.Join(errs...)
}

// reportPod reports one pod. It returns nil for a pod that needs no report.
func (c *Client) reportPod(ctx context.Context, killed *state.KilledPod, since time.Time) error {
	// On a conflict, read the pod again: another pod may have its name now, or another client may
	// have written the status.
	return retry.RetryOnConflict(patchAttempts, func() error {
		pod, err := c.podOfNode(ctx, killed)
		if err != nil || pod == nil {
			return err
		}
		if why := needsNoReport(pod, killed, c.node, since); why != "" {
			klog.FromContext(ctx).V(2).Info("A pod that was ended on the node needs no report", "pod", klog.KObj(pod), "why", why)
			return nil
		}
		return c.patchKilled(ctx, killed)
	})
}

// podOfNode returns a pod of this node, or nil if no pod of this node has the name. It sends a list
// request, because a get request with the rights of a node returns Forbidden for a pod that is gone
// or on another node.
func (c *Client) podOfNode(ctx context.Context, pod *state.KilledPod) (*corev1.Pod, error) {
	list, err := c.host.CoreV1().Pods(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: fields.AndSelectors(
		fields.OneTermEqualSelector("spec.nodeName", c.node), fields.OneTermEqualSelector(metav1.ObjectNameField, pod.Name),
	).String()})
	if err != nil {
		return nil, fmt.Errorf("list pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if len(list.Items) == 0 {
		return nil, nil
	}
	return &list.Items[0], nil
}

// patchKilled writes the status of one pod, if it still has the same UID.
func (c *Client) patchKilled(ctx context.Context, killed *state.KilledPod) error {
	now := metav1.NewTime(time.Now())
	condition := func(of corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) map[string]any {
		// A strategic merge keeps the fields of an old condition that are not in the patch.
		return map[string]any{"type": of, "status": status, "reason": reason, "message": message, "lastTransitionTime": now}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": killed.UID},
		"status": map[string]any{
			"phase": corev1.PodFailed, "reason": killedReason, "message": killedMessage,
			"conditions": []map[string]any{
				condition(corev1.DisruptionTarget, corev1.ConditionTrue, corev1.PodReasonTerminationByKubelet, killedMessage),
				// Services send traffic to a pod that is Ready, whatever its phase is.
				condition(corev1.PodReady, corev1.ConditionFalse, failedReason, ""),
				condition(corev1.ContainersReady, corev1.ConditionFalse, failedReason, ""),
			},
		},
	})
	if err != nil {
		return err
	}
	_, err = c.host.CoreV1().Pods(killed.Namespace).Patch(ctx, killed.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		// The pod was deleted after the list, or a right is missing: list again to find out.
		if pod, listErr := c.podOfNode(ctx, killed); listErr == nil && (pod == nil || pod.UID != killed.UID) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("report pod %s/%s as terminated: %w", killed.Namespace, killed.Name, err)
	}
	return nil
}

// needsNoReport returns the reason why a pod needs no report; empty if the agent must report the
// pod.
func needsNoReport(pod *corev1.Pod, killed *state.KilledPod, node string, since time.Time) string {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return "the kubelet reports static pods"
	}
	switch {
	case pod.UID != killed.UID:
		return "it was replaced"
	case pod.Spec.NodeName != node:
		return "it is on another node"
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return "it has ended"
	}
	if since.IsZero() {
		return ""
	}
	for i := range pod.Status.ContainerStatuses {
		if running := pod.Status.ContainerStatuses[i].State.Running; running != nil && running.StartedAt.After(since) {
			return "it runs again"
		}
	}
	return ""
}

// SetCondition writes a condition of the node. It does not write NodeAgentReady if the condition is
// unchanged and its heartbeat is not due.
func (c *Client) SetCondition(ctx context.Context, condition corev1.NodeCondition) error {
	node, err := c.getNode(ctx)
	if err != nil {
		return err
	}
	now := metav1.NewTime(time.Now())
	_, old := nodeutil.GetNodeCondition(&node.Status, condition.Type)
	sameStatus := old != nil && old.Status == condition.Status
	if condition.Type == v1alpha1.NodeConditionAgentReady && sameStatus && old.Reason == condition.Reason && old.Message == condition.Message {
		age := now.Sub(old.LastHeartbeatTime.Time) // negative if the clock was set back
		if age >= 0 && age < protocol.AgentHeartbeatOf(node) {
			return nil
		}
	}
	condition.LastHeartbeatTime = now
	if condition.LastTransitionTime.IsZero() && sameStatus {
		condition.LastTransitionTime = old.LastTransitionTime
	}
	if condition.LastTransitionTime.IsZero() {
		condition.LastTransitionTime = now
	}
	// The patch merges by type and leaves the kubelet's conditions unchanged. The UID makes the
	// patch fail for a Node that was recreated in the meantime.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID},
		"status":   map[string]any{"conditions": []corev1.NodeCondition{condition}},
	})
	if err != nil {
		return err
	}
	_, err = c.host.CoreV1().Nodes().Patch(ctx, c.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write condition %s of node %s: %w", condition.Type, c.node, err)
	}
	return nil
}

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
	// Do not use the typed client: it sleeps and retries, and ignores a failure with code 201. The
	// API returns this code if several budgets select the pod.
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
// It reports whether the node was schedulable.
func (c *Client) Cordon(ctx context.Context, bootID string) (changed bool, err error) {
	node, err := c.getNode(ctx)
	if err != nil {
		return false, err
	}
	// Take over a cordon that an earlier boot did not undo.
	boot := node.Annotations[v1alpha1.AnnotationCordonedByAgent]
	if node.Spec.Unschedulable && (boot == "" || boot == bootID) {
		return false, nil
	}
	klog.FromContext(ctx).Info("Making the node unschedulable, since Haulout does not answer", "node", c.node)
	return !node.Spec.Unschedulable, c.patchNode(ctx, node, map[string]any{v1alpha1.AnnotationCordonedByAgent: bootID}, map[string]any{"unschedulable": true})
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
	_, err := mergepatch.IfUnchanged(ctx, c.host.CoreV1().Nodes().Patch, node, map[string]any{"annotations": annotations},
		map[string]any{"spec": spec}, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("change node %s: %w", c.node, err)
	}
	return nil
}
