// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/internal/authority"
)

// members is the number of members of the etcd cluster.
const members = 3

// etcdCluster is an etcd cluster of three pods that accepts only clients with a certificate.
type etcdCluster struct {
	// servers are the URLs of the members.
	servers []string
	// ca, cert and key are the CA certificate, the certificate and the key of a client, in PEM.
	ca, cert, key []byte
}

// startEtcd starts the members. Each has a Service, whose address does not change when its
// container restarts.
func startEtcd(t *testing.T, c *framework.Cluster) etcdCluster {
	t.Helper()
	const namespace = "etcd"
	kube := c.As(t).Kube.CoreV1()
	object := metav1.ObjectMeta{Name: namespace}
	must.Get(kube.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: object}, metav1.CreateOptions{}))(t)
	var e etcdCluster
	var addresses []net.IP
	var peers []string
	for i := range members {
		name := fmt.Sprintf("etcd-%d", i)
		service, err := kube.Services(namespace).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"member": name},
				Ports: []corev1.ServicePort{
					{Name: "client", Port: 2379, TargetPort: intstr.FromInt32(2379)},
					{Name: "peer", Port: 2380, TargetPort: intstr.FromInt32(2380)},
				},
				// Members connect to each other before they are ready.
				PublishNotReadyAddresses: true,
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, net.ParseIP(service.Spec.ClusterIP))
		e.servers = append(e.servers, "https://"+service.Spec.ClusterIP+":2379")
		peers = append(peers, fmt.Sprintf("%s=https://%s:2380", name, service.Spec.ClusterIP))
	}
	issuer := authority.New(t)
	serving, servingKey := issuer.Issue(t, "etcd", addresses)
	e.ca = issuer.PEM
	e.cert, e.key = issuer.Issue(t, "haulout", nil)
	must.Get(kube.Secrets(namespace).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "tls"},
		Data:       map[string][]byte{"ca.crt": issuer.PEM, "tls.crt": serving, "tls.key": servingKey},
	}, metav1.CreateOptions{}))(t)
	for i := range members {
		pod := etcdPod(fmt.Sprintf("etcd-%d", i), e.servers[i], strings.Join(peers, ","))
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: []string{drained, other}[i%2]}
		must.Get(kube.Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	}
	framework.Eventually(t, "etcd has three members", func(ctx context.Context) (bool, error) {
		list, err := kube.Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		count := 0
		for i := range list.Items {
			if isReady(&list.Items[i]) {
				count++
			}
		}
		return count == members, nil
	})
	return e
}

// etcdPod returns the pod of a member. It is ready when the cluster has a leader.
func etcdPod(name, url, cluster string) *corev1.Pod {
	const certificates, metricsPort = "/certificates/", 2381
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"member": name}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "etcd", Image: "localhost/etcd:dev", ImagePullPolicy: corev1.PullNever,
				Args: []string{
					"--name=" + name, "--data-dir=/data/etcd",
					"--listen-client-urls=https://0.0.0.0:2379", "--advertise-client-urls=" + url,
					"--listen-peer-urls=https://0.0.0.0:2380",
					"--initial-advertise-peer-urls=" + strings.Replace(url, ":2379", ":2380", 1),
					"--initial-cluster=" + cluster,
					"--client-cert-auth", "--trusted-ca-file=" + certificates + "ca.crt",
					"--cert-file=" + certificates + "tls.crt", "--key-file=" + certificates + "tls.key",
					"--peer-client-cert-auth", "--peer-trusted-ca-file=" + certificates + "ca.crt",
					"--peer-cert-file=" + certificates + "tls.crt", "--peer-key-file=" + certificates + "tls.key",
					// A peer connects from the address of its pod, which is not in its certificate.
					"--peer-skip-client-san-verification",
					fmt.Sprintf("--listen-metrics-urls=http://0.0.0.0:%d", metricsPort),
				},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
						Path: "/readyz", Port: intstr.FromInt32(metricsPort),
					}},
					PeriodSeconds: 1,
				},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "data", MountPath: "/data"}, {Name: "tls", MountPath: certificates, ReadOnly: true},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "tls", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "tls"}}},
			},
		},
	}
}
