// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// pagePatience is how long the commands of one block may take.
const pagePatience = 5 * time.Minute

// TestPagesRun runs every block of shell commands of README and docs that is marked runnable, in a
// folder of its own that looks like a clone beside a cluster of `make cluster-up`.
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
	is.True(t, ran != 0, "no page has a block that is marked runnable")
}

// runScript fails the test with the page's line of the command that has failed.
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
	// The first line of a page is never a command.
	trap := fmt.Sprintf(`trap 'echo "%s:$LINENO: $BASH_COMMAND has failed" >&2' ERR`, script.Page)
	file := filepath.Join(t.TempDir(), "script")
	must.Do(t, os.WriteFile(file, []byte(trap+script.Text), 0o600))
	cmd := exec.CommandContext(ctx, "bash", "-eu", "-o", "pipefail", file)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig(),
		"PATH="+filepath.Join(root, "bin")+":"+os.Getenv("PATH"))
	// Programs in the background that outlive the script must not keep the test from ending.
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s:%d: %v (%v)\n%s", script.Page, script.Line, err, context.Cause(ctx), out)
	}
}

// pageKinds are what the commands of pages create, in the order in which it is removed.
var pageKinds = []string{
	"nodemaintenances", "evacuations", "deployments", "statefulsets", "daemonsets", "pods", "poddisruptionbudgets",
	"serviceaccounts", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "namespaces",
}

// pageState is what a cluster has before a page is tried.
type pageState struct {
	objects sets.Set[string]
	// labels are those of the nodes that were there, by name.
	labels map[string]map[string]string
}

func belongingsOfCluster(t *testing.T) pageState {
	t.Helper()
	state := pageState{objects: sets.New[string](), labels: map[string]map[string]string{}}
	for _, kind := range pageKinds {
		state.objects.Insert(objectsOf(t, kind)...)
	}
	nodes := must.Get(cluster.As(t).Nodes().List(t.Context(), metav1.ListOptions{}))(t)
	for i := range nodes.Items {
		state.labels[nodes.Items[i].Name] = nodes.Items[i].Labels
	}
	return state
}

// objectsOf returns "kind namespace name" of the objects of a kind; the namespace of what has none
// is "<none>".
func objectsOf(t *testing.T, kind string) []string {
	t.Helper()
	out := cluster.MustKubectl(noContext{t}, "", "get", kind, "-A", "--no-headers",
		"-o", "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name")
	var objects []string
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) == 3 {
			objects = append(objects, kind+" "+fields[1]+" "+fields[2])
		}
	}
	return objects
}

// putBack removes what was not there before, and restores the labels of nodes.
func putBack(t *testing.T, before pageState) {
	t.Helper()
	for _, kind := range pageKinds {
		for _, object := range objectsOf(t, kind) {
			fields := strings.Fields(object)
			owned := slices.Contains([]string{"evacuations", "pods"}, kind) && fields[1] != metav1.NamespaceDefault
			if before.objects.Has(object) || owned || strings.HasPrefix(fields[2], "system:") {
				continue
			}
			args := []string{"delete", kind, fields[2], "--ignore-not-found", "--timeout=90s"}
			if fields[1] != "<none>" {
				args = append(args, "-n", fields[1])
			}
			cluster.MustKubectl(noContext{t}, "", args...)
		}
	}
	nodes := must.Get(cluster.As(noContext{t}).Nodes().List(context.Background(), metav1.ListOptions{}))(t)
	for i := range nodes.Items {
		node := &nodes.Items[i]
		was, known := before.labels[node.Name]
		for label := range node.Labels {
			if _, there := was[label]; known && !there {
				cluster.MustKubectl(noContext{t}, "", "label", "node", node.Name, label+"-")
			}
		}
	}
	framework.Eventually(noContext{t}, "nothing that a page has created is left", func(context.Context) (bool, error) {
		for _, kind := range []string{"nodemaintenances", "namespaces"} {
			for _, object := range objectsOf(t, kind) {
				if !before.objects.Has(object) {
					return false, fmt.Errorf("%s is left", object)
				}
			}
		}
		return true, nil
	})
}
