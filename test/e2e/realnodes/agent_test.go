// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	agentProgram = "haulout-node-agent"
	staticFolder = "/var/lib/kubelet/static-pods"
	// maxDelay is the maxShutdownDelay of the agent in most tests.
	maxDelay = 90 * time.Second
)

// agentConfig is the configuration of the agent. Its last part is agentTable, with three
// priorities.
const agentConfig = `apiVersion: nodeagent.haulout.dev/v1alpha1
kind: NodeAgentConfiguration
kubeconfig: %s
maxShutdownDelay: %s
apiGracePeriod: 4s
localEngine: CRI
` + agentTable

// agentTable is the table of the grace periods.
const agentTable = `shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 12}
- {priority: 10000, shutdownGracePeriodSeconds: 8}
- {priority: 2000000000, shutdownGracePeriodSeconds: 6}
`

// tableTime is the sum of the grace periods.
const tableTime = 26 * time.Second

// staticPod is the manifest of a static pod.
const staticPod = `apiVersion: v1
kind: Pod
metadata: {name: helper, namespace: %s, labels: {app: helper}}
spec:
  priorityClassName: system-cluster-critical
  terminationGracePeriodSeconds: 5
  containers: [{name: app, image: "localhost/app:dev", imagePullPolicy: Never, args: [serve, "1"]}]
`

// TestNodeAgent runs the node agent with the real logind and kubelet of a node.
func TestNodeAgent(t *testing.T) {
	m := startMachineWithAgent(t)
	t.Run("shutdown drains the node", func(t *testing.T) { testShutdown(t, m) })
	t.Run("static pods stay parked", func(t *testing.T) { testStaticPods(t, m) })
	t.Run("the installer", func(t *testing.T) { testInstaller(t, m) })
}

// TestNodeAgentInTrouble lets shutdowns fail in different ways.
func TestNodeAgentInTrouble(t *testing.T) {
	m := startMachineWithAgent(t)
	t.Run("shutdown without the API", func(t *testing.T) { testOffline(t, m) })
	t.Run("the API returns in a shutdown", func(t *testing.T) { testAPIReturns(t, m) })
	t.Run("haulout-apiserver does not respond", func(t *testing.T) { testWithoutHaulout(t, m) })
	t.Run("a drain that is blocked", func(t *testing.T) { testBlocked(t, m) })
}

// startMachineWithAgent starts a cluster whose first node runs the agent.
func startMachineWithAgent(t *testing.T) *machine {
	t.Helper()
	for _, program := range []string{"dbus-daemon", "busctl", "nsenter", "/lib/systemd/systemd-logind"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skipf("this machine lacks %s (Debian: packages dbus, systemd)", program) //nolint:forbidigo // fails if CI is set
		}
	}
	c := start(t)
	c.MustKubectl(t, "", "apply", "--filename="+filepath.Join(c.Root(), "artifacts", "node-agent", "rbac.yaml"))
	m := startMachine(t, c, drained)
	startAgent(t, m)
	return m
}

// startAgent starts the agent, and waits until it has its inhibitor lock and its condition is True.
func startAgent(t *testing.T, m *machine) {
	t.Helper()
	config := filepath.Join(m.c.Dir(), "node-agent.yaml")
	content := fmt.Sprintf(agentConfig, filepath.Join(m.c.Dir(), "pki", m.node+".kubeconfig"), maxDelay)
	must.Do(t, os.WriteFile(config, []byte(content), 0o600))
	m.start("node-agent", nil, filepath.Join(m.c.Root(), "bin", agentProgram), "run", "--config="+config)
	bootID, err := os.ReadFile(m.path("/run/boot_id"))
	if err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, "the node agent is ready", func(ctx context.Context) (bool, error) {
		ready := nodeCondition(ctx, t, m, v1alpha1.NodeConditionAgentReady)
		locks, err := os.ReadDir(m.path("/run/systemd/inhibit"))
		if err != nil {
			return false, err
		}
		// The condition may be from the previous boot. Also wait for the static pods that the agent
		// keeps in this boot: until the agent has published them, a drain keeps all static pods.
		node, err := m.c.As(t).Kube.CoreV1().Nodes().Get(ctx, m.node, metav1.GetOptions{})
		return err == nil && ready.Status == corev1.ConditionTrue && len(locks) > 0 &&
			strings.Contains(node.Annotations[v1alpha1.AnnotationKeptStaticPods], strings.TrimSpace(string(bootID))), err
	})
}

func nodeCondition(ctx context.Context, t *testing.T, m *machine, kind corev1.NodeConditionType) corev1.NodeCondition {
	t.Helper()
	node, err := m.c.As(t).Kube.CoreV1().Nodes().Get(ctx, m.node, metav1.GetOptions{})
	if err != nil {
		return corev1.NodeCondition{}
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == kind {
			return condition
		}
	}
	return corev1.NodeCondition{}
}

// testShutdown reboots the machine. The pods must leave by priority and after their replacements
// are ready, and the machine must shut down only after that. After the boot, the node is
// schedulable again.
func testShutdown(t *testing.T, m *machine) {
	t.Helper()
	namespace := m.c.NewNamespace(t)
	deployByPriority(t, m, namespace)
	placeStatic(t, m, namespace)
	seen := watchPods(t, m, namespace)

	m.reboot()
	shutdown := shutdownMaintenance(t, m)
	framework.Eventually(t, "the node reports the shutdown", func(ctx context.Context) (bool, error) {
		return nodeCondition(ctx, t, m, corev1.NodeGracefulNodeShutdownInProgress).Status == corev1.ConditionTrue, nil
	})
	m.untilDown(maxDelay)
	if nm := getMaintenance(t, m, shutdown); !isDrained(nm) {
		t.Errorf("the machine shut down before the node was drained: %+v", nm.Status.Conditions)
	}
	left := seen()
	if want := []string{"low", "high", "critical", "helper"}; !slices.Equal(left, want) {
		t.Errorf("the pods left in the order %q, want %q", left, want)
	}

	m.powerCycle()
	startAgent(t, m)
	framework.Eventually(t, "the maintenance is completed after the boot", func(context.Context) (bool, error) {
		return getMaintenance(t, m, shutdown).Spec.Stage == v1alpha1.NodeMaintenanceStageComplete, nil
	})
	framework.Eventually(t, "the node is schedulable and has its static pod", func(ctx context.Context) (bool, error) {
		node, err := m.c.As(t).Kube.CoreV1().Nodes().Get(ctx, m.node, metav1.GetOptions{})
		return err == nil && !node.Spec.Unschedulable && len(podsOn(t, m.c, namespace, m.node, "app=helper")) == 1, err
	})
	removeStatic(t, m, namespace)
}

// shutdownMaintenance waits for the maintenance that the agent creates for the shutdown, and
// returns its name.
func shutdownMaintenance(t *testing.T, m *machine) string {
	t.Helper()
	bootID, err := os.ReadFile(m.path("/run/boot_id"))
	if err != nil {
		t.Fatal(err)
	}
	name := protocol.ShutdownName(m.node, strings.TrimSpace(string(bootID)))
	framework.Eventually(t, "the shutdown has a NodeMaintenance", func(ctx context.Context) (bool, error) {
		nm, err := m.c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
		return err == nil && nm.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain, err
	})
	t.Cleanup(func() { m.c.Remove(t, name) })
	return name
}

func getMaintenance(t *testing.T, m *machine, name string) *v1alpha1.NodeMaintenance {
	t.Helper()
	nm := must.Get(m.c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(t.Context(), name, metav1.GetOptions{}))(t)
	return nm
}

// deployByPriority creates a Deployment for each priority of the table, with one pod on the node
// and surge.
func deployByPriority(t *testing.T, m *machine, namespace string) {
	t.Helper()
	for name, class := range map[string]string{
		"low": m.c.PriorityClass(t, 100), "high": m.c.PriorityClass(t, 20000), "critical": "system-cluster-critical",
	} {
		m.c.MustKubectl(t, fmt.Sprintf(priorityWorkload, name, name, name, class), "--namespace="+namespace, "apply", "--filename=-")
		ready(t, m.c, namespace, "app="+name, 1)
		if on := podsOn(t, m.c, namespace, m.node, "app="+name); len(on) != 1 {
			t.Fatalf("pod %s is not on %s", name, m.node)
		}
	}
}

// priorityWorkload has a Deployment whose pods prefer the node that the test shuts down.
const priorityWorkload = `apiVersion: apps/v1
kind: Deployment
metadata: {name: %s}
spec:
  selector: {matchLabels: {app: %s}}
  template:
    metadata: {labels: {app: %s}}
    spec:
      priorityClassName: %s
      terminationGracePeriodSeconds: 5
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
          - {weight: 100, preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [real-2]}]}}
      containers:
      - name: app
        image: localhost/app:dev
        args: [serve, "1"]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
`

// podWatch records a watch of the pods of a namespace.
type podWatch struct {
	mu   sync.Mutex
	pods map[string]*corev1.Pod
	// left has the apps in the order in which their pods ended or were deleted on the node.
	left []string
}

// watchPods watches the pods of a namespace. It checks that each pod of a Deployment leaves the
// node only while another pod of it is ready. The returned function waits until the watch is up to
// date, ends it, and returns the apps in the order in which their pods left the node.
func watchPods(t *testing.T, m *machine, namespace string) func() []string {
	t.Helper()
	api := m.c.As(t).Kube.CoreV1().Pods(namespace)
	list := must.Get(api.List(t.Context(), metav1.ListOptions{}))(t)
	watcher, err := api.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	w := &podWatch{pods: map[string]*corev1.Pod{}}
	for i := range list.Items {
		w.pods[list.Items[i].Name] = &list.Items[i]
	}
	go func() {
		for event := range watcher.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				w.observe(t, m.node, event.Type == watch.Deleted, pod)
			}
		}
	}()
	return func() []string {
		defer watcher.Stop()
		framework.Eventually(t, "the watch is up to date", func(ctx context.Context) (bool, error) {
			list, err := api.List(ctx, metav1.ListOptions{})
			if err != nil {
				return false, err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			same := len(list.Items) == len(w.pods)
			for i := range list.Items {
				known := w.pods[list.Items[i].Name]
				same = same && known != nil && known.ResourceVersion == list.Items[i].ResourceVersion
			}
			return same, nil
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.left
	}
}

func (w *podWatch) observe(t *testing.T, node string, deleted bool, pod *corev1.Pod) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	before, app := w.pods[pod.Name], pod.Labels["app"]
	if w.pods[pod.Name] = pod; deleted {
		delete(w.pods, pod.Name)
	}
	if pod.Spec.NodeName != node || before == nil || ended(before) {
		return
	}
	if deleted || ended(pod) {
		w.left = append(w.left, app)
	} else if app != "helper" && before.DeletionTimestamp == nil && pod.DeletionTimestamp != nil && !anyReady(w.pods, app, pod.Name) {
		t.Errorf("pod %s left before its replacement was ready", pod.Name)
	}
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func anyReady(pods map[string]*corev1.Pod, app, but string) bool {
	for name, pod := range pods {
		if name != but && pod.Labels["app"] == app && isReady(pod) {
			return true
		}
	}
	return false
}

// placeStatic writes the manifest of the static pod and waits until the pod runs.
func placeStatic(t *testing.T, m *machine, namespace string) types.UID {
	t.Helper()
	writeStatic(t, m, namespace)
	var uid types.UID
	framework.Eventually(t, "the static pod runs", func(ctx context.Context) (bool, error) {
		pod, err := m.c.As(t).Kube.CoreV1().Pods(namespace).Get(ctx, "helper-"+m.node, metav1.GetOptions{})
		if err != nil || pod.Status.Phase != corev1.PodRunning {
			return false, err
		}
		uid = types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey])
		return true, nil
	})
	return uid
}

func staticFile(m *machine) string { return m.path(filepath.Join(staticFolder, "helper.yaml")) }

func writeStatic(t *testing.T, m *machine, namespace string) {
	t.Helper()
	// Rename the complete file into the folder, so that the kubelet never reads a part of it.
	temporary := m.path(filepath.Join(filepath.Dir(staticFolder), "helper.tmp"))
	must.Do(t, os.WriteFile(temporary, fmt.Appendf(nil, staticPod, namespace), 0o600))
	must.Do(t, os.Rename(temporary, staticFile(m)))
}

func removeStatic(t *testing.T, m *machine, namespace string) {
	t.Helper()
	must.Do(t, os.Remove(staticFile(m)))
	staticPodsGone(t, m, namespace)
}

func staticPodsGone(t *testing.T, m *machine, namespace string) {
	t.Helper()
	framework.Eventually(t, "the static pod is gone", func(context.Context) (bool, error) {
		return len(podsOn(t, m.c, namespace, m.node, "app=helper")) == 0, nil
	})
}

// testStaticPods drains the node, first only for a maintenance whose plan skips static pods: the
// pod keeps running. In the drain of a second maintenance, the static pod must stay stopped after
// restarts of the kubelet and the agent, and after a tool restores its manifest. At the end of this
// drain, it must return with the same UID, although the first maintenance still drains the node.
func testStaticPods(t *testing.T, m *machine) {
	t.Helper()
	namespace := m.c.NewNamespace(t)
	uid := placeStatic(t, m, namespace)
	mirror := podOn(t, m, namespace, "helper").UID
	maintenances := m.c.As(t).Maintenances()
	skipping := beginDrain(t, m.c, v1alpha1.DrainPlanEntry{
		PodType: v1alpha1.PodTypeStatic, PodPriority: v1alpha1.MaxPodPriority, Behavior: new(v1alpha1.DrainBehaviorSkip),
	})
	kept := framework.Until(t, "the node is drained but for its static pods", maintenances, skipping, isDrained)
	is.True(t, kept.Status.NodeStatuses[0].PodsKept > 0, "no pod is kept: %+v", kept.Status)
	is.Equal(t, podOn(t, m, namespace, "helper").UID, mirror, "the mirror pod of the skipped static pod")
	must.Get(os.Stat(staticFile(m)))(t)

	nm := beginDrain(t, m.c)
	untilDrained(t, m.c, nm, namespace)
	staticPodsGone(t, m, namespace)

	signal(t, match{program: "kubelet", argument: "--hostname-override=" + m.node}, syscall.SIGKILL)
	killAgent(t, m)
	writeStatic(t, m, namespace)
	startAgent(t, m)
	framework.Eventually(t, "the restored manifest is parked again", func(context.Context) (bool, error) {
		_, err := os.Stat(staticFile(m))
		return os.IsNotExist(err), nil
	})
	staticPodsGone(t, m, namespace)
	// A kubelet that starts before the agent creates the mirror pod again, for a moment.
	framework.Eventually(t, "the maintenance is drained", func(context.Context) (bool, error) {
		return isDrained(getMaintenance(t, m, nm)), nil
	})

	complete(t, m.c, nm)
	framework.Eventually(t, "the static pod runs again", func(ctx context.Context) (bool, error) {
		pod, err := m.c.As(t).Kube.CoreV1().Pods(namespace).Get(ctx, "helper-"+m.node, metav1.GetOptions{})
		return err == nil && pod.Status.Phase == corev1.PodRunning && types.UID(pod.Annotations[corev1.MirrorPodAnnotationKey]) == uid, err
	})
	removeStatic(t, m, namespace)
}

func killAgent(t *testing.T, m *machine) {
	t.Helper()
	signal(t, match{program: agentProgram, argument: "run"}, syscall.SIGKILL)
}

// testOffline freezes kube-apiserver during the shutdown. The agent must end the pods by priority,
// the machine must shut down within its delay, and all pods must run again after the boot.
func testOffline(t *testing.T, m *machine) {
	t.Helper()
	namespace := m.c.NewNamespace(t)
	deployByPriority(t, m, namespace)
	ended := logsOf(t, m, namespace, "low", "high", "critical")

	m.c.Signal(t, "kube-apiserver", syscall.SIGSTOP)
	m.reboot()
	begin := time.Now()
	m.untilDown(maxDelay)
	took := time.Since(begin)
	m.c.Signal(t, "kube-apiserver", syscall.SIGCONT)
	is.True(t, took <= maxDelay-time.Second, "the machine shut down after %s, at its deadline: the pods had not ended", took)
	if order := ended(); len(order) != 3 || !slices.IsSortedFunc(order, func(a, b stop) int { return a.at.Compare(b.at) }) {
		t.Errorf("the containers exited after SIGTERM at %v, want all three in the order of their priorities", order)
	}

	m.powerCycle()
	startAgent(t, m)
	untilAllServe(t, m, namespace)
}

// testAPIReturns freezes kube-apiserver until the pods of the lowest priority have ended. Then the
// drain must continue with the other pods, and the agent must report the ended pod.
func testAPIReturns(t *testing.T, m *machine) {
	t.Helper()
	namespace := m.c.NewNamespace(t)
	deployByPriority(t, m, namespace)
	low := podOn(t, m, namespace, "low")
	ended := logsOf(t, m, namespace, "low")
	seen := m.c.As(t).Kube.CoreV1().Pods(namespace)
	watcher := must.Get(seen.Watch(t.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", low.Name).String()}))(t)
	defer watcher.Stop()

	m.c.Signal(t, "kube-apiserver", syscall.SIGSTOP)
	m.reboot()
	framework.EventuallyWithin(t, maxDelay, "the pod of the lowest priority ends", func(context.Context) (bool, error) {
		return len(ended()) == 1, nil
	})
	m.c.Signal(t, "kube-apiserver", syscall.SIGCONT)
	failed := false
	for limit := time.After(maxDelay); !failed; {
		select {
		case event, open := <-watcher.ResultChan():
			must.True(t, open, "the watch ended before the pod was reported")
			pod, ok := event.Object.(*corev1.Pod)
			failed = ok && pod.UID == low.UID && pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Terminated"
		case <-limit:
			t.Fatal("the pod that ended without the API was not reported")
		}
	}
	shutdown := shutdownMaintenance(t, m)
	m.untilDown(maxDelay)
	if nm := getMaintenance(t, m, shutdown); !isDrained(nm) {
		t.Errorf("the machine shut down before the node was drained: %+v", nm.Status.Conditions)
	}
	m.powerCycle()
	startAgent(t, m)
	untilAllServe(t, m, namespace)
}

// untilAllServe waits until each app has a ready pod.
func untilAllServe(t *testing.T, m *machine, namespace string) {
	t.Helper()
	for _, app := range []string{"low", "high", "critical"} {
		framework.Eventually(t, app+" serves", func(ctx context.Context) (bool, error) {
			list, err := m.c.As(t).Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
			return err == nil && slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return isReady(&p) }), err
		})
	}
}

func podOn(t *testing.T, m *machine, namespace, app string) *corev1.Pod {
	t.Helper()
	list, err := m.c.As(t).Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{
		LabelSelector: "app=" + app, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", m.node).String(),
	})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("got %d pods %s on %s, error %v", len(list.Items), app, m.node, err)
	}
	return &list.Items[0]
}

// stop is the end of the container of an app.
type stop struct {
	app string
	at  time.Time
}

// logsOf returns a function that reads the times at which containers ended from their log files on
// the node. These files stay after the containers are removed.
func logsOf(t *testing.T, m *machine, namespace string, apps ...string) func() []stop {
	t.Helper()
	folders := map[string]string{}
	for _, app := range apps {
		pod := podOn(t, m, namespace, app)
		folders[app] = m.path(fmt.Sprintf("/var/log/pods/%s_%s_%s/app/0.log", namespace, pod.Name, pod.UID))
	}
	return func() []stop {
		t.Helper()
		var stops []stop
		for _, app := range apps {
			content := must.Get(os.ReadFile(folders[app]))(t)
			for line := range strings.Lines(string(content)) {
				if at, _, _ := strings.Cut(line, " "); strings.HasSuffix(strings.TrimSpace(line), " exit") {
					when := must.Get(time.Parse(time.RFC3339Nano, at))(t)
					stops = append(stops, stop{app, when})
				}
			}
		}
		return stops
	}
}
