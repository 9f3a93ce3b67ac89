// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package framework has the shared parts of the end-to-end tests: a development cluster, clients
// for its users, builders of objects, and functions that wait for conditions.
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

// Timeout is the timeout for a change that is fast on an idle machine.
const Timeout = 2 * time.Minute

// Cluster is a running development cluster.
type Cluster struct {
	dir, root string
	own       bool
	// diagnosed has the names of the tests for which Diagnose has written output; diagnoses is
	// their number.
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

// Start starts a development cluster, or uses the cluster in E2E_CLUSTER_DIR.
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

// Check returns why this machine cannot run the cluster that the environment configures, or "" if
// it can.
func Check() (why string, err error) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..", "..")
	out, err := exec.Command(filepath.Join(root, "bin", "cluster"), "check").CombinedOutput()
	return string(out), err
}

// Stop stops a cluster that Start has started.
func (c *Cluster) Stop() error {
	if !c.own {
		return nil
	}
	if err := c.manage("down"); err != nil {
		return err
	}
	return os.RemoveAll(c.dir)
}

// Status returns the status of the cluster's processes, and an error if one does not run.
func (c *Cluster) Status() (string, error) {
	cmd := exec.Command(filepath.Join(c.root, "bin", "cluster"), "status")
	cmd.Env = append(os.Environ(), "CLUSTER_DIR="+c.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Up starts the processes of the cluster that do not run.
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

// Dir returns the folder of the cluster's files.
func (c *Cluster) Dir() string { return c.dir }

// Kubeconfig returns the kubeconfig of the cluster's administrator.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// Root returns the folder of the repository.
func (c *Cluster) Root() string { return c.root }

// As returns the clients of the administrator, or of a user with the given name and groups.
func (c *Cluster) As(tb testing.TB, userAndGroups ...string) Clients {
	tb.Helper()
	config := must.Get(clientcmd.BuildConfigFromFlags("", c.Kubeconfig()))(tb)
	config.QPS, config.Burst = -1, 0
	config.UserAgent = "haulout-e2e"
	// Ignore warnings: the tests of warnings collect them with their own handler.
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

// Kubectl runs kubectl as the administrator and returns its output.
func (c *Cluster) Kubectl(tb testing.TB, stdin string, args ...string) (stdout, stderr string, err error) {
	tb.Helper()
	// A cleanup has no other context than the one that ended with the test.
	return c.kubectl(context.WithoutCancel(tb.Context()), stdin, args...)
}

func (c *Cluster) kubectl(ctx context.Context, stdin string, args ...string) (stdout, stderr string, err error) {
	cmd := exec.CommandContext(ctx, c.KubectlPath(), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig())
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewBufferString(stdin), &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// MustKubectl runs kubectl and fails the test if it fails.
func (c *Cluster) MustKubectl(tb testing.TB, stdin string, args ...string) string {
	tb.Helper()
	out, errOut, err := c.Kubectl(tb, stdin, args...)
	must.True(tb, err == nil, "kubectl %v: %v\n%s%s", args, err, out, errOut)
	return out
}

// KillServer kills haulout-apiserver with SIGKILL, like a failure of its machine.
func (c *Cluster) KillServer(tb testing.TB) {
	tb.Helper()
	c.Kill(tb, "haulout-apiserver")
}

// Kill kills a process of the cluster with SIGKILL. The kill of a real node is like a power
// failure: it ends all processes of the node.
func (c *Cluster) Kill(tb testing.TB, process string) {
	tb.Helper()
	Gone(tb, process, c.Signal(tb, process, syscall.SIGKILL))
}

// Gone waits for the end of a process after a signal. While the process still exists, its port is
// in use, and Up assumes that the process runs.
func Gone(tb testing.TB, process string, pid int) {
	tb.Helper()
	Eventually(tb, process+" has ended", func(context.Context) (bool, error) {
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

// flagsVariable has the additional flags of haulout-apiserver in a development cluster.
const flagsVariable = "HAULOUT_FLAGS"

// WithServerFlags restarts haulout-apiserver with additional flags, in the form --name=value. The
// caller must defer restore, which restarts the server without them.
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

// zombie reports whether a process has ended and its parent has not read the exit status yet.
func zombie(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, after, _ := bytes.Cut(stat, []byte(") "))
	return bytes.HasPrefix(after, []byte("Z"))
}

// Maintenances returns the client of NodeMaintenances.
func (c Clients) Maintenances() clientv1alpha1.NodeMaintenanceInterface {
	return c.Haulout.MaintenanceV1alpha1().NodeMaintenances()
}

// Evacuations returns the client of the Evacuations in a namespace.
func (c Clients) Evacuations(namespace string) clientv1alpha1.EvacuationInterface {
	return c.Haulout.MaintenanceV1alpha1().Evacuations(namespace)
}

// Pods returns the client of the pods in a namespace.
func (c Clients) Pods(namespace string) typedcorev1.PodInterface {
	return c.Kube.CoreV1().Pods(namespace)
}

// Nodes returns the client of nodes.
func (c Clients) Nodes() typedcorev1.NodeInterface { return c.Kube.CoreV1().Nodes() }

// getter reads objects of one kind.
type getter[T any] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
}

// Until waits until an object exists and is() returns true for it, and returns the object.
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

// UntilGone waits until no object with a name exists.
func UntilGone[T any](tb testing.TB, what string, objects getter[T], name string) {
	tb.Helper()
	Eventually(tb, what, func(ctx context.Context) (bool, error) {
		_, err := objects.Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

// Eventually waits until check returns true. It treats errors as temporary, and reports the last
// error.
func Eventually(tb testing.TB, what string, check func(context.Context) (bool, error)) {
	tb.Helper()
	EventuallyWithin(tb, Timeout, what, check)
}

// EventuallyWithin is Eventually with the given timeout. It can be used in cleanups, too, when the
// context of the test has ended.
func EventuallyWithin(tb testing.TB, limit time.Duration, what string, check func(context.Context) (bool, error)) {
	tb.Helper()
	var last error
	err := wait.PollUntilContextTimeout(
		context.WithoutCancel(tb.Context()), 100*time.Millisecond, limit, true,
		func(ctx context.Context) (bool, error) {
			done, err := check(ctx)
			if ctx.Err() == nil {
				// An error that the timeout itself causes would hide the last error.
				last = err
			}
			return done && err == nil, nil
		},
	)
	must.True(tb, err == nil, "timed out after %v: %s (last error: %v)", limit, what, last)
}

// Name returns a name that no other test uses.
func Name(prefix string) string {
	return prefix + "-" + utilrand.String(6)
}
