// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package crowd creates more pods in a development cluster than the cluster could start.
package crowd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
)

// writers is the number of concurrent requests.
const writers = 32

// AppLabel is the label with the name of a pod's controller.
const AppLabel = "app.kubernetes.io/name"

// Store writes running pods directly to the etcd of the cluster in a folder, encoded as
// kube-apiserver would: through kube-apiserver a hundred thousand pods would take an hour.
func Store(ctx context.Context, dir string, count int, pod func(i int) *corev1.Pod) error {
	socket := filepath.Join(dir, "etcd-client.sock")
	store, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + socket}, DialTimeout: time.Minute})
	if err != nil {
		return err
	}
	defer store.Close()
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		return errors.New("no serializer for protobuf")
	}
	encoder := scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion)
	return Each(ctx, count, func(ctx context.Context, i int) error {
		p := pod(i)
		p.UID, p.CreationTimestamp, p.Status = uuid.NewUUID(), metav1.Now(), running()
		data, err := runtime.Encode(encoder, p)
		if err != nil {
			return err
		}
		_, err = store.Put(ctx, "/registry/pods/"+p.Namespace+"/"+p.Name, string(data))
		return err
	})
}

// Name has the namespace, the app and the team of a pod. The controller of the pod is a ConfigMap
// with the name of the app: the garbage collector would delete a pod without a controller, and a
// ConfigMap does not create pods.
type Name struct {
	Namespace, App string
	Team           int
}

// NewPod returns a pod with the typical size of the pods of a service.
func NewPod(of Name, i int, owner types.UID, node string) *corev1.Pod {
	name := of.App
	container := func(n string) corev1.Container {
		c := corev1.Container{
			Name: n, Image: "none",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
			}},
			ReadinessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}},
			},
		}
		for v := range 10 {
			c.Env = append(c.Env, corev1.EnvVar{
				Name: fmt.Sprint("VARIABLE_", v), Value: "a value of some length that says how the service is set up",
			})
		}
		return c
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: of.Namespace, Name: fmt.Sprintf("%s-%06d", name, i), GenerateName: name + "-",
			Labels: map[string]string{
				AppLabel:                    name,
				"app.kubernetes.io/part-of": "shop",
				"pod-template-hash":         "7c9f6d5b8f",
				"team":                      fmt.Sprint("team-", of.Team),
			},
			Annotations: map[string]string{
				"prometheus.io/scrape": "true", "checksum/config": strings.Repeat("0123456789abcdef", 4),
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: owner, Controller: ptr.To(true),
				BlockOwnerDeletion: ptr.To(false),
			}},
		},
		Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{container("app"), container("proxy")},
			Volumes: []corev1.Volume{
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
			Tolerations: []corev1.Toleration{
				{
					Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists,
					Effect: corev1.TaintEffectNoExecute,
				},
			},
		},
	}
}

// running returns the status that a kubelet reports for a ready pod.
func running() corev1.PodStatus {
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.1.2.3", HostIP: "10.0.0.1", StartTime: ptr.To(metav1.Now()),
	}
	for _, t := range []corev1.PodConditionType{
		corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady,
		corev1.PodReadyToStartContainers,
	} {
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: t, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
		})
	}
	return status
}

// Each calls do for 0 … n-1, in parallel, until one call fails.
func Each(ctx context.Context, n int, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	next := make(chan int)
	for range writers {
		wg.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}
