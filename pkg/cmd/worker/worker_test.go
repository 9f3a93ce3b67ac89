// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/pkg/worker"
)

const (
	node   = "node-7.example.com"
	holder = "worker"
)

// newTask returns a NodeTask that the worker has claimed.
func newTask(class string, mods ...func(*v1alpha1.NodeTask)) *v1alpha1.NodeTask {
	return build.With(&v1alpha1.NodeTask{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: "6f1c2b3a-0000-4000-8000-000000000001"},
		Spec:       v1alpha1.NodeTaskSpec{Worker: class, ProgressDeadlineSeconds: 240, Before: v1alpha1.NodeVersions{BootID: "boot-1"}},
		Status:     v1alpha1.NodeTaskStatus{State: v1alpha1.NodeTaskClaimed, Holder: holder},
	}, mods...)
}

// world is a fake API with a NodeTask.
type world struct {
	*testing.T
	api *fake.Clientset
}

// start runs a worker until the test ends, or until the returned function is called.
func (w *world) start(config worker.Config) (stop func()) {
	w.Helper()
	config.Holder, config.Client = holder, w.api
	v := must.Get(worker.New(config))(w)
	ctx, cancel := context.WithCancel(w.Context())
	watches := informertest.Count(w.api)
	done := make(chan error)
	go func() { done <- v.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		must.Do(w, <-done)
	})
	w.Cleanup(stop)
	watches.Wait(w.T, 0, "nodetasks")
	return stop
}

func (w *world) status() v1alpha1.NodeTaskStatus {
	w.Helper()
	return must.Get(w.api.MaintenanceV1alpha1().NodeTasks().Get(context.Background(), node, metav1.GetOptions{}))(w).Status
}

// until waits until the status of the task has a result and a message.
func (w *world) until(result v1alpha1.NodeTaskResult, message string) {
	w.Helper()
	if !informertest.Until(time.Second, func() bool {
		status := w.status()
		return status.Result == result && strings.Contains(status.Message, message)
	}) {
		w.Fatalf("got status %+v, want result %q and message %q", w.status(), result, message)
	}
}

func TestCommands(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"no node":       {[]string{"reboot"}, "--node-name is required"},
		"an empty node": {[]string{"reboot", "--node-name="}, "--node-name is required"},
		"no namespace":  {[]string{"job"}, "--namespace is required"},
		"no kubeconfig": {[]string{"job", "--namespace=a", "--kubeconfig=testdata/none"}, `--kubeconfig="testdata/none"`},
		"an argument":   {[]string{"job", "more"}, `"more"`},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := NewCommand()
			cmd.SetArgs(tt.args)
			var out bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			err := cmd.ExecuteContext(t.Context())
			is.True(t, err != nil && strings.Contains(err.Error(), tt.want), "got error %v, want one with %q", err, tt.want)
		})
	}
}
