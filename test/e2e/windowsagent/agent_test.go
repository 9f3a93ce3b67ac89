// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windowsagent

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// accepted has the controls that the service accepts: Stop, ParamChange and Preshutdown.
const accepted = 0x1 | 0x8 | 0x100

// TestWindowsAgent installs the agent on a machine with Windows, shuts the machine down with and
// without the API, and removes the agent.
func TestWindowsAgent(t *testing.T) {
	cluster.MustKubectl(t, "", "apply", "--filename="+filepath.Join(cluster.Root(), "artifacts", "node-agent", "rbac.yaml"))
	n := newNode(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the agent:\n%s%s", n.read(stateFolder+`\agent.log`), n.read(stateFolder+`\crash.log`))
		}
	})
	n.run("helper.exe", "order", `["UmRdpService","Kubelet","gpsvc"]`)
	var before map[string]string
	n.helper(&before, "registry")

	testInstall(t, n)
	testPreshutdown(t, n)
	testReboot(t, n)
	testOffline(t, n)
	testStopAndUpdate(t, n)
	testUninstall(t, n, before)
	testUnits(t, n)
}

// testUnits runs the unit tests that can run only on Windows. It omits tests that remove temporary
// folders in a way that this version of wine does not support.
func testUnits(t *testing.T, n *node) {
	t.Helper()
	if out := n.run("windows.test.exe", "-test.count=1", "-test.v", "-test.run=^TestHandler"); strings.Count(out, "--- PASS") < 3 {
		t.Errorf("the unit tests print %q", out)
	}
}

// testInstall installs the agent, checks the service and its settings, and installs the agent
// again.
func testInstall(t *testing.T, n *node) {
	t.Helper()
	if out := n.run("agent.exe", "install", "--config="+configFile); !strings.Contains(out, "installed and runs") {
		t.Errorf("install prints %q", out)
	}
	n.until(t, v1alpha1.NodeConditionAgentReady, corev1.ConditionTrue, shutdown.ReasonReady)
	var config struct {
		BinaryPathName, DisplayName string
		StartType                   uint32
		PreshutdownMilliseconds     int64
	}
	n.helper(&config, "config", service)
	if want := `"C:\Program Files\haulout-node-agent\haulout-node-agent.exe" run --windows-service`; config.BinaryPathName != want || config.StartType != 2 {
		t.Errorf("the service has the command line %q and start type %d, want %q and 2", config.BinaryPathName, config.StartType, want)
	}
	if config.PreshutdownMilliseconds != maxDelay.Milliseconds() {
		t.Errorf("Windows waits %d ms for the service, want %d", config.PreshutdownMilliseconds, maxDelay.Milliseconds())
	}
	if order := n.order(); order != `["UmRdpService" "haulout-node-agent" "Kubelet" "gpsvc"]` {
		t.Errorf("PreshutdownOrder is %s", order)
	}
	var s status
	n.helper(&s, "control", service, fmt.Sprint(controlInterrogate))
	if s.State != running || s.Accepts != accepted {
		t.Errorf("the service has state %d and accepts %#x, want %d and %#x", s.State, s.Accepts, running, accepted)
	}
	if out := n.run("agent.exe", "status"); !strings.Contains(out, "delays a shutdown by at most 1m0s") {
		t.Errorf("status prints %q", out)
	}
	pid := s.PID
	if out := n.run("agent.exe", "install", "--config="+configFile); !strings.Contains(out, "up to date") {
		t.Errorf("the second install prints %q", out)
	}
	n.helper(&s, "control", service, fmt.Sprint(controlInterrogate))
	is.True(t, s.PID == pid, "the second install restarted the service")
}

func (n *node) order() string {
	n.tb.Helper()
	var values map[string]string
	n.helper(&values, "registry")
	return values["PreshutdownOrder"]
}

// testPreshutdown shuts the machine down. The pods must leave by priority, and the service must
// report progress to Windows until all have left.
func testPreshutdown(t *testing.T, n *node) {
	t.Helper()
	namespace := cluster.NewNamespace(t)
	n.podsByPriority(t, namespace)
	keepLow(t, namespace)
	left := watchPods(t, namespace)
	statuses := n.watch(service)

	n.run("helper.exe", "send", service, fmt.Sprint(controlPreshutdown))
	n.until(t, corev1.NodeGracefulNodeShutdownInProgress, corev1.ConditionTrue, shutdown.ReasonWaitingForDrain)
	nm := n.maintenance(t)
	if nm.Spec.Stage != v1alpha1.NodeMaintenanceStageDrain || len(nm.Spec.DrainPlan) < 9 {
		t.Errorf("the maintenance has stage %s and the plan %v", nm.Spec.Stage, nm.Spec.DrainPlan)
	}
	// The service must respond while the budget allows no disruption.
	var s status
	framework.Eventually(t, "the service has reported progress three times", func(context.Context) (bool, error) {
		n.run("helper.exe", "send", service, fmt.Sprint(controlInterrogate))
		n.helper(&s, "status", service)
		return s.CheckPoint >= 3, nil
	})
	if s.State != stopPending || s.WaitHint == 0 {
		t.Errorf("the service has state %d and wait hint %d, want %d and more than 0", s.State, s.WaitHint, stopPending)
	}
	if out, err := n.try("agent.exe", "uninstall"); err == nil || !strings.Contains(err.Error(), "the agent delays a shutdown") {
		t.Errorf("uninstall prints %q and fails with %v", out, err)
	}
	cluster.MustKubectl(t, "", "--namespace="+namespace, "delete", "poddisruptionbudget", "low")

	checkStatuses(t, statuses())
	if got, want := left(), []string{"low", "high", "critical"}; !slices.Equal(got, want) {
		t.Errorf("the pods left in the order %q, want %q", got, want)
	}
	condition, err := n.condition(t.Context(), t, corev1.NodeGracefulNodeShutdownInProgress)
	if err != nil || condition.Reason != shutdown.ReasonReleasing {
		t.Errorf("the last condition is %+v (error %v), want reason %s", condition, err, shutdown.ReasonReleasing)
	}
}

// The budget allows no disruption. Its pods have no controller, so minAvailable must be a number.
const budget = `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: low}
spec: {minAvailable: 1, selector: {matchLabels: {app: low}}}
`

// keepLow creates a budget that keeps the pod of the lowest priority on the node until the test
// deletes the budget.
func keepLow(t *testing.T, namespace string) {
	t.Helper()
	cluster.MustKubectl(t, budget, "--namespace="+namespace, "apply", "--filename=-")
	framework.Eventually(t, "the budget is computed", func(ctx context.Context) (bool, error) {
		b, err := cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, "low", metav1.GetOptions{})
		return err == nil && b.Status.ExpectedPods == 1, err
	})
}

// checkStatuses checks the statuses of the service during a shutdown. While the service is pending,
// the check point must rise before each wait hint expires. The last status must be stopped.
func checkStatuses(t *testing.T, statuses []status) {
	t.Helper()
	var last status
	for i, s := range statuses {
		switch {
		case i == 0 && s.State != running:
			t.Errorf("the service began in state %d", s.State)
		case s.State == stopPending && (s.CheckPoint <= last.CheckPoint || s.WaitHint == 0 || s.Accepts != 0):
			t.Errorf("after %+v came %+v: want a higher check point, a wait hint and no accepted controls", last, s)
		case s.State == stopPending && last.State == stopPending && s.Milliseconds-last.Milliseconds > int64(last.WaitHint):
			t.Errorf("after %+v came %+v, after the wait hint had expired", last, s)
		}
		last = s
	}
	if last.State != stopped || last.ExitCode != 0 {
		t.Errorf("the last status was %+v, want stopped without an error", last)
	}
}

// maintenance returns the NodeMaintenance of the shutdown of the node.
func (n *node) maintenance(t *testing.T) *v1alpha1.NodeMaintenance {
	t.Helper()
	list := must.Get(cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().List(t.Context(), metav1.ListOptions{}))(t)
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, "shutdown-"+n.name+"-") && list.Items[i].Spec.Stage == v1alpha1.NodeMaintenanceStageDrain {
			t.Cleanup(func() { cluster.Remove(t, list.Items[i].Name) })
			return &list.Items[i]
		}
	}
	t.Fatal("got no NodeMaintenance in stage Drain for the shutdown")
	return nil
}

// watchPods watches the pods of a namespace. The returned function ends the watch and returns the
// names of the deleted pods, in order.
func watchPods(t *testing.T, namespace string) func() []string {
	t.Helper()
	pods := cluster.As(t).Kube.CoreV1().Pods(namespace)
	list := must.Get(pods.List(t.Context(), metav1.ListOptions{}))(t)
	watcher := must.Get(pods.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion}))(t)
	done := make(chan []string, 1)
	go func() {
		var left []string
		for event := range watcher.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && event.Type == "DELETED" {
				left = append(left, pod.Name)
			}
		}
		done <- left
	}()
	return func() []string {
		watcher.Stop()
		return <-done
	}
}

// testReboot boots the machine. The service must start automatically, and the node must become
// schedulable again.
func testReboot(t *testing.T, n *node) {
	t.Helper()
	n.switchOff()
	n.switchOn("--restart")
	framework.Eventually(t, "the node is schedulable and no maintenance drains it", func(ctx context.Context) (bool, error) {
		object, err := cluster.As(t).Kube.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
		return err == nil && !object.Spec.Unschedulable, err
	})
	n.until(t, v1alpha1.NodeConditionAgentReady, corev1.ConditionTrue, shutdown.ReasonReady)
}

// testOffline shuts the machine down while kube-apiserver is frozen. The agent must stop the
// kubelet and end the pods through the runtime, by priority. It must not report the pods after the
// boot, because the kubelet restarts them.
func testOffline(t *testing.T, n *node) {
	t.Helper()
	namespace := cluster.NewNamespace(t)
	pods := n.podsByPriority(t, namespace)
	type entry struct {
		Namespace, Name, UID string
		Takes                int
	}
	var entries []entry
	for i, pod := range pods {
		entries = append(entries, entry{Namespace: namespace, Name: pod.Name, UID: string(pod.UID), Takes: 300 * (i + 1)})
	}
	content := must.Get(json.Marshal(entries))(t)
	n.write(`C:\test\pods.json`, content)
	errors := n.start("runtime", pipe, `C:\test\pods.json`, `C:\test\runtime.log`)
	framework.Eventually(t, "the runtime listens and the agent has stored the list of pods", func(context.Context) (bool, error) {
		stored := n.read(stateFolder + `\pods.json`)
		return strings.Contains(n.read(`C:\test\runtime.log`), "listens") && strings.Contains(stored, string(pods[0].UID)) &&
			strings.Contains(stored, string(pods[1].UID)) && strings.Contains(stored, string(pods[2].UID)), nil
	})
	statuses := n.watch(service)

	cluster.Signal(t, "kube-apiserver", syscall.SIGSTOP)
	n.run("helper.exe", "send", service, fmt.Sprint(controlPreshutdown))
	seen := statuses()
	cluster.Signal(t, "kube-apiserver", syscall.SIGCONT)
	checkStatuses(t, seen)
	log := n.read(`C:\test\runtime.log`)
	if got, want := ends(log), []string{"stop low", "ended low", "stop high", "ended high", "stop critical", "ended critical"}; !slices.Equal(got, want) {
		t.Errorf("the runtime got the calls %q, want %q\n%s\n%s", got, want, log, errors)
	}
	is.True(t, strings.Contains(log, "stop low timeout=5"), "the pod did not get the grace period of its spec:\n%s", log)
	var kubelet status
	n.helper(&kubelet, "status", "kubelet")
	is.Equal(t, kubelet.State, stopped, "the kubelet has state")

	n.switchOff()
	n.switchOn("--restart")
	n.until(t, corev1.NodeGracefulNodeShutdownInProgress, corev1.ConditionFalse, shutdown.ReasonRebooted)
	list, err := cluster.As(t).Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != len(pods) {
		t.Fatalf("%d pods, error %v, want %d", len(list.Items), err, len(pods))
	}
	for i := range list.Items {
		if s := list.Items[i].Status; s.Phase == corev1.PodFailed {
			t.Errorf("pod %s is %s (%s), although the kubelet restarts it after the boot", list.Items[i].Name, s.Phase, s.Reason)
		}
	}
}

// ends returns the calls in the log of the runtime, without their times.
func ends(log string) []string {
	var list []string
	for line := range strings.Lines(log) {
		if fields := strings.Fields(line); len(fields) >= 3 {
			list = append(list, fields[1]+" "+fields[2])
		}
	}
	return list
}

// testStopAndUpdate stops and starts the service, changes its settings, and updates the agent.
func testStopAndUpdate(t *testing.T, n *node) {
	t.Helper()
	statuses := n.watch(service)
	if out, err := n.try("helper.exe", "stop", service); err != nil {
		t.Fatalf("stop: %v\n%s", err, out)
	}
	checkStatuses(t, statuses())
	n.run("helper.exe", "order", `["kubelet","HAULOUT-node-agent"]`)
	n.run("helper.exe", "start", service)
	framework.Eventually(t, "the agent is in the order before the kubelet again", func(context.Context) (bool, error) {
		return n.order() == `["haulout-node-agent" "kubelet"]`, nil
	})
	n.run("helper.exe", "order", `null`)
	var s status
	n.helper(&s, "control", service, fmt.Sprint(controlParamChange))
	framework.Eventually(t, "the removed order is restored", func(context.Context) (bool, error) {
		return n.order() == `["haulout-node-agent"]`, nil
	})
	// An update must replace the program, which is running, and the configuration.
	program := must.Get(os.ReadFile(n.path(`C:\test\agent.exe`)))(t)
	n.write(`C:\test\agent.exe`, append(program, 0))
	n.write(configFile, fmt.Appendf(nil, agentConfig, 2*maxDelay, n.metrics))
	if out := n.run("agent.exe", "install", "--config="+configFile); !strings.Contains(out, "installed and runs") {
		t.Errorf("the update prints %q", out)
	}
	n.until(t, v1alpha1.NodeConditionAgentReady, corev1.ConditionTrue, shutdown.ReasonReady)
	framework.Eventually(t, "the agent runs with the new configuration", func(context.Context) (bool, error) {
		out, err := n.try("agent.exe", "status")
		return strings.Contains(out, "delays a shutdown by at most 2m0s"), err
	})
	installed, err := os.Stat(n.path(`C:\Program Files\haulout-node-agent\haulout-node-agent.exe`))
	if err != nil || installed.Size() != int64(len(program))+1 {
		t.Errorf("the program was not replaced: %v", err)
	}
}

// testUninstall removes the agent. The registry must be as before, and the node must report that it
// has no agent.
func testUninstall(t *testing.T, n *node, before map[string]string) {
	t.Helper()
	n.run("helper.exe", "order", `["UmRdpService","haulout-node-agent","Kubelet","gpsvc"]`)
	if out := n.run("agent.exe", "uninstall"); !strings.Contains(out, "removed") {
		t.Errorf("uninstall prints %q", out)
	}
	var after map[string]string
	n.helper(&after, "registry")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("uninstall leaves changes in the registry (-before +after):\n%s", diff)
	}
	if _, err := os.Stat(n.path(`C:\Program Files\haulout-node-agent`)); !os.IsNotExist(err) {
		t.Errorf("uninstall leaves the program: %v", err)
	}
	n.until(t, v1alpha1.NodeConditionAgentReady, corev1.ConditionFalse, shutdown.ReasonStopped)
}
