// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

// run runs kubectl maintenance, checks its exit code and that its output has the words, and returns
// the output.
func (s *shell) run(t *testing.T, code int, line string, words ...string) string {
	t.Helper()
	p := s.start(t, append([]string{"maintenance"}, strings.Fields(line)...)...)
	p.ends(t, code)
	for _, word := range words {
		is.True(t, strings.Contains(p.output(), word), "%s prints no %q:\n%s", p.line, word, p.output())
	}
	return p.output()
}

// asNobody are flags with which a user without rights runs a command.
const asNobody = " --as=nobody --as-group=system:authenticated"

// operatorOf grants a user the rights on maintenances, and the right to delete the named nodes.
func operatorOf(t *testing.T, nodes ...string) (user string) {
	t.Helper()
	user = framework.Name("operator")
	cluster.Grant(t, user,
		rule(v1alpha1.GroupName, "nodemaintenances", "", "get", "list", "watch", "create", "patch", "delete"),
		rule(v1alpha1.GroupName, "nodemaintenances/preview", "", "get"),
		rule(v1alpha1.GroupName, "evacuations", "", "get", "list", "watch"),
		rule("events.k8s.io", "events", "", "list"),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, ResourceNames: nodes, Verbs: []string{"delete"}},
	)
	return user
}

// TestPluginPausesADrain pauses and continues a drain and waits for it, as a user who has only the
// plugin.
func TestPluginPausesADrain(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.Deployment(t, namespace, "stuck", pool, 1, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
	})
	cluster.Budget(t, namespace, "stuck", 0)
	user := operatorOf(t, nodes...)
	s, name := newShell(t, user), framework.Name("paused")

	s.run(t, 0, "start "+nodes[0]+" --name="+name, name+" created")
	s.run(t, 3, "wait "+name+" --timeout=20s", "is blocked after 20s")
	s.run(t, 0, "pause "+name, name+" paused", "kubectl maintenance resume "+name)
	s.run(t, 0, "pause "+name, name+" unchanged", "was already paused by "+user)
	s.run(t, 5, "wait "+name+" --timeout=2s", name+" was paused by "+user)
	framework.Eventually(t, "the request is withdrawn", func(ctx context.Context) (bool, error) {
		list, err := cluster.As(t).Evacuations(namespace).List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0, err
	})
	s.run(t, 0, "blockers "+name)
	must.Do(t, cluster.As(t).Kube.PolicyV1().PodDisruptionBudgets(namespace).Delete(t.Context(), "stuck", metav1.DeleteOptions{}))
	s.run(t, 5, "wait "+name+" --timeout=10s", "is still paused after 10s")
	pods := must.Get(podsOn(t.Context(), t, nodes[0]))(t)
	must.True(t, len(pods) == 1 && pods[0].DeletionTimestamp == nil, "a paused drain changed the pods: %d are left", len(pods))
	// The user may not get pods: the preview has the pod, which has no Evacuation now.
	s.run(t, 0, "explain pod/"+pods[0].Name+" --namespace="+namespace, "on "+nodes[0]+": not asked to leave", "It was paused by "+user, "you may not read the pod")
	s.run(t, 1, "explain pod/none --namespace="+namespace, "you may not get pods in namespace "+namespace)

	s.run(t, 0, "resume "+name, name+" resumed", "It was paused by "+user)
	s.run(t, 0, "resume "+name, name+" unchanged", "was not paused")
	s.run(t, 0, "wait "+name+" --for=drained --timeout=2m", name+" is drained.")
	s.run(t, 0, "complete "+name+" --wait=false", name+" completed")
	s.run(t, 0, "wait "+name+" --timeout=1m", name+" is complete.")
	s.run(t, 1, "pause "+name, "cannot be paused")
	s.run(t, 0, "history "+name, "Stage Drain", "requested by "+user, "NOW")
	s.run(t, 0, "version", "Plugin: ", "Server: ")
	s.run(t, 0, "cancel "+name, name+" cancelled")
}

// TestPluginRefusesMistakes makes the mistakes of a hurried user: typos, selectors that match no
// node, no rights, half of the rights, and an Idle maintenance that would uncordon a node.
func TestPluginRefusesMistakes(t *testing.T) {
	t.Parallel()
	_, nodes := cluster.NewPool(t, 2, true)
	label := framework.Name("blue")
	merge(t, "", "nodes", nodes[0], `{"metadata":{"labels":{"e2e.haulout.dev/color":"`+label+`"}}}`)
	user := operatorOf(t, nodes[0])
	s, name := newShell(t, user), framework.Name("window")
	s.run(t, 1, "start "+nodes[0]+asNobody, "you may not create nodemaintenances.maintenance.haulout.dev")
	// Without the right to list or read nodes, a named node is enough.
	s.run(t, 0, "start "+nodes[0]+" --stage=Idle --name="+name, name+" created")
	out := s.run(t, 1, "start "+nodes[1], "forbidden", nodes[1])
	out += s.run(t, 1, "start "+nodes[0]+" --name=Not-A-Name", "Not-A-Name")
	out += s.run(t, 1, "start "+nodes[0]+" --name="+name, "already exists")
	is.True(t, !strings.Contains(out, "IN THE WAY"), "a refusal comes after the preview:\n%s", out)
	s.run(t, 1, "status "+name+"x", "Did you mean "+name+"?")
	s.run(t, 1, "drian "+nodes[0], "Did you mean drain?", "--help lists the commands")

	cluster.Grant(t, user, rule("", "nodes", "", "get", "list"), rule("", "namespaces", "", "get"))
	s.run(t, 1, "blockers --namespace="+framework.Name("none"), "not found")
	s.run(t, 1, "start -l e2e.haulout.dev/color="+label+"x", "no node matches", "Did you mean e2e.haulout.dev/color="+label+"?", "--allow-empty")
	merge(t, "", "nodes", nodes[0], `{"spec":{"unschedulable":true}}`)
	asked := s.start(t, "maintenance", "complete", name)
	asked.shows(t, nodes[0]+`\. To end it .* Continue\? \[y/N\]`)
	asked.types(t, "n\n")
	asked.ends(t, 1)
	unschedulable(t, true, nodes[0])
	s.run(t, 0, "complete "+name+" --uncordon-all --dry-run=server", "also uncordons nodes that others cordoned: "+nodes[0])
	s.run(t, 0, "cancel "+name, name+" cancelled")
	unschedulable(t, true, nodes[0])
}

// TestPluginEvacuatesAPod asks single pods to leave, as the administrator of their namespace.
func TestPluginEvacuatesAPod(t *testing.T) {
	t.Parallel()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	cluster.PodOn(t, namespace, "bare", pool, nodes[0])
	cluster.Deployment(t, namespace, "held", pool, 1, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
	})
	cluster.Budget(t, namespace, "held", 0)
	user := framework.Name("owner")
	cluster.Bind(t, user, "admin")
	s := newShell(t, user)
	in := " --namespace=" + namespace

	s.run(t, 0, "explain pod/bare"+in, "bare on "+nodes[0]+": not asked to leave", "kubectl maintenance evacuate bare")
	s.run(t, 0, "evacuate pod/bare --wait --timeout=1m"+in, "requested", ": Gone")
	framework.UntilGone(t, "pod bare", cluster.As(t).Pods(namespace), "bare")

	held := must.Get(podsOn(t.Context(), t, nodes[0]))(t)[0]
	s.run(t, 3, "evacuate "+held.Name+" --wait --timeout=20s"+in, "requested", "is blocked after 20s")
	s.run(t, 0, "explain "+held.Name+in, "a user (kubectl maintenance evacuate)", "BLOCKED", "cannot open by itself", "kubectl describe pdb held -n "+namespace)
	// A maintenance asks for the same pod: the user's request is only one of two.
	nm := cluster.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain))
	name := protocol.CanonicalName(held.Name, held.UID)
	framework.Until(t, "the maintenance asks for the pod", cluster.As(t).Evacuations(namespace), name, isOurs)
	s.run(t, 0, "evacuate --cancel "+held.Name+in, "cancelled", "the pod still leaves")
	s.run(t, 1, "evacuate --cancel "+held.Name+in, "no user has asked pod "+namespace+"/"+held.Name+" to leave; a NodeMaintenance asks for it")
	cluster.Remove(t, nm.Name)
	framework.UntilGone(t, "the Evacuation", cluster.As(t).Evacuations(namespace), name)

	s.run(t, 0, "evacuate "+held.Name+in, "requested")
	s.run(t, 0, "evacuate "+held.Name+in, "unchanged")
	s.run(t, 0, "evacuate --cancel "+held.Name+in, "cancelled")
	framework.UntilGone(t, "the Evacuation", cluster.As(t).Evacuations(namespace), name)
	pod := must.Get(cluster.As(t).Pods(namespace).Get(t.Context(), held.Name, metav1.GetOptions{}))(t)
	must.True(t, pod.UID == held.UID && pod.DeletionTimestamp == nil, "the pod whose evacuation was cancelled has left")
	s.run(t, 1, "evacuate none"+in, `pods "none" not found`)
	s.run(t, 1, "evacuate "+held.Name+in+asNobody, "forbidden")
}
