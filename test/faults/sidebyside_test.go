// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/test/e2e/framework"
	"haulout.dev/haulout/test/oracle"
)

// TestSideBySide runs the server of an earlier commit beside that of this one, as two replicas over
// one etcd cluster: an update, and the way back. Requests go to both in turns. While nodes are
// drained, the leadership goes from one to the other and back, by a clean end and by a kill.
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
	r.untilGone(t, judge, 3)
	if !old.leads() {
		r.handOver(t, old)
	}
	r.untilGone(t, judge, 12)
	old.kill()
	old.untilLeads(false)
	old.start()
	r.untilGone(t, judge, 24)
	r.handOver(t, old)

	untilView(t, judge, func(v *oracle.View) string {
		if !v.Drained(nm) {
			return "the nodes are not drained: " + v.Progress(nm)
		}
		return ""
	})
	// Each reads and writes what the other has stored.
	for i := range 4 {
		patch := fmt.Appendf(nil, `{"spec":{"reason":"side by side %d"}}`, i)
		framework.Eventually(t, "the reason is changed", func(ctx context.Context) (bool, error) {
			_, err := r.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Patch(ctx, nm,
				types.MergePatchType, patch, metav1.PatchOptions{})
			return err == nil, err
		})
		// The next request takes a new connection, to the other one.
		r.toServer.set(refuses, 0)
		r.toServer.set(passes, 0)
	}
	framework.Eventually(t, "the stage is changed", func(ctx context.Context) (bool, error) {
		_, err := r.As(t).Haulout.MaintenanceV1alpha1().NodeMaintenances().Patch(ctx, nm,
			types.MergePatchType, []byte(`{"spec":{"stage":"Complete"}}`), metav1.PatchOptions{})
		return err == nil, err
	})
	untilView(t, judge, func(v *oracle.View) string {
		switch {
		case !v.Done(nm):
			return nm + " is not done"
		case len(v.Evacuations()) > 0:
			return fmt.Sprintf("%d Evacuations are left", len(v.Evacuations()))
		case len(v.Closed()) > 0:
			return "not schedulable: " + strings.Join(v.Closed(), ", ")
		}
		return ""
	})
	if err := judge.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	found, err := judge.Verdict(oracle.Rules{Server: serverUser})
	framework.Accept(t, found, err)
}

// record has the observer judge a pool and a namespace.
func (r *rig) record(t *testing.T, pool, namespace string) *oracle.Recorder {
	t.Helper()
	judge, err := oracle.Start(t.Context(), r.observer.Kube, r.observer.Haulout, oracle.Scope{
		Nodes:      labels.SelectorFromSet(labels.Set{framework.Pool: pool}),
		Namespaces: []string{namespace}, AuditLog: r.AuditLogFile(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return judge
}

// untilGone waits until so many pods were told to end.
func (r *rig) untilGone(t *testing.T, judge *oracle.Recorder, pods int) {
	t.Helper()
	untilView(t, judge, func(v *oracle.View) string {
		if v.Asked() < pods {
			return fmt.Sprintf("%d pods were told to end, want %d", v.Asked(), pods)
		}
		return ""
	})
}

func untilView(t *testing.T, judge *oracle.Recorder, check func(*oracle.View) string) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), drainTime, fmt.Errorf("waited %s", drainTime))
	defer cancel()
	if err := judge.Wait(ctx, check); err != nil {
		t.Fatal(err)
	}
}

// handOver ends this server cleanly, so that the earlier one leads, and starts it again.
func (r *rig) handOver(t *testing.T, old *previous) {
	t.Helper()
	pid := r.Signal(t, "haulout-apiserver", syscall.SIGTERM)
	old.untilLeads(true)
	framework.Gone(t, "haulout-apiserver", pid)
	r.up(t)
}

// up starts what does not run.
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

// folder has the earlier server and its roles.
func (p *previous) folder() string { return filepath.Join(p.Root(), "bin", "previous") }

func (p *previous) start() {
	p.t.Helper()
	program := filepath.Join(p.folder(), "haulout-apiserver")
	if _, err := os.Stat(program); err != nil {
		p.t.Fatalf("%v; `make previous` builds it", err)
	}
	p.run = exec.Command(program, append(p.flags, //nolint:gosec // the program is that of the build
		"--bind-address=127.0.0.1", "--secure-port="+portOf(p.t, p.second), "--namespace=haulout-system", "--v=2",
		"--data-dir="+p.t.TempDir())...)
	p.run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(p.Dir(), "logs", fmt.Sprintf("previous-%d.log", time.Now().UnixNano())))
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close()
	p.run.Stdout, p.run.Stderr = log, log
	if err := p.run.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *previous) kill() {
	_ = p.run.Process.Kill()
	_ = p.run.Wait()
}

// leads reports whether the Lease names the process of the earlier server.
func (p *previous) leads() bool {
	p.t.Helper()
	lease, err := p.As(p.t).Kube.CoordinationV1().Leases("haulout-system").
		Get(p.t.Context(), "haulout-apiserver", metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
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
