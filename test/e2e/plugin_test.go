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
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// shell is a terminal in which a user runs kubectl maintenance.
type shell struct {
	environment []string
}

// newShell installs the plugin of `make build` next to kubectl, for a user with a separate
// kubeconfig.
func newShell(t *testing.T, user string) *shell {
	t.Helper()
	folder := t.TempDir()
	for name, target := range map[string]string{
		"kubectl":                      cluster.KubectlPath(),
		"kubectl-maintenance":          filepath.Join(cluster.Root(), "bin", "kubectl-maintenance"),
		"kubectl_complete-maintenance": filepath.Join(cluster.Root(), "artifacts", "krew", "kubectl_complete-maintenance"),
	} {
		must.Do(t, os.Symlink(target, filepath.Join(folder, name)))
	}
	config := must.Get(clientcmd.LoadFromFile(cluster.Kubeconfig()))(t)
	for _, info := range config.AuthInfos {
		info.Impersonate, info.ImpersonateGroups = user, []string{"system:authenticated"}
	}
	kubeconfig := filepath.Join(folder, "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*config, kubeconfig))
	return &shell{
		environment: append(os.Environ(), "PATH="+folder+string(os.PathListSeparator)+os.Getenv("PATH"),
			"KUBECONFIG="+kubeconfig, "TERM=xterm", "NO_COLOR=1"),
	}
}

// program is a program that runs in a terminal.
type program struct {
	line     string
	terminal *os.File
	ended    chan error

	mu      sync.Mutex
	written bytes.Buffer
}

// start runs kubectl in a new terminal.
func (s *shell) start(t *testing.T, args ...string) *program {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "kubectl", args...)
	cmd.Env = s.environment
	// Use the first kubectl in the PATH of the shell, not in the PATH of the test.
	for _, variable := range s.environment {
		if path, ok := strings.CutPrefix(variable, "PATH="); ok {
			folder, _, _ := strings.Cut(path, string(os.PathListSeparator))
			cmd.Path, cmd.Err = filepath.Join(folder, "kubectl"), nil
		}
	}
	terminal := must.Get(pty.StartWithSize(cmd, &pty.Winsize{Rows: 50, Cols: 160}))(t)
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
			// Reads from the terminal return an error after the program has ended.
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

// output returns the output of the program so far.
func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.ReplaceAll(p.written.String(), "\r\n", "\n")
}

// shows waits until the output of the program matches a pattern.
func (p *program) shows(t *testing.T, pattern string) {
	t.Helper()
	want := regexp.MustCompile(pattern)
	framework.Eventually(t, fmt.Sprintf("%s shows %s", p.line, pattern), func(context.Context) (bool, error) {
		out := p.output()
		if want.MatchString(out) {
			return true, nil
		}
		return false, fmt.Errorf("the output is\n%s", out)
	})
}

// types sends keys.
func (p *program) types(t *testing.T, keys string) {
	t.Helper()
	must.Get(p.terminal.WriteString(keys))(t)
}

// ends waits for the end of the program and checks its exit code.
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
			return false, errors.New("the program still runs; its output is\n" + p.output())
		}
	})
	if code != want {
		t.Fatalf("%s ended with %d, want %d:\n%s", p.line, code, want, p.output())
	}
}

// TestPlugin runs a drain as a user who has only the plugin, a terminal and the documented
// permissions.
func TestPlugin(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "web", pool, 6)
	// The budget of this app never allows an eviction, and Haulout does not start a replacement
	// first.
	cluster.Deployment(t, namespace, "stuck", pool, 1, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
		d.Spec.Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: nodes[0]}
	})
	cluster.Budget(t, namespace, "stuck", 0)
	pods, err := cluster.As(t).Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=stuck"})
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
			is.True(t, strings.Contains(out, word), "got no %q in\n%s", word, out)
		}
	}

	has(run(3, "preview", nodes[0], nodes[1]), "IN THE WAY", "PodDisruptionBudget", stuck.Name, "eviction",
		"Nothing was changed")
	if names := ownedBy(t, user); len(names) > 0 {
		t.Errorf("the preview created %q", names)
	}
	drain := s.start(t, "maintenance", "drain", nodes[0], "--ignore-daemonsets", "--force", "--reason=new kernel")
	drain.shows(t, `--force is not needed`)
	drain.shows(t, `BLOCKED  1 pod\n.*`+stuck.Name)
	names := ownedBy(t, user)
	must.True(t, len(names) == 1 && strings.HasPrefix(names[0], nodes[0]+"-"), "maintenances are %q", names)
	name := names[0]
	watch := s.start(t, "maintenance", "status", name, "--watch")
	watch.shows(t, `\x1b\[\?1049h`)
	watch.shows(t,
		`(?s)`+name+`  \w+, stage Drain for .*new kernel.*BLOCKED  1 pod.*who: the owner of the app in namespace `+namespace)
	watch.types(t, "b")
	watch.shows(t, `look +kubectl describe .*\n(?s:.*)b progress`)
	watch.types(t, "b")
	has(run(3, "blockers", name), stuck.Name, nodes[0], "PodDisruptionBudget stuck",
		"kubectl describe pdb stuck -n "+namespace)
	has(run(0, "status", name), "BLOCKED", "WAVE 1", "new kernel", nodes[0])

	must.Do(t, cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace).Delete(t.Context(), "stuck",
		metav1.DeleteOptions{}))
	drain.ends(t, 0)
	has(drain.output(), name+" is drained.", "kubectl maintenance complete "+name)
	watch.shows(t, `DrainComplete: All pods have left 1 node`)
	watch.types(t, "\x03")
	watch.ends(t, 130)
	is.True(t, strings.HasSuffix(watch.output(), "\x1b[?25h\x1b[?1049l"), "the terminal is not restored:\n%q", watch.output())
	has(run(0, "blockers", name), " have left")
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
	all.shows(t, `This selects all nodes of the cluster \(\d+\)\. Continue\? \[y/N\]`)
	all.types(t, "n\n")
	all.ends(t, 1)
	has(all.output(), "nothing was changed")
	if names := ownedBy(t, user); len(names) > 0 {
		t.Errorf("%q were created", names)
	}
}

// ownedBy returns the maintenances that a user has requested.
func ownedBy(t *testing.T, user string) []string {
	t.Helper()
	list := must.Get(cluster.As(t).Maintenances().List(t.Context(), metav1.ListOptions{}))(t)
	var names []string
	for i := range list.Items {
		if by := list.Items[i].Spec.RequestedBy; by != nil && by.Username == user {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// touched is the state that commands for maintenances could change.
type touched struct {
	// Nodes has the marks of the nodes, Maintenances the requested maintenances. Pods reports
	// whether each pod runs. All are keyed by name.
	Nodes        map[string]nodeMarks
	Maintenances map[string]maintenanceOrder
	Pods         map[string]bool
	Evacuations  int
}

type nodeMarks struct {
	Unschedulable bool
	Taints        []corev1.Taint
	Annotations   map[string]string
}

type maintenanceOrder struct {
	Generation int64
	Spec       v1alpha1.NodeMaintenanceSpec
	Finalizers []string
	Deleted    bool
}

// look reads the nodes, the maintenances of a user and the pods of a namespace.
func look(t *testing.T, user, namespace string, nodes []string) touched {
	t.Helper()
	clients := cluster.As(t)
	found := touched{
		Nodes: map[string]nodeMarks{}, Maintenances: map[string]maintenanceOrder{}, Pods: map[string]bool{},
	}
	for _, name := range nodes {
		node := must.Get(clients.Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
		// The node lifecycle controller adds taints to a cordoned node a moment later.
		taints := slices.DeleteFunc(node.Spec.Taints, func(taint corev1.Taint) bool {
			return strings.HasPrefix(taint.Key, "node.kubernetes.io/")
		})
		found.Nodes[name] = nodeMarks{
			Unschedulable: node.Spec.Unschedulable, Taints: taints, Annotations: node.Annotations,
		}
	}
	for _, name := range ownedBy(t, user) {
		nm := must.Get(clients.Maintenances().Get(t.Context(), name, metav1.GetOptions{}))(t)
		found.Maintenances[name] = maintenanceOrder{
			Generation: nm.Generation, Spec: nm.Spec, Finalizers: nm.Finalizers, Deleted: nm.DeletionTimestamp != nil,
		}
	}
	pods := must.Get(clients.Pods(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	for i := range pods.Items {
		found.Pods[pods.Items[i].Name] = pods.Items[i].DeletionTimestamp == nil
	}
	evacuations := must.Get(clients.Evacuations(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	found.Evacuations = len(evacuations.Items)
	return found
}

// TestPluginDryRun runs each command with --dry-run=server: the server must respond with its
// warnings and refusals, and nothing must change.
func TestPluginDryRun(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 2, true)
	namespace := cluster.NewNamespace(t)
	cluster.PodOn(t, namespace, "bare", pool, nodes[0])
	user := framework.Name("operator")
	cluster.Grant(t, user,
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"nodemaintenances"},
			Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"},
		},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list"}},
		rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: []string{nodes[0]},
			Verbs: []string{"delete"},
		},
	)
	s := newShell(t, user)
	announced := framework.Name("announced")
	start := s.start(t, "maintenance", "start", nodes[0], "--name="+announced, "--stage=Cordon", "--wait")
	start.ends(t, 0)
	// Wait for the conditions, which change after the cordon.
	framework.Until(t, nodes[0]+" has the condition of a maintenance",
		cluster.As(t).Nodes(), nodes[0], func(node *corev1.Node) bool {
			return node.Annotations[v1alpha1.AnnotationConditionsBy] != ""
		})

	const dry = "(server dry run)"
	before := look(t, user, namespace, nodes)
	for name, test := range map[string]struct {
		line string
		code int
		// shows has texts that the output must contain, hides texts that it must not contain.
		shows, hides []string
	}{
		"start creates nothing": {line: "start " + nodes[0], code: 0, shows: []string{"created " + dry}},
		"start shows the object as it would be stored": {
			line: "start " + nodes[0] + " -o yaml", code: 0,
			shows: []string{"username: " + user, "podPriority: 2147483647", v1alpha1.FinalizerMaintenanceCompletion},
		},
		"start is refused for the same reason as without dry run": {
			line: "start " + nodes[1], code: 1, shows: []string{"forbidden", nodes[1]}, hides: []string{dry},
		},
		"drain does not wait": {
			line: "drain " + nodes[0] + " --force", code: 0, shows: []string{"Note: --force", "created " + dry},
			hides: []string{"PODS"},
		},
		"stage changes nothing": {line: "stage " + announced + " Drain", code: 0, shows: []string{"moved to stage Drain " + dry}},
		"stage does not wait": {
			line: "stage " + announced + " Drain --wait", code: 0, shows: []string{"moved to stage Drain " + dry},
			hides: []string{"PODS"},
		},
		"a reached stage is not changed": {
			line: "stage " + announced + " Cordon", code: 0, shows: []string{"unchanged " + dry},
		},
		"complete changes nothing": {
			line: "complete " + announced, code: 0, shows: []string{"completed " + dry}, hides: []string{"Warning"},
		},
		"cancel changes nothing": {
			line: "cancel " + announced, code: 0, shows: []string{"cancelled " + dry}, hides: []string{"Warning"},
		},
		"cancel of a missing maintenance fails": {
			line: "cancel " + announced + "-not", code: 1, shows: []string{"not found"}, hides: []string{dry},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.start(
				t, append([]string{"maintenance"}, append(strings.Fields(test.line), "--dry-run=server")...)...,
			)
			p.ends(t, test.code)
			for _, text := range test.shows {
				if !strings.Contains(p.output(), text) {
					t.Errorf("got no %q in\n%s", text, p.output())
				}
			}
			for _, text := range test.hides {
				if strings.Contains(p.output(), text) {
					t.Errorf("%q is in\n%s", text, p.output())
				}
			}
			if diff := cmp.Diff(before, look(t, user, namespace, nodes)); diff != "" {
				t.Errorf("the dry run changed objects (-before +after):\n%s", diff)
			}
		})
	}
	s.start(t, "maintenance", "cancel", announced).ends(t, 0)
	unschedulable(t, false, nodes...)
}

// isUnsafe reports whether a terminal would interpret a character as a command, or change the order
// of the characters around it.
func isUnsafe(r rune) bool {
	const rightToLeftOverride = '\u202e'
	return unicode.IsControl(r) && r != '\n' && r != '\t' || r == rightToLeftOverride
}

// TestEscapeSequencesInTheReason writes escape sequences into spec.reason. Neither the output of
// the plugin nor the events of the pods may contain them.
func TestEscapeSequencesInTheReason(t *testing.T) {
	t.Parallel()
	const word = "kernel"
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	stays := cluster.PodOn(t, namespace, "stays", pool, nodes[0], movable)
	cluster.PodOn(t, namespace, "leaves", pool, nodes[0])
	user := framework.Name("operator")
	read := []string{"get", "list", "watch"}
	cluster.Grant(t, user, rule(v1alpha1.GroupName, "nodemaintenances", "", read...),
		rule(v1alpha1.GroupName, "evacuations", "", read...), rule("", "nodes", "", read...),
		rule("events.k8s.io", "events", "", read...))
	s := newShell(t, user)
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain,
		func(nm *v1alpha1.NodeMaintenance) {
			nm.Spec.Reason = "\x1b[2J\x1b]0;owned\x07" + word + "\u009b31m\u202edne"
		}))
	turn := evacuationFor(t, stays, "has an active evacuator", func(e *v1alpha1.Evacuation) bool {
		return e.Status.ActiveEvacuatorClass == mover
	})
	for _, command := range []string{"status", "blockers", "history"} {
		p := s.start(t, "maintenance", command, nm.Name)
		p.ends(t, 0)
		out := p.output()
		if i := strings.IndexFunc(out, isUnsafe); i >= 0 {
			t.Errorf("%s prints %q", p.line, out[i:])
		}
		if command == "status" && !strings.Contains(out, word) {
			t.Errorf("%s does not print the reason: %q", p.line, out)
		}
	}

	report(t, turn, `{"activeEvacuatorCompleted":true}`)
	drained(t, nm.Name)
	events := cluster.As(t).Kube.CoreV1().Events(namespace)
	framework.Eventually(t, "a pod event has the reason", func(ctx context.Context) (bool, error) {
		list, err := events.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		told := false
		for i := range list.Items {
			message := list.Items[i].Message
			if strings.ContainsFunc(message, isUnsafe) {
				return false, fmt.Errorf("event %s has the message %q", list.Items[i].Name, message)
			}
			told = told || list.Items[i].InvolvedObject.Kind == "Pod" &&
				strings.Contains(message, nm.Name) && strings.Contains(message, word)
		}
		return told, nil
	})
	evacuations := cluster.As(t).Evacuations(namespace)
	list := must.Get(evacuations.List(t.Context(), metav1.ListOptions{}))(t)
	for i := range list.Items {
		if message := list.Items[i].Status.Message; strings.ContainsFunc(message, isUnsafe) {
			t.Errorf("Evacuation %s has the message %q", list.Items[i].Name, message)
		}
	}
}
