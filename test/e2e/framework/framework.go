// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package framework is what the end-to-end tests share: a development cluster, clients for its
// users, builders for what runs on it, and waiting for conditions.
package framework

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	clientv1alpha1 "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/must"
)

// Timeout is how long a test waits for something that should come soon, on a machine that may be
// busy.
const Timeout = 2 * time.Minute

// Cluster is a running development cluster.
type Cluster struct {
	dir, root string
	own       bool
	// diagnosed are the tests, by name, of which diagnose has written something; diagnoses counts
	// them.
	diagnosed sync.Map
	diagnoses atomic.Int32
}

// Clients are the clients of one user.
type Clients struct {
	Config  *rest.Config
	Kube    kubernetes.Interface
	Haulout clientset.Interface
}

// Run runs the tests of a package on a cluster, which it starts and stops.
func Run(m *testing.M, cluster **Cluster) (code int) {
	started, err := Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*cluster = started
	defer func() {
		if err := started.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	return m.Run()
}

// Start brings up a development cluster, or uses the one that E2E_CLUSTER_DIR names.
func Start() (*Cluster, error) {
	_, file, _, _ := runtime.Caller(0)
	c := &Cluster{root: filepath.Join(filepath.Dir(file), "..", "..", "..")}
	if c.dir = os.Getenv("E2E_CLUSTER_DIR"); c.dir != "" {
		dir, err := filepath.Abs(filepath.Join(c.root, c.dir))
		if filepath.IsAbs(c.dir) {
			dir, err = c.dir, nil
		}
		c.dir = dir
		return c, err
	}
	dir, err := os.MkdirTemp("", "haulout-e2e-")
	if err != nil {
		return nil, err
	}
	c.dir, c.own = dir, true
	if err := c.Up(); err != nil {
		return nil, err
	}
	return c, nil
}

// Check reports why this machine cannot run the cluster that the environment asks for.
func Check() (why string, err error) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..", "..")
	out, err := exec.Command(filepath.Join(root, "bin", "cluster"), "check").CombinedOutput()
	return string(out), err
}

// Stop ends a cluster that Start has brought up.
func (c *Cluster) Stop() error {
	if !c.own {
		return nil
	}
	if err := c.manage("down"); err != nil {
		return err
	}
	return os.RemoveAll(c.dir)
}

// Status returns what the cluster says of its processes; the error is that one does not run.
func (c *Cluster) Status() (string, error) {
	cmd := exec.Command(filepath.Join(c.root, "bin", "cluster"), "status")
	cmd.Env = append(os.Environ(), "CLUSTER_DIR="+c.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Up starts what does not run.
func (c *Cluster) Up() error { return c.manage("up") }

func (c *Cluster) manage(verb string) error {
	cmd := exec.Command(filepath.Join(c.root, "bin", "cluster"), verb)
	cmd.Dir = c.root
	cmd.Env = append(os.Environ(), "CLUSTER_DIR="+c.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("bin/cluster %s (built by `make cluster-binaries build`): %w\n%s", verb, err, out)
	}
	return nil
}

// Dir is the folder of the cluster's files.
func (c *Cluster) Dir() string { return c.dir }

// Kubeconfig is the file with the credentials of the cluster's administrator.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// Root is the folder of the repository.
func (c *Cluster) Root() string { return c.root }

// As returns the clients of the administrator, or of a user with the given name and groups.
func (c *Cluster) As(tb testing.TB, userAndGroups ...string) Clients {
	tb.Helper()
	config := must.Get(clientcmd.BuildConfigFromFlags("", c.Kubeconfig()))(tb)
	config.QPS, config.Burst = -1, 0
	config.UserAgent = "haulout-e2e"
	// Tests that are about warnings collect them; to the others they are noise.
	config.WarningHandler = rest.NoWarnings{}
	if len(userAndGroups) > 0 {
		config.Impersonate = rest.ImpersonationConfig{
			UserName: userAndGroups[0], Groups: append([]string{"system:authenticated"}, userAndGroups[1:]...),
		}
	}
	return Clients{
		Config: config, Kube: kubernetes.NewForConfigOrDie(config), Haulout: clientset.NewForConfigOrDie(config),
	}
}

// Kubectl runs kubectl as the administrator and returns what it printed.
func (c *Cluster) Kubectl(tb testing.TB, stdin string, args ...string) (stdout, stderr string, err error) {
	tb.Helper()
	return c.kubectl(tb.Context(), stdin, args...)
}

func (c *Cluster) kubectl(ctx context.Context, stdin string, args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.root, "bin", "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewBufferString(stdin), &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// MustKubectl is Kubectl for commands that have to succeed.
func (c *Cluster) MustKubectl(tb testing.TB, stdin string, args ...string) string {
	tb.Helper()
	out, errOut, err := c.Kubectl(tb, stdin, args...)
	must.True(tb, err == nil, "kubectl %v: %v\n%s%s", args, err, out, errOut)
	return out
}

// KillServer ends haulout-apiserver without warning, as a failing machine would.
func (c *Cluster) KillServer(tb testing.TB) {
	tb.Helper()
	c.Kill(tb, "haulout-apiserver")
}

// Kill ends a process of the cluster without warning. That of a real node takes the node along, as
// a power failure does.
func (c *Cluster) Kill(tb testing.TB, process string) {
	tb.Helper()
	Gone(tb, process, c.Signal(tb, process, syscall.SIGKILL))
}

// Gone waits until a process that was told to end has ended. Until then its port is taken, and Up
// takes it for one that runs.
func Gone(tb testing.TB, process string, pid int) {
	tb.Helper()
	Eventually(tb, process+" is gone", func(context.Context) (bool, error) {
		return syscall.Kill(pid, 0) != nil || zombie(pid), nil
	})
}

// Signal sends a signal to a process of the cluster, and returns its PID.
func (c *Cluster) Signal(tb testing.TB, process string, signal syscall.Signal) (pid int) {
	tb.Helper()
	content := must.Get(os.ReadFile(filepath.Join(c.dir, "state.json")))(tb)
	var state struct {
		Processes map[string]struct {
			PID int `json:"pid"`
		} `json:"processes"`
	}
	must.Do(tb, json.Unmarshal(content, &state))
	pid = state.Processes[process].PID
	must.True(tb, pid > 1, "%s does not run", process)
	must.Do(tb, syscall.Kill(pid, signal))
	return pid
}

// flagsVariable holds the additional flags of haulout-apiserver in a development cluster.
const flagsVariable = "HAULOUT_FLAGS"

// WithServerFlags restarts haulout-apiserver with additional flags, in the form --name=value. The
// caller defers what it returns, which restarts the server without them.
func (c *Cluster) WithServerFlags(tb testing.TB, flags ...string) (restore func()) {
	tb.Helper()
	before := os.Getenv(flagsVariable)
	restart := func(flags string) {
		tb.Setenv(flagsVariable, flags)
		c.KillServer(tb)
		must.Do(tb, c.Up())
	}
	restart(strings.Join(append([]string{before}, flags...), " "))
	return func() { restart(before) }
}

// zombie reports whether a process has ended and only waits for its parent to take note.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, after, _ := bytes.Cut(stat, []byte(") "))
	return bytes.HasPrefix(after, []byte("Z"))
}

// Maintenances are the NodeMaintenances.
func (c Clients) Maintenances() clientv1alpha1.NodeMaintenanceInterface {
	return c.Haulout.MaintenanceV1alpha1().NodeMaintenances()
}

// Evacuations are those of a namespace.
func (c Clients) Evacuations(namespace string) clientv1alpha1.EvacuationInterface {
	return c.Haulout.MaintenanceV1alpha1().Evacuations(namespace)
}

// Pods are those of a namespace.
func (c Clients) Pods(namespace string) typedcorev1.PodInterface {
	return c.Kube.CoreV1().Pods(namespace)
}

// Nodes are the nodes.
func (c Clients) Nodes() typedcorev1.NodeInterface { return c.Kube.CoreV1().Nodes() }

// getter reads objects of one kind.
type getter[T any] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
}

// Until waits until an object can be read of which a condition is true, and returns it.
func Until[T any](tb testing.TB, what string, objects getter[T], name string, is func(T) bool) T {
	tb.Helper()
	var found T
	Eventually(tb, what, func(ctx context.Context) (bool, error) {
		var err error
		found, err = objects.Get(ctx, name, metav1.GetOptions{})
		return err == nil && is(found), err
	})
	return found
}

// UntilGone waits until there is no object of a name.
func UntilGone[T any](tb testing.TB, what string, objects getter[T], name string) {
	tb.Helper()
	Eventually(tb, what, func(ctx context.Context) (bool, error) {
		_, err := objects.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// Eventually waits until check is true. Its errors are taken for passing faults; the last one is
// reported.
func Eventually(tb testing.TB, what string, check func(context.Context) (bool, error)) {
	tb.Helper()
	EventuallyWithin(tb, Timeout, what, check)
}

// EventuallyWithin is Eventually with a limit of its own.
func EventuallyWithin(tb testing.TB, limit time.Duration, what string, check func(context.Context) (bool, error)) {
	tb.Helper()
	var last error
	err := wait.PollUntilContextTimeout(
		tb.Context(), 50*time.Millisecond, limit, true,
		func(ctx context.Context) (bool, error) {
			done, err := check(ctx)
			if ctx.Err() == nil {
				// What fails for lack of time does not say what was wrong.
				last = err
			}
			return done && err == nil, nil
		},
	)
	must.True(tb, err == nil, "waited %v in vain: %s (last error: %v)", limit, what, last)
}

// Name returns a name that no other test uses.
func Name(prefix string) string {
	return prefix + "-" + utilrand.String(6)
}
