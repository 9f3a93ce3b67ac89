// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// barePod is a pod without a controller.
const barePod = `apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: %s, group: bare}}
spec:
  priorityClassName: %s
  terminationGracePeriodSeconds: 5
  nodeSelector: {kubernetes.io/hostname: %s}
  containers: [{name: app, image: "localhost/app:dev", args: [serve, "1"]}]
---
`

// bareBudget allows no eviction of the bare pods.
const bareBudget = `apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: bare}
spec: {minAvailable: 3, selector: {matchLabels: {group: bare}}}
`

// testBlocked reboots the machine 40 seconds before it is taken away, while a budget allows no
// eviction. The pods must run until the remaining time is only as long as the sum of their grace
// periods, and then end by priority. The plan of the drain must not have the entries of the table.
func testBlocked(t *testing.T, m *machine) {
	t.Helper()
	const delay = 40 * time.Second
	// local is the latest time at which the agent has to begin to end pods. The agent reserves 5
	// seconds.
	const local = delay - tableTime - 5*time.Second
	namespace := m.c.NewNamespace(t)
	pods := bareBudget + "---\n"
	classes := map[string]string{"low": m.c.PriorityClass(t, 100), "high": m.c.PriorityClass(t, 20000), "critical": "system-cluster-critical"}
	for name, class := range classes {
		pods += fmt.Sprintf(barePod, name, name, class, m.node)
	}
	m.c.MustKubectl(t, pods, "--namespace="+namespace, "apply", "--filename=-")
	for app := range classes {
		ready(t, m.c, namespace, "app="+app, 1)
	}
	ended := logsOf(t, m, namespace, "low", "high", "critical")

	begin := time.Now()
	m.run(filepath.Join(m.c.Root(), "bin", agentProgram), "shutdown", "--within="+delay.String())
	m.reboot()
	name := shutdownMaintenance(t, m)
	if plan := getMaintenance(t, m, name).Spec.DrainPlan; len(plan) != 12 {
		t.Errorf("the plan has %d entries, want only the 12 of every plan: %v", len(plan), plan)
	}
	framework.EventuallyWithin(t, delay, "the first pod ends", func(context.Context) (bool, error) { return len(ended()) > 0, nil })
	if nm := getMaintenance(t, m, name); isDrained(nm) {
		t.Error("the node is drained, although a budget allows no eviction")
	}
	m.untilDown(delay)
	took := time.Since(begin)
	order := ended()
	if len(order) != 3 || !slices.IsSortedFunc(order, func(a, b stop) int { return a.at.Compare(b.at) }) {
		t.Fatalf("the containers exited after SIGTERM at %v, want all three in the order of their priorities", order)
	}
	if after := order[0].at.Sub(begin); after < local-2*time.Second {
		t.Errorf("the first pod ended after %s, earlier than %s", after, local)
	}
	is.True(t, took <= delay-time.Second, "the machine shut down after %s, at its deadline", took)
	m.powerCycle()
	startAgent(t, m)
	// The kubelet restarts the pod of the highest priority after the boot.
	framework.Eventually(t, "each pod is reported or runs again after the boot", func(ctx context.Context) (bool, error) {
		list, err := m.c.As(t).Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			if pod := &list.Items[i]; !isReady(pod) && !endedByShutdown(pod) {
				return false, fmt.Errorf("pod %s has the status %+v", pod.Name, pod.Status)
			}
		}
		if len(list.Items) != 3 {
			return false, fmt.Errorf("%d pods are left, want all three", len(list.Items))
		}
		return true, nil
	})
	framework.Eventually(t, "the maintenance is completed after the boot", func(context.Context) (bool, error) {
		return getMaintenance(t, m, name).Spec.Stage == v1alpha1.NodeMaintenanceStageComplete, nil
	})
}

// endedByShutdown reports whether the status of a pod names a shutdown of its node as the reason
// for its end. The kubelet clears status.reason after the next boot.
func endedByShutdown(pod *corev1.Pod) bool {
	return (pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded) &&
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonTerminationByKubelet
		})
}

// installRoot is the folder that the installer uses as the root of the node: the real root belongs
// to the machine on which the tests run.
const installRoot = "/var/lib/machine"

// testInstaller runs the DaemonSet that installs the agent. Nodes of the tests have no service
// manager: the installer must copy the program, the configuration and the unit, and then report
// that a call of systemd failed. The installed files are deleted together with the cluster.
func testInstaller(t *testing.T, m *machine) {
	t.Helper()
	enter := func(program string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "nsenter", m.enter(program, args...)...).CombinedOutput(); err != nil { //nolint:gosec // constant arguments
			t.Fatalf("%s %q: %v\n%s", program, args, err, out)
		}
	}
	bin := filepath.Join(m.c.Root(), "bin")
	image := exec.CommandContext(t.Context(), filepath.Join(bin, "image-tool"), "--tag=localhost/"+agentProgram+":dev", "--archives="+m.c.Dir(),
		"--program=linux/"+runtime.GOARCH+"="+filepath.Join(bin, agentProgram))
	if out, err := image.CombinedOutput(); err != nil {
		t.Fatalf("build the image: %v\n%s", err, out)
	}
	enter(filepath.Join(bin, "node", "ctr"), "--address=/run/containerd/containerd.sock", "--namespace=k8s.io", "images", "import",
		filepath.Join(m.c.Dir(), agentProgram+"-"+runtime.GOARCH+".tar"))
	enter("mkdir", "-p", installRoot+"/run")
	enter("mount", "--bind", "/run", installRoot+"/run")

	folder := filepath.Join(m.c.Root(), "artifacts", "node-agent")
	for _, file := range []string{"namespace.yaml", "serviceaccount.yaml"} {
		m.c.MustKubectl(t, "", "apply", "--filename="+filepath.Join(folder, file))
	}
	config := filepath.Join(folder, "config.yaml")
	m.c.MustKubectl(t, "", "--namespace="+agentProgram, "create", "configmap", agentProgram, "--from-file=config.yaml="+config)
	set, err := os.ReadFile(filepath.Join(folder, "daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("image: "+agentProgram+"\n", "image: localhost/"+agentProgram+":dev\n", "path: /\n", "path: "+installRoot+"\n",
		"kubernetes.io/os: linux\n", "kubernetes.io/hostname: "+m.node+"\n").Replace(string(set))
	m.c.MustKubectl(t, text, "apply", "--filename=-")

	failure := ""
	framework.Eventually(t, "the installer has copied its files and failed", func(ctx context.Context) (bool, error) {
		list, err := m.c.As(t).Kube.CoreV1().Pods(agentProgram).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for i := range list.Items {
			for _, status := range list.Items[i].Status.InitContainerStatuses {
				if status.LastTerminationState.Terminated != nil || status.State.Terminated != nil {
					log, _, err := m.c.Kubectl(t, "", "--namespace="+agentProgram, "logs", list.Items[i].Name, "--container=install")
					failure = log
					return err == nil && log != "", err
				}
			}
		}
		return false, nil
	})
	if !strings.Contains(failure, "reload the unit files of systemd") {
		t.Errorf("the output of the installer does not name the failed call of systemd:\n%s", failure)
	}
	for path, source := range map[string]string{
		"/usr/local/bin/" + agentProgram: filepath.Join(bin, agentProgram), "/etc/" + agentProgram + "/config.yaml": config,
	} {
		want := must.Get(os.ReadFile(source))(t)
		if got, err := os.ReadFile(m.path(installRoot + path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not %s: %v", path, filepath.Base(source), err)
		}
	}
	if _, err := os.Stat(m.path(installRoot + "/etc/systemd/system/" + agentProgram + ".service")); err != nil {
		t.Error(err)
	}
}
