//go:build helm

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
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	release = "haulout"
	// nodeMaintenances is the full name of the kind, which other projects have as well.
	nodeMaintenances = "nodemaintenances.maintenance.haulout.dev"
)

// helm is a program of Helm with its way to wait.
type helm struct {
	t    *testing.T
	c    *framework.Cluster
	path string
	wait []string
}

// run runs a command of Helm for a release, with the folders of Helm in that of the test.
func (h *helm) run(args ...string) (string, error) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), h.path, args...) //nolint:gosec // a program of the build
	home := filepath.Join(h.c.Dir(), "helm")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+h.c.Kubeconfig(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (h *helm) must(args ...string) string {
	h.t.Helper()
	out, err := h.run(args...)
	must.True(h.t, err == nil, "helm %v: %v\n%s", args, err, out)
	return out
}

// apply installs or upgrades Haulout, as in docs/install.md, and waits until its API is served. The
// server runs on the node that the tests do not drain.
func (h *helm) apply(verb, chart string, more ...string) {
	h.t.Helper()
	args := append([]string{
		verb, release, chart, "--namespace=" + serverNamespace, "--timeout=3m",
		"--set=image.repository=localhost/haulout-apiserver", "--set=image.tag=dev",
		`--set=nodeSelector.kubernetes\.io/hostname=` + other,
	}, more...)
	h.must(append(args, h.wait...)...)
	h.c.MustKubectl(h.t, "", "wait", "apiservice", apiService, "--for=condition=Available", "--timeout=2m")
}

// TestHelm installs, upgrades and uninstalls the chart with the program helm: with Helm 4, which
// waits or does not, and with Helm 3. `make helm` builds both and sets the variables.
func TestHelm(t *testing.T) {
	four, three := os.Getenv("HELM"), os.Getenv("HELM_3")
	must.True(t, four != "" && three != "", "HELM and HELM_3 must be the paths of helm: run `make helm`")
	t.Setenv("HAULOUT", "false")
	c := start(t)
	// The cluster has the objects of its own kustomization, which Helm does not take over.
	c.MustKubectl(t, "", "delete", "--ignore-not-found", "--timeout=1m", "--kustomize="+filepath.Join(c.Root(), "artifacts", "overlays", "development"))
	c.MustKubectl(t, "", "create", "namespace", serverNamespace)
	c.MustKubectl(t, "", "label", "namespace", serverNamespace, "pod-security.kubernetes.io/enforce=restricted")
	first, second := packageChart(t, c, "v0.1.0"), packageChart(t, c, "v0.2.0")
	waiting := &helm{t: t, c: c, path: four, wait: []string{"--wait=watcher"}}
	waiting.apply("install", first)
	namespace := c.NewNamespace(t)
	deploy(t, c, namespace)

	t.Run("Helm 4 waits for a maintenance", func(t *testing.T) { testWait(t, c, four, namespace) })
	t.Run("an upgrade in the middle of a drain", func(t *testing.T) {
		testUpgrade(t, c, &helm{t: t, c: c, path: four, wait: waiting.wait}, second, namespace)
	})
	t.Run("an uninstallation in the middle of a drain, with Helm 4", func(t *testing.T) {
		// Without waiting: the default of Helm.
		testUninstall(t, c, &helm{t: t, c: c, path: four}, first, namespace)
	})
	t.Run("the same with Helm 3", func(t *testing.T) {
		testUninstall(t, c, &helm{t: t, c: c, path: three, wait: []string{"--wait"}}, first, namespace)
	})
	t.Run("an uninstallation in the documented order", func(t *testing.T) {
		testUninstallInOrder(t, c, &helm{t: t, c: c, path: four})
	})
}

// packageChart packages the chart as `make chart` does, and returns the path of the package.
func packageChart(t *testing.T, c *framework.Cluster, version string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join("bin", "chart-tool"), //nolint:gosec // a program of the build
		"--version="+version, "--app-version=dev", "--out="+t.TempDir())
	cmd.Dir = c.Root()
	out, err := cmd.Output()
	must.True(t, err == nil, "package the chart: %v", err)
	return strings.TrimSpace(string(out))
}

// maintenanceChart is a chart with a maintenance that drains a node.
const maintenanceChart = `apiVersion: maintenance.haulout.dev/v1alpha1
kind: NodeMaintenance
metadata: {name: {{ .Release.Name }}}
spec:
  stage: {{ .Values.stage }}
  nodeSelector:
    nodeSelectorTerms:
    - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [` + drained + `]}]
`

// testWait installs a chart with a maintenance. Helm 4 must wait until the node is drained, and not
// only until the maintenance exists.
func testWait(t *testing.T, c *framework.Cluster, path, namespace string) {
	t.Helper()
	h := &helm{t: t, c: c, path: path}
	chart := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(chart, "templates"), 0o755))
	for name, content := range map[string]string{
		"Chart.yaml": "{apiVersion: v2, name: maintenance, version: 0.1.0}\n", "templates/maintenance.yaml": maintenanceChart,
	} {
		must.Do(t, os.WriteFile(filepath.Join(chart, name), []byte(content), 0o600))
	}
	c.Budget(t, namespace, "db", 0)
	out, err := h.run("install", "kernel", chart, "--namespace="+namespace, "--set=stage=Drain", "--wait=watcher", "--timeout=20s")
	is.True(t, err != nil, "Helm takes a drain that a budget blocks for finished:\n%s", out)
	c.MustKubectl(t, "", "delete", "poddisruptionbudget", "db", "--namespace="+namespace)
	h.must("upgrade", "kernel", chart, "--namespace="+namespace, "--set=stage=Drain", "--wait=watcher", "--timeout=4m")
	nm := must.Get(c.As(t).Maintenances().Get(t.Context(), "kernel", metav1.GetOptions{}))(t)
	is.True(t, isDrained(nm), "Helm has not waited for the drain: %+v", nm.Status.Conditions)
	out, err = h.run("upgrade", "kernel", chart, "--namespace="+namespace, "--set=stage=Cordon")
	is.True(t, err != nil && strings.Contains(out, "the stage can only change from Drain to Complete"),
		"the stage goes back: error %v\n%s", err, out)
	h.must("uninstall", "kernel", "--namespace="+namespace, "--wait")
	framework.UntilGone(t, "the maintenance is deleted", c.As(t).Maintenances(), "kernel")
	wantCordon(t, c, false)
	ready(t, c, namespace, "app=db", 1)
}

// beginBlockedDrain begins a drain that a budget blocks, and waits until it is blocked.
func beginBlockedDrain(t *testing.T, c *framework.Cluster, namespace string) string {
	t.Helper()
	c.Budget(t, namespace, "db", 0)
	nm := beginDrain(t, c)
	framework.Until(t, "the drain is blocked", c.As(t).Maintenances(), nm, func(nm *v1alpha1.NodeMaintenance) bool {
		return slices.ContainsFunc(nm.Status.Conditions, func(condition metav1.Condition) bool {
			return condition.Type == v1alpha1.ConditionProgressing && condition.Reason == v1alpha1.ReasonProgressBlocked
		})
	})
	return nm
}

// finish removes the budget, and checks that the drain ends and the nodes return to service.
func finish(t *testing.T, c *framework.Cluster, nm, namespace string) {
	t.Helper()
	c.MustKubectl(t, "", "delete", "poddisruptionbudget", "db", "--namespace="+namespace)
	untilDrained(t, c, nm, namespace)
	complete(t, c, nm)
	wantCordon(t, c, false)
	ready(t, c, namespace, "app=db", 1)
	ready(t, c, namespace, "app=web", 4)
}

// testUpgrade upgrades the chart while a drain waits: the new pod of the server continues it.
func testUpgrade(t *testing.T, c *framework.Cluster, h *helm, chart, namespace string) {
	t.Helper()
	nm := beginBlockedDrain(t, c, namespace)
	before := serverPod(t, c)
	h.apply("upgrade", chart, "--set=podAnnotations.upgraded=yes")
	after := serverPod(t, c)
	is.True(t, after.UID != before.UID, "the upgrade has not replaced the pod of the server")
	is.Equal(t, after.Annotations["upgraded"], "yes", "the annotation of the new pod")
	wantCordon(t, c, true)
	finish(t, c, nm, namespace)
	if history := h.must("history", release, "--namespace="+serverNamespace); !strings.Contains(history, "haulout-0.2.0") {
		t.Errorf("got the history\n%s", history)
	}
}

// testUninstall uninstalls Haulout while a drain waits, and installs it again. What the page
// docs/gitops.md says of a wrong order must be true: the node stays cordoned, the volume and the
// maintenance stay, and the drain continues after the installation.
func testUninstall(t *testing.T, c *framework.Cluster, h *helm, chart, namespace string) {
	t.Helper()
	nm := beginBlockedDrain(t, c, namespace)
	uid := must.Get(c.As(t).Maintenances().Get(t.Context(), nm, metav1.GetOptions{}))(t).UID
	volume := volumeOf(t, c)
	h.must("uninstall", release, "--namespace="+serverNamespace)
	untilNoServer(t, c)

	wantCordon(t, c, true)
	node := must.Get(c.As(t).Nodes().Get(t.Context(), drained, metav1.GetOptions{}))(t)
	is.True(t, node.Annotations[v1alpha1.AnnotationCordonedBy] != "", "the node has no annotation that names the maintenance")
	ready(t, c, namespace, "app=db", 1)
	is.Equal(t, volumeOf(t, c), volume, "the volume after the uninstallation")
	out, _, err := c.Kubectl(t, "", "get", nodeMaintenances)
	is.True(t, err != nil, "the API is served without Haulout:\n%s", out)

	h.apply("install", chart)
	is.Equal(t, volumeOf(t, c), volume, "the volume after the second installation")
	got := must.Get(c.As(t).Maintenances().Get(t.Context(), nm, metav1.GetOptions{}))(t)
	is.Equal(t, got.UID, uid, "the maintenance after the second installation")
	finish(t, c, nm, namespace)
}

// testUninstallInOrder releases the nodes first: nothing is left but the volume, and what the
// server itself has created in its namespace.
func testUninstallInOrder(t *testing.T, c *framework.Cluster, h *helm) {
	t.Helper()
	beginDrain(t, c)
	c.MustKubectl(t, "", "delete", nodeMaintenances, "--all", "--timeout=4m")
	c.MustKubectl(t, "", "delete", "evacuations.maintenance.haulout.dev", "--all", "--all-namespaces", "--timeout=4m")
	volume := volumeOf(t, c)
	h.must("uninstall", release, "--namespace="+serverNamespace, "--wait")
	untilNoServer(t, c)
	wantCordon(t, c, false)
	for _, name := range []string{drained, other} {
		node := must.Get(c.As(t).Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
		for annotation := range node.Annotations {
			is.True(t, !strings.HasPrefix(annotation, v1alpha1.GroupName+"/"), "node %s has the annotation %s", name, annotation)
		}
		for _, taint := range node.Spec.Taints {
			is.True(t, !strings.HasPrefix(taint.Key, v1alpha1.GroupName+"/"), "node %s has the taint %s", name, taint.Key)
		}
	}
	is.Equal(t, volumeOf(t, c), volume, "the volume")
	left := c.MustKubectl(t, "", "get", "--all-namespaces", "--output=name", "--selector=app.kubernetes.io/instance="+release,
		"deployments,services,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,apiservices,"+
			"networkpolicies,validatingadmissionpolicies,validatingadmissionpolicybindings,flowschemas,poddisruptionbudgets")
	is.Equal(t, left, "", "objects of the chart")
}

// untilNoServer waits until the last pod of the server is gone and the API is no longer announced.
func untilNoServer(t *testing.T, c *framework.Cluster) {
	t.Helper()
	framework.Eventually(t, "no server is left", func(context.Context) (bool, error) {
		_, errOut, err := c.Kubectl(t, "", "get", "apiservice", apiService)
		return err != nil && strings.Contains(errOut, "NotFound") && len(serverPods(t, c)) == 0, nil
	})
}

// volumeOf returns the UID of the claim of the server and the name of its volume.
func volumeOf(t *testing.T, c *framework.Cluster) string {
	t.Helper()
	claim := must.Get(c.As(t).Kube.CoreV1().PersistentVolumeClaims(serverNamespace).Get(t.Context(), "haulout-apiserver-data", metav1.GetOptions{}))(t)
	must.True(t, claim.Status.Phase == corev1.ClaimBound && claim.UID != types.UID(""), "the claim is %s", claim.Status.Phase)
	return fmt.Sprint(claim.UID, " ", claim.Spec.VolumeName)
}

// wantCordon checks whether the node that the tests drain is cordoned.
func wantCordon(t *testing.T, c *framework.Cluster, cordoned bool) {
	t.Helper()
	framework.Until(t, fmt.Sprintf("node %s is cordoned: %t", drained, cordoned), c.As(t).Nodes(), drained,
		func(node *corev1.Node) bool { return node.Spec.Unschedulable == cordoned })
}
