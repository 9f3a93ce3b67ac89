// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package workerconformance checks whether a worker, with or without the library, follows the
// protocol of Haulout: in a cluster where Haulout and the worker run, on a node that the checks
// take out of service.
package workerconformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
	maintenanceclient "haulout.dev/haulout/pkg/generated/clientset/versioned/typed/maintenance/v1alpha1"
)

// other is a class without a worker.
const other = "other.conformance.haulout.dev"

// Config has the dependencies and options of the checks.
type Config struct {
	// Class is a class of the worker, which must run.
	Class string
	// Maintenance is a client of Haulout's API. It needs the rights to create, change and delete
	// NodeMaintenances of the node, to assign Class and other.conformance.haulout.dev, and to read
	// and delete NodeTasks.
	Maintenance versioned.Interface
	// NodeName is the node on which the worker works twice. Its pods leave.
	NodeName string
	// Parameters are those of the tasks.
	Parameters map[string]string
	// Deadline is the maximum time between two heartbeats of the worker, in whole seconds. The
	// default is a minute, which is also the minimum.
	Deadline time.Duration
	// Patience is the maximum time for the drain of the node, the work and its verification. The
	// default is 30 minutes.
	Patience time.Duration
	// Quiet is the time for which the checks observe that the worker does nothing that is
	// forbidden. The default is 10 seconds.
	Quiet time.Duration
}

// Result is the result of a check; Err is nil if the worker passed.
type Result struct {
	// Check describes the required behaviour of the worker.
	Check string
	Err   error
}

// Run runs all checks, one after another. It deletes the NodeMaintenances that it has created, and
// waits until the node is not offered any more.
func Run(ctx context.Context, config Config) []Result {
	config.Deadline = cmp.Or(config.Deadline, time.Minute)
	config.Patience = cmp.Or(config.Patience, 30*time.Minute)
	config.Quiet = cmp.Or(config.Quiet, 10*time.Second)
	checks := []struct {
		name, class string
		run         func(*Config, context.Context) error
	}{
		{"leaves the tasks of other classes alone", other, (*Config).leavesAlone},
		{"claims a node, waits for the grant, and works without missing its deadline", config.Class, (*Config).works},
		{"works again on a node that was taken back during its work", config.Class, (*Config).startsOver},
	}
	results := make([]Result, 0, len(checks))
	for _, check := range checks {
		results = append(results, Result{Check: check.name, Err: config.check(ctx, check.class, check.run)})
	}
	return results
}

// check creates a maintenance with a task, runs a check on it, and deletes it.
func (c *Config) check(ctx context.Context, class string, run func(*Config, context.Context) error) (err error) {
	maintenances := c.Maintenance.MaintenanceV1alpha1().NodeMaintenances()
	nm, err := maintenances.Create(ctx, &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "conformance-" + rand.String(8)},
		Spec: v1alpha1.NodeMaintenanceSpec{
			Stage:  v1alpha1.NodeMaintenanceStageDrain,
			Reason: "conformance of " + class,
			NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{c.NodeName}}},
			}}},
			Task: &v1alpha1.NodeMaintenanceTask{
				Worker: class, Parameters: c.Parameters, ProgressDeadlineSeconds: ptr.To(int32(c.Deadline / time.Second)),
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a NodeMaintenance: %w", err)
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		if deleteErr := maintenances.Delete(ctx, nm.Name, metav1.DeleteOptions{}); deleteErr != nil && !apierrors.IsNotFound(deleteErr) {
			err = errors.Join(err, deleteErr)
			return
		}
		err = errors.Join(err, c.follow(ctx, c.Patience, "the node is not offered any more", func(task *v1alpha1.NodeTask) (bool, error) {
			return task == nil, nil
		}))
	}()
	return run(c, ctx)
}

// follow calls see for each state of the NodeTask of the node, and with nil if there is none, until
// see returns true.
func (c *Config) follow(ctx context.Context, limit time.Duration, what string, see func(*v1alpha1.NodeTask) (enough bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("timed out after %s waiting for: %s", limit, what))
	defer cancel()
	tasks := c.Maintenance.MaintenanceV1alpha1().NodeTasks()
	selector := maintenance.FieldName + "=" + c.NodeName
	for {
		enough, err := watchTask(ctx, tasks, selector, see)
		// The server closes each watch after some time.
		if enough || err != nil && !errors.Is(err, errClosed) {
			return err
		}
	}
}

// errClosed is the error of a watch that the server has closed.
var errClosed = errors.New("the watch of the NodeTask was closed")

// watchTask calls see for the present state of a NodeTask and for each state after it, until see
// returns true or the watch ends.
func watchTask(ctx context.Context, tasks maintenanceclient.NodeTaskInterface, selector string,
	see func(*v1alpha1.NodeTask) (enough bool, err error)) (enough bool, err error) {
	list, err := tasks.List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return false, err
	}
	var task *v1alpha1.NodeTask
	if len(list.Items) == 1 {
		task = &list.Items[0]
	}
	w, err := tasks.Watch(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: list.ResourceVersion})
	if err != nil {
		return false, err
	}
	defer w.Stop()
	for {
		if enough, err := see(task); enough || err != nil {
			return enough, err
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case event, ok := <-w.ResultChan():
			if !ok {
				return false, errClosed
			}
			if task, ok = event.Object.(*v1alpha1.NodeTask); !ok {
				return false, apierrors.FromObject(event.Object)
			}
			if event.Type == watch.Deleted {
				task = nil
			}
		}
	}
}

// offered waits until the node is offered.
func (c *Config) offered(ctx context.Context) (task *v1alpha1.NodeTask, err error) {
	err = c.follow(ctx, c.Patience, "the node is offered", func(state *v1alpha1.NodeTask) (bool, error) {
		task = state
		return state != nil, nil
	})
	return task, err
}

func (c *Config) leavesAlone(ctx context.Context) error {
	if _, err := c.offered(ctx); err != nil {
		return err
	}
	quiet, cancel := context.WithTimeout(ctx, c.Quiet)
	defer cancel()
	// Use a limit that is longer than Quiet: if both ended at the same time, the result would be
	// random.
	err := c.follow(quiet, 2*c.Quiet, "the worker does nothing", func(task *v1alpha1.NodeTask) (bool, error) {
		if task != nil && task.Status.Holder != "" {
			return false, fmt.Errorf("the node was claimed by %q", task.Status.Holder)
		}
		return false, nil
	})
	if ctx.Err() == nil && quiet.Err() != nil {
		return nil
	}
	return err
}

// works waits until the work of the next task is done and verified.
func (c *Config) works(ctx context.Context) error {
	var holder string
	var last *v1alpha1.NodeTask
	return c.follow(ctx, c.Patience, "the work is done and verified", func(task *v1alpha1.NodeTask) (bool, error) {
		before := last
		last = task
		if task == nil {
			if before != nil && before.Status.Result != v1alpha1.NodeTaskResultDone {
				return false, fmt.Errorf("the NodeTask was deleted in state %s", before.Status.State)
			}
			return before != nil, nil
		}
		status := &task.Status
		switch {
		case holder != "" && status.Holder != holder:
			return false, fmt.Errorf("the holder changed from %q to %q", holder, status.Holder)
		case status.State == v1alpha1.NodeTaskFailed:
			return false, fmt.Errorf("the work has failed (%s): %s", status.Reason, cmp.Or(status.Message, status.ServerMessage))
		case status.State == v1alpha1.NodeTaskOffered && (status.Message != "" || status.Result != ""):
			return false, fmt.Errorf("the worker has reported %q before the claim was granted", cmp.Or(status.Message, string(status.Result)))
		}
		holder = status.Holder
		return status.State == v1alpha1.NodeTaskDone, nil
	})
}

// startsOver takes the node back during the work, and waits until the work of the next task is
// done.
func (c *Config) startsOver(ctx context.Context) error {
	var claimed *v1alpha1.NodeTask
	if err := c.follow(ctx, c.Patience, "the node is claimed", func(task *v1alpha1.NodeTask) (bool, error) {
		claimed = task
		return task != nil && task.Status.State != v1alpha1.NodeTaskOffered, nil
	}); err != nil {
		return err
	}
	if claimed.Status.State != v1alpha1.NodeTaskClaimed {
		return fmt.Errorf("the task could not be taken back, because it is already %s", claimed.Status.State)
	}
	err := c.Maintenance.MaintenanceV1alpha1().NodeTasks().Delete(ctx, c.NodeName, metav1.DeleteOptions{
		Preconditions: metav1.NewUIDPreconditions(string(claimed.UID)),
	})
	if err != nil {
		return fmt.Errorf("delete the NodeTask: %w", err)
	}
	if err := c.follow(ctx, c.Patience, "the node is offered again", func(task *v1alpha1.NodeTask) (bool, error) {
		return task != nil && task.UID != claimed.UID, nil
	}); err != nil {
		return err
	}
	return c.works(ctx)
}
