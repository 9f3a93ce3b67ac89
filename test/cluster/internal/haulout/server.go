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

package haulout

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
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

// tokenLifetime is long since nothing renews the token but the next `up`.
const tokenLifetime = 365 * 24 * time.Hour

// resources that must be listable before our API counts as served.
var resources = []string{"nodemaintenances", "evacuations"}

// WriteKubeconfig gives our server a new token for its service account, and the kubeconfig that
// uses it. The server has the rights of its service account and no others.
func WriteKubeconfig(ctx context.Context, c *clients.Clients, l layout.Layout, server string) error {
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLifetime.Seconds()))},
	}
	answer, err := c.Kubernetes.CoreV1().ServiceAccounts(Namespace).CreateToken(
		ctx, ServiceAccount, request, metav1.CreateOptions{},
	)
	if err != nil {
		return fmt.Errorf("token of service account %s/%s: %w", Namespace, ServiceAccount, err)
	}
	if err := kubeconfig.WriteFile(l.HauloutToken(), []byte(answer.Status.Token)); err != nil {
		return err
	}
	return kubeconfig.WriteToken(l.HauloutKubeconfig(), server, l.PKI(), ServiceAccount, l.HauloutToken())
}

// Spec returns how our server is started.
func Spec(l layout.Layout, port int, flags []string) process.Spec {
	args := []string{
		"--kubeconfig=" + l.HauloutKubeconfig(),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--data-dir=" + l.HauloutData(),
		"--namespace=" + Namespace,
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

// nudgeAnnotation is changed on our Service to have the aggregator look at it.
const nudgeAnnotation = "maintenance.haulout.dev/development-nudged-at"

// nudgeInterval is how often that is done while we wait.
const nudgeInterval = 300 * time.Millisecond

// WaitServed waits until the aggregator passes requests on to our server, which listens on port,
// and it answers them.
func WaitServed(ctx context.Context, c *clients.Clients, port int) error {
	lastErr := errors.New("not asked yet")
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

// nudge makes the aggregator check our server now. After a server was away it does so at growing
// intervals of up to half a minute, but also whenever the Service changes. The Service and not the
// APIService, which the server itself may be about to write.
func nudge(ctx context.Context, c *clients.Clients) {
	patch := fmt.Appendf(
		nil, `{"metadata":{"annotations":{%q:%q}}}`, nudgeAnnotation, time.Now().Format(time.RFC3339Nano),
	)
	// If it fails the aggregator comes by itself, only later.
	_, _ = c.Dynamic.Resource(services).Namespace(Namespace).Patch(ctx, Service, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: fieldManager})
}

// Served asks whether our API can be used; the error says why not.
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

// available checks the condition of the APIService, and that the server has written its CA there:
// the condition alone may be of a time before.
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
		return fmt.Errorf(
			"APIService %s is not available: %v: %v", service.GetName(), condition["reason"], condition["message"],
		)
	}
	return fmt.Errorf("APIService %s has no condition Available yet", service.GetName())
}
