// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/bench/internal/crowd"
)

const (
	namespace = "default"
	app       = "evacuees"
	// class is the evacuator that is active all the time.
	class = "copier.bench.haulout.dev"
)

var evacuations = resource{
	plural: "evacuations", kind: "Evacuation", model: v1alpha1.Evacuation{}.OpenAPIModelName(), namespaced: true,
}

// compareStatus compares writes of the status of Evacuations, to which evacuators write their
// progress. Clients cannot write the status of NodeMaintenances.
func compareStatus(ctx context.Context, s settings, config *rest.Config, dir string) (figure, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return figure{}, err
	}
	served, err := makeCRD(ctx, client, evacuations)
	if err != nil {
		return figure{}, err
	}
	pods, err := makePods(ctx, config, dir, s.evacuations)
	if err != nil {
		return figure{}, err
	}
	targets := [2]*target{
		newTarget(client.Resource(v1alpha1.SchemeGroupVersion.WithResource(evacuations.plural)).Namespace(namespace),
			v1alpha1.GroupName, evacuations),
		newTarget(served.Namespace(namespace), crdGroup, evacuations),
	}
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = protocol.CanonicalName(pod.Name, pod.UID)
	}
	if err := crowd.Each(ctx, len(pods), func(ctx context.Context, i int) error {
		return makePair(ctx, targets, names[i], pods[i])
	}); err != nil {
		return figure{}, err
	}
	var took [2]time.Duration
	if err := byTurns(s, s.evacuations, &took, func(who, from, to int) (time.Duration, error) {
		return timed(ctx, from, to, s.workers, func(ctx context.Context, i int) error {
			return targets[who].report(ctx, names[i])
		})
	}); err != nil {
		return figure{}, err
	}
	return newFigure("read and status update, per object", took, s.evacuations), nil
}

// makePods creates pods that no evacuator evicts.
func makePods(ctx context.Context, config *rest.Config, dir string, count int) ([]*corev1.Pod, error) {
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	nodes, err := kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	owner, err := kube.CoreV1().ConfigMaps(namespace).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: app}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, count)
	for i := range pods {
		pods[i] = crowd.NewPod(crowd.Name{Namespace: namespace, App: app}, i, owner.UID,
			nodes.Items[i%len(nodes.Items)].Name)
	}
	return pods, crowd.Store(ctx, dir, count, func(i int) *corev1.Pod { return pods[i] })
}

// makePair creates an Evacuation in haulout-apiserver and the same object as a custom resource.
func makePair(ctx context.Context, targets [2]*target, name string, pod *corev1.Pod) error {
	made, err := targets[0].client.Create(ctx, targets[0].object(name, map[string]any{
		"podRef": map[string]any{"name": pod.Name, "uid": string(pod.UID)},
		// Longer than a measurement, so that no other evacuator becomes active.
		"progressDeadlineSeconds": int64(24 * 60 * 60),
		"evacuators":              []any{map[string]any{"evacuatorClass": class, "priority": int64(500)}},
	}, v1alpha1.FinalizerInstigatorPrefix+"bench.haulout.dev"), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	spec, _, err := unstructured.NestedMap(made.Object, "spec")
	if err != nil {
		return err
	}
	twin, err := targets[1].client.Create(ctx, targets[1].object(name, spec, made.GetFinalizers()...),
		metav1.CreateOptions{})
	if err != nil {
		return err
	}
	twin.Object["status"] = made.Object["status"]
	_, err = targets[1].client.UpdateStatus(ctx, twin, metav1.UpdateOptions{})
	return err
}

// report reads an Evacuation and writes the progress of its evacuator to its status.
func (t *target) report(ctx context.Context, name string) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		object, err := t.client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		err = unstructured.SetNestedField(object.Object, "40 of 100 GB are copied", "status", "message")
		if err != nil {
			return err
		}
		written, err := t.client.UpdateStatus(ctx, object, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		active, _, err := unstructured.NestedString(written.Object, "status", "activeEvacuatorClass")
		if err != nil || active != class {
			return fmt.Errorf("evacuation %s: the active evacuator is %q, want %s: the measurement is invalid",
				name, active, class)
		}
		return nil
	})
}
