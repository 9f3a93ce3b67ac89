// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// StorageClass is the default class, for the local PersistentVolumes of real nodes.
const StorageClass = "local"

// CgroupOf returns the name of the cgroup for the real nodes of the cluster in a folder.
func CgroupOf(dir string) string {
	return fmt.Sprintf("haulout-%x", sha256.Sum256([]byte(dir)))[:len("haulout-")+12]
}

// EgressSelector returns the configuration with which kube-apiserver reaches nodes and pods.
func EgressSelector(socket string) string {
	return fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds: {udsName: %s}
`, socket)
}

// Prepare creates the objects for real nodes: the endpoint of the Service `kubernetes`, and the
// PersistentVolumes of the nodes with their StorageClass.
func Prepare(ctx context.Context, client kubernetes.Interface, nodes, volumes int) error {
	if err := Endpoint(ctx, client, metav1.NamespaceDefault, "kubernetes", "https", APIServerPort); err != nil {
		return err
	}
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name:        StorageClass,
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner:       "kubernetes.io/no-provisioner",
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	_, err := client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	if ignoreExists(err) != nil {
		return err
	}
	for node := 1; node <= nodes; node++ {
		for n := 1; n <= volumes; n++ {
			volume := newVolume(Name(node), n)
			_, err := client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
			if ignoreExists(err) != nil {
				return err
			}
		}
	}
	return nil
}

// Endpoint sets a port at the gateway as the only endpoint of a Service without selector.
func Endpoint(ctx context.Context, client kubernetes.Interface, namespace, service, port string, number int) error {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      service,
			Labels:    map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{Gateway},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		}},
		Ports: []discoveryv1.EndpointPort{{
			Name:     ptr.To(port),
			Port:     ptr.To(int32(number)),
			Protocol: ptr.To(corev1.ProtocolTCP),
		}},
	}
	slices := client.DiscoveryV1().EndpointSlices(namespace)
	_, err := slices.Create(ctx, slice, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = slices.Update(ctx, slice, metav1.UpdateOptions{})
	}
	return err
}

func newVolume(node string, n int) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-" + strconv.Itoa(n)},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName:              StorageClass,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				Local: &corev1.LocalVolumeSource{Path: filepath.Join(volumesDir, strconv.Itoa(n))},
			},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{
						Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node},
					}},
				}},
			}},
		},
	}
}

func ignoreExists(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
