// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evictionreview

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// evictionOf reads the Eviction of a request. policy/v1 and policy/v1beta1, which older clients
// send, have the same fields. kubectl requests a dry run in the delete options.
func evictionOf(request *admissionv1.AdmissionRequest) eviction {
	e := eviction{
		namespace: request.Namespace, name: request.Name, user: request.UserInfo.Username,
		dryRun: request.DryRun != nil && *request.DryRun,
	}
	var body policyv1.Eviction
	if request.Kind.Group != policyv1.GroupName || request.Kind.Kind != "Eviction" || json.Unmarshal(request.Object.Raw, &body) != nil {
		return e
	}
	e.valid = true
	if e.name == "" {
		e.name = body.Name
	}
	if options := body.DeleteOptions; options != nil {
		e.dryRun = e.dryRun || slices.Contains(options.DryRun, metav1.DryRunAll)
		if options.Preconditions != nil && options.Preconditions.UID != nil {
			e.uid = *options.Preconditions.UID
		}
	}
	return e
}

// gather reads all inputs of the decision. It reads no more than the decision needs.
func (h *Handler) gather(ctx context.Context, e eviction) (situation, error) {
	s := situation{now: h.Clock.Now(), ttl: h.TTL, eviction: e, noLeader: h.NoLeader(), leaderSince: h.LeaderSince()}
	if !e.valid || e.name == "" {
		return s, nil
	}
	pod, err := h.Host.CoreV1().Pods(e.namespace).Get(ctx, e.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("get the pod: %w", err)
	}
	s.pod = pod
	if s.passes() {
		return s, nil
	}
	evacuation, err := h.Evacuations.Evacuations(e.namespace).Get(ctx, protocol.CanonicalName(pod.Name, pod.UID), metav1.GetOptions{})
	switch {
	case err == nil && evacuation.Spec.PodRef.UID == pod.UID:
		s.evacuation = evacuation
		return s, nil
	case err != nil && !apierrors.IsNotFound(err):
		return s, fmt.Errorf("get the Evacuation: %w", err)
	}
	s.hasEvacuator, err = h.hasEvacuator(ctx, pod)
	return s, err
}

// hasEvacuator reports whether the pod names an evacuator or, if all evictions are intercepted, has
// the built-in evacuator of Deployments.
func (h *Handler) hasEvacuator(ctx context.Context, pod *corev1.Pod) (bool, error) {
	for key, value := range pod.Annotations {
		if _, _, _, err := protocol.ParseAnnotation(key, value); err == nil {
			return true, nil
		}
	}
	if h.BuiltIn == nil {
		return false, nil
	}
	builtIn, err := h.BuiltIn(ctx, pod)
	return builtIn.Class == v1alpha1.EvacuatorClassDeployment, err
}
