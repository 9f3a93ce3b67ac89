// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package realnodes

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

const (
	// takeoverAfterStop and takeoverAfterKill are the maximum times without a leader.
	takeoverAfterStop = 5 * time.Second
	takeoverAfterKill = 20 * time.Second
)

// serverUser is the user name of the server.
const serverUser = "system:serviceaccount:" + serverNamespace + ":haulout-apiserver"

// auditPolicy logs the requests that the development cluster logs, and every write of the server.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: Request
  verbs: [create]
  resources: [{group: "", resources: [pods/eviction]}]
- level: Request
  verbs: [delete, deletecollection]
  resources: [{group: "", resources: [pods]}]
- level: Metadata
  users: ["system:serviceaccount:haulout-system:haulout-apiserver"]
  verbs: [create, update, patch, delete]
- level: None
`

// TestReplicas installs three replicas from artifacts/overlays/three-replicas, with an etcd cluster
// with TLS. During a drain of simulated nodes, it stops, kills and freezes the leader, and kills a
// member of etcd. In the large size, the replicas also lose their connection to kube-apiserver for
// a minute.
func TestReplicas(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "audit.yaml")
	must.Do(t, os.WriteFile(policy, []byte(auditPolicy), 0o600))
	t.Setenv("HAULOUT", "false")
	t.Setenv("APISERVER_FLAGS", "--audit-policy-file="+policy)
	// In the large size, the real nodes send no heartbeats for a minute. Their pods must stay
	// ready.
	t.Setenv("CONTROLLER_MANAGER_FLAGS", "--node-monitor-grace-period=5m")
	c := start(t)
	etcd := startEtcd(t, c)
	installReplicas(t, c, etcd)
	t.Run("each replica serves", func(t *testing.T) {
		pods := serverPods(t, c)
		nm := c.Create(t, &v1alpha1.NodeMaintenance{
			ObjectMeta: metav1.ObjectMeta{Name: framework.Name("previewed")},
			Spec: v1alpha1.NodeMaintenanceSpec{
				Stage: v1alpha1.NodeMaintenanceStageIdle, NodeSelector: framework.Select(corev1.LabelHostname, pods[0].Spec.NodeName),
			},
		})
		for _, pod := range pods {
			checkServes(t, c, pod.Name, nm.Name)
		}
	})
	t.Run("a drain continues", func(t *testing.T) { testFaults(t, c) })
}

// testFaults drains most nodes of a pool. It causes each fault when a certain share of the pods has
// left.
func testFaults(t *testing.T, c *framework.Cluster) {
	t.Helper()
	nodes, apps, replicas := 6, 6, int32(10)
	if framework.Full(t) {
		nodes, apps, replicas = 40, 20, 50
	}
	pool, names := c.NewPool(t, nodes, true)
	namespace := c.NewNamespace(t)
	for i := range apps {
		app := fmt.Sprintf("app-%d", i)
		c.Deployment(t, namespace, app, pool, replicas)
		c.Budget(t, namespace, app, 1)
	}
	judge := c.Judge(t, pool, namespace)
	log := c.AuditLog(t)
	total := len(podsIn(t, c, namespace, names[:nodes*2/3]))
	nm := c.Create(t, &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: framework.Name("faults")},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage:        v1alpha1.NodeMaintenanceStageDrain,
			NodeSelector: framework.Select(corev1.LabelHostname, names[:nodes*2/3]...),
		},
	})
	gone := func(share int) {
		t.Helper()
		framework.Eventually(t, fmt.Sprintf("%d%% of %d pods have left", share, total), func(context.Context) (bool, error) {
			return (total-len(podsIn(t, c, namespace, names[:nodes*2/3])))*100 >= share*total, nil
		})
	}

	gone(10)
	leader := holder(t, c)
	begin := time.Now()
	must.Do(t, c.As(t).Kube.CoreV1().Pods(serverNamespace).Delete(t.Context(), podOf(leader), metav1.DeleteOptions{}))
	next := takeover(t, c, leader)
	checkTakeover(t, "a clean stop", begin, takeoverAfterStop)

	gone(25)
	begin = time.Now()
	signal(t, serverProcess(podOf(next)), syscall.SIGKILL)
	next = takeover(t, c, next)
	checkTakeover(t, "a kill", begin, takeoverAfterKill)

	gone(40)
	signal(t, etcdProcess("etcd-0"), syscall.SIGKILL)

	gone(55)
	stopped := serverProcess(podOf(next))
	if led := writesOf(t, log, podOf(next), begin); len(led) == 0 {
		t.Error("the audit log has no write of the leader while it led, so the test could not detect a late write")
	}
	begin = time.Now()
	signal(t, stopped, syscall.SIGSTOP)
	takeover(t, c, next)
	checkTakeover(t, "a stop", begin, takeoverAfterKill)
	woken := time.Now()
	signal(t, stopped, syscall.SIGCONT)

	gone(70)
	if late := writesOf(t, log, podOf(next), woken); len(late) > 0 {
		t.Errorf("got writes %q of a former leader after it was resumed, want none", late)
	}

	if framework.Full(t) {
		// All connections between kube-apiserver and the real nodes, including their pods, go
		// through this process.
		c.Signal(t, "network", syscall.SIGSTOP)
		<-time.After(time.Minute)
		c.Signal(t, "network", syscall.SIGCONT)
	}
	framework.EventuallyWithin(t, 10*framework.Timeout, "all nodes are drained", func(ctx context.Context) (bool, error) {
		got, err := c.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, nm.Name, metav1.GetOptions{})
		return err == nil && isDrained(got), err
	})
	complete(t, c, nm.Name)
	ctx, cancel := context.WithTimeout(t.Context(), framework.Timeout)
	defer cancel()
	if err := judge.Wait(ctx, func(v *oracle.View) string {
		if left := len(v.Evacuations()); left > 0 {
			return fmt.Sprintf("%d Evacuations are left", left)
		}
		return ""
	}); err != nil {
		t.Error(err)
	}
	found, err := judge.Verdict(oracle.Rules{Server: serverUser, SeesLate: framework.Full(t)})
	framework.Accept(t, found, err)
}

// installReplicas applies artifacts/overlays/three-replicas as in docs/install.md, with the image
// of this build.
func installReplicas(t *testing.T, c *framework.Cluster, etcd etcdCluster) {
	t.Helper()
	overlay := t.TempDir()
	replicas := must.Get(filepath.Rel(overlay, filepath.Join(c.Root(), "artifacts", "overlays", "three-replicas")))(t)
	for name, content := range map[string]string{
		"ca.crt": string(etcd.ca), "tls.crt": string(etcd.cert), "tls.key": string(etcd.key),
		"kustomization.yaml": fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: haulout-system
resources: [%s]
images:
- {name: haulout-apiserver, newName: localhost/haulout-apiserver, newTag: dev}
configMapGenerator:
- name: haulout-etcd
  literals: ["servers=%s"]
secretGenerator:
- name: haulout-etcd-client
  files: [ca.crt, tls.crt, tls.key]
`, replicas, strings.Join(etcd.servers, ",")),
	} {
		must.Do(t, os.WriteFile(filepath.Join(overlay, name), []byte(content), 0o600))
	}
	c.MustKubectl(t, "", "apply", "--kustomize="+overlay)
	c.MustKubectl(t, "", "wait", "apiservice", apiService, "--for=condition=Available", "--timeout=2m")
	c.MustKubectl(t, "", "rollout", "status", "--namespace="+serverNamespace, "deployment/haulout-apiserver", "--timeout=2m")
	used := map[string]bool{}
	for _, pod := range serverPods(t, c) {
		used[pod.Spec.NodeName] = true
	}
	is.True(t, len(used) == 2, "got three replicas on %d nodes, want them on both", len(used))
}

func serverPods(t *testing.T, c *framework.Cluster) []corev1.Pod {
	t.Helper()
	list := must.Get(c.As(t).Kube.CoreV1().Pods(serverNamespace).List(t.Context(), metav1.ListOptions{}))(t)
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil })
}

// checkServes connects to one replica as the administrator, and gets a preview from it.
func checkServes(t *testing.T, c *framework.Cluster, pod, maintenance string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	forward := exec.CommandContext(ctx, c.KubectlPath(), "--kubeconfig="+c.Kubeconfig(),
		"port-forward", "--namespace="+serverNamespace, "pod/"+pod, ":8443")
	out := must.Get(forward.StdoutPipe())(t)
	must.Do(t, forward.Start())
	defer func() { cancel(); _ = forward.Wait() }()
	line, err := bufio.NewReader(out).ReadString('\n')
	port := regexp.MustCompile(`:(\d+) ->`).FindStringSubmatch(line)
	must.True(t, port != nil, "got %q of kubectl port-forward, error %v", line, err)
	config := must.Get(clientcmd.BuildConfigFromFlags("", c.Kubeconfig()))(t)
	bundle := c.MustKubectl(t, "", "get", "apiservice", apiService, "-o", "go-template={{.spec.caBundle | base64decode}}")
	config.Host = "https://127.0.0.1:" + port[1]
	config.TLSClientConfig = rest.TLSClientConfig{
		CAData: []byte(bundle), ServerName: "haulout-apiserver.haulout-system.svc",
		CertData: config.CertData, KeyData: config.KeyData, CertFile: config.CertFile, KeyFile: config.KeyFile,
	}
	client := must.Get(versioned.NewForConfig(config))(t)
	preview, err := client.MaintenanceV1alpha1().NodeMaintenances().GetPreview(ctx, maintenance, metav1.GetOptions{})
	must.Do(t, err)
	is.True(t, preview.PodCount > 0, "the preview of pod %s has no pods", pod)
}

// holder returns the identity of the leader, which is unique for each process.
func holder(t *testing.T, c *framework.Cluster) string {
	t.Helper()
	return holderIn(t.Context(), t, c)
}

func holderIn(ctx context.Context, t *testing.T, c *framework.Cluster) string {
	t.Helper()
	lease := must.Get(c.As(t).Kube.CoordinationV1().Leases(serverNamespace).Get(ctx, "haulout-apiserver", metav1.GetOptions{}))(t)
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// podOf returns the pod of a leader: the identity begins with the host name, which is the name of
// the pod.
func podOf(identity string) string {
	pod, _, _ := strings.Cut(identity, "_")
	return pod
}

// takeover waits for another leader, which may be a new process in the same pod.
func takeover(t *testing.T, c *framework.Cluster, from string) (to string) {
	t.Helper()
	framework.Eventually(t, "a replica takes over from "+from, func(ctx context.Context) (bool, error) {
		to = holderIn(ctx, t, c)
		return to != "" && to != from, nil
	})
	return to
}

func checkTakeover(t *testing.T, what string, begin time.Time, limit time.Duration) {
	t.Helper()
	took := time.Since(begin)
	t.Logf("another replica took over %s after %s", took.Round(10*time.Millisecond), what)
	is.True(t, took <= limit, "got another leader %s after %s, want it within %s", took, what, limit)
}

// podsIn returns the names of the pods on nodes.
func podsIn(t *testing.T, c *framework.Cluster, namespace string, nodes []string) []string {
	t.Helper()
	list := must.Get(c.As(t).Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{}))(t)
	var names []string
	for i := range list.Items {
		if slices.Contains(nodes, list.Items[i].Spec.NodeName) {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// match identifies a process of a pod by its program, arguments and environment.
type match struct{ program, argument, variable string }

func serverProcess(pod string) match {
	return match{program: "haulout-apiserver", variable: "POD_NAME=" + pod}
}

func etcdProcess(member string) match { return match{program: "etcd", argument: "--name=" + member} }

// signal sends a signal to the only process that matches.
func signal(t *testing.T, m match, s syscall.Signal) {
	t.Helper()
	must.Do(t, syscall.Kill(pidOf(t, m), s))
}

// pidOf returns the only process that matches.
func pidOf(t *testing.T, m match) int {
	t.Helper()
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	has := func(folder, file, want string) bool {
		content, err := os.ReadFile(filepath.Join(folder, file))
		return err == nil && slices.Contains(strings.Split(string(content), "\x00"), want)
	}
	var pids []int
	for _, folder := range folders {
		// Compare the program, too: other programs may have the variable in their environment.
		program, err := os.Readlink(filepath.Join(folder, "exe"))
		if err != nil || filepath.Base(program) != m.program {
			continue
		}
		if m.argument != "" && !has(folder, "cmdline", m.argument) || m.variable != "" && !has(folder, "environ", m.variable) {
			continue
		}
		pid := must.Get(strconv.Atoi(filepath.Base(folder)))(t)
		pids = append(pids, pid)
	}
	must.True(t, len(pids) == 1, "got processes %v that match %+v, want one", pids, m)
	return pids[0]
}

// writesOf returns the writes of a replica since a time. It ignores attempts to acquire the Lease
// and reviews of tokens and permissions, which change nothing, and events, which may report earlier
// actions.
func writesOf(t *testing.T, log oracle.AuditLog, pod string, since time.Time) []string {
	t.Helper()
	var writes []string
	must.Do(t, log.Read(func(lines io.Reader) error {
		decoder := json.NewDecoder(lines)
		for {
			var event auditv1.Event
			if err := decoder.Decode(&event); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return nil
			} else if err != nil {
				return err
			}
			if event.RequestReceivedTimestamp.Time.Before(since) || event.ObjectRef == nil ||
				!slices.Contains(event.User.Extra["authentication.kubernetes.io/pod-name"], pod) {
				continue
			}
			switch event.ObjectRef.Resource {
			case "leases", "tokenreviews", "subjectaccessreviews", "events":
				continue
			}
			writes = append(writes, fmt.Sprintf("%s %s %s/%s %s", event.Verb, event.ObjectRef.Resource,
				event.ObjectRef.Namespace, event.ObjectRef.Name, event.RequestReceivedTimestamp.Format(time.RFC3339Nano)))
		}
	}))
	return writes
}
