// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/evacuator"
	"haulout.dev/haulout/pkg/evacuator/conformance"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// flush is the class of the example evacuator.
const flush = "flush.example.com"

// flushed assigns a pod to the example evacuator.
func flushed(p *corev1.Pod) {
	p.Annotations = map[string]string{evacuator.AnnotationKey(flush): "20000"}
}

// exampleEvacuator runs the example evacuator as a separate process with only the permissions of
// its manifest.
type exampleEvacuator struct {
	program, kubeconfig string
	log                 bytes.Buffer
	cmd                 *exec.Cmd
}

// buildExample builds the example, and grants a service account of the namespace the permissions of
// its manifest.
func buildExample(t *testing.T, namespace string) *exampleEvacuator {
	t.Helper()
	x := &exampleEvacuator{
		program: filepath.Join(t.TempDir(), "evacuator"), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"),
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", x.program, "./artifacts/examples/evacuator")
	build.Dir = cluster.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	manifest := must.Get(os.ReadFile(filepath.Join(cluster.Root(), "artifacts", "examples", "rbac-evacuator.yaml")))(t)
	account := strings.ReplaceAll(string(manifest), "namespace: shop", "namespace: "+namespace)
	role := "evacuator-flush-" + namespace
	account = strings.ReplaceAll(account, "name: evacuator-flush", "name: "+role)
	cluster.MustKubectl(t, "", "create", "serviceaccount", "flush", "-n", namespace)
	cluster.MustKubectl(t, account, "apply", "-f", "-")
	rbac := cluster.As(t).Kube.RbacV1()
	t.Cleanup(func() {
		_ = rbac.ClusterRoleBindings().Delete(context.Background(), role, metav1.DeleteOptions{})
		_ = rbac.ClusterRoles().Delete(context.Background(), role, metav1.DeleteOptions{})
	})
	token := must.Get(cluster.As(t).Kube.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "flush",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}},
		metav1.CreateOptions{}))(t)
	config := must.Get(clientcmd.LoadFromFile(cluster.Kubeconfig()))(t)
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	must.Do(t, clientcmd.WriteToFile(*config, x.kubeconfig))
	t.Cleanup(func() {
		x.stop(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("output of the evacuator:\n%s", x.log.String())
		}
	})
	return x
}

// start starts the evacuator. takes is the time in which it flushes the state of a pod.
func (x *exampleEvacuator) start(t *testing.T, takes time.Duration) {
	t.Helper()
	x.cmd = exec.Command(x.program, "--kubeconfig="+x.kubeconfig, "--takes="+takes.String())
	x.cmd.Stdout, x.cmd.Stderr = &x.log, &x.log
	must.Do(t, x.cmd.Start())
}

func (x *exampleEvacuator) stop(signal syscall.Signal) {
	if x.cmd != nil {
		_ = x.cmd.Process.Signal(signal)
		_ = x.cmd.Wait()
		x.cmd = nil
	}
}

// TestExampleEvacuator runs the example of docs/evacuators.md.
func TestExampleEvacuator(t *testing.T) {
	t.Parallel() // the test mostly waits
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	x := buildExample(t, namespace)
	deadline := func(seconds int32) func(*v1alpha1.Evacuation) {
		return func(e *v1alpha1.Evacuation) { e.Spec.ProgressDeadlineSeconds = ptr.To(seconds) }
	}
	reports := func(e *v1alpha1.Evacuation) bool {
		s := &e.Status
		return s.ActiveEvacuatorClass == flush && s.EvacuationProgressTimestamp != nil &&
			s.ExpectedEvacuationFinishTime != nil
	}

	t.Run("evacuates a pod for a maintenance", func(t *testing.T) {
		x.start(t, 3*time.Second)
		pod := cluster.PodOn(t, namespace, "db", pool, nodes[0], flushed)
		nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
		evacuationFor(t, pod, "has a report", reports)
		drained(t, nm.Name)
		e := evacuationFor(t, pod, "is complete", func(e *v1alpha1.Evacuation) bool {
			return conditionIs(e.Status.Conditions, v1alpha1.ConditionComplete, metav1.ConditionTrue,
				v1alpha1.ReasonPodDeleted)
		})
		if e.Status.ActiveEvacuatorClass != flush ||
			e.Status.EvacuationCancellationPolicy != v1alpha1.EvacuationCancellationPolicyForbid {
			t.Errorf(
				"the pod left with the status %+v, want the evacuator active, and cancellation forbidden at "+
					"the end",
				e.Status,
			)
		}
		cluster.MustKubectl(t, "", "delete", "nodemaintenance", nm.Name, "--timeout=60s")
		x.stop(syscall.SIGTERM)
	})
	t.Run("keeps a pod after a cancellation", func(t *testing.T) {
		x.start(t, time.Hour)
		pod := cluster.PodOn(t, namespace, "stays", pool, nodes[0], flushed)
		nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
		e := evacuationFor(t, pod, "has a report", reports)
		cluster.MustKubectl(t, "", "delete", "nodemaintenance", nm.Name, "--timeout=60s")
		framework.UntilGone(t, "the evacuation is gone", cluster.As(t).Evacuations(namespace), e.Name)
		x.stop(syscall.SIGTERM)
		if !strings.Contains(x.log.String(), evacuator.ErrCancelled.Error()) {
			t.Errorf("the evacuator does not report the cancellation:\n%s", x.log.String())
		}
		if live, err := cluster.As(t).Pods(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{}); err != nil ||
			live.DeletionTimestamp != nil {
			t.Errorf("the pod did not stay: %v", err)
		}
	})
	t.Run("is replaced by the eviction after a kill", func(t *testing.T) {
		x.start(t, time.Hour)
		pod := cluster.PodOn(t, namespace, "orphan", pool, nodes[0], flushed)
		e := evacuate(t, pod, deadline(10))
		evacuationFor(t, pod, "has a report", reports)
		x.stop(syscall.SIGKILL)
		leaves(t, e)
		e = evacuationFor(t, pod, "is complete", func(e *v1alpha1.Evacuation) bool {
			return e.Status.ActiveEvacuatorClass != flush
		})
		s := e.Status
		if s.ActiveEvacuatorClass != v1alpha1.EvacuatorClassEviction || s.ActiveEvacuatorSince == nil ||
			s.EvacuationProgressTimestamp != nil {
			t.Errorf("%s is active since %v with a report at %v, want the eviction without a report",
				s.ActiveEvacuatorClass, s.ActiveEvacuatorSince, s.EvacuationProgressTimestamp)
		}
	})
	t.Run("continues after a restart", func(t *testing.T) {
		x.start(t, time.Hour)
		pod := cluster.PodOn(t, namespace, "again", pool, nodes[0], flushed)
		e := evacuate(t, pod)
		evacuationFor(t, pod, "has a report", reports)
		x.stop(syscall.SIGKILL)
		x.start(t, time.Second)
		leaves(t, e)
		e = evacuationFor(t, pod, "is complete", func(*v1alpha1.Evacuation) bool { return true })
		is.Equal(t, e.Status.ActiveEvacuatorClass, flush, "the class that evacuated the pod")
		x.stop(syscall.SIGTERM)
	})
	t.Run("passes the conformance checks", func(t *testing.T) {
		x.start(t, 6*time.Second)
		admin := cluster.As(t)
		for _, result := range conformance.Run(t.Context(), conformance.Config{
			Class: flush, Kube: admin.Kube, Maintenance: admin.Haulout, Namespace: namespace,
			Deadline: 10 * time.Second, Patience: framework.Timeout, Quiet: 3 * time.Second,
			NewPod: func(name string) *corev1.Pod {
				return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: framework.PodSpec(pool)}
			},
		}) {
			is.True(t, result.Err == nil, "an evacuator %s: %v", result.Check, result.Err)
		}
		x.stop(syscall.SIGTERM)
	})
}

// TestConformanceFindsWhatIsWrong runs the conformance checks without an evacuator. The checks that
// need one must fail.
func TestConformanceFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	pool, _ := cluster.NewPool(t, 1, true)
	admin := cluster.As(t)
	results := conformance.Run(t.Context(), conformance.Config{
		Class: "nobody.example.com", Kube: admin.Kube, Maintenance: admin.Haulout, Namespace: cluster.NewNamespace(t),
		Deadline: 5 * time.Second, Patience: 30 * time.Second, Quiet: 2 * time.Second,
		NewPod: func(name string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: framework.PodSpec(pool)}
		},
	})
	for i, want := range []string{"another class became active", "another class became active", ""} {
		if got := fmt.Sprint(results[i].Err); (want == "") != (results[i].Err == nil) || !strings.Contains(got, want) {
			t.Errorf("check %q without an evacuator: got %v, want %q", results[i].Check, results[i].Err, want)
		}
	}
}

// TestInstigatorThatApplies adds a second instigator to an Evacuation of the server with
// server-side apply, and removes the instigator with an apply without its finalizer.
func TestInstigatorThatApplies(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	pod := cluster.PodOn(t, namespace, "pod", pool, nodes[0])
	// The budget never allows an eviction of the pod.
	cluster.MustKubectl(t, "", "create", "poddisruptionbudget", "pod", "-n", namespace, "--selector=app=pod",
		"--min-available=1")
	drainNodes(t, pool, nodes...)
	made := evacuationFor(t, pod, "is created", isOurs)
	const theirs = v1alpha1.FinalizerInstigatorPrefix + "other.example.com"
	for _, step := range []struct{ name, metadata string }{
		{"add the finalizer", fmt.Sprintf(`,"labels":{"ticket":"7"},"finalizers":[%q]`, theirs)},
		{"add it again", fmt.Sprintf(`,"labels":{"ticket":"7"},"finalizers":[%q]`, theirs)},
		{"withdraw", ""},
	} {
		e, err := cluster.As(t).Evacuations(namespace).Patch(
			t.Context(), made.Name, types.ApplyPatchType,
			fmt.Appendf(nil, `{"apiVersion":%q,"kind":"Evacuation","metadata":{"name":%q%s}}`,
				v1alpha1.SchemeGroupVersion, made.Name, step.metadata),
			metav1.PatchOptions{FieldManager: "other"},
		)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		asks := step.metadata != ""
		if !isOurs(e) || slices.Contains(e.Finalizers, theirs) != asks || (e.Labels["ticket"] == "7") != asks ||
			e.Labels["app"] != "pod" {
			t.Errorf("%s: finalizers are %q and labels %v", step.name, e.Finalizers, e.Labels)
		}
	}
}

// TestStatefulSetWithoutBudgetLeavesInTurns drains the node on which all pods of a StatefulSet
// without a budget run: at most a quarter of its pods may be missing at any time.
func TestStatefulSetWithoutBudgetLeavesInTurns(t *testing.T) {
	t.Parallel()
	const replicas, mayBeMissing = 8, 2
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	labels := map[string]string{"app": "store"}
	sets := cluster.As(t).Kube.AppsV1().StatefulSets(namespace)
	count := int32(replicas)
	must.Get(sets.Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "store"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &count, Selector: &metav1.LabelSelector{MatchLabels: labels},
			ServiceName: "store", PodManagementPolicy: appsv1.ParallelPodManagement,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: framework.PodSpec(pool),
			},
		},
	}, metav1.CreateOptions{}))(t)
	available := func() {
		framework.Until(t, "all pods are available", sets, "store", func(set *appsv1.StatefulSet) bool {
			return set.Status.AvailableReplicas == replicas
		})
	}
	available()
	cluster.NewNodes(t, pool, true, pool+"-spare")
	watched := watchAvailability(t, namespace)
	nm := drainNodes(t, pool, nodes...)
	drained(t, nm.Name)
	available()
	lowest := wasAvailable(t, watched, "store", replicas-mayBeMissing)
	is.True(t, lowest != replicas, "the watch has not seen any pod leave")
}
