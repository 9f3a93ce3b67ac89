// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/docs"
	"haulout.dev/haulout/test/e2e/framework"
)

// pagePatience is the timeout of the commands of one block.
const pagePatience = 5 * time.Minute

// TestPagesRun runs every runnable block of shell commands in README and docs. The working
// directory looks like a clone of the repository with a cluster of `make cluster-up`.
func TestPagesRun(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md"} {
		found := must.Get(filepath.Glob(filepath.Join(cluster.Root(), pattern)))(t)
		pages = append(pages, found...)
	}
	ran := 0
	for _, page := range pages {
		content := must.Get(os.ReadFile(page))(t)
		name := must.Get(filepath.Rel(cluster.Root(), page))(t)
		scripts := must.Get(docs.Scripts(name, string(content)))(t)
		for _, script := range scripts {
			ran++
			t.Run(fmt.Sprintf("%s:%d", name, script.Line), func(t *testing.T) { runScript(t, script) })
		}
	}
	is.True(t, ran != 0, "no page has a runnable block")
}

// runScript runs a script, and fails the test with the line number of the failed command in the
// page.
func runScript(t *testing.T, script docs.Script) {
	t.Helper()
	root := must.Get(filepath.Abs(cluster.Root()))(t)
	dir := t.TempDir()
	for name, target := range map[string]string{
		"bin":       filepath.Join(root, "bin"),
		"artifacts": filepath.Join(root, "artifacts"),
		"test":      filepath.Join(root, "test"),
		".cluster":  filepath.Dir(cluster.Kubeconfig()),
	} {
		must.Do(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	before := belongingsOfCluster(t)
	t.Cleanup(func() { putBack(t, before) })

	ctx, cancel := context.WithTimeout(t.Context(), pagePatience)
	defer cancel()
	// The first line of a page is never a command, so the trap can use that line.
	trap := fmt.Sprintf(`trap 'echo "%s:$LINENO: $BASH_COMMAND has failed" >&2' ERR`, script.Page)
	file := filepath.Join(t.TempDir(), "script")
	must.Do(t, os.WriteFile(file, []byte(trap+script.Text), 0o600))
	times := 1
	if script.Twice {
		times = 2
	}
	for i := range times {
		cmd := exec.CommandContext(ctx, "bash", "-eu", "-o", "pipefail", file)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig(),
			"PATH="+filepath.Dir(cluster.KubectlPath())+":"+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
		// Background programs that outlive the script must not delay the end of the test.
		cmd.WaitDelay = 5 * time.Second
		out, err := cmd.CombinedOutput()
		must.True(t, err == nil, "%s:%d, run %d: %v (%v)\n%s", script.Page, script.Line, i+1, err, context.Cause(ctx), out)
	}
}

// pageKinds are the kinds that the commands of pages create, in the order of their removal.
var pageKinds = []string{
	"NodeMaintenanceRollout", "NodeMaintenance", "Evacuation", "Deployment", "StatefulSet", "DaemonSet", "Pod", "PodDisruptionBudget",
	"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "Namespace",
}

// none is what kubectl prints as the namespace or the owner of an object without one.
const none = "<none>"

// pageObject is an object of one of the pageKinds. owned is set if Kubernetes deletes it together
// with its owner.
type pageObject struct {
	kind, namespace, name string
	owned                 bool
}

// pageState is the state of a cluster before the commands of a page.
type pageState struct {
	objects sets.Set[pageObject]
	// labels are the labels of the existing nodes, by name.
	labels map[string]map[string]string
}

func belongingsOfCluster(t *testing.T) pageState {
	t.Helper()
	state := pageState{objects: sets.New(objectsOf(t, pageKinds...)...), labels: map[string]map[string]string{}}
	nodes := must.Get(cluster.As(t).Nodes().List(t.Context(), metav1.ListOptions{}))(t)
	for i := range nodes.Items {
		state.labels[nodes.Items[i].Name] = nodes.Items[i].Labels
	}
	return state
}

// isNew reports whether a page has created an object. It ignores objects that are deleted together
// with another object.
func (s pageState) isNew(o pageObject) bool {
	owned := (o.kind == "Evacuation" || o.kind == "Pod") && o.namespace != metav1.NamespaceDefault
	if owned || strings.HasPrefix(o.name, "system:") || s.objects.Has(o) {
		return false
	}
	return o.namespace == none || s.objects.Has(pageObject{kind: "Namespace", namespace: none, name: o.namespace})
}

// objectsOf returns the objects of all kinds with a single call of kubectl, because the start of
// kubectl takes longer than the list.
func objectsOf(t *testing.T, kinds ...string) []pageObject {
	t.Helper()
	out := cluster.MustKubectl(t, "", "get", strings.ToLower(strings.Join(kinds, ",")), "-A", "--no-headers",
		"-o", "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name,OWNER:.metadata.ownerReferences[0].kind")
	var objects []pageObject
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 4 {
			objects = append(objects, pageObject{kind: fields[0], namespace: fields[1], name: fields[2], owned: fields[3] != none})
		}
	}
	return objects
}

// putBack removes new objects, and restores the labels of nodes.
func putBack(t *testing.T, before pageState) {
	t.Helper()
	names := map[pageObject][]string{} // by kind and namespace
	for _, o := range objectsOf(t, pageKinds...) {
		if before.isNew(o) && !o.owned {
			group := pageObject{kind: o.kind, namespace: o.namespace}
			names[group] = append(names[group], o.name)
		}
	}
	for _, kind := range pageKinds {
		for group := range names {
			if group.kind != kind {
				continue
			}
			args := append([]string{"delete", kind, "--ignore-not-found", "--timeout=90s"}, names[group]...)
			if group.namespace != none {
				args = append(args, "-n", group.namespace)
			}
			cluster.MustKubectl(t, "", args...)
		}
	}
	nodes := must.Get(cluster.As(t).Nodes().List(context.Background(), metav1.ListOptions{}))(t)
	for i := range nodes.Items {
		node := &nodes.Items[i]
		was, known := before.labels[node.Name]
		for label := range node.Labels {
			if _, there := was[label]; known && !there {
				cluster.MustKubectl(t, "", "label", "node", node.Name, label+"-")
			}
		}
	}
	framework.Eventually(t, "all objects of the page are deleted", func(context.Context) (bool, error) {
		for _, o := range objectsOf(t, "NodeMaintenance", "Pod", "Namespace") {
			if before.isNew(o) {
				return false, fmt.Errorf("%v is left", o)
			}
		}
		return true, nil
	})
}
