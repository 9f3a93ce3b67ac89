// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package conformance checks whether an evacuator, with or without the library, follows the
// protocol of Haulout: in a cluster where Haulout and the evacuator run, with pods and Evacuations
// that the checks create.
package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/evacuator"
	"haulout.dev/haulout/pkg/generated/clientset/versioned"
)

const (
	// instigator is the instigator of the Evacuations of the checks.
	instigator = v1alpha1.FinalizerInstigatorPrefix + "conformance.haulout.dev"
	// before and after are classes without an evacuator. before has a higher priority than the
	// checked evacuator, after has a lower one.
	before, after = "before.conformance.haulout.dev", "after.conformance.haulout.dev"

	priorityBefore, priority, priorityAfter = "30000", "20000", "15000"
)

// ErrUnexamined is the error of a check without a result: the evacuation ended before the check
// could withdraw it. Make NewPod return pods that take longer to leave, or review the code of the
// evacuator.
var ErrUnexamined = errors.New("the behaviour after a withdrawal could not be examined")

// Config has the dependencies and options of the checks.
type Config struct {
	// Class is the class of the evacuator, which must run.
	Class string
	// Kube and Maintenance are clients of the cluster and of Haulout's API. They need the rights to
	// create and delete pods and Evacuations in the namespace, and to use the instigator
	// conformance.haulout.dev.
	Kube        kubernetes.Interface
	Maintenance versioned.Interface
	// Namespace is the namespace of the pods.
	Namespace string
	// NewPod returns a pod with the given name that the evacuator is able to remove. The checks add
	// the annotations about evacuators.
	NewPod func(name string) *corev1.Pod
	// Deadline is the maximum time between two heartbeats of the evacuator, in whole seconds. The
	// default is 30 seconds.
	Deadline time.Duration
	// Patience is the maximum time for the evacuation of a pod. The default is 10 minutes.
	Patience time.Duration
	// Quiet is the time for which the checks observe that the evacuator does nothing that is
	// forbidden. The default is 10 seconds.
	Quiet time.Duration
}

// Result is the result of a check; Err is nil if the evacuator passed, and ErrUnexamined if the
// behaviour could not be observed.
type Result struct {
	// Check describes the required behaviour of the evacuator.
	Check string
	Err   error
}

// Run runs all checks, one after another, and removes the objects that the checks have created.
func Run(ctx context.Context, config Config) []Result {
	config.Deadline = cmp.Or(config.Deadline, 30*time.Second)
	config.Patience = cmp.Or(config.Patience, 10*time.Minute)
	config.Quiet = cmp.Or(config.Quiet, 10*time.Second)
	checks := []struct {
		name string
		run  func(context.Context, *subject) error
	}{
		{"removes a pod or reports completion, and never misses its deadline", takesAway},
		{"keeps the pod after a withdrawal, and removes it when it is requested again", isCalledOff},
		{"does nothing while another evacuator is active", waitsForItsTurn},
	}
	results := make([]Result, 0, len(checks))
	for _, check := range checks {
		results = append(results, Result{Check: check.name, Err: config.check(ctx, check.run)})
	}
	return results
}

// check creates a pod, runs a check on it, and removes the pod.
func (c *Config) check(ctx context.Context, run func(context.Context, *subject) error) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*c.Patience, errors.New("the check takes too long"))
	defer cancel()
	s := &subject{Config: c, name: "conformance-" + rand.String(8)}
	defer func() { err = errors.Join(err, s.remove(context.WithoutCancel(ctx))) }()
	return run(ctx, s)
}

type subject struct {
	*Config

	name string
	pod  *corev1.Pod
	// asked is the Evacuation as it was created.
	asked *v1alpha1.Evacuation
}

// start creates the pod with its evacuators and waits until it runs.
func (s *subject) start(ctx context.Context, priorities map[string]string) error {
	pod := s.NewPod(s.name)
	pod.Namespace, pod.Name = s.Namespace, s.name
	for class, priority := range priorities {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, evacuator.AnnotationKey(class), priority)
	}
	pods := s.Kube.CoreV1().Pods(s.Namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create a pod: %w", err)
	}
	return s.poll(ctx, s.Patience, "the pod runs", func(ctx context.Context) (bool, error) {
		var err error
		s.pod, err = pods.Get(ctx, s.name, metav1.GetOptions{})
		return err == nil && s.pod.Status.Phase == corev1.PodRunning, err
	})
}

// ask requests the evacuation of the pod: it creates an Evacuation.
func (s *subject) ask(ctx context.Context) error {
	var err error
	s.asked, err = s.Maintenance.MaintenanceV1alpha1().Evacuations(s.Namespace).Create(ctx, &v1alpha1.Evacuation{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Finalizers: []string{instigator}},
		Spec: v1alpha1.EvacuationSpec{
			PodRef: v1alpha1.PodReference{Name: s.pod.Name, UID: s.pod.UID}, ProgressDeadlineSeconds: ptr.To(int32(s.Deadline / time.Second)),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create the Evacuation: %w", err)
	}
	return nil
}

// withdraw withdraws the Evacuation.
func (s *subject) withdraw(ctx context.Context) error {
	if s.asked == nil {
		return nil
	}
	_, err := s.Maintenance.MaintenanceV1alpha1().Evacuations(s.Namespace).Patch(ctx, s.asked.Name, types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (s *subject) remove(ctx context.Context) error {
	err := s.withdraw(ctx)
	deleteErr := s.Kube.CoreV1().Pods(s.Namespace).Delete(ctx, s.name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
	if apierrors.IsNotFound(deleteErr) {
		deleteErr = nil
	}
	return errors.Join(err, deleteErr)
}

// follow calls see for each state of the Evacuation since its creation, and with nil after its
// deletion, until see returns true.
func (s *subject) follow(ctx context.Context, limit time.Duration, what string, see func(*v1alpha1.Evacuation) (enough bool, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("timed out after %s waiting for: %s", limit, what))
	defer cancel()
	w, err := s.Maintenance.MaintenanceV1alpha1().Evacuations(s.Namespace).Watch(ctx, metav1.ListOptions{
		FieldSelector: "metadata.name=" + s.asked.Name, ResourceVersion: s.asked.ResourceVersion,
	})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case event, ok := <-w.ResultChan():
			if !ok {
				return errors.New("the watch of the evacuation was closed")
			}
			object, ok := event.Object.(*v1alpha1.Evacuation)
			if !ok {
				return apierrors.FromObject(event.Object)
			}
			if object.UID != s.asked.UID {
				continue
			}
			if event.Type == "DELETED" {
				object = nil
			}
			if enough, err := see(object); enough || err != nil {
				return err
			}
		}
	}
}

// poll checks a condition repeatedly until it is true.
func (s *subject) poll(ctx context.Context, limit time.Duration, what string, condition func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("timed out after %s waiting for: %s", limit, what))
	defer cancel()
	for {
		if ok, err := condition(ctx); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stays returns an error if the pod is deleted within the time Quiet.
func (s *subject) stays(ctx context.Context) error {
	quiet, cancel := context.WithTimeout(ctx, s.Quiet)
	defer cancel()
	// Use a limit that is longer than Quiet: if both ended at the same time, the result would be
	// random.
	err := s.poll(quiet, 2*s.Quiet, "the pod is not stopped", func(ctx context.Context) (bool, error) {
		pod, err := s.Kube.CoreV1().Pods(s.Namespace).Get(ctx, s.name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil:
			return false, nil
		case apierrors.IsNotFound(err), err == nil && (pod.UID != s.pod.UID || pod.DeletionTimestamp != nil):
			return false, errors.New("the pod was stopped")
		}
		return false, err
	})
	if ctx.Err() == nil && quiet.Err() != nil {
		return nil
	}
	return err
}

// departs follows the evacuation until the evacuator has removed the pod.
func (s *subject) departs(ctx context.Context) error {
	completed := false
	return s.follow(ctx, s.Patience, "the evacuator ends the evacuation", func(e *v1alpha1.Evacuation) (bool, error) {
		switch {
		case e == nil:
			return false, errors.New("the Evacuation was deleted before the pod left")
		case protocol.IsComplete(e):
			return true, nil
		case e.Status.ActiveEvacuatorClass == "":
			return false, nil
		case e.Status.ActiveEvacuatorClass == s.Class:
			completed = e.Status.ActiveEvacuatorCompleted
			return false, nil
		case completed:
			return true, nil
		}
		return false, fmt.Errorf("another class became active: %s", e.Status.Message)
	})
}

func takesAway(ctx context.Context, s *subject) error {
	if err := s.start(ctx, map[string]string{s.Class: priority, after: priorityAfter}); err != nil {
		return err
	}
	if err := s.ask(ctx); err != nil {
		return err
	}
	return s.departs(ctx)
}

// beginning is the state of an evacuator after it has started its work on a pod.
type beginning int

const (
	// The zero value means that the evacuator has reported and the evacuation can be withdrawn.
	_ beginning = iota
	// forbidden: the evacuator has forbidden the cancellation.
	forbidden
	// over: the evacuator finished before the evacuation could be withdrawn.
	over
)

// isCalledOff withdraws the evacuation when the evacuator has started. If the evacuator is too fast
// for that, isCalledOff withdraws another evacuation immediately after its creation. An evacuator
// that forbids the cancellation must finish the evacuation.
func isCalledOff(ctx context.Context, s *subject) error {
	if err := s.start(ctx, map[string]string{s.Class: priority, after: priorityAfter}); err != nil {
		return err
	}
	if err := s.ask(ctx); err != nil {
		return err
	}
	how, err := s.begins(ctx)
	if err != nil {
		return err
	}
	switch how {
	case forbidden:
		return s.endsAlthoughWithdrawn(ctx)
	case over:
		return s.isCalledOffImmediately(ctx)
	}
	if err := s.withdraw(ctx); err != nil {
		return err
	}
	return s.makesWay(ctx)
}

// begins waits until the evacuator has written to the status.
func (s *subject) begins(ctx context.Context) (how beginning, err error) {
	wasActive := s.asked.Status.ActiveEvacuatorClass == s.Class
	err = s.follow(ctx, s.Patience, "the evacuator reports", func(e *v1alpha1.Evacuation) (bool, error) {
		if e == nil {
			return false, errors.New("the Evacuation was deleted before the evacuator reported")
		}
		status := &e.Status
		switch isActive := status.ActiveEvacuatorClass == s.Class; {
		case protocol.IsComplete(e), isActive && status.ActiveEvacuatorCompleted:
			how = over
		case isActive && status.EvacuationCancellationPolicy == v1alpha1.EvacuationCancellationPolicyForbid:
			how = forbidden
		case isActive:
			wasActive = true
			return status.EvacuationProgressTimestamp != nil, nil
		case wasActive:
			return false, fmt.Errorf("another class became active: %s", status.Message)
		default:
			return false, nil
		}
		return true, nil
	})
	return how, err
}

// makesWay checks that the pod of a withdrawn Evacuation stays, and that it leaves after a new
// request.
func (s *subject) makesWay(ctx context.Context) error {
	ended := false
	goes := func(e *v1alpha1.Evacuation) (bool, error) {
		ended = e != nil && protocol.IsComplete(e)
		return e == nil || ended, nil
	}
	if err := s.follow(ctx, s.Patience, "the cancelled Evacuation is deleted", goes); err != nil {
		return err
	}
	if ended {
		return fmt.Errorf("it completed the evacuation after its cancellation: %w", ErrUnexamined)
	}
	if err := s.stays(ctx); err != nil {
		return fmt.Errorf("after the evacuation was cancelled: %w", err)
	}
	if err := s.ask(ctx); err != nil {
		return err
	}
	return s.departs(ctx)
}

// endsAlthoughWithdrawn checks that an evacuator that forbids the cancellation finishes the
// evacuation. Such an evacuator cannot be checked for its behaviour after a cancellation.
func (s *subject) endsAlthoughWithdrawn(ctx context.Context) error {
	if err := s.withdraw(ctx); err != nil {
		return err
	}
	ends := func(e *v1alpha1.Evacuation) (bool, error) {
		if e == nil {
			return false, errors.New("the Evacuation was deleted before it was complete")
		}
		return protocol.IsComplete(e), nil
	}
	what := "the evacuator that has forbidden cancellation ends the evacuation"
	if err := s.follow(ctx, s.Patience, what, ends); err != nil {
		return err
	}
	return fmt.Errorf("it forbids cancellation with its first report: %w", ErrUnexamined)
}

// isCalledOffImmediately withdraws the evacuation of another pod immediately after its creation.
func (s *subject) isCalledOffImmediately(ctx context.Context) (err error) {
	next := &subject{Config: s.Config, name: s.name + "-next"}
	defer func() { err = errors.Join(err, next.remove(context.WithoutCancel(ctx))) }()
	if err := next.start(ctx, map[string]string{s.Class: priority, after: priorityAfter}); err != nil {
		return err
	}
	if err := next.ask(ctx); err != nil {
		return err
	}
	if err := next.withdraw(ctx); err != nil {
		return err
	}
	return next.makesWay(ctx)
}

func waitsForItsTurn(ctx context.Context, s *subject) error {
	if err := s.start(ctx, map[string]string{before: priorityBefore, s.Class: priority}); err != nil {
		return err
	}
	// The first class has no evacuator, so the server would make the checked evacuator active at
	// the deadline.
	s.Config = ptr.To(*s.Config)
	s.Deadline = max(s.Deadline, 4*s.Quiet)
	if err := s.ask(ctx); err != nil {
		return err
	}
	if err := s.follow(ctx, s.Patience, "the other evacuator becomes active", func(e *v1alpha1.Evacuation) (bool, error) {
		return e != nil && e.Status.ActiveEvacuatorClass == before, nil
	}); err != nil {
		return err
	}
	return s.stays(ctx)
}
