// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/worker"
)

const (
	// managedBy is the label of the Jobs of this program, and its value.
	managedByKey, managedBy = "app.kubernetes.io/managed-by", "haulout-worker"
	// parameterPrefix is the prefix of the environment variables with parameters. Without it, who
	// may choose parameters could set variables such as PATH, and so run other programs.
	parameterPrefix = "PARAMETER_"
	// jobPeriod is the time between two looks at a Job in the cache, and retryPeriod that between
	// two attempts to create it.
	jobPeriod, retryPeriod = time.Second, 5 * time.Second
	// backoffLimit is how often the pod of a Job is started again after a failure.
	backoffLimit = 2
	// maxNodePart is how much of the name of a node fits before a UID into the name of a Job.
	maxNodePart = validation.DNS1123LabelMaxLength - 1 - 36
)

// runJobs runs Jobs on nodes for maintenances.
func runJobs(ctx context.Context, c clients, namespace string) error {
	factory := informers.NewSharedInformerFactoryWithOptions(c.kube, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = managedByKey + "=" + managedBy }))
	j := &jobs{kube: c.kube, namespace: namespace, cached: factory.Batch().V1().Jobs().Lister().Jobs(namespace)}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	factory.WaitForCacheSyncWithContext(ctx)
	return runWorker(ctx, worker.Config{
		Class: "*" + v1alpha1.WorkerClassJobSuffix, Holder: "haulout-worker-job/" + namespace,
		Client: c.maintenance, Handler: j.run, Finished: j.hasCompleted,
	})
}

// jobs is the worker that runs a Job on each node. All of its state is in the Jobs, whose names
// follow from the tasks. The NodeTask owns its Job: if it is deleted, the garbage collector deletes
// the Job, and the next Job of the node is only created when its pod is gone.
type jobs struct {
	kube      kubernetes.Interface
	namespace string
	cached    batchlisters.JobNamespaceLister
}

// hasCompleted reports whether the Job of a task has completed.
func (j *jobs) hasCompleted(_ context.Context, t *worker.Task) bool {
	job, err := j.cached.Get(jobName(t.Object()))
	return err == nil && isJob(job, batchv1.JobComplete) != nil
}

// run creates the Job, and waits until it ends.
func (j *jobs) run(ctx context.Context, t *worker.Task) error {
	if err := j.create(ctx, t); err != nil {
		return err
	}
	name, seen := jobName(t.Object()), false
	var reported, looked time.Time
	for {
		job, err := j.cached.Get(name)
		switch {
		case err != nil && seen:
			return fmt.Errorf("the Job %s/%s was deleted", j.namespace, name)
		case err != nil:
		case isJob(job, batchv1.JobComplete) != nil:
			return nil
		case isJob(job, batchv1.JobFailed) != nil:
			return j.failure(ctx, job)
		case time.Since(reported) >= t.HeartbeatInterval() && j.isAlive(ctx, t, job, &looked):
			if err := t.Report(ctx, worker.Progress{Message: fmt.Sprintf("The Job %s/%s runs", j.namespace, name)}); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot report that the Job runs, will retry")
			} else {
				reported = time.Now()
			}
		}
		seen = seen || err == nil
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(jobPeriod):
		}
	}
}

// isAlive reports whether a pod of a Job works. A pod on a node that is down counts as active, but
// not as ready. A pod is not ready either while its init containers run, or after one of its
// containers has ended, so isAlive then asks whether its node is, once per interval of heartbeats.
func (j *jobs) isAlive(ctx context.Context, t *worker.Task, job *batchv1.Job, looked *time.Time) bool {
	if ptr.Deref(job.Status.Ready, 0) > 0 {
		return true
	}
	if job.Status.Active == 0 || time.Since(*looked) < t.HeartbeatInterval() {
		return false
	}
	*looked = time.Now()
	node, err := j.kube.CoreV1().Nodes().Get(ctx, t.NodeName, metav1.GetOptions{})
	pods, listErr := j.kube.CoreV1().Pods(job.Namespace).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job.Name})
	if err := errors.Join(err, listErr); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read whether a container of the Job runs")
		return false
	}
	isReady := protocol.NodeCondition(node, corev1.NodeReady).Status == corev1.ConditionTrue
	return isReady && slices.ContainsFunc(pods.Items, runs)
}

// runs reports whether a container or an init container of a pod runs, other than a sidecar, which
// runs until the pod ends.
func runs(pod corev1.Pod) bool {
	isRunning := func(c corev1.ContainerStatus) bool { return c.State.Running != nil }
	return slices.ContainsFunc(pod.Status.ContainerStatuses, isRunning) || slices.ContainsFunc(pod.Status.InitContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.State.Running != nil && !slices.ContainsFunc(pod.Spec.InitContainers, func(of corev1.Container) bool {
			return of.Name == c.Name && ptr.Deref(of.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways
		})
	})
}

// create creates the Job of a task unless it exists. It retries after an error that may pass, and
// reports it. While an earlier Job is on the node it reports so once, without heartbeats.
func (j *jobs) create(ctx context.Context, t *worker.Task) error {
	began, reported := time.Now(), ""
	var last error
	for {
		err := j.tryCreate(ctx, t, last)
		switch {
		case err == nil, apierrors.IsAlreadyExists(err):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case apierrors.IsInvalid(err), apierrors.IsNotFound(err), errors.Is(err, errParameter):
			return err
		case !errors.Is(err, errEarlier) && time.Since(began) >= patience(t):
			return fmt.Errorf("the Job could not be created within %s: %w", patience(t), err)
		}
		last = err
		klog.FromContext(ctx).Error(err, "Cannot create the Job, will retry")
		if text := "Waiting: " + err.Error(); text != reported && t.Report(ctx, worker.Progress{Message: text}) == nil {
			reported = text
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryPeriod):
		}
	}
}

// tryCreate creates the Job of a task. last is the error of the previous attempt, nil if there was
// none.
func (j *jobs) tryCreate(ctx context.Context, t *worker.Task, last error) error {
	task := t.Object()
	if _, err := j.cached.Get(jobName(task)); err == nil {
		return nil
	}
	name := protocol.JobTemplateOf(task.Spec.Worker)
	template, err := j.kube.CoreV1().PodTemplates(j.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the PodTemplate %s/%s of the class %s: %w", j.namespace, name, task.Spec.Worker, err)
	}
	job, err := jobOf(task, template)
	if err != nil {
		return err
	}
	if err := j.checkEarlier(ctx, task); err != nil {
		return err
	}
	message := fmt.Sprintf("Creates the Job %s/%s", job.Namespace, job.Name)
	if last != nil && !errors.Is(last, errEarlier) {
		message += ", after a failure: " + last.Error()
	}
	// The report confirms that the node still belongs to this worker: earlier attempts may have
	// taken long.
	if err := t.Report(ctx, worker.Progress{Message: message}); err != nil {
		return err
	}
	_, err = j.kube.BatchV1().Jobs(j.namespace).Create(ctx, job, metav1.CreateOptions{})
	return err
}

// errEarlier is part of the errors about earlier Jobs.
var errEarlier = errors.New("is on the node")

// checkEarlier returns an error while a pod of an earlier Job of this program is on the node, or
// may still be created: the NodeTask of that Job was deleted, and in stage Cordon the server offers
// the node again although it has pods.
func (j *jobs) checkEarlier(ctx context.Context, task *v1alpha1.NodeTask) error {
	earlier, err := j.cached.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, job := range earlier {
		if job.Spec.Template.Spec.NodeName == task.Name && isJob(job, batchv1.JobComplete) == nil && isJob(job, batchv1.JobFailed) == nil {
			return fmt.Errorf("the earlier Job %s/%s %w", job.Namespace, job.Name, errEarlier)
		}
	}
	pods, err := j.kube.CoreV1().Pods(j.namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + task.Name})
	if err != nil {
		return fmt.Errorf("list the pods of earlier Jobs: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		job := pod.Labels[batchv1.JobNameLabel]
		if job != jobName(task) && strings.HasPrefix(job, nodePart(task)) && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			return fmt.Errorf("the pod %s/%s of an earlier Job %w", pod.Namespace, pod.Name, errEarlier)
		}
	}
	return nil
}

// failure returns why a Job has failed: its condition, and what its last container left.
func (j *jobs) failure(ctx context.Context, job *batchv1.Job) error {
	failed := isJob(job, batchv1.JobFailed)
	text := fmt.Sprintf("the Job %s/%s has failed: %s", job.Namespace, job.Name, failed.Message)
	pods, err := j.kube.CoreV1().Pods(job.Namespace).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job.Name})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot read why the Job has failed")
		return errors.New(text)
	}
	var last *corev1.ContainerStateTerminated
	var container string
	for i := range pods.Items {
		status := &pods.Items[i].Status
		for _, c := range slices.Concat(status.InitContainerStatuses, status.ContainerStatuses) {
			ended := c.State.Terminated
			if ended != nil && ended.ExitCode != 0 && (last == nil || last.FinishedAt.Before(&ended.FinishedAt)) {
				last, container = ended, c.Name
			}
		}
	}
	if last != nil {
		text += fmt.Sprintf("; its container %s has exited with code %d: %s", container, last.ExitCode, strings.TrimSpace(last.Message))
	}
	return errors.New(text)
}

// errParameter is part of the errors about parameters that cannot be names of variables.
var errParameter = errors.New("must consist of letters, digits and underscores, and not begin with a digit")

// jobOf returns the Job of a task, with the pod of a template.
func jobOf(task *v1alpha1.NodeTask, template *corev1.PodTemplate) (*batchv1.Job, error) {
	var variables []corev1.EnvVar
	for _, key := range slices.Sorted(maps.Keys(task.Spec.Parameters)) {
		if len(validation.IsCIdentifier(key)) > 0 {
			return nil, fmt.Errorf("the parameter %q: %w", key, errParameter)
		}
		// Kubernetes replaces $(NAME) in values, and $$ by $.
		value := strings.ReplaceAll(task.Spec.Parameters[key], "$", "$$")
		variables = append(variables, corev1.EnvVar{Name: parameterPrefix + key, Value: value})
	}
	pod := template.Template.DeepCopy()
	pod.Spec.NodeName = task.Name
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			containers[i].Env = append(containers[i].Env, variables...)
		}
	}
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: template.Namespace, Name: jobName(task), Labels: map[string]string{managedByKey: managedBy},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "NodeTask", Name: task.Name, UID: task.UID,
			}},
		},
		Spec: batchv1.JobSpec{
			Template:     *pod,
			BackoffLimit: ptr.To[int32](backoffLimit),
			// A pod that was evicted, or ended by a shutdown of its node, is started again.
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action:          batchv1.PodFailurePolicyActionIgnore,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
			}}},
		},
	}, nil
}

// jobName returns the name of the Job of a task. It is a DNS label, because pods get it as their
// host name.
func jobName(task *v1alpha1.NodeTask) string { return nodePart(task) + string(task.UID) }

// nodePart returns the first part of the names of the Jobs of a node.
func nodePart(task *v1alpha1.NodeTask) string {
	node := strings.ReplaceAll(task.Name, ".", "-")
	return strings.TrimRight(node[:min(len(node), maxNodePart)], "-") + "-"
}

// isJob returns the condition of a Job if it is True; otherwise nil.
func isJob(job *batchv1.Job, condition batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range job.Status.Conditions {
		if c := &job.Status.Conditions[i]; c.Type == condition && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}
