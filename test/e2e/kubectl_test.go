// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

func manifest(name, pool, stage string) string {
	return fmt.Sprintf(`apiVersion: maintenance.haulout.dev/v1alpha1
kind: NodeMaintenance
metadata:
  name: %s
spec:
  stage: %s
  reason: kernel update
  nodeSelector:
    nodeSelectorTerms:
    - matchExpressions:
      - {key: %s, operator: In, values: [%s]}
`, name, stage, framework.Pool, pool)
}

// TestKubectl runs the kubectl commands of an administrator for one maintenance.
func TestKubectl(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 3, true)
	namespace := cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "stuck", pool, 3)
	cluster.Budget(t, namespace, "stuck", 0)
	name := framework.Name("kernel")
	t.Cleanup(func() {
		if _, errOut, err := cluster.Kubectl(t, "", "delete", "nm", name, "--ignore-not-found"); err != nil {
			t.Error(errOut)
		}
	})

	t.Run("apply --server-side twice changes nothing the second time", func(t *testing.T) {
		apply := func() *v1alpha1.NodeMaintenance {
			cluster.MustKubectl(t, manifest(name, pool, "Idle"), "apply", "--server-side", "-f", "-")
			return get(t, name)
		}
		first, second := apply(), apply()
		if first.Generation != second.Generation || len(first.Spec.DrainPlan) != 12 {
			t.Errorf("got generation %d, then %d, and %d entries in the plan, want one generation and 12 entries",
				first.Generation, second.Generation, len(first.Spec.DrainPlan))
		}
	})
	t.Run("apply twice changes nothing the second time", func(t *testing.T) {
		cluster.MustKubectl(t, manifest(name, pool, "Idle"), "apply", "-f", "-")
		out := cluster.MustKubectl(t, manifest(name, pool, "Idle"), "apply", "-f", "-")
		is.True(t, strings.Contains(out, "unchanged"), "got %q", out)
	})
	t.Run("edit changes the stage", func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), cluster.KubectlPath(), "edit", "nm", name)
		cmd.Env = append(cmd.Environ(), "KUBECONFIG="+cluster.Kubeconfig(),
			`KUBE_EDITOR=sed -i s/stage:\ Idle/stage:\ Drain/`)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if stage := get(t, name).Spec.Stage; stage != v1alpha1.NodeMaintenanceStageDrain {
			t.Errorf("stage is %s", stage)
		}
	})
	t.Run("get has the columns of a drain", func(t *testing.T) {
		want := regexp.MustCompile(
			`(?m)^NAME +STATUS +STAGE +NODES +DRAINED +PODS +BLOCKED +AGE\n` + name +
				` +Blocked +Drain +3 +\d/3 +0/3 +3 +\d+`,
		)
		framework.Eventually(t, "kubectl get nm shows three blocked pods", func(context.Context) (bool, error) {
			out := cluster.MustKubectl(t, "", "get", "nm", name)
			if !want.MatchString(out) {
				return false, fmt.Errorf("got\n%s", out)
			}
			return true, nil
		})
		if out := cluster.MustKubectl(t, "", "get", "nm", name, "-o", "wide"); !strings.Contains(out, "REASON") ||
			!strings.Contains(out, "kernel update") || !strings.Contains(out, "REQUESTED-BY") {
			t.Errorf("wide:\n%s", out)
		}
	})
	t.Run("get evac -A names the pod, the node and the blocking object", func(t *testing.T) {
		out := cluster.MustKubectl(t, "", "get", "evac", "-A", "-o", "wide")
		for _, word := range []string{
			"NAMESPACE", "POD", "STATE", "NODE", "EVACUATOR", "FOR", "BLOCKED", "Blocked", "stuck-", nodes[0],
			v1alpha1.EvacuatorClassEviction, v1alpha1.ReasonPodDisruptionBudget,
		} {
			is.True(t, strings.Contains(out, word), "got no %q in\n%s", word, out)
		}
		byNode := cluster.MustKubectl(t, "", "get", "evac", "-A", "--field-selector", "spec.nodeName="+nodes[1], "-o",
			"name")
		is.True(t, strings.Count(byNode, "evacuation") == count(t, nodes[1]), "got the evacuations by node\n%s", byNode)
	})
	t.Run("describe and explain", func(t *testing.T) {
		if out := cluster.MustKubectl(t, "", "describe", "nm", name); !strings.Contains(out, "Drain Plan") ||
			!strings.Contains(out, "Drained") {
			t.Errorf("got the description\n%s", out)
		}
		drainPlan := cluster.MustKubectl(t, "", "explain", "nodemaintenance.spec.drainPlan", "--recursive")
		if !strings.Contains(drainPlan, "podPriority") || !strings.Contains(drainPlan, "matchExpressions") {
			t.Errorf("got the explanation\n%s", drainPlan)
		}
		activeClass := cluster.MustKubectl(t, "", "explain", "evac.status.activeEvacuatorClass")
		is.True(t, strings.Contains(activeClass, "class of the active evacuator"), "got the explanation\n%s", activeClass)
	})
	t.Run("wait and get -w report the end of the drain", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), framework.Timeout)
		defer cancel()
		watch := exec.CommandContext(ctx, cluster.KubectlPath(), "get", "nm", name, "-w")
		watch.Env = append(watch.Environ(), "KUBECONFIG="+cluster.Kubeconfig())
		// Write the output to a file, so that the test can read it while the watch still runs.
		seen := must.Get(os.Create(filepath.Join(t.TempDir(), "seen")))(t)
		defer func() { _ = seen.Close() }()
		watch.Stdout = seen
		must.Do(t, watch.Start())
		shows := func(text string) {
			t.Helper()
			framework.Eventually(t, "get -w shows"+text, func(context.Context) (bool, error) {
				out, err := os.ReadFile(seen.Name())
				if err == nil && !strings.Contains(string(out), text) {
					err = fmt.Errorf("the watch shows\n%s", out)
				}
				return err == nil, err
			})
		}
		shows(" 0/3 ")
		cluster.MustKubectl(t, "", "delete", "pdb", "stuck", "-n", namespace)
		cluster.MustKubectl(t, "", "scale", "deployment", "stuck", "--replicas=0", "-n", namespace)
		cluster.MustKubectl(t, "", "wait", "--for=condition=Drained", "nm/"+name, "--timeout=120s")
		cluster.MustKubectl(t, "", "wait", "--for=condition=Ready", "nm/"+name, "--timeout=60s")
		framework.Eventually(t, "the table shows the end, too", func(context.Context) (bool, error) {
			out := cluster.MustKubectl(t, "", "get", "nm", name)
			return strings.Contains(out, " Drained ") && strings.Count(out, "3/3") == 2, nil
		})
		framework.Eventually(t, "the Evacuations say that the pods are gone", func(context.Context) (bool, error) {
			out := cluster.MustKubectl(t, "", "get", "evac", "-n", namespace, "-o", "wide")
			if strings.Count(out, " Gone ") != 3 || strings.Count(out, "after it was asked to leave") != 3 || strings.Contains(out, "Blocked") {
				return false, fmt.Errorf("got\n%s", out)
			}
			return true, nil
		})
		shows(" 3/3 ")
		_ = watch.Process.Kill()
		_ = watch.Wait()
	})
	t.Run("delete waits until the nodes are schedulable again", func(t *testing.T) {
		cluster.MustKubectl(t, "", "delete", "nm", name, "--timeout=60s")
		unschedulable(t, false, nodes...)
	})
}

func get(t *testing.T, name string) *v1alpha1.NodeMaintenance {
	t.Helper()
	nm := must.Get(cluster.As(t).Maintenances().Get(t.Context(), name, metav1.GetOptions{}))(t)
	return nm
}

func count(t *testing.T, node string) int {
	t.Helper()
	pods := must.Get(podsOn(t.Context(), t, node))(t)
	return len(pods)
}

// TestServing sends the requests that programs send to the API.
func TestServing(t *testing.T) {
	t.Parallel()
	rest := cluster.As(t).Haulout.MaintenanceV1alpha1().RESTClient()
	get := func(t *testing.T, path, accept string) []byte {
		t.Helper()
		return must.Get(rest.Get().AbsPath(path).SetHeader("Accept", accept).DoRaw(t.Context()))(t)
	}
	nm := cluster.Create(t, framework.Maintenance(framework.Name("none"), v1alpha1.NodeMaintenanceStageIdle))
	path := "/apis/maintenance.haulout.dev/v1alpha1/nodemaintenances/" + nm.Name

	t.Run("in protobuf, JSON and YAML", func(t *testing.T) {
		if body := get(t, path, "application/vnd.kubernetes.protobuf"); !strings.HasPrefix(string(body), "k8s\x00") {
			t.Errorf("not protobuf: %q", body[:4])
		}
		var decoded v1alpha1.NodeMaintenance
		if err := json.Unmarshal(get(t, path, "application/json"), &decoded); err != nil || decoded.Name != nm.Name {
			t.Errorf("JSON: %v, %v", decoded.Name, err)
		}
		if body := get(t, path, "application/yaml"); !strings.Contains(string(body), "\nspec:\n") {
			t.Errorf("not YAML: %s", body)
		}
	})
	t.Run("with a storage version hash in discovery and both OpenAPI documents", func(t *testing.T) {
		var list metav1.APIResourceList
		must.Do(t, json.Unmarshal(get(t, "/apis/maintenance.haulout.dev/v1alpha1", "application/json"), &list))
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") && (r.StorageVersionHash == "" || len(r.ShortNames) != 1) {
				t.Errorf("%+v", r)
			}
		}
		body := get(t, "/openapi/v3/apis/maintenance.haulout.dev/v1alpha1", "application/json")
		is.True(t, strings.Contains(string(body), "drainPlan"), "OpenAPI v3 does not contain drainPlan")
		framework.Eventually(t, "OpenAPI v2 of the aggregator contains our API", func(ctx context.Context) (bool, error) {
			body, err := rest.Get().AbsPath("/openapi/v2").SetHeader("Accept", "application/json").DoRaw(ctx)
			return err == nil &&
				strings.Contains(string(body), "dev.haulout.haulout.pkg.apis.maintenance.v1alpha1.NodeMaintenance"), err
		})
	})
	t.Run("in chunks", func(t *testing.T) {
		for range 3 {
			cluster.Create(t, framework.Maintenance(framework.Name("none"), v1alpha1.NodeMaintenanceStageIdle))
		}
		seen, token := map[string]bool{}, ""
		for {
			list := must.Get(cluster.As(t).Maintenances().List(t.Context(),
				metav1.ListOptions{Limit: 2, Continue: token}))(t)
			is.True(t, len(list.Items) <= 2, "a chunk of %d", len(list.Items))
			for i := range list.Items {
				seen[list.Items[i].Name] = true
			}
			if token = list.Continue; token == "" {
				break
			}
		}
		is.True(t, len(seen) >= 4, "got %d objects in all chunks, want at least 4", len(seen))
	})
	t.Run("with bookmarks in watches", func(t *testing.T) {
		timeout := int64((90 * time.Second).Seconds())
		w := must.Get(cluster.As(t).Maintenances().Watch(t.Context(),
			metav1.ListOptions{AllowWatchBookmarks: true, TimeoutSeconds: &timeout}))(t)
		defer w.Stop()
		for event := range w.ResultChan() {
			if event.Type == "BOOKMARK" {
				return
			}
		}
		t.Error("the watch ended without a bookmark")
	})
	t.Run("not to anonymous users", func(t *testing.T) {
		_, _, err := cluster.Kubectl(t, "", "get", "nm", "--as=system:anonymous", "--as-group=system:unauthenticated")
		is.True(t, err != nil, "an anonymous user can list")
	})
}
