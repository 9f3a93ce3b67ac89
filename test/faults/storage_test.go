// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/internal/authority"
	"haulout.dev/haulout/test/oracle"
)

// volumeSize is the size of the volume of the embedded etcd, which preallocates files of 64 MB.
const volumeSize = "400m"

// volume is a file system for one directory.
type volume struct{ path string }

// newVolume mounts a file system in a new mount namespace, which ends with the test. If the machine
// refuses that, it returns nil, except in CI.
func newVolume(t *testing.T) *volume {
	t.Helper()
	folder := t.TempDir()
	holder := exec.Command("unshare", "--mount", "--propagation=private", "sh", "-c", //nolint:gosec // the folder is ours
		fmt.Sprintf("mount -t tmpfs -o size=%s haulout-faults '%s' && echo mounted && exec sleep infinity", volumeSize, folder))
	holder.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	holder.Stderr = os.Stderr
	out := must.Get(holder.StdoutPipe())(t)
	must.Do(t, holder.Start())
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		must.True(t, os.Getenv("CI") == "", "mount a volume: got %q, %v", line, err)
		t.Log("THIS MACHINE REFUSES TO MOUNT A VOLUME: the disk does not become full in this run")
		return nil
	}
	// Other processes reach the volume through this path.
	return &volume{path: filepath.Join(fmt.Sprintf("/proc/%d/root", holder.Process.Pid), folder)}
}

// fill leaves no byte free until the returned function is called.
func (v *volume) fill() (empty func() error, err error) {
	name := filepath.Join(v.path, "ballast")
	file, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	block := make([]byte, 1<<20)
	for err == nil {
		_, err = file.Write(block)
	}
	return func() error { return os.Remove(name) }, nil
}

// members is the size of an etcd cluster.
const members = 3

// etcdCluster is an etcd cluster of three processes.
type etcdCluster struct {
	t     *testing.T
	path  string
	args  [members][]string
	urls  [members]string
	run   [members]*exec.Cmd
	links [members]*link
	// certificates has the certificates of the clients and the members; nil if etcd accepts all
	// clients.
	certificates *certificates
}

// certificates has the certificate files of the clients and the members of etcd.
type certificates struct{ ca, cert, key string }

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	folder := t.TempDir()
	c := &certificates{ca: filepath.Join(folder, "ca.crt"), cert: filepath.Join(folder, "tls.crt"), key: filepath.Join(folder, "tls.key")}
	issuer := authority.New(t)
	cert, key := issuer.Issue(t, "etcd", []net.IP{net.IPv4(127, 0, 0, 1)})
	for path, content := range map[string][]byte{c.ca: issuer.PEM, c.cert: cert, c.key: key} {
		must.Do(t, os.WriteFile(path, content, 0o600))
	}
	return c
}

// flags returns the flags of an etcd client.
func (c *certificates) flags() []string {
	return []string{"--etcd-cafile=" + c.ca, "--etcd-certfile=" + c.cert, "--etcd-keyfile=" + c.key}
}

// newEtcdCluster starts the members. If certificates is not nil, the members accept only clients
// with these certificates. Clients connect to each member through a link.
func newEtcdCluster(t *testing.T, root string, certs *certificates) *etcdCluster {
	t.Helper()
	e := &etcdCluster{t: t, path: filepath.Join(root, "bin", "etcd"), certificates: certs}
	var peers []string
	var peerURLs [members]string
	for i := range members {
		e.urls[i], peerURLs[i] = e.scheme()+freeAddress(t), e.scheme()+freeAddress(t)
		peers = append(peers, fmt.Sprintf("member-%d=%s", i, peerURLs[i]))
	}
	folder := t.TempDir()
	for i := range members {
		name := fmt.Sprintf("member-%d", i)
		e.args[i] = []string{
			"--name=" + name, "--data-dir=" + filepath.Join(folder, name), "--log-level=error",
			"--listen-client-urls=" + e.urls[i], "--advertise-client-urls=" + e.urls[i],
			"--listen-peer-urls=" + peerURLs[i], "--initial-advertise-peer-urls=" + peerURLs[i],
			"--initial-cluster=" + strings.Join(peers, ","),
		}
		if certs != nil {
			e.args[i] = append(e.args[i],
				"--client-cert-auth", "--trusted-ca-file="+certs.ca, "--cert-file="+certs.cert, "--key-file="+certs.key,
				"--peer-client-cert-auth", "--peer-trusted-ca-file="+certs.ca, "--peer-cert-file="+certs.cert, "--peer-key-file="+certs.key)
		}
		e.start(i)
		e.links[i] = newLink(t, "the link to etcd "+name, "127.0.0.1:0", strings.TrimPrefix(e.urls[i], e.scheme()))
	}
	t.Cleanup(func() {
		for i := range members {
			e.kill(i)
		}
	})
	framework.Eventually(t, "etcd has a leader", func(ctx context.Context) (bool, error) {
		_, err := e.leader(ctx)
		return err == nil, err
	})
	return e
}

func (e *etcdCluster) scheme() string {
	if e.certificates != nil {
		return "https://"
	}
	return "http://"
}

// client returns a client of all members.
func (e *etcdCluster) client() (*clientv3.Client, error) {
	config := clientv3.Config{Endpoints: e.urls[:], DialTimeout: 5 * time.Second}
	if c := e.certificates; c != nil {
		info := transport.TLSInfo{TrustedCAFile: c.ca, CertFile: c.cert, KeyFile: c.key}
		var err error
		if config.TLS, err = info.ClientConfig(); err != nil {
			return nil, err
		}
	}
	return clientv3.New(config)
}

// freeAddress returns an address of the loopback interface without a listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	return listener.Addr().String()
}

func (e *etcdCluster) start(member int) {
	e.t.Helper()
	e.run[member] = exec.Command(e.path, e.args[member]...) //nolint:gosec // the build made the program
	e.run[member].SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := e.run[member].Start(); err != nil {
		e.t.Error(err)
	}
}

func (e *etcdCluster) kill(member int) {
	_ = e.run[member].Process.Kill()
	_ = e.run[member].Wait()
}

// servers returns the URLs of the links to the members.
func (e *etcdCluster) servers() string {
	var urls []string
	for _, l := range e.links {
		urls = append(urls, e.scheme()+l.address())
	}
	return strings.Join(urls, ",")
}

// leader returns the index of the member that leads.
func (e *etcdCluster) leader(ctx context.Context) (int, error) {
	client, err := e.client()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	for i, url := range e.urls {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		status, err := client.Status(ctx, url)
		cancel()
		if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no member of etcd says that it leads")
}

// leaderOrAny returns the index of the leader, or of any member if there is no leader.
func (e *etcdCluster) leaderOrAny(ctx context.Context, random *rand.Rand) int {
	member := random.IntN(members)
	if leader, err := e.leader(ctx); err == nil {
		return leader
	}
	return member
}

// TestMoveToAnEtcdCluster moves a server during a drain from its embedded etcd to a cluster of
// three members with TLS, as described in docs/operations.md. The drain then continues.
func TestMoveToAnEtcdCluster(t *testing.T) {
	c := must.Get(framework.Start())(t)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	// The namespace is gone after the objects in it were removed.
	etcd := newEtcdCluster(t, c.Root(), newCertificates(t))
	pool, nodes := c.NewPool(t, 3, true)
	namespace := c.NewNamespace(t)
	c.Deployment(t, namespace, "app", pool, 6)
	c.Deployment(t, namespace, "stuck", pool, 3)
	c.Budget(t, namespace, "stuck", 0)
	drain := c.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes[0])
	}))
	c.Create(t, framework.Maintenance(pool+"-idle", v1alpha1.NodeMaintenanceStageIdle))
	evacuations := c.As(t).Evacuations(namespace)
	framework.Eventually(t, "a pod is blocked", func(ctx context.Context) (bool, error) {
		list, err := evacuations.List(ctx, metav1.ListOptions{FieldSelector: "status.blocked=true"})
		return err == nil && len(list.Items) > 0, err
	})
	before := stored(t, c)

	c.KillServer(t)
	to := append([]string{"--etcd-servers=" + etcd.servers()}, etcd.certificates.flags()...)
	copied := exec.CommandContext(t.Context(), filepath.Join(c.Root(), "bin", "haulout-apiserver"), //nolint:gosec // the build made the program
		append([]string{"etcd", "copy", "--data-dir=" + filepath.Join(c.Dir(), "haulout")}, to...)...)
	out, err := copied.CombinedOutput()
	must.True(t, err == nil, "%v\n%s", err, out)
	t.Logf("%s", out)
	t.Setenv("HAULOUT_FLAGS", strings.Join(append(to, "--accept-restored-state"), " "))
	must.Do(t, c.Up())
	after := stored(t, c)
	for _, object := range before {
		is.True(t, slices.Contains(after, object), "%s was in the embedded etcd and is not in the cluster, which has %q", object, after)
	}
	// The controllers still act: the drain ends after the budget begins to allow disruptions.
	c.MustKubectl(t, "", "delete", "poddisruptionbudget", "--namespace="+namespace, "stuck")
	framework.EventuallyWithin(t, drainTime, "the node is drained", func(ctx context.Context) (bool, error) {
		nm, err := c.As(t).Maintenances().Get(ctx, drain.Name, metav1.GetOptions{})
		return err == nil && meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained), err
	})
}

// stored returns the names and UIDs of all objects of the server.
func stored(t *testing.T, c *framework.Cluster) []string {
	t.Helper()
	client := c.As(t).Haulout.MaintenanceV1alpha1()
	maintenances := must.Get(client.NodeMaintenances().List(t.Context(), metav1.ListOptions{}))(t)
	evacuations := must.Get(client.Evacuations(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{}))(t)
	var objects []string
	for i := range maintenances.Items {
		objects = append(objects, maintenances.Items[i].Name+"/"+string(maintenances.Items[i].UID))
	}
	for i := range evacuations.Items {
		// Evacuations of pods that had left are removed after a while.
		if !meta.IsStatusConditionTrue(evacuations.Items[i].Status.Conditions, v1alpha1.ConditionComplete) {
			objects = append(objects, evacuations.Items[i].Name+"/"+string(evacuations.Items[i].UID))
		}
	}
	return objects
}

// TestSideBySide runs the server of an earlier commit and the current server as two replicas with
// one etcd cluster, as during an upgrade and a downgrade. Requests alternate between them. During a
// drain the leadership changes to the earlier server and back, after a clean stop and after a kill.
func TestSideBySide(t *testing.T) {
	r := newRig(t, true)
	old := &previous{rig: r, t: t}
	r.MustKubectl(t, "", "apply", "--kustomize="+old.folder())
	old.start()
	t.Cleanup(old.kill)
	pool, nodes := r.NewPool(t, 8, true)
	namespace := r.NewNamespace(t)
	for i := range 4 {
		app := fmt.Sprintf("app-%d", i)
		r.Deployment(t, namespace, app, pool, 12, framework.WithSurge)
		r.Budget(t, namespace, app, 1)
	}
	judge := r.record(t, pool, namespace)
	nm := r.Create(t, framework.Maintenance(pool, v1alpha1.NodeMaintenanceStageDrain, func(nm *v1alpha1.NodeMaintenance) {
		nm.Spec.NodeSelector = framework.Select(corev1.LabelHostname, nodes[:5]...)
	})).Name
	framework.Await(t, judge, drainTime, oracle.Asked(3))
	if !old.leads() {
		r.handOver(t, old)
	}
	framework.Await(t, judge, drainTime, oracle.Asked(12))
	old.kill()
	old.untilLeads(false)
	old.start()
	framework.Await(t, judge, drainTime, oracle.Asked(24))
	r.handOver(t, old)

	framework.Await(t, judge, drainTime, oracle.Drained(nm))
	// Each server reads and writes objects that the other server has stored.
	for i := range 4 {
		patch := fmt.Appendf(nil, `{"spec":{"reason":"side by side %d"}}`, i)
		framework.Eventually(t, "the reason is changed", func(ctx context.Context) (bool, error) {
			_, err := r.As(t).Maintenances().Patch(ctx, nm, types.MergePatchType, patch, metav1.PatchOptions{})
			return err == nil, err
		})
		// The next request uses a new connection, to the other server.
		r.toServer.set(refuses, 0)
		r.toServer.set(passes, 0)
	}
	framework.Eventually(t, "the stage is changed", func(ctx context.Context) (bool, error) {
		_, err := r.As(t).Maintenances().Patch(ctx, nm,
			types.MergePatchType, []byte(`{"spec":{"stage":"Complete"}}`), metav1.PatchOptions{})
		return err == nil, err
	})
	framework.Await(t, judge, drainTime, oracle.PutBack(nil, nm))
	// What an earlier server leaves on the nodes, the current one removes when it leads.
	old.kill()
	old.untilLeads(false)
	for _, name := range nodes[:5] {
		framework.Until(t, fmt.Sprintf("node %s has no mark", name), r.As(t).Nodes(), name, func(node *corev1.Node) bool {
			return !slices.ContainsFunc(marks.Annotations, func(key string) bool { _, has := node.Annotations[key]; return has })
		})
	}
	must.Do(t, judge.Settle(t.Context()))
	found, err := judge.Verdict(oracle.Rules{Server: serverUser})
	framework.Accept(t, found, err)
}

// record starts a Recorder of a pool and a namespace that uses the observer.
func (r *rig) record(t *testing.T, pool, namespace string) *oracle.Recorder {
	t.Helper()
	return must.Get(oracle.Start(t.Context(), r.observer.Kube, r.observer.Haulout, oracle.Scope{
		Nodes:      labels.SelectorFromSet(labels.Set{framework.Pool: pool}),
		Namespaces: []string{namespace}, AuditLog: r.AuditLogFile(),
	}))(t)
}

// handOver stops the current server cleanly, so that the earlier server leads, and starts it again.
func (r *rig) handOver(t *testing.T, old *previous) {
	t.Helper()
	pid := r.Signal(t, "haulout-apiserver", syscall.SIGTERM)
	old.untilLeads(true)
	framework.Gone(t, "haulout-apiserver", pid)
	r.up(t)
}

// up starts the processes that are not running.
func (r *rig) up(t *testing.T) {
	t.Helper()
	framework.Eventually(t, "the server runs again", func(context.Context) (bool, error) {
		return true, r.Up()
	})
}

// previous is the server of an earlier commit.
type previous struct {
	*rig

	t   *testing.T
	run *exec.Cmd
}

// folder is the directory with the earlier server and its roles.
func (p *previous) folder() string { return filepath.Join(p.Root(), "bin", "previous") }

func (p *previous) start() {
	p.t.Helper()
	program := filepath.Join(p.folder(), "haulout-apiserver")
	if _, err := os.Stat(program); err != nil {
		p.t.Fatalf("%v; `make previous` builds it", err)
	}
	p.run = exec.Command(program, append(p.flags, //nolint:gosec // the build made the program
		"--bind-address=127.0.0.1", "--secure-port="+portOf(p.t, p.second), "--namespace=haulout-system", "--v=2",
		"--data-dir="+p.t.TempDir())...)
	p.run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := must.Get(os.Create(filepath.Join(p.Dir(), "logs", fmt.Sprintf("previous-%d.log", time.Now().UnixNano()))))(p.t)
	defer log.Close()
	p.run.Stdout, p.run.Stderr = log, log
	must.Do(p.t, p.run.Start())
}

func (p *previous) kill() {
	_ = p.run.Process.Kill()
	_ = p.run.Wait()
}

// leads reports whether the Lease names the process of the earlier server.
func (p *previous) leads() bool {
	p.t.Helper()
	lease := must.Get(p.As(p.t).Kube.CoordinationV1().Leases("haulout-system").
		Get(p.t.Context(), "haulout-apiserver", metav1.GetOptions{}))(p.t)
	holder := ptr.Deref(lease.Spec.HolderIdentity, "")
	return strings.Contains(holder, fmt.Sprintf("_%d_", p.run.Process.Pid))
}

func (p *previous) untilLeads(want bool) {
	p.t.Helper()
	begin := time.Now()
	framework.Eventually(p.t, fmt.Sprintf("the earlier server leads: %t", want), func(ctx context.Context) (bool, error) {
		lease, err := p.As(p.t).Kube.CoordinationV1().Leases("haulout-system").
			Get(ctx, "haulout-apiserver", metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return false, err
		}
		return p.leads() == want, nil
	})
	p.t.Logf("the earlier server leads: %t, after %s", want, time.Since(begin).Round(100*time.Millisecond))
}
