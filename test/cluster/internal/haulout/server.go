// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package haulout

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/test/cluster/internal/clients"
	"haulout.dev/haulout/test/cluster/internal/kubeconfig"
	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/process"
)

// tokenLifetime is long because only the next `up` renews the token.
const tokenLifetime = 365 * 24 * time.Hour

// resources are the resources that the server must list before its API counts as served.
var resources = []string{"nodemaintenances", "nodemaintenancerollouts", "nodetasks", "evacuations"}

// WriteKubeconfig writes a new token of the service account of haulout-apiserver, and a kubeconfig
// that uses it. The server has only the permissions of its service account.
func WriteKubeconfig(ctx context.Context, c *clients.Clients, l layout.Layout, server string) error {
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLifetime.Seconds()))},
	}
	accounts := c.Kubernetes.CoreV1().ServiceAccounts(Namespace)
	answer, err := accounts.CreateToken(ctx, ServiceAccount, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of service account %s/%s: %w", Namespace, ServiceAccount, err)
	}
	if err := kubeconfig.WriteFile(l.HauloutToken(), []byte(answer.Status.Token)); err != nil {
		return err
	}
	return kubeconfig.WriteToken(l.HauloutKubeconfig(), server, l.PKI(), ServiceAccount, l.HauloutToken())
}

// Spec returns how to start haulout-apiserver.
func Spec(l layout.Layout, port int, flags []string) process.Spec {
	args := []string{
		"--kubeconfig=" + l.HauloutKubeconfig(),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--data-dir=" + l.HauloutData(),
		"--namespace=" + Namespace,
		"--pool-label=" + corev1.LabelNamespaceNodeRestriction + "/pool",
		// Without the manifest of eviction interception, these change nothing.
		"--intercept-evictions=All",
		"--raw-eviction-ttl=3m",
		"--v=2",
	}
	return process.Spec{
		Name: layout.Haulout,
		Path: l.Binary(layout.Haulout),
		Args: append(args, flags...),
		Dir:  l.Dir,
		Log:  l.Log(layout.Haulout),
	}
}

// nudgeAnnotation is the annotation that nudge changes on the Service of haulout-apiserver.
const nudgeAnnotation = "maintenance.haulout.dev/development-nudged-at"

// nudgeInterval is the time between two changes while WaitServed waits.
const nudgeInterval = 300 * time.Millisecond

// WaitServed waits until the aggregator proxies requests to haulout-apiserver, which listens on
// port, and the server responds.
func WaitServed(ctx context.Context, c *clients.Clients, port int) error {
	lastErr := errors.New("not checked yet")
	nudged := time.Now()
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if lastErr = Served(ctx, c); lastErr == nil {
			return true, nil
		}
		if time.Since(nudged) > nudgeInterval && listens(ctx, port) {
			nudged = time.Now()
			nudge(ctx, c)
		}
		return false, nil
	})
	if err != nil {
		return lastErr
	}
	return nil
}

func listens(ctx context.Context, port int) bool {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

// nudge makes the aggregator check the server now. After a failed check, the aggregator waits for
// increasing intervals of up to half a minute, but it also checks after a change of the Service.
// nudge changes the Service and not the APIService, because the server may write the APIService at
// the same time.
func nudge(ctx context.Context, c *clients.Clients) {
	now := time.Now().Format(time.RFC3339Nano)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, nudgeAnnotation, now)
	// After an error the aggregator checks the server later.
	_, _ = c.Dynamic.Resource(services).Namespace(Namespace).Patch(ctx, Service, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
}

// Served checks whether the API of haulout-apiserver is usable. The error describes what is
// missing.
func Served(ctx context.Context, c *clients.Clients) error {
	service, err := c.Dynamic.Resource(apiServices).Get(ctx, APIService, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := available(service); err != nil {
		return err
	}
	for _, resource := range resources {
		gvr := schema.GroupVersionResource{Group: "maintenance.haulout.dev", Version: "v1alpha1", Resource: resource}
		if _, err := c.Dynamic.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			return fmt.Errorf("list of %s: %w", resource, err)
		}
	}
	return nil
}

// available checks the condition of the APIService, and that the server has written its CA to the
// APIService: the condition alone may be from an earlier run.
func available(service *unstructured.Unstructured) error {
	if bundle, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle"); bundle == "" {
		return fmt.Errorf("the server has not written the caBundle of APIService %s", service.GetName())
	}
	conditions, _, err := unstructured.NestedSlice(service.Object, "status", "conditions")
	if err != nil {
		return err
	}
	for _, item := range conditions {
		condition, ok := item.(map[string]any)
		if !ok || condition["type"] != "Available" {
			continue
		}
		if condition["status"] == "True" {
			return nil
		}
		return fmt.Errorf("APIService %s is not available: %v: %v",
			service.GetName(), condition["reason"], condition["message"])
	}
	return fmt.Errorf("APIService %s has no condition Available yet", service.GetName())
}
