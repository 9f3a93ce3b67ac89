// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package workerconformance

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	class = "flash.example.com"
	node  = "node-7"
)

var resource = v1alpha1.SchemeGroupVersion.WithResource("nodetasks")

// cluster is an API that offers a node for each maintenance, and a worker.
type cluster struct {
	api *fake.Clientset
	// work is what the worker does with each task, except for taking it.
	work func(*cluster, types.UID)
	// offers is set while a maintenance exists.
	offers *v1alpha1.NodeMaintenance
	mu     sync.Mutex
	count  int
}

func newCluster(work func(*cluster, types.UID)) *cluster {
	c := &cluster{api: fake.NewClientset(), work: work}
	c.api.PrependReactor("create", "nodemaintenances", func(action clienttesting.Action) (bool, runtime.Object, error) {
		nm := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.NodeMaintenance).DeepCopy()
		c.mu.Lock()
		c.offers = nm
		c.mu.Unlock()
		time.AfterFunc(time.Second, c.offer)
		return true, nm, c.api.Tracker().Create(v1alpha1.SchemeGroupVersion.WithResource("nodemaintenances"), nm, "")
	})
	c.api.PrependReactor("delete", "nodemaintenances", func(clienttesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		c.offers = nil
		c.mu.Unlock()
		time.AfterFunc(time.Second, func() { _ = c.api.Tracker().Delete(resource, "", node) })
		return false, nil, nil
	})
	c.api.PrependReactor("delete", "nodetasks", func(clienttesting.Action) (bool, runtime.Object, error) {
		time.AfterFunc(time.Second, c.offer)
		return false, nil, nil
	})
	return c
}

// offer offers the node, and lets the worker work.
func (c *cluster) offer() {
	c.mu.Lock()
	nm := c.offers
	c.count++
	uid := types.UID(fmt.Sprint("task-", c.count))
	c.mu.Unlock()
	if nm == nil {
		return
	}
	task := &v1alpha1.NodeTask{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: uid},
		Spec:       v1alpha1.NodeTaskSpec{Worker: nm.Spec.Task.Worker},
		Status:     v1alpha1.NodeTaskStatus{State: v1alpha1.NodeTaskOffered},
	}
	if c.api.Tracker().Create(resource, task, "") == nil {
		time.AfterFunc(time.Second, func() { c.work(c, uid) })
	}
}

// write changes the status of a task, if it still exists.
func (c *cluster) write(uid types.UID, mod func(*v1alpha1.NodeTask)) {
	stored, err := c.api.Tracker().Get(resource, "", node)
	if err != nil || stored.(*v1alpha1.NodeTask).UID != uid {
		return
	}
	task := stored.(*v1alpha1.NodeTask).DeepCopy()
	mod(task)
	_ = c.api.Tracker().Update(resource, task, "")
}

// isOf reports whether a task is of the class of the worker.
func (c *cluster) isOf(uid types.UID, class string) (is bool) {
	c.write(uid, func(t *v1alpha1.NodeTask) { is = t.Spec.Worker == class })
	return is
}

func (c *cluster) claim(uid types.UID) {
	c.write(uid, func(t *v1alpha1.NodeTask) { t.Status.Holder = "flasher" })
	<-time.After(time.Second)
	c.write(uid, func(t *v1alpha1.NodeTask) { t.Status.State = v1alpha1.NodeTaskClaimed })
	<-time.After(5 * time.Second)
}

// finish is the end of a task that the server verifies.
func (c *cluster) finish(uid types.UID) {
	c.write(uid, func(t *v1alpha1.NodeTask) {
		t.Status.Result, t.Status.State = v1alpha1.NodeTaskResultDone, v1alpha1.NodeTaskVerifying
	})
	<-time.After(time.Second)
	c.write(uid, func(t *v1alpha1.NodeTask) { t.Status.State = v1alpha1.NodeTaskDone })
}

// good is a worker that follows the protocol.
func good(c *cluster, uid types.UID) {
	if c.isOf(uid, class) {
		c.claim(uid)
		c.finish(uid)
	}
}

func TestChecks(t *testing.T) {
	const alone, work, over = 0, 1, 2
	for name, tt := range map[string]struct {
		work func(*cluster, types.UID)
		// fails are the checks that fail, and their errors.
		fails map[int]string
	}{
		"a worker that follows the protocol": {work: good},
		"a worker that takes every task": {
			work:  func(c *cluster, uid types.UID) { c.claim(uid); c.finish(uid) },
			fails: map[int]string{alone: `claimed by "flasher"`},
		},
		"a worker that does nothing": {
			work:  func(*cluster, types.UID) {},
			fails: map[int]string{work: "verified", over: "the node is claimed"},
		},
		"a worker that reports before the grant": {
			work: func(c *cluster, uid types.UID) {
				if c.isOf(uid, class) {
					c.write(uid, func(t *v1alpha1.NodeTask) { t.Status.Holder, t.Status.Message = "flasher", "erasing" })
					<-time.After(time.Second)
					good(c, uid)
				}
			},
			fails: map[int]string{work: `reported "erasing" before`, over: `reported "erasing" before`},
		},
		"a worker that is silent": {
			work: func(c *cluster, uid types.UID) {
				if c.isOf(uid, class) {
					c.claim(uid)
					c.write(uid, func(t *v1alpha1.NodeTask) {
						t.Status.State, t.Status.Reason, t.Status.ServerMessage = v1alpha1.NodeTaskFailed, v1alpha1.NodeTaskLost, "no heartbeat"
					})
				}
			},
			fails: map[int]string{work: "has failed (Lost): no heartbeat", over: "has failed (Lost): no heartbeat"},
		},
		"a worker that does not come back to what was taken back": {
			work: func(c *cluster, uid types.UID) {
				if uid != "task-4" { // task-3 is taken back
					good(c, uid)
				}
			},
			fails: map[int]string{over: "verified"},
		},
		"a worker that is too quick to be examined": {
			work: func(c *cluster, uid types.UID) {
				if c.isOf(uid, class) {
					c.write(uid, func(t *v1alpha1.NodeTask) { t.Status.Holder = "flasher" })
					c.finish(uid)
				}
			},
			fails: map[int]string{over: "already Verifying"},
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			c := newCluster(tt.work)
			results := Run(t.Context(), Config{Class: class, Maintenance: c.api, NodeName: node, Patience: time.Minute})
			for i, result := range results {
				want := tt.fails[i]
				is.True(t, (result.Err == nil) == (want == "") && (result.Err == nil || strings.Contains(result.Err.Error(), want)),
					"a worker %s: got error %v, want one with %q", result.Check, result.Err, want)
			}
			left := must.Get(c.api.MaintenanceV1alpha1().NodeMaintenances().List(t.Context(), metav1.ListOptions{}))(t)
			is.Equal(t, len(left.Items), 0, "maintenances that are left")
			<-time.After(time.Minute) // until the worker has ended
		})
	}
}
