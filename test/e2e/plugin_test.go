// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/creack/pty"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
)

// shell is a terminal in which a user types kubectl maintenance.
type shell struct {
	environment []string
}

// newShell builds the plugin and installs it beside kubectl, for a user with a kubeconfig of their
// own.
func newShell(t *testing.T, user string) *shell {
	t.Helper()
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o",
		filepath.Join(folder, "kubectl-maintenance"), "./cmd/kubectl-maintenance")
	build.Dir = cluster.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the plugin does not build: %v\n%s", err, out)
	}
	for name, target := range map[string]string{
		"kubectl": "bin/kubectl", "kubectl_complete-maintenance": "artifacts/krew/kubectl_complete-maintenance",
	} {
		if err := os.Symlink(filepath.Join(cluster.Root(), target), filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	config, err := clientcmd.LoadFromFile(cluster.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range config.AuthInfos {
		info.Impersonate, info.ImpersonateGroups = user, []string{"system:authenticated"}
	}
	kubeconfig := filepath.Join(folder, "kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	return &shell{
		environment: append(os.Environ(), "PATH="+folder+string(os.PathListSeparator)+os.Getenv("PATH"),
			"KUBECONFIG="+kubeconfig, "TERM=xterm", "NO_COLOR=1"),
	}
}

// program is one that runs in a terminal.
type program struct {
	line     string
	terminal *os.File
	ended    chan error

	mu      sync.Mutex
	written bytes.Buffer
}

// start runs kubectl in a terminal of its own.
func (s *shell) start(t *testing.T, args ...string) *program {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "kubectl", args...)
	cmd.Env = s.environment
	// The first kubectl of this PATH, not that of the test's own.
	for _, variable := range s.environment {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok {
			folder, _, _ := strings.Cut(path, string(os.PathListSeparator))
			cmd.Path, cmd.Err = filepath.Join(folder, "kubectl"), nil
		}
	}
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 160})
	if err != nil {
		t.Fatal(err)
	}
	p := &program{line: "kubectl " + strings.Join(args, " "), terminal: terminal, ended: make(chan error, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		chunk := make([]byte, 4096)
		for {
			n, err := terminal.Read(chunk)
			p.mu.Lock()
			p.written.Write(chunk[:n])
			p.mu.Unlock()
			// A terminal whose program has ended answers with an error.
			if err != nil {
				return
			}
		}
	}()
	go func() {
		err := cmd.Wait()
		<-read
		p.ended <- err
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = terminal.Close()
	})
	return p
}

// output is what the program has written so far.
func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.ReplaceAll(p.written.String(), "\r\n", "\n")
}

// shows waits until the program has written what matches a pattern.
func (p *program) shows(t *testing.T, pattern string) {
	t.Helper()
	want := regexp.MustCompile(pattern)
	framework.Eventually(t, fmt.Sprintf("%s shows %s", p.line, pattern), func(context.Context) (bool, error) {
		out := p.output()
		if want.MatchString(out) {
			return true, nil
		}
		return false, fmt.Errorf("it has written\n%s", out)
	})
}

// types sends keys.
func (p *program) types(t *testing.T, keys string) {
	t.Helper()
	if _, err := p.terminal.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// ends waits for the program's end and checks its exit code.
func (p *program) ends(t *testing.T, want int) {
	t.Helper()
	code := -1
	framework.Eventually(t, p.line+" ends", func(context.Context) (bool, error) {
		select {
		case err := <-p.ended:
			var exit *exec.ExitError
			switch {
			case err == nil:
				code = 0
			case errors.As(err, &exit):
				code = exit.ExitCode()
			default:
				return false, err
			}
			return true, nil
		default:
			return false, errors.New("it runs and has written\n" + p.output())
		}
	})
	if code != want {
		t.Fatalf("%s ended with %d, want %d:\n%s", p.line, code, want, p.output())
	}
}

// TestPlugin goes through a drain as a user does who has the plugin, a terminal and the
// documented rights, and nothing else.
func TestPlugin(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "web", pool, 6)
	// What its budget never lets go, and nothing replaces elsewhere first.
	cluster.Deployment(t, namespace, "stuck", pool, 1, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
		d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: nodes[0]}
	})
	cluster.Budget(t, namespace, "stuck", 0)
	pods, err := cluster.As(t).Kube.CoreV1().Pods(namespace).List(t.Context(),
		metav1.ListOptions{LabelSelector: "app=stuck"})
	if err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods are stuck (%v)", len(pods.Items), err)
	}
	stuck := &pods.Items[0]
	user := framework.Name("operator")
	cluster.Grant(t, user,
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"nodemaintenances"},
			Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"},
		},
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"nodemaintenances/preview"},
			Verbs: []string{"get"},
		},
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"evacuations"},
			Verbs: []string{"get", "list", "watch"},
		},
		rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "delete"},
		},
		rbacv1.PolicyRule{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"list"}},
	)
	s := newShell(t, user)
	run := func(code int, args ...string) string {
		t.Helper()
		p := s.start(t, append([]string{"maintenance"}, args...)...)
		p.ends(t, code)
		return p.output()
	}
	has := func(out string, words ...string) {
		t.Helper()
		for _, word := range words {
			if !strings.Contains(out, word) {
				t.Errorf("%q is missing in\n%s", word, out)
			}
		}
	}

	has(run(3, "preview", nodes[0], nodes[1]), "IN THE WAY", "PodDisruptionBudget", stuck.Name, "eviction",
		"Nothing has been touched")
	if names := ownedBy(t, user); len(names) > 0 {
		t.Errorf("the preview has left %q", names)
	}
	drain := s.start(t, "maintenance", "drain", nodes[0], "--ignore-daemonsets", "--reason=new kernel")
	drain.shows(t, `--ignore-daemonsets is not needed`)
	drain.shows(t, `BLOCKED  1 pod\n.*`+stuck.Name)
	names := ownedBy(t, user)
	if len(names) != 1 || !strings.HasPrefix(names[0], nodes[0]+"-") {
		t.Fatalf("maintenances are %q", names)
	}
	name := names[0]
	watch := s.start(t, "maintenance", "status", name, "--watch")
	watch.shows(t, `\x1b\[\d+A\x1b\[J`)
	watch.shows(t,
		`(?s)`+name+`  Drain for .*new kernel.*BLOCKED  1 pod.*who: the owner of the app in namespace `+namespace)
	has(run(3, "blockers", name), stuck.Name, nodes[0], "PodDisruptionBudget stuck",
		"kubectl describe poddisruptionbudgets -n "+namespace)
	has(run(0, "status", name), "BLOCKED", "WAVE 1", "new kernel", nodes[0])

	if err := cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace).Delete(t.Context(), "stuck",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	drain.ends(t, 0)
	has(drain.output(), name+" is drained.", "kubectl maintenance complete "+name)
	watch.shows(t, `DrainComplete: All pods have left 1 node`)
	watch.types(t, "\x03")
	watch.ends(t, 130)
	has(run(0, "blockers", name), "Nothing is in the way.")
	completion := s.start(t, "__complete", "maintenance", "complete", "")
	completion.ends(t, 0)
	has(completion.output(), name)

	has(run(0, "complete", name), name+" completed")
	unschedulable(t, false, nodes...)
	has(run(0, "history", name), "Stage Drain", "Stage Complete", "NodeMaintenanceCordoned", "Node/"+nodes[0], user)
	has(run(0, "cancel", name), name+" cancelled")
	if names := ownedBy(t, user); len(names) > 0 {
		t.Errorf("%q are left", names)
	}

	all := s.start(t, "maintenance", "start", "--selector=!e2e.haulout.dev/none")
	all.shows(t, `This takes all nodes of the cluster \(\d+\)\. Continue\? \[y/N\]`)
	all.types(t, "n\n")
	all.ends(t, 1)
	has(all.output(), "nothing was done")
	if names := ownedBy(t, user); len(names) > 0 {
		t.Errorf("%q were made", names)
	}
}

// ownedBy returns the maintenances that a user has asked for.
func ownedBy(t *testing.T, user string) []string {
	t.Helper()
	list, err := cluster.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i := range list.Items {
		if by := list.Items[i].Spec.RequestedBy; by != nil && by.Username == user {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}
