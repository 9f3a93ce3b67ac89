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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
)

const (
	serverNamespace = "haulout-system"
	// reading stands for the verbs get, list and watch, because client-go chooses one of them.
	reading = "read"
)

// right is a permission of one of the server's roles: one verb for one resource.
type right struct {
	// namespace is the namespace of a Role, or "" for the ClusterRole.
	namespace             string
	group, resource, verb string
	// binding is the name of the binding that grants the permission, if it comes from a role of
	// Kubernetes.
	binding string
}

func (r right) String() string {
	return fmt.Sprintf("%s %s.%s", r.verb, r.resource, r.group)
}

func (r right) verbs() []string {
	if r.verb == reading {
		return []string{"get", "list", "watch"}
	}
	return []string{r.verb}
}

// bound has the permissions that the server has through bindings to roles of Kubernetes, if
// requests through kube-apiserver need them. A TokenReview is not among them, because only clients
// that connect directly need it.
var bound = []right{
	{group: "authorization.k8s.io", resource: "subjectaccessreviews", verb: "create", binding: "haulout-apiserver:auth-delegator"},
	{namespace: metav1.NamespaceSystem, resource: "configmaps", verb: reading, binding: "haulout-apiserver:authentication-reader"},
}

// unused has the permissions that TestRights does not test, each with its only use.
var unused = map[string]string{
	"delete pods.":                                          "only for an eviction that was interrupted: TestInterruptedEvictionIsFinished",
	"read persistentvolumeclaims.":                          "only while a pod waits for a volume: TestDaemonSetPodWaitsUntilVolumesAreReleased",
	"read jobs.batch":                                       "only for the preview of a drain of pods of Jobs",
	"read persistentvolumes.":                               "as persistentvolumeclaims",
	"patch events.events.k8s.io":                            "only for a repeated event: client-go",
	"patch horizontalpodautoscalers.autoscaling":            "only for an autoscaler with metrics, which the cluster does not serve",
	"patch flowschemas/status.flowcontrol.apiserver.k8s.io": "only for a schema whose level is missing",
	"patch prioritylevelconfigurations/status.flowcontrol.apiserver.k8s.io": "only for a changed level",
}

// prepare has functions for permissions that the server needs only once. Each function undoes the
// action of the server, so that the server needs the permission again at its next start.
var prepare = map[string]func(t *testing.T){
	"patch apiservices.apiregistration.k8s.io": func(t *testing.T) {
		t.Helper()
		cluster.MustKubectl(t, "", "patch", "apiservice", "v1alpha1.maintenance.haulout.dev", "--type=json",
			`--patch=[{"op":"remove","path":"/spec/caBundle"}]`)
	},
	"create secrets.": func(t *testing.T) {
		t.Helper()
		cluster.MustKubectl(t, "", "delete", "secret", "--namespace="+serverNamespace, "haulout-apiserver-serving")
	},
	"update secrets.": func(t *testing.T) {
		t.Helper()
		cluster.MustKubectl(t, "", "patch", "secret", "--namespace="+serverNamespace, "haulout-apiserver-serving", "--type=json",
			`--patch=[{"op":"replace","path":"/data/tls.crt","value":""}]`)
	},
	"create leases.coordination.k8s.io": func(t *testing.T) {
		t.Helper()
		cluster.MustKubectl(t, "", "delete", "lease", "--namespace="+serverNamespace, "haulout-apiserver")
	},
}

// TestRights removes each permission of the server, restarts the server, and starts a drain that
// needs the permission. The log of the server, or an object, must name the permission.
func TestRights(t *testing.T) {
	known := 0
	rights := slices.DeleteFunc(append(rightsOf(t), bound...), func(r right) bool {
		_, skip := unused[r.String()]
		if skip {
			known++
		}
		return skip
	})
	if known != len(unused) {
		t.Errorf("got %d of the %d untested rights, want all: the roles do not have the others", known, len(unused))
	}
	if !framework.Full(t) {
		random := framework.Random(t)
		random.Shuffle(len(rights), func(i, j int) { rights[i], rights[j] = rights[j], rights[i] })
		rights = rights[:2]
	}
	for _, r := range rights {
		t.Run(r.String(), func(t *testing.T) { testRight(t, r) })
	}
}

func testRight(t *testing.T, r right) {
	t.Helper()
	pool, nodes := cluster.NewPool(t, 1, true)
	namespace := cluster.NewNamespace(t)
	populate(t, namespace, pool, nodes[0])
	if r.String() == "patch pods." {
		// These pods cannot be evicted, so the DaemonSet pods wait for them: the drain would
		// otherwise end without this permission.
		cluster.Deployment(t, namespace, "stuck", pool, 2)
		cluster.Budget(t, namespace, "stuck", 0)
	}
	cluster.NewNodes(t, pool, true, pool+"-spare-0", pool+"-spare-1")

	nm := framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes[0])
	})
	command := serverCommand(t)
	cluster.KillServer(t)
	t.Cleanup(func() {
		must.Do(t, cluster.Up())
		cluster.Remove(t, nm.Name)
	})
	removeRight(t, r)
	if do := prepare[r.String()]; do != nil {
		do(t)
	}
	log := startServer(t, command)
	wanted := regexp.MustCompile(fmt.Sprintf(`cannot (%s) resource \\*"%s\\*" in API group \\*"%s\\*"`,
		strings.Join(r.verbs(), "|"), regexp.QuoteMeta(r.resource), regexp.QuoteMeta(r.group)))
	created := false
	framework.EventuallyWithin(t, 2*time.Minute, "the log or an object names the right", func(ctx context.Context) (bool, error) {
		content, err := os.ReadFile(log)
		if err != nil {
			return false, err
		}
		if wanted.Match(content) {
			return true, nil
		}
		if !created {
			created = createDespite(ctx, t, nm)
		}
		objects, err := statuses(ctx, t, namespace, nm.Name)
		return err == nil && wanted.MatchString(objects), err
	})
}

// populate creates pods on a node so that its drain needs all permissions.
func populate(t *testing.T, namespace, pool, node string) {
	t.Helper()
	single(t, namespace, "replaced", pool, minAvailable(1))
	single(t, namespace, "scaled", pool, minAvailable(1))
	daemonSet(t, namespace, pool, "plugin", 1)
	cluster.PodOn(t, namespace, "bare", pool, node)
}

// rightsOf returns the permissions in the roles of the server.
func rightsOf(t *testing.T) []right {
	t.Helper()
	var rights []right
	add := func(namespace string, rules []rbacv1.PolicyRule) {
		for _, rule := range rules {
			verbs := slices.DeleteFunc(slices.Clone(rule.Verbs), isReading)
			if len(verbs) < len(rule.Verbs) {
				verbs = append(verbs, reading)
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range verbs {
						rights = append(rights, right{namespace: namespace, group: group, resource: resource, verb: verb})
					}
				}
			}
		}
	}
	rbac := cluster.As(t).Kube.RbacV1()
	all := must.Get(rbac.ClusterRoles().Get(t.Context(), "haulout-apiserver", metav1.GetOptions{}))(t)
	add("", all.Rules)
	own := must.Get(rbac.Roles(serverNamespace).Get(t.Context(), "haulout-apiserver", metav1.GetOptions{}))(t)
	add(serverNamespace, own.Rules)
	return rights
}

func isReading(verb string) bool { return verb == "get" || verb == "list" || verb == "watch" }

// without returns the rules without this permission.
func (r right) without(rules []rbacv1.PolicyRule) []rbacv1.PolicyRule {
	var rest []rbacv1.PolicyRule
	for _, rule := range rules {
		if !slices.Contains(rule.APIGroups, r.group) || !slices.Contains(rule.Resources, r.resource) {
			rest = append(rest, rule)
			continue
		}
		// Split the rule into one rule for each resource, because the other resources keep their
		// verbs.
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				one := *rule.DeepCopy()
				one.APIGroups, one.Resources = []string{group}, []string{resource}
				if group == r.group && resource == r.resource {
					one.Verbs = slices.DeleteFunc(one.Verbs, func(v string) bool { return slices.Contains(r.verbs(), v) })
				}
				if len(one.Verbs) > 0 {
					rest = append(rest, one)
				}
			}
		}
	}
	return rest
}

// removeRight removes a permission from its role, or removes the binding that grants the
// permission, and waits until the removal is in effect. `cluster up` restores both.
func removeRight(t *testing.T, r right) {
	t.Helper()
	client := cluster.As(t).Kube
	change := func(rules []rbacv1.PolicyRule) []byte {
		return must.Get(json.Marshal(map[string]any{"rules": r.without(rules)}))(t)
	}
	switch {
	case r.binding != "" && r.namespace == "":
		must.Do(t, client.RbacV1().ClusterRoleBindings().Delete(t.Context(), r.binding, metav1.DeleteOptions{}))
	case r.binding != "":
		must.Do(t, client.RbacV1().RoleBindings(r.namespace).Delete(t.Context(), r.binding, metav1.DeleteOptions{}))
	case r.namespace == "":
		role := must.Get(client.RbacV1().ClusterRoles().Get(t.Context(), "haulout-apiserver", metav1.GetOptions{}))(t)
		must.Get(client.RbacV1().ClusterRoles().Patch(t.Context(), role.Name, types.MergePatchType, change(role.Rules), metav1.PatchOptions{}))(t)
	default:
		role := must.Get(client.RbacV1().Roles(r.namespace).Get(t.Context(), "haulout-apiserver", metav1.GetOptions{}))(t)
		must.Get(client.RbacV1().Roles(r.namespace).Patch(t.Context(), role.Name, types.MergePatchType, change(role.Rules), metav1.PatchOptions{}))(t)
	}
	resource, subresource, _ := strings.Cut(r.resource, "/")
	name := map[string]string{
		"secrets": "haulout-apiserver-serving", "apiservices": "v1alpha1.maintenance.haulout.dev", "configmaps": "extension-apiserver-authentication",
	}[r.resource]
	framework.Eventually(t, "the server has lost the right to "+r.String(), func(ctx context.Context) (bool, error) {
		review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{
				User: serverAccount, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + serverNamespace, "system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: r.namespace, Group: r.group, Resource: resource, Subresource: subresource, Name: name, Verb: r.verbs()[0],
				},
			},
		}, metav1.CreateOptions{})
		return err == nil && !review.Status.Allowed, err
	})
}

// serverCommand returns the command with which the cluster has started the server.
func serverCommand(t *testing.T) []string {
	t.Helper()
	pid := cluster.Signal(t, "haulout-apiserver", 0)
	content := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)))(t)
	return strings.Split(strings.TrimSuffix(string(content), "\x00"), "\x00")
}

// startServer starts the server and returns the path of its log. Until the end of the test, it
// restarts the server whenever the server ends.
func startServer(t *testing.T, command []string) (log string) {
	t.Helper()
	log = filepath.Join(t.TempDir(), "log")
	file := must.Get(os.Create(log))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			server := exec.CommandContext(ctx, command[0], command[1:]...)
			server.Dir, server.Stdout, server.Stderr = cluster.Dir(), file, file
			server.Cancel = func() error { return server.Process.Signal(syscall.SIGTERM) }
			server.WaitDelay = time.Minute
			_ = server.Run()
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		file.Close()
	})
	return log
}

// createDespite tries to create a maintenance. It first changes the Service of the server, because
// kube-apiserver checks an unavailable server again only after such a change.
func createDespite(ctx context.Context, t *testing.T, nm *v1alpha1.NodeMaintenance) bool {
	t.Helper()
	client := cluster.As(t)
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"e2e.haulout.dev/at":%q}}}`, time.Now().Format(time.RFC3339Nano))
	if _, err := client.Kube.CoreV1().Services(serverNamespace).Patch(ctx, "haulout-apiserver", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return false
	}
	maintenances := client.Maintenances()
	if _, err := maintenances.Create(ctx, nm, metav1.CreateOptions{}); err != nil {
		return false
	}
	return true
}

// statuses returns the maintenance and the Evacuations as JSON.
func statuses(ctx context.Context, t *testing.T, namespace, name string) (string, error) {
	t.Helper()
	client := cluster.As(t).Haulout.MaintenanceV1alpha1()
	nm, err := client.NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", nil //nolint:nilerr // the API may not be served without the right
	}
	evacuations, err := client.Evacuations(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", nil //nolint:nilerr // as above
	}
	content, err := json.Marshal([]any{nm.Status, evacuations.Items})
	return string(content), err
}
