// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/test/e2e/framework"
)

// serverGroups are the groups of the service account of the server.
var serverGroups = []string{"system:serviceaccounts", "system:serviceaccounts:haulout-system"}

// serverAccount is the user name of the service account of the server.
const serverAccount = "system:serviceaccount:haulout-system:haulout-apiserver"

// policedWrite is a write that the right to patch an object allows.
type policedWrite struct {
	path, patch string
	// policy refuses the write if it is the server's; "" if none does.
	policy string
}

// dryRun returns the answer to the write, of which nothing is stored.
func (w policedWrite) dryRun(ctx context.Context, clients framework.Clients) error {
	return clients.Kube.CoreV1().RESTClient().Patch(types.StrategicMergePatchType).AbsPath(w.path).
		Param("dryRun", metav1.DryRunAll).Body([]byte(w.patch)).Do(ctx).Error()
}

// TestAdmissionPoliciesLimitTheServer has the service account of the server write more than it
// needs: the policies that are shipped refuse that, and nothing of what the server does. They limit
// no other user.
func TestAdmissionPoliciesLimitTheServer(t *testing.T) {
	t.Parallel()
	cluster.MustKubectl(t, "", "get", "-f",
		filepath.Join(cluster.Root(), "artifacts", "base", "admission-policies.yaml"))
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.PodOn(t, namespace, "bare", pool, nodes[0])
	cluster.Deployment(t, namespace, "web", pool, 1)
	autoscalers := cluster.As(t).Kube.AutoscalingV2().HorizontalPodAutoscalers(namespace)
	if _, err := autoscalers.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: "apps/v1", Kind: "Deployment", Name: "web",
			},
			MaxReplicas: 3,
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := "/api/v1/namespaces/" + namespace + "/pods/bare"
	deployment := "/apis/apps/v1/namespaces/" + namespace + "/deployments/web"
	autoscaler := "/apis/autoscaling/v2/namespaces/" + namespace + "/horizontalpodautoscalers/web"
	node := "/api/v1/nodes/" + nodes[0]
	status := node + "/status"
	const (
		pods        = "haulout-apiserver-pods"
		deployments = "haulout-apiserver-deployments"
		scalers     = "haulout-apiserver-autoscalers"
		ofNodes     = "haulout-apiserver-nodes"
		statuses    = "haulout-apiserver-node-status"
	)
	annotation := func(key string) string { return fmt.Sprintf(`{"metadata":{"annotations":{%q:"1"}}}`, key) }
	label := `{"metadata":{"labels":{"e2e.haulout.dev/new":"1"}}}`
	// The list of taints is replaced as a whole.
	taints := func(another string) string {
		return fmt.Sprintf(`"taints":[{"key":%q,"value":%q,"effect":"NoSchedule"},%s]`, framework.Pool, pool, another)
	}
	cordon := `{"metadata":{"annotations":{"maintenance.haulout.dev/cordoned-by":"{}"}},"spec":{"unschedulable":true,` +
		taints(`{"key":"maintenance.haulout.dev/held","effect":"PreferNoSchedule"}`) + `}}`
	image := `{"spec":{"containers":[{"name":"app","image":"another"}]}}`
	for name, write := range map[string]policedWrite{
		"the deletion cost of a pod": {pod, annotation("controller.kubernetes.io/pod-deletion-cost"), ""},
		"its own annotation on a pod": {
			path: pod, patch: annotation("maintenance.haulout.dev/original-pod-deletion-cost"),
		},
		"the replicas of a Deployment":           {deployment, `{"spec":{"replicas":2}}`, ""},
		"its own annotation on a Deployment":     {deployment, annotation("maintenance.haulout.dev/surge-record"), ""},
		"the minReplicas of an autoscaler":       {autoscaler, `{"spec":{"minReplicas":2}}`, ""},
		"a cordon with its taint and annotation": {node, cordon, ""},
		"its own condition of a node": {
			path: status, patch: `{"status":{"conditions":[{"type":"Drained","status":"True"}]}}`,
		},
		"another annotation on a pod": {pod, annotation("sidecar.example.com/inject"), pods},
		"the labels of a pod":         {pod, label, pods},
		"a finalizer of a pod":        {pod, `{"metadata":{"finalizers":["e2e.haulout.dev/hold"]}}`, pods},
		"the image of a pod":          {pod, image, pods},
		"the deletion cost of a Deployment": {
			path: deployment, patch: annotation("controller.kubernetes.io/pod-deletion-cost"), policy: deployments,
		},
		"the image of a Deployment":        {deployment, `{"spec":{"template":` + image + `}}`, deployments},
		"whether a Deployment is paused":   {deployment, `{"spec":{"paused":true}}`, deployments},
		"the maxReplicas of an autoscaler": {autoscaler, `{"spec":{"maxReplicas":9}}`, scalers},
		"the labels of a node":             {node, label, ofNodes},
		"another annotation on a node":     {node, annotation("e2e.haulout.dev/new"), ofNodes},
		"another taint of a node": {
			path: node, patch: `{"spec":{` + taints(`{"key":"e2e.haulout.dev/new","effect":"NoSchedule"}`) + `}}`,
			policy: ofNodes,
		},
		"the removal of another taint": {node, `{"spec":{"taints":null}}`, ofNodes},
		"whether a node is ready": {
			path: status, patch: `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, policy: statuses,
		},
		"the capacity of a node":                  {status, `{"status":{"capacity":{"pods":"1"}}}`, statuses},
		"an annotation by the status of the node": {status, annotation("e2e.haulout.dev/new"), statuses},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := write.dryRun(t.Context(), cluster.As(t)); err != nil {
				t.Fatalf("an administrator: %v", err)
			}
			server := cluster.As(t, append([]string{serverAccount}, serverGroups...)...)
			if write.policy == "" {
				if err := write.dryRun(t.Context(), server); err != nil {
					t.Errorf("the server: %v", err)
				}
				return
			}
			// API servers know of a policy a moment after it was created.
			framework.EventuallyWithin(
				t, 10*time.Second, "the server is refused",
				func(ctx context.Context) (bool, error) {
					err := write.dryRun(ctx, server)
					if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "'"+write.policy+"'") {
						return true, nil
					}
					return false, fmt.Errorf("policy %s: %w", write.policy, cmp.Or(err, errNotYet))
				},
			)
		})
	}
}
