// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/admission/evictionreview"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/evacuator"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// evictingUser lets a user do what `kubectl drain` does, and nothing else.
func evictingUser(t *testing.T) (user string) {
	t.Helper()
	user = framework.Name("drainer")
	cluster.Grant(
		t, user,
		rule("", "nodes", "", "get", "list", "patch"),
		rule("", "pods", "", "get", "list"),
		rule("", "pods/eviction", "", "create"),
		rule("apps", "daemonsets", "", "get"),
	)
	return user
}

// singles creates Deployments with one replica behind a budget that needs it, one after the other:
// parallel subtests would wait until all other tests have started. No annotation names Haulout.
func singles(t *testing.T, namespace, pool string, count int) (names []string) {
	t.Helper()
	for i := range count {
		name := fmt.Sprintf("app-%02d", i)
		names = append(names, name)
		single(t, namespace, name, pool, minAvailable(1))
	}
	return names
}

// TestKubectlDrainReplacesFirst lets a user who has never heard of Haulout drain a node with twenty
// Deployments of one replica, behind budgets with minAvailable 1. Without interception the drain
// would never end.
func TestKubectlDrainReplacesFirst(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	names := singles(t, namespace, pool, 20)
	cluster.InterceptEvictions(t, pool, nodes[0], namespace)
	cluster.NewNodes(t, pool, true, pool+"-spare")
	available := watchAvailability(t, namespace)
	log := cluster.AuditLog(t)
	user := evictingUser(t)

	began := time.Now()
	out, errOut, err := cluster.Kubectl(t, "", "drain", nodes[0], "--as="+user, "--timeout=150s")
	must.True(t, err == nil, "kubectl drain: %v\n%s%s", err, out, errOut)
	t.Logf("drained after %s", time.Since(began).Round(time.Millisecond))
	left := must.Get(podsOn(t.Context(), t, nodes[0]))(t)
	is.Equal(t, len(left), 0, "pods on the node")
	is.True(t, strings.Contains(errOut, "Eviction triggered evacuation of pod"), "kubectl printed\n%s", errOut)
	for _, name := range names {
		asBefore(t, namespace, name, 1)
		wasAvailable(t, available, name, 1)
	}
	// A budget that is closed answers with 429 as well. The eviction is granted, or finds no pod,
	// when the pod is replaced.
	asked := map[string]bool{}
	for _, call := range must.Get(log.Calls())(t) {
		switch {
		case call.Namespace != namespace || call.User != user || call.Subresource != "eviction":
		case call.Code == http.StatusTooManyRequests:
			asked[call.Name] = true
		case !asked[call.Name] || !call.Evicted() && call.Code != http.StatusNotFound:
			t.Errorf("the eviction of pod %s was answered with %d, want 429 until it is replaced, and then 201 or 404", call.Name, call.Code)
		}
	}
	is.Equal(t, len(asked), len(names), "pods whose eviction was answered with 429")
}

// TestKubectlDrainBesideAMaintenance drains a node with kubectl while a NodeMaintenance replaces
// its pods.
func TestKubectlDrainBesideAMaintenance(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	single(t, namespace, "with", pool, minAvailable(1))
	single(t, namespace, "without", pool, nil)
	cluster.InterceptEvictions(t, pool, nodes[0], namespace)
	cluster.NewNodes(t, pool, true, pool+"-spare")
	available := watchAvailability(t, namespace)
	nm := drainNodes(t, pool, nodes[0])
	cluster.MustKubectl(t, "", "drain", nodes[0], "--timeout=120s")
	drained(t, nm.Name)
	for _, name := range []string{"with", "without"} {
		asBefore(t, namespace, name, 1)
		wasAvailable(t, available, name, 1)
	}
}

// TestKubectlDrainWaitsForEvacuators drains a node with twenty pods that name an evacuator. All of
// them leave by the evacuator.
func TestKubectlDrainWaitsForEvacuators(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	pods := make([]*corev1.Pod, 20)
	class := framework.Name("remover") + ".example.com"
	for i := range pods {
		pods[i] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("db-%d", i), Annotations: map[string]string{evacuator.AnnotationKey(class): "20000"},
		}}
		pods[i].Spec.NodeName = nodes[0]
	}
	cluster.PodsOn(t, namespace, pool, pods...)
	cluster.InterceptEvictions(t, pool, nodes[0], namespace)
	log := cluster.AuditLog(t)
	removed := runRemover(t, class)

	_, errOut, err := cluster.Kubectl(t, "", "drain", nodes[0], "--force", "--timeout=120s")
	must.True(t, err == nil, "kubectl drain: %v\n%s", err, errOut)
	is.Equal(t, removed(), 20, "pods that the evacuator removed")
	deleted := map[string]time.Time{}
	for _, call := range must.Get(log.Calls())(t) {
		began, terminates := deleted[call.Name]
		switch {
		case call.Namespace != namespace:
		case call.Deleted() && !terminates:
			deleted[call.Name] = call.Received
		case call.Subresource != "eviction", call.Code == http.StatusTooManyRequests, call.Code == http.StatusNotFound:
		case !call.Evicted() || !terminates || call.Answered.Before(began):
			t.Errorf("the eviction of pod %s by %s was answered with %d, want 429 until the evacuator removes it", call.Name, call.User, call.Code)
		}
	}
}

// runRemover runs an evacuator that deletes its pods. It returns a function that counts them.
func runRemover(t *testing.T, class string) (removed func() int) {
	t.Helper()
	admin := cluster.As(t)
	var mu sync.Mutex
	count := 0
	v := must.Get(evacuator.New(evacuator.Config{
		Class: class, Client: admin.Haulout, Handler: func(ctx context.Context, e *evacuator.Evacuation) error {
			err := admin.Pods(e.Namespace).Delete(ctx, e.PodName, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(e.PodUID))})
			if err != nil {
				return err
			}
			mu.Lock()
			count++
			mu.Unlock()
			return e.AwaitDeparture(ctx)
		},
	}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return count
	}
}

// TestInterruptedDrain interrupts `kubectl drain`. The Evacuations of its pods are cancelled after
// --raw-eviction-ttl, or when the owner of the namespace cancels them. A pod whose evacuator has
// not finished by then stays.
func TestInterruptedDrain(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	pod := cluster.PodOn(t, namespace, framework.Name("db"), pool, nodes[0], movable)
	other := cluster.PodOn(t, namespace, framework.Name("db"), pool, nodes[0], movable)
	cluster.InterceptEvictions(t, pool, nodes[0], namespace)
	cmd := exec.CommandContext(t.Context(), cluster.KubectlPath(), "drain", nodes[0], "--force")
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+cluster.Kubeconfig())
	must.Do(t, cmd.Start())
	isForEviction := func(e *v1alpha1.Evacuation) bool {
		return slices.Equal(e.Finalizers, []string{v1alpha1.FinalizerInstigatorRawEviction})
	}
	e := evacuationFor(t, pod, "was made for an eviction", isForEviction)
	second := evacuationFor(t, other, "was made for an eviction", isForEviction)
	must.Do(t, cmd.Process.Kill())
	_ = cmd.Wait()
	is.True(t, strings.Contains(e.Status.Message, "The pod leaves for an eviction by "), "the first message is %q", e.Status.Message)
	framework.Eventually(t, "the pod has an event", func(ctx context.Context) (bool, error) {
		return hasEvent(ctx, t, pod.Name, evictionreview.EventBecameEvacuation)
	})
	owner := framework.Name("owner")
	cluster.Bind(t, owner, "admin")
	newShell(t, owner).run(t, 0, "evacuate --cancel "+other.Name+" --namespace="+namespace, "cancelled")
	framework.UntilGone(t, "the Evacuation that the owner has cancelled", cluster.As(t).Evacuations(namespace), second.Name)
	isThere(t, other)
	if !framework.Full(t) {
		return // the TTL is three minutes
	}
	framework.EventuallyWithin(t, 3*time.Minute+framework.Timeout, "the Evacuation is gone", func(ctx context.Context) (bool, error) {
		_, err := cluster.As(t).Evacuations(namespace).Get(ctx, e.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	isThere(t, pod)
}

// isThere checks that a pod has not been asked to stop.
func isThere(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	now := must.Get(cluster.As(t).Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{}))(t)
	is.True(t, now.UID == pod.UID && now.DeletionTimestamp == nil, "pod %s has left", pod.Name)
}

// replay sends the eviction of a client, and returns the error.
type replay func(ctx context.Context, t *testing.T, pod *corev1.Pod) error

// replays are the requests of clients, with the fields that these clients set. cluster-autoscaler
// sends policy/v1beta1 through the typed client, with a grace period. Karpenter sends an Eviction
// with the UID as precondition, in which controller-runtime sets the name of the pod and no
// namespace. The descheduler sends policy/v1.
var replays = map[string]replay{
	"cluster-autoscaler": func(ctx context.Context, t *testing.T, pod *corev1.Pod) error {
		t.Helper()
		return cluster.As(t).Kube.CoreV1().Pods(pod.Namespace).EvictV1beta1(ctx, &policyv1beta1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)},
		})
	},
	"Karpenter": func(ctx context.Context, t *testing.T, pod *corev1.Pod) error {
		t.Helper()
		return cluster.As(t).Kube.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
			MaxRetries(0).Body(&policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(pod.UID)}},
		}).Do(ctx).Error()
	},
	"descheduler": func(ctx context.Context, t *testing.T, pod *corev1.Pod) error {
		t.Helper()
		return cluster.As(t).Kube.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
			TypeMeta:      metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
			ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{},
		})
	},
}

// TestEvictionsOfAutoscalers replays the evictions of other programs: they are refused with 429
// until the pod is replaced, and then they find no pod.
func TestEvictionsOfAutoscalers(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	for client := range replays {
		single(t, namespace, strings.ToLower(client), pool, minAvailable(1))
	}
	cluster.InterceptEvictions(t, pool, nodes[0], namespace)
	cluster.NewNodes(t, pool, true, pool+"-spare")
	merge(t, "", "node", nodes[0], `{"spec":{"unschedulable":true}}`)
	available := watchAvailability(t, namespace)
	for client, evict := range replays {
		name := strings.ToLower(client)
		pods := must.Get(cluster.As(t).Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name}))(t)
		must.True(t, len(pods.Items) == 1, "%s has %d pods", name, len(pods.Items))
		// Until the server has seen the cordon, which takes a moment, the budget refuses.
		framework.Eventually(t, "an Evacuation refuses the eviction of "+client, func(ctx context.Context) (bool, error) {
			err := evict(ctx, t, &pods.Items[0])
			if framework.IsIntercepted(err) {
				return true, nil
			}
			must.True(t, ctx.Err() != nil || apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause), "%s: the eviction was answered with %v", client, err)
			return false, err
		})
		framework.Eventually(t, "the pod of "+client+" is gone", func(ctx context.Context) (bool, error) {
			err := evict(ctx, t, &pods.Items[0])
			if apierrors.IsNotFound(err) {
				return true, nil
			}
			// A budget refuses while the new pod is not counted yet. An eviction is granted when
			// the evacuators are done, and while the pod terminates.
			must.True(t, err == nil || ctx.Err() != nil || framework.IsIntercepted(err) || apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause),
				"%s: the eviction was answered with %v", client, err)
			return false, err
		})
		asBefore(t, namespace, name, 1)
		wasAvailable(t, available, name, 1)
	}
}

// evictionOf returns an eviction of a pod, with changes.
func evictionOf(pod *corev1.Pod, modify ...func(*policyv1.Eviction)) *policyv1.Eviction {
	return build.With(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}, modify...)
}

// isFree checks that a pod has no Evacuation.
func isFree(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	_, err := cluster.As(t).Evacuations(pod.Namespace).Get(t.Context(), string(pod.UID)+"-"+pod.Name, metav1.GetOptions{})
	is.True(t, apierrors.IsNotFound(err), "pod %s has an Evacuation (%v)", pod.Name, err)
}

// TestEvictionsThatPass sends evictions that must not become Evacuations.
func TestEvictionsThatPass(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	annotated := cluster.PodOn(t, namespace, "annotated", pool, nodes[0], movable)
	cluster.InterceptEvictions(t, pool, nodes[0], namespace)
	client, warnings := cluster.Evictor(t)
	t.Run("kubectl drain --dry-run=server ends and makes nothing", func(t *testing.T) {
		_, errOut, err := cluster.Kubectl(t, "", "drain", nodes[0], "--dry-run=server", "--force", "--timeout=20s")
		is.True(t, err == nil && strings.Contains(errOut, "would not be evicted immediately"), "got %v\n%s", err, errOut)
		isFree(t, annotated)
	})
	t.Run("an eviction of another pod of the name", func(t *testing.T) {
		err := client.Evict(t.Context(), evictionOf(annotated, func(e *policyv1.Eviction) {
			e.DeleteOptions = &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("another"))}}
		}))
		is.True(t, apierrors.IsConflict(err), "got %v, want the conflict of kube-apiserver", err)
		isFree(t, annotated)
	})
	t.Run("an eviction of a pod without evacuators", func(t *testing.T) {
		must.Do(t, client.Evict(t.Context(), evictionOf(cluster.PodOn(t, namespace, "plain", pool, nodes[0]))))
	})
	t.Run("a marked eviction", func(t *testing.T) {
		marked := cluster.PodOn(t, namespace, "marked", pool, nodes[0], movable)
		must.Do(t, client.Evict(t.Context(), evictionOf(marked, func(e *policyv1.Eviction) {
			e.Annotations = map[string]string{v1alpha1.AnnotationEvictNow: "e2e"}
		})))
		isFree(t, marked)
	})
	t.Run("a namespace with the label", func(t *testing.T) {
		warnings.Take()
		merge(t, "", "namespace", namespace, `{"metadata":{"labels":{"maintenance.haulout.dev/eviction-interception":"Disabled"}}}`)
		framework.Eventually(t, "the webhook is not called", func(ctx context.Context) (bool, error) {
			err := client.Evict(ctx, evictionOf(annotated, func(e *policyv1.Eviction) {
				e.DeleteOptions = &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
			}))
			return err == nil && len(warnings.Take()) == 0, err
		})
		must.Do(t, client.Evict(t.Context(), evictionOf(annotated)))
		isFree(t, annotated)
	})
}

// TestBudgetsAnswerAtTheEnd evicts a pod whose evacuators are done, behind a closed budget.
func TestBudgetsAnswerAtTheEnd(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.InterceptEvictions(t, pool, nodes[0], namespace)
	controlled(t, namespace, pool, "guarded", 1)
	cluster.Budget(t, namespace, "guarded", 0)
	guarded := livePods(t, namespace)[0]
	evacuate(t, &guarded)
	evacuationFor(t, &guarded, "waits for its eviction", func(e *v1alpha1.Evacuation) bool {
		return e.Status.ActiveEvacuatorClass == v1alpha1.EvacuatorClassEviction
	})
	client, _ := cluster.Evictor(t)
	err := client.Evict(t.Context(), evictionOf(&guarded))
	is.True(t, apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause), "got %v, want the refusal of the budget", err)
}

// TestReviewsAreOfKubeAPIServer sends reviews as other users.
func TestReviewsAreOfKubeAPIServer(t *testing.T) {
	t.Parallel()
	review := []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"a","namespace":"default","name":"none"}}`)
	post := func(t *testing.T, client rest.Interface) (code int) {
		t.Helper()
		client.Post().AbsPath(evictionreview.Path).SetHeader("Content-Type", "application/json").Body(review).Do(t.Context()).StatusCode(&code)
		return code
	}
	namespace := cluster.NewNamespace(t)
	account := cluster.ServiceAccount(t, namespace, "tenant")
	cluster.GrantIn(t, namespace, namespace, "tenant", rbacv1.PolicyRule{
		APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"evacuations"}, Verbs: []string{"create", "get"},
	})
	is.Equal(t, post(t, cluster.As(t).Haulout.MaintenanceV1alpha1().RESTClient()), http.StatusOK, "of the administrator:")
	is.Equal(t, post(t, account.Haulout.MaintenanceV1alpha1().RESTClient()), http.StatusForbidden, "of a tenant:")
	_, errOut, err := cluster.Kubectl(t, string(review), "create", "--raw", evictionreview.Path, "-f", "-", "--as=system:anonymous", "--as-group=system:unauthenticated")
	is.True(t, err != nil && strings.Contains(errOut, "Forbidden"), "of an anonymous user: got %v, want Forbidden\n%s", err, errOut)
	config := must.Get(cluster.Directly(t, "haulout-apiserver"))(t)
	port := must.Get(kubernetes.NewForConfig(rest.AnonymousClientConfig(config)))(t).Discovery().RESTClient()
	is.Equal(t, post(t, port), http.StatusUnauthorized, "to the port of the server, without credentials:")
	config.BearerToken, config.CertData, config.KeyData, config.CertFile, config.KeyFile = "forged", nil, nil, "", ""
	port = must.Get(kubernetes.NewForConfig(config))(t).Discovery().RESTClient()
	is.Equal(t, post(t, port), http.StatusUnauthorized, "to the port of the server, with a forged token:")
}
