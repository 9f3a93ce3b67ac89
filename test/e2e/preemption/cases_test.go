// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// deadline returns a context with the timeout of a test.
func deadline(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), framework.Timeout)
}

// schedulerFlags is the variable of bin/cluster for additional flags of the scheduler.
const schedulerFlags = "SCHEDULER_FLAGS"

// withScheduler restarts the scheduler with additional flags, which override earlier ones. restore
// removes them.
func withScheduler(t *testing.T, flags ...string) (restore func()) {
	t.Helper()
	before := os.Getenv(schedulerFlags)
	restart := func(flags string) {
		t.Setenv(schedulerFlags, flags)
		cluster.Kill(t, "kube-scheduler")
		must.Do(t, cluster.Up())
	}
	restart(strings.Join(append([]string{before}, flags...), " "))
	return func() { restart(before) }
}

// message returns the message of the pod's condition PodScheduled.
func message(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return condition.Message
		}
	}
	return ""
}

// TestMessageOfAPodThatIsHeldUp compares the whole message of the condition of a pod that budgets
// prevent from preempting.
func TestMessageOfAPodThatIsHeldUp(t *testing.T) {
	w := fullNode(t, 0)
	w.pending(t, "important", 100)
	framework.Eventually(t, "the condition has the text of docs/preemption.md", func(ctx context.Context) (bool, error) {
		pod, err := cluster.As(t).Kube.CoreV1().Pods(w.namespace).Get(ctx, "important", metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		nodes, err := cluster.As(t).Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		got, want := message(pod), heldMessage(len(nodes.Items))
		if got != want {
			return false, fmt.Errorf("got %q, want %q", got, want)
		}
		return true, nil
	})
}

// heldMessage returns the message of a pod that would fit on only one of the nodes if budgets did
// not protect the pods there.
func heldMessage(nodes int) string {
	filters := []string{"1 Insufficient cpu"}
	preemption := []string{"1 node(s) with pods that PodDisruptionBudgets protect; preempting them needs priority 1000"}
	if others := nodes - 1; others > 0 {
		filters = append(filters, fmt.Sprintf("%d node(s) didn't match Pod's node affinity/selector", others))
		preemption = append(preemption, fmt.Sprintf("%d Preemption is not helpful for scheduling", others))
	}
	slices.Sort(filters)
	slices.Sort(preemption)
	return fmt.Sprintf("0/%d nodes are available: %s. preemption: 0/%d nodes are available: %s.",
		nodes, strings.Join(filters, ", "), nodes, strings.Join(preemption, ", "))
}

// allow changes maxUnavailable of a budget.
func (w world) allow(t *testing.T, budget string, maxUnavailable int) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"maxUnavailable":%d}}`, maxUnavailable)
	must.Get(cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(w.namespace).Patch(
		t.Context(), budget, types.MergePatchType, patch, metav1.PatchOptions{},
	))(t)
}

// TestSynchronousPreemption repeats the main cases without SchedulerAsyncPreemption: the scheduler
// then waits for each call of the Eviction API.
func TestSynchronousPreemption(t *testing.T) {
	defer withScheduler(t, "--feature-gates=SchedulerAsyncPreemption=false")()
	t.Run("a budget protects its pods", TestBudgetHoldsUpAPod)
	t.Run("the threshold is reached", TestThresholdIsReached)
	t.Run("the budget allows one of two", TestRoomForOne)
}

// extender is a scheduler extender that adds a pod to the victims on every node.
type extender struct {
	victim types.UID
	honest atomic.Bool
	asked  atomic.Int32
}

// These types are the part of the protocol k8s.io/kube-scheduler/extender/v1 that the test needs.
type (
	extenderArgs struct {
		NodeNameToVictims map[string]*struct{ Pods []*corev1.Pod }
	}
	metaPod     struct{ UID string }
	metaVictims struct {
		Pods             []metaPod
		NumPDBViolations int64
	}
	extenderResult struct{ NodeNameToMetaVictims map[string]*metaVictims }
)

func (e *extender) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var args extenderArgs
	if err := json.NewDecoder(r.Body).Decode(&args); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.asked.Add(1)
	result := extenderResult{NodeNameToMetaVictims: map[string]*metaVictims{}}
	for node, victims := range args.NodeNameToVictims {
		chosen := &metaVictims{}
		for _, pod := range victims.Pods {
			chosen.Pods = append(chosen.Pods, metaPod{string(pod.UID)})
		}
		if !e.honest.Load() {
			chosen.Pods = append(chosen.Pods, metaPod{string(e.victim)})
		}
		result.NodeNameToMetaVictims[node] = chosen
	}
	_ = json.NewEncoder(w).Encode(result)
}

// TestExtenderAddsAProtectedPod lets an extender add to the victims a pod whose budget allows no
// disruption: no victim may be deleted. When the extender adds no pod, the pod without a budget is
// deleted.
func TestExtenderAddsAProtectedPod(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 1, true)
	w := world{pool: pool, namespace: cluster.NewNamespace(t)}
	guarded, free := cluster.PriorityClass(t, 10), cluster.PriorityClass(t, 5)
	annotate(t, guarded, "1000")
	cluster.Deployment(t, w.namespace, "web", pool, 1, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.PriorityClassName = guarded
		request(&d.Spec.Template.Spec, "32")
	})
	cluster.Budget(t, w.namespace, "web", 0)
	cluster.PodOn(t, w.namespace, "unprotected", pool, nodes[0], func(p *corev1.Pod) {
		p.Spec.PriorityClassName = free
		request(&p.Spec, "32")
	})
	w.log = cluster.AuditLog(t)
	pods := must.Get(cluster.As(t).Kube.CoreV1().Pods(w.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"}))(t)
	protected := pods.Items[0]
	e := &extender{victim: protected.UID}
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	defer withScheduler(t, "--config="+schedulerConfig(t, func(config map[string]any) {
		config["extenders"] = []any{map[string]any{"urlPrefix": server.URL, "preemptVerb": "preempt", "httpTimeout": "30s"}}
	}))()

	w.pending(t, "important", 100)
	waitEvent(t, w.namespace, "PreemptionRefused", "important", protected.Name)
	w.wantCounts(t, 0, 0, 0)
	is.True(t, e.asked.Load() != 0, "the scheduler did not call the extender")
	e.honest.Store(true)
	w.waitRuns(t, "important")
	w.wantCounts(t, 0, 0, 1)
	pod, err := cluster.As(t).Kube.CoreV1().Pods(w.namespace).Get(t.Context(), protected.Name, metav1.GetOptions{})
	if err != nil || pod.UID != protected.UID {
		t.Errorf("the protected pod: %v", err)
	}
}

// TestDrainBesidePreemption drains a node while important pods preempt on two other nodes. The
// drain and the scheduler use the same budget repeatedly, because the evicted pods are recreated on
// other nodes. The judge observes every pod that is evicted or deleted.
func TestDrainBesidePreemption(t *testing.T) {
	pool, nodes := cluster.NewPool(t, 3, true)
	w := world{pool: pool, namespace: cluster.NewNamespace(t)}
	guarded, important := cluster.PriorityClass(t, 10), cluster.PriorityClass(t, 100)
	annotate(t, guarded, "1000")
	cluster.Deployment(t, w.namespace, "web", pool, 5, func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.PriorityClassName = guarded
		request(&d.Spec.Template.Spec, "32")
	})
	cluster.Budget(t, w.namespace, "web", 1)
	w.log = cluster.AuditLog(t)
	recorder := cluster.Judge(t, pool, w.namespace)

	w.deploy(t, "important", important, 3, nodes[1:]...)
	nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain)
	nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes[0])
	cluster.Create(t, nm)
	cluster.NewNodes(t, pool, true, pool+"-a", pool+"-b", pool+"-c")
	framework.Await(t, recorder, framework.Timeout, oracle.Drained(nm.Name))
	for name, want := range map[string]int32{"web": 5, "important": 3} {
		framework.Eventually(t, name+" is complete", func(ctx context.Context) (bool, error) {
			d, err := cluster.As(t).Kube.AppsV1().Deployments(w.namespace).Get(ctx, name, metav1.GetOptions{})
			return err == nil && d.Status.AvailableReplicas == want, err
		})
	}
	cluster.Remove(t, nm.Name)
	// The recorder observes a change a moment after the API's answer.
	framework.Await(t, recorder, framework.Timeout, oracle.PutBack(nil, nm.Name))
	must.Do(t, recorder.Settle(t.Context()))
	found, err := recorder.Verdict(oracle.Rules{})
	framework.Accept(t, found, err)
	if evicted, _, deleted := w.counts(t); evicted < 2 || deleted != 0 {
		t.Errorf("the scheduler has evicted %d pods and deleted %d, want at least 2 and none", evicted, deleted)
	}
}

// deploy creates a Deployment for some nodes of the pool and does not wait for its pods.
func (w world) deploy(t *testing.T, name, class string, replicas int32, nodes ...string) {
	t.Helper()
	labels := map[string]string{"app": name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: framework.PodSpec(w.pool)},
		},
	}
	d.Spec.Template.Spec.PriorityClassName = class
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: framework.Select(corev1.LabelHostname, nodes...),
	}}
	request(&d.Spec.Template.Spec, "32")
	must.Get(cluster.As(t).Kube.AppsV1().Deployments(w.namespace).Create(t.Context(), d, metav1.CreateOptions{}))(t)
}

// TestMetricsAreServed checks that the scheduler exports the metrics that the rules and the
// dashboard use.
func TestMetricsAreServed(t *testing.T) {
	listed := must.Get(os.ReadFile(cluster.Root() + "/artifacts/monitoring/metrics.txt"))(t)
	served := must.Get(cluster.ScrapeScheduler(t))(t)
	for _, name := range strings.Fields(string(listed)) {
		if strings.HasPrefix(name, "haulout_preemption_") && len(served[name]) == 0 {
			t.Errorf("haulout-scheduler does not serve %s", name)
		}
	}
}
