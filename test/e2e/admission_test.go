// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	clientv1alpha1 "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// received collects the warnings that a client receives.
type received struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeader implements rest.WarningHandler.
func (r *received) HandleWarningHeader(_ int, _, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, text)
}

// take returns the warnings since the last call.
func (r *received) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	texts := r.texts
	r.texts = nil
	return texts
}

// TestPodsInTheWayAreNamedWhenADrainBegins drains pods that cannot be evicted, bare pods, and pods
// that a drain keeps. Admission does not list pods: the controller names the blocking pods when the
// drain begins.
func TestPodsInTheWayAreNamedWhenADrainBegins(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	kube := cluster.As(t).Kube
	cluster.Deployment(t, namespace, "stuck", pool, 3, framework.WithSurge, func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{
			MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1)),
		}
	})
	cluster.Deployment(t, namespace, "replaced", pool, 2, framework.WithSurge)
	cluster.Deployment(t, namespace, "fine", pool, 2)
	cluster.Budget(t, namespace, "stuck", 0)
	cluster.Budget(t, namespace, "replaced", 0)
	cluster.Budget(t, namespace, "fine", 1)
	twice := cluster.PodOn(t, namespace, "twice", pool, nodes[0])
	for _, name := range []string{"a", "b"} {
		must.Get(kube.PolicyV1().PodDisruptionBudgets(namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: twice.Labels}, MaxUnavailable: ptr.To(intstr.FromInt32(1)),
			},
		}, metav1.CreateOptions{}))(t)
	}
	node := must.Get(kube.CoreV1().Nodes().Get(t.Context(), nodes[1], metav1.GetOptions{}))(t)
	cluster.PodOn(t, namespace, "static", pool, nodes[1], func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash"}
		p.OwnerReferences = build.Owner("v1", "Node", node.Name, node.UID)
	})
	daemonSet(t, namespace, pool, "agent", len(nodes), tolerant)

	var warnings received
	config := cluster.As(t).Config
	config.WarningHandler = &warnings
	maintenances := clientset.NewForConfigOrDie(config).MaintenanceV1alpha1().NodeMaintenances()
	nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageIdle)
	must.Get(maintenances.Create(t.Context(), nm, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}))(t)
	cluster.Create(t, nm)
	must.Get(maintenances.Patch(t.Context(), nm.Name, types.MergePatchType, []byte(`{"spec":{"stage":"Drain"}}`),
		metav1.PatchOptions{}))(t)
	if got := warnings.take(); len(got) > 0 {
		t.Errorf("got warnings of admission:\n%s\nwant none: admission does not list pods", strings.Join(got, "\n"))
	}
	framework.Eventually(
		t, "an event on the maintenance names the blocking pods",
		func(ctx context.Context) (bool, error) {
			events, err := kube.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
				FieldSelector: "involvedObject.name=" + nm.Name,
			})
			if err != nil {
				return false, err
			}
			var texts []string
			for i := range events.Items {
				if text := events.Items[i].Message; strings.Contains(text, namespace+"/stuck") {
					return true, nil
				}
				texts = append(texts, events.Items[i].Reason+": "+events.Items[i].Message)
			}
			return false, fmt.Errorf("events are %q", texts)
		},
	)
}

// rightCase is a request that needs a permission for a virtual resource: instigators or evacuators.
type rightCase struct {
	// base has the permissions for real resources that the request needs as well.
	base []rbacv1.PolicyRule
	// resource, name and verb are the tested permission.
	resource, name, verb string
	// attempt sends the request.
	attempt func(ctx context.Context, evacuations clientv1alpha1.EvacuationInterface) error
}

func rule(group, resource, name string, verbs ...string) rbacv1.PolicyRule {
	r := rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	if name != "" {
		r.ResourceNames = []string{name}
	}
	return r
}

// TestRightsOfEvacuations sends requests that need a permission for instigators or evacuators in
// the namespace of the Evacuation, as service accounts. The server must accept a request only with
// exactly this permission, and otherwise name the permission in the error.
func TestRightsOfEvacuations(t *testing.T) {
	t.Parallel()
	const instigator, class = "mover.example.com", "mover.example.com"
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace, elsewhere := cluster.NewNamespace(t), cluster.NewNamespace(t)
	joined := evacuate(t, cluster.PodOn(t, namespace, "joined", pool, nodes[0], namesEvacuator(class)))
	assigned := cluster.PodOn(t, namespace, "assigned", pool, nodes[0])
	framework.Until(t, "the evacuator is active",
		cluster.As(t).Evacuations(namespace), joined.Name, func(e *v1alpha1.Evacuation) bool {
			return e.Status.ActiveEvacuatorClass == class
		})
	for name, c := range map[string]rightCase{
		"add an instigator": {
			base:     []rbacv1.PolicyRule{rule(v1alpha1.GroupName, "evacuations", "", "get", "update")},
			resource: "instigators", name: instigator, verb: "use",
			attempt: func(ctx context.Context, evacuations clientv1alpha1.EvacuationInterface) error {
				e, err := evacuations.Get(ctx, joined.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				e.Finalizers = append(e.Finalizers, v1alpha1.FinalizerInstigatorPrefix+instigator)
				_, err = evacuations.Update(ctx, e, metav1.UpdateOptions{})
				return err
			},
		},
		"name an evacuator": {
			base: []rbacv1.PolicyRule{
				rule(v1alpha1.GroupName, "evacuations", "", "create"), rule("", "pods", "", "delete"),
				rule(v1alpha1.GroupName, "instigators",
					strings.TrimPrefix(testInstigator, v1alpha1.FinalizerInstigatorPrefix), "use"),
			},
			resource: "evacuators", name: class, verb: "assign",
			attempt: func(ctx context.Context, evacuations clientv1alpha1.EvacuationInterface) error {
				_, err := evacuations.Create(ctx,
					evacuationOf(assigned, withEvacuators(v1alpha1.Evacuator{EvacuatorClass: class, Priority: 7})),
					metav1.CreateOptions{})
				return err
			},
		},
		"report as an evacuator": {
			base:     []rbacv1.PolicyRule{rule(v1alpha1.GroupName, "evacuations/status", "", "patch")},
			resource: "evacuators", name: class, verb: "progress",
			attempt: func(ctx context.Context, evacuations clientv1alpha1.EvacuationInterface) error {
				_, err := evacuations.Patch(ctx, joined.Name, types.MergePatchType,
					[]byte(`{"status":{"message":"copying"}}`), metav1.PatchOptions{}, "status")
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tryRight(t, namespace, elsewhere, c)
		})
	}
}

func namesEvacuator(class string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationEvacuatorPrefix + class: "20000"}
	}
}

// tryRight sends the request with similar permissions, and then with the required one.
func tryRight(t *testing.T, namespace, elsewhere string, c rightCase) {
	t.Helper()
	account := func(grants ...func(name string)) clientv1alpha1.EvacuationInterface {
		name := framework.Name("account")
		clients := cluster.ServiceAccount(t, namespace, name)
		cluster.GrantIn(t, namespace, namespace, name, c.base...)
		for _, grant := range grants {
			grant(name)
		}
		return clients.Evacuations(namespace)
	}
	grant := func(in, resource, name, verb string) func(string) {
		return func(account string) {
			cluster.GrantIn(t, in, namespace, account, rule(v1alpha1.GroupName, resource, name, verb))
		}
	}
	missing := c.verb + " " + c.resource + "." + v1alpha1.GroupName + ` "` + c.name + `" in namespace "` + namespace +
		`"`
	for without, evacuations := range map[string]clientv1alpha1.EvacuationInterface{
		"without it":           account(),
		"with another name":    account(grant(namespace, c.resource, "other.example.com", c.verb)),
		"with another verb":    account(grant(namespace, c.resource, c.name, "get")),
		"in another namespace": account(grant(elsewhere, c.resource, c.name, c.verb)),
	} {
		framework.Eventually(t, without+", the server refuses the request and names the permission", func(ctx context.Context) (bool, error) {
			err := c.attempt(ctx, evacuations)
			must.True(t, err != nil, "%s: the request was allowed", without)
			// At first the permissions for the real resources may not be in effect yet.
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), missing), nil
		})
	}
	with := account(grant(namespace, c.resource, c.name, c.verb))
	framework.Eventually(t, "with the permission, the request is allowed", func(ctx context.Context) (bool, error) {
		err := c.attempt(ctx, with)
		return err == nil, err
	})
}

// serverGroups are the groups of the service account of the server.
var serverGroups = []string{"system:serviceaccounts", "system:serviceaccounts:haulout-system"}

// serverAccount is the user name of the service account of the server.
const serverAccount = "system:serviceaccount:haulout-system:haulout-apiserver"

// policedWrite is a patch of an object, sent with the account of the server.
type policedWrite struct {
	path, patch string
	// policy is the policy that refuses the patch. If it is "", the patch is allowed.
	policy string
}

// dryRun sends the patch as a dry run.
func (w policedWrite) dryRun(ctx context.Context, clients framework.Clients) error {
	return clients.Kube.CoreV1().RESTClient().Patch(types.StrategicMergePatchType).AbsPath(w.path).
		Param("dryRun", metav1.DryRunAll).Body([]byte(w.patch)).Do(ctx).Error()
}

// TestAdmissionPoliciesLimitTheServer sends patches with the service account of the server. The
// shipped policies must refuse all patches that the server does not need, and allow the others.
// They must not limit other users.
func TestAdmissionPoliciesLimitTheServer(t *testing.T) {
	t.Parallel()
	cluster.MustKubectl(t, "", "get", "-f",
		filepath.Join(cluster.Root(), "artifacts", "base", "admission-policies.yaml"))
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.PodOn(t, namespace, "bare", pool, nodes[0])
	cluster.Deployment(t, namespace, "web", pool, 1)
	autoscalers := cluster.As(t).Kube.AutoscalingV2().HorizontalPodAutoscalers(namespace)
	must.Get(autoscalers.Create(t.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: "apps/v1", Kind: "Deployment", Name: "web",
			},
			MaxReplicas: 3,
		},
	}, metav1.CreateOptions{}))(t)
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
	// The patch replaces the whole list of taints, so it must contain the taint of the pool.
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
			// A new policy takes effect a moment after its creation.
			framework.EventuallyWithin(
				t, 10*time.Second, "the policy refuses the write of the server",
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
