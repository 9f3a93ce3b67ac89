// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	nodeutil "k8s.io/component-helpers/node/util"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/pkg/worker"
)

// fakeMachine is a machine whose shutdown is pending after a request, until a test ends it.
type fakeMachine struct {
	mu      sync.Mutex
	boot    string
	pending bool
	refuse  error
	reboots int
}

func (m *fakeMachine) BootID() (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boot, nil
}

func (m *fakeMachine) Pending(context.Context) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pending, m.refuse
}

func (m *fakeMachine) Reboot(context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reboots++
	m.pending = m.refuse == nil
	return m.refuse
}

func (m *fakeMachine) set(change func(*fakeMachine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func rebootWorker(m *fakeMachine) worker.Config {
	r := &rebooter{machine: m}
	return worker.Config{Class: v1alpha1.WorkerClassReboot, NodeName: node, Handler: r.reboot, Finished: r.hasBooted}
}

func TestReboot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fakeMachine{boot: "boot-1"}
		w := &world{t, fake.NewClientset(newTask(v1alpha1.WorkerClassReboot, func(t *v1alpha1.NodeTask) {
			t.Status = v1alpha1.NodeTaskStatus{State: v1alpha1.NodeTaskOffered}
		}))}
		stop := w.start(rebootWorker(m))
		<-time.After(time.Hour)
		synctest.Wait()
		is.Equal(t, m.reboots, 0, "reboots before the grant")
		is.Equal(t, w.status().Holder, holder)

		task := newTask(v1alpha1.WorkerClassReboot)
		must.Get(w.api.MaintenanceV1alpha1().NodeTasks().Update(t.Context(), task, metav1.UpdateOptions{}))(t)
		w.until("", "asked to reboot")
		// The node agent delays the shutdown.
		w.until("", "systemd-inhibit --list on "+node)
		<-time.After(time.Hour)
		synctest.Wait()
		is.Equal(t, m.reboots, 1, "reboots")
		is.Equal(t, w.status().Result, "", "result before the boot")
		stop()

		m.set(func(m *fakeMachine) { m.boot, m.pending = "boot-2", false })
		w.start(rebootWorker(m))
		w.until(v1alpha1.NodeTaskResultDone, "")
		is.Equal(t, m.reboots, 1, "reboots")
	})
}

func TestRebootFails(t *testing.T) {
	for name, tt := range map[string]struct {
		boot    string
		refuse  error
		happens func(*fakeMachine)
		want    string
		reboots int
	}{
		"a user cancels it": {
			boot: "boot-1", happens: func(m *fakeMachine) { m.pending = false }, want: "the reboot was cancelled on the node", reboots: 1,
		},
		"the task does not know the boot ID": {want: "has no boot ID"},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			m := &fakeMachine{boot: "boot-1", refuse: tt.refuse}
			w := &world{t, fake.NewClientset(newTask(v1alpha1.WorkerClassReboot, func(t *v1alpha1.NodeTask) { t.Spec.Before.BootID = tt.boot }))}
			w.start(rebootWorker(m))
			if tt.happens != nil {
				w.until("", "asked to reboot")
				m.set(tt.happens)
			}
			w.until(v1alpha1.NodeTaskResultFailed, tt.want)
			is.Equal(t, m.reboots, tt.reboots, "reboots")
		})
	}
}

// TestRebootThatIsRefused has a program that blocks shutdowns.
func TestRebootThatIsRefused(t *testing.T) {
	const blocked = `"dpkg" blocks shutdowns`
	for name, tt := range map[string]struct {
		happens func(*world, *fakeMachine)
		result  v1alpha1.NodeTaskResult
		message string
	}{
		"until it has ended": {
			happens: func(_ *world, m *fakeMachine) { m.set(func(m *fakeMachine) { m.refuse = nil }) }, message: "systemd-inhibit --list on " + node,
		},
		"until the deadline": {
			happens: func(*world, *fakeMachine) {}, result: v1alpha1.NodeTaskResultFailed,
			message: "could not be asked to reboot within 4m0s: " + blocked,
		},
		"until the task is withdrawn": {
			happens: func(w *world, _ *fakeMachine) {
				must.Do(w, w.api.MaintenanceV1alpha1().NodeTasks().Delete(w.Context(), node, metav1.DeleteOptions{}))
			},
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			m := &fakeMachine{boot: "boot-1", refuse: errors.New(blocked)}
			w := &world{t, fake.NewClientset(newTask(v1alpha1.WorkerClassReboot))}
			w.start(rebootWorker(m))
			w.until("", "after a failure: "+blocked)
			tt.happens(w, m)
			if tt.message != "" {
				w.until(tt.result, tt.message)
				return
			}
			<-time.After(askPeriod)
			synctest.Wait()
			asked := m.reboots
			<-time.After(10 * time.Minute)
			synctest.Wait()
			is.Equal(t, m.reboots, asked, "requests after the end of the claim")
		})
	}
}

// TestRebootIsNotAskedForWithoutTheAPI cannot report, and so does not know whether the node is
// still its own.
func TestRebootIsNotAskedForWithoutTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fakeMachine{boot: "boot-1"}
		w := &world{t, fake.NewClientset(newTask(v1alpha1.WorkerClassReboot))}
		var down atomic.Bool
		writes := 0
		w.api.PrependReactor("patch", "nodetasks", func(clienttesting.Action) (bool, runtime.Object, error) {
			// The first write is the library's.
			writes++
			return down.Load() && writes > 1, nil, apierrors.NewServiceUnavailable("it restarts")
		})
		down.Store(true)
		w.start(rebootWorker(m))
		<-time.After(time.Minute)
		synctest.Wait()
		is.Equal(t, m.reboots, 0, "requests without a report")
		down.Store(false)
		w.until("", "asked to reboot")
		<-time.After(time.Minute)
		synctest.Wait()
		is.Equal(t, m.reboots, 1, "requests")
	})
}

func TestRebootWaitsForABrokenBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &fakeMachine{boot: "boot-1"}
		w := &world{t, fake.NewClientset(newTask(v1alpha1.WorkerClassReboot))}
		w.start(rebootWorker(m))
		w.until("", "asked to reboot")
		m.set(func(m *fakeMachine) { m.refuse = errors.New("the bus is down") })
		<-time.After(time.Minute)
		synctest.Wait()
		is.Equal(t, w.status().Result, "", "result")
	})
}

func TestRebootRequired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registered := func(uid types.UID) *corev1.Node {
			return &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: node, UID: uid},
				Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
			}
		}
		kube := kubefake.NewClientset(registered("node-uid"))
		file := filepath.Join(t.TempDir(), "reboot-required")
		start := func() (stop func()) {
			s := &sentinel{kube: kube, node: node, file: file}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { s.run(ctx); close(done) }()
			return func() { cancel(); <-done }
		}
		until := func(want corev1.ConditionStatus) *corev1.NodeCondition {
			t.Helper()
			var got *corev1.NodeCondition
			ok := informertest.Until(time.Second, func() bool {
				status := must.Get(kube.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}))(t).Status
				_, got = nodeutil.GetNodeCondition(&status, v1alpha1.NodeConditionRebootRequired)
				return got != nil && got.Status == want && len(status.Conditions) == 2
			})
			must.True(t, ok, "got condition %+v, want %s", got, want)
			return got
		}
		writes := func() (count int) {
			for _, action := range kube.Actions() {
				if action.GetVerb() == "patch" && action.GetSubresource() == "status" {
					count++
				}
			}
			return count
		}
		stop := start()
		until(corev1.ConditionFalse)
		must.Do(t, os.WriteFile(file, nil, 0o600))
		since := until(corev1.ConditionTrue).LastTransitionTime
		<-time.After(time.Hour)
		stop()
		start()
		<-time.After(time.Hour)
		synctest.Wait()
		is.Equal(t, writes(), 2, "writes, none without a change")
		is.True(t, until(corev1.ConditionTrue).LastTransitionTime.Equal(&since), "the transition time changed without a transition")
		// The Node is created again while the pod runs.
		must.Do(t, kube.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}))
		must.Get(kube.CoreV1().Nodes().Create(t.Context(), registered("another"), metav1.CreateOptions{}))(t)
		<-time.After(time.Hour)
		until(corev1.ConditionTrue)
		// What cannot be read changes nothing.
		must.Do(t, os.Remove(file))
		until(corev1.ConditionFalse)
		_, err := (&sentinel{file: "/" + strings.Repeat("x", 300)}).condition()
		is.True(t, err != nil, "got no error for a file that cannot be read")
	})
}
