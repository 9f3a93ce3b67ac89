// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package worker

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
	"haulout.dev/haulout/pkg/worker"
)

const (
	namespace = "haulout-workers"
	class     = "kubelet-1.37" + v1alpha1.WorkerClassJobSuffix
	theJob    = "node-7-example-com-6f1c2b3a-0000-4000-8000-000000000001"
)

func template() *corev1.PodTemplate {
	return &corev1.PodTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kubelet-1.37"},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "kubelet"}},
			Spec: corev1.PodSpec{
				HostPID: true, Containers: []corev1.Container{{Name: "script", Image: "tools", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}}},
			},
		},
	}
}

// jobWorld is a cluster with a job worker.
type jobWorld struct {
	*world
	kube *kubefake.Clientset
}

func newJobWorld(t *testing.T, task *v1alpha1.NodeTask, objects ...runtime.Object) *jobWorld {
	t.Helper()
	w := &jobWorld{&world{t, fake.NewClientset(task)}, kubefake.NewClientset(objects...)}
	watches := informertest.Count(w.kube)
	factory := informers.NewSharedInformerFactory(w.kube, 0)
	j := &jobs{kube: w.kube, namespace: namespace, cached: factory.Batch().V1().Jobs().Lister().Jobs(namespace)}
	factory.StartWithContext(t.Context())
	watches.Wait(t, 0, "jobs")
	w.start(worker.Config{Class: "*" + v1alpha1.WorkerClassJobSuffix, Handler: j.run, Finished: j.hasCompleted})
	return w
}

// job waits for the Job of the task.
func (w *jobWorld) job() *batchv1.Job {
	w.Helper()
	var job *batchv1.Job
	if !informertest.Until(time.Second, func() (ok bool) {
		var err error
		job, err = w.kube.BatchV1().Jobs(namespace).Get(w.Context(), theJob, metav1.GetOptions{})
		return err == nil
	}) {
		w.Fatalf("got no Job; the task has %+v", w.status())
	}
	return job
}

// becomes changes the status of the Job as the Job controller does.
func (w *jobWorld) becomes(status batchv1.JobStatus) {
	w.Helper()
	job := w.job()
	job.Status = status
	must.Get(w.kube.BatchV1().Jobs(namespace).UpdateStatus(w.Context(), job, metav1.UpdateOptions{}))(w)
}

func ended(condition batchv1.JobConditionType, message string) batchv1.JobStatus {
	return batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, Message: message}}}
}

func TestJobOfATask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t, newTask(class, func(t *v1alpha1.NodeTask) {
			t.Spec.Parameters = map[string]string{"version": "v1.37.2", "PATH": "$(A):/evil"}
		}), template())
		want := template().Template
		want.Spec.NodeName, want.Spec.RestartPolicy = node, corev1.RestartPolicyNever
		want.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		want.Spec.Containers[0].Env = []corev1.EnvVar{
			{Name: "A", Value: "1"}, {Name: "PARAMETER_PATH", Value: "$$(A):/evil"}, {Name: "PARAMETER_version", Value: "v1.37.2"},
		}
		job := w.job()
		if diff := cmp.Diff(want, job.Spec.Template); diff != "" {
			t.Errorf("the pod (-want +got):\n%s", diff)
		}
		owners := []metav1.OwnerReference{{
			APIVersion: "maintenance.haulout.dev/v1alpha1", Kind: "NodeTask", Name: node, UID: "6f1c2b3a-0000-4000-8000-000000000001",
		}}
		if diff := cmp.Diff(owners, job.OwnerReferences); diff != "" {
			t.Errorf("the owners (-want +got):\n%s", diff)
		}
		is.Equal(t, *job.Spec.BackoffLimit, 2)
		is.Equal(t, job.Spec.PodFailurePolicy.Rules[0].OnPodConditions[0].Type, corev1.DisruptionTarget)
		w.becomes(batchv1.JobStatus{Active: 1, Ready: ptr.To[int32](1)})
		w.until("", "The Job "+namespace+"/"+theJob+" runs")
		w.becomes(ended(batchv1.JobComplete, ""))
		w.until(v1alpha1.NodeTaskResultDone, "")
	})
}

func TestLongNamesOfNodes(t *testing.T) {
	for name, want := range map[string]string{
		"a": "a-6f1c2b3a-0000-4000-8000-000000000001",
		"ip-10-0-137-42.eu-central-1.compute.internal": "ip-10-0-137-42-eu-central-6f1c2b3a-0000-4000-8000-000000000001",
		strings.Repeat("x", 200):                       strings.Repeat("x", 26) + "-6f1c2b3a-0000-4000-8000-000000000001",
	} {
		task := newTask(class)
		task.Name = name
		is.Equal(t, jobName(task), want)
		is.True(t, len(want) <= 63, "%s is too long for a label", want)
	}
}

func TestJobFails(t *testing.T) {
	terminated := func(name string, minute int, code int32, message string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{batchv1.JobNameLabel: theJob}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "script", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{
					ExitCode: code, Message: message, FinishedAt: metav1.NewTime(informertest.Start.Add(time.Duration(minute) * time.Minute)),
				},
			}}}},
		}
	}
	failed := func(w *jobWorld) { w.becomes(ended(batchv1.JobFailed, "it has reached the limit")) }
	for name, tt := range map[string]struct {
		task    func(*v1alpha1.NodeTask)
		objects []runtime.Object
		happens func(*jobWorld)
		want    string
	}{
		"with the message of the last container": {
			objects: []runtime.Object{template(), terminated("a", 1, 3, "first"), terminated("b", 2, 4, "disk is full\n")}, happens: failed,
			want: "has failed: it has reached the limit; its container script has exited with code 4: disk is full",
		},
		"without a pod":      {objects: []runtime.Object{template()}, happens: failed, want: "has failed: it has reached the limit"},
		"without a template": {want: `the PodTemplate haulout-workers/kubelet-1.37 of the class ` + class + `: podtemplates "kubelet-1.37" not found`},
		"with a parameter that is no variable": {
			objects: []runtime.Object{template()}, want: `the parameter "a-b": must consist of letters, digits and underscores`,
			task: func(t *v1alpha1.NodeTask) { t.Spec.Parameters = map[string]string{"a-b": "1"} },
		},
		"when a user deletes it": {
			objects: []runtime.Object{template()}, want: "was deleted",
			happens: func(w *jobWorld) {
				must.Do(w, w.kube.BatchV1().Jobs(namespace).Delete(w.Context(), w.job().Name, metav1.DeleteOptions{}))
			},
		},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			task := newTask(class)
			if tt.task != nil {
				tt.task(task)
			}
			w := newJobWorld(t, task, tt.objects...)
			if tt.happens != nil {
				w.job()
				<-time.After(10 * time.Second)
				tt.happens(w)
			}
			w.until(v1alpha1.NodeTaskResultFailed, tt.want)
		})
	}
}

// beats returns how often the worker has written.
func (w *jobWorld) beats() (count int) {
	for _, action := range w.api.Actions() {
		if action.GetVerb() == "patch" {
			count++
		}
	}
	return count
}

// TestSilentJobs has Jobs whose pod is not ready, as on a node that is down: no heartbeat is sent.
func TestSilentJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t, newTask(class), template())
		w.becomes(batchv1.JobStatus{Active: 1, Ready: ptr.To[int32](1)})
		<-time.After(10 * time.Minute)
		synctest.Wait()
		alive := w.beats()
		is.True(t, alive >= 10 && alive <= 12, "got %d writes in ten minutes, want one a minute", alive)
		w.becomes(batchv1.JobStatus{Active: 1, Ready: ptr.To[int32](0)})
		<-time.After(10 * time.Minute)
		synctest.Wait()
		is.Equal(t, w.beats(), alive, "writes of a Job that is not ready")
	})
}

// TestInitContainersAreAlive has a Job whose pod initializes, which is never Ready meanwhile: a
// heartbeat is sent while its node is.
func TestInitContainersAreAlive(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, tt := range map[string]struct {
		ready corev1.ConditionStatus
		state corev1.ContainerState
		beats bool
	}{
		"on a node that is Ready":   {corev1.ConditionTrue, running, true},
		"on a node that is down":    {corev1.ConditionUnknown, running, false},
		"that wait for their image": {corev1.ConditionTrue, corev1.ContainerState{}, false},
		"that are sidecars":         {corev1.ConditionTrue, running, false},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newJobWorld(t, newTask(class), template(),
				&corev1.Node{
					ObjectMeta: metav1.ObjectMeta{Name: node},
					Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: tt.ready}}},
				})
			w.becomes(batchv1.JobStatus{Active: 1})
			var restart *corev1.ContainerRestartPolicy
			if name == "that are sidecars" {
				restart = ptr.To(corev1.ContainerRestartPolicyAlways)
			}
			must.Get(w.kube.CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "pod", Labels: map[string]string{batchv1.JobNameLabel: theJob}},
				Spec:       corev1.PodSpec{InitContainers: []corev1.Container{{Name: "first", RestartPolicy: restart}}},
				Status:     corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{{Name: "first", State: tt.state}}},
			}, metav1.CreateOptions{}))(t)
			<-time.After(2 * time.Minute)
			synctest.Wait()
			before := w.beats()
			<-time.After(10 * time.Minute)
			synctest.Wait()
			is.Equal(t, w.beats()-before >= 9, tt.beats, "heartbeats")
			if !tt.beats {
				is.Equal(t, w.beats(), before, "writes")
			}
		})
	}
}

// TestOneJobAtATime starts over while the pod of the earlier Job of the node still runs. In stage
// Cordon the server offers the node again at once.
func TestOneJobAtATime(t *testing.T) {
	const earlier = "node-7-example-com-before"
	pod := func(jobName string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "earlier", Labels: map[string]string{batchv1.JobNameLabel: jobName}},
			Spec:       corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	job := func(nodeName string, status batchv1.JobStatus) *batchv1.Job {
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: earlier},
			Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{NodeName: nodeName}}}, Status: status,
		}
	}
	for name, tt := range map[string]struct {
		earlier runtime.Object
		waits   bool
	}{
		"its pod terminates":        {pod(earlier, corev1.PodRunning), true},
		"its pod has not started":   {pod(earlier, corev1.PodPending), true},
		"its pod has ended":         {pod(earlier, corev1.PodFailed), false},
		"a pod of another program":  {pod("cleanup", corev1.PodRunning), false},
		"it may create another pod": {job(node, batchv1.JobStatus{}), true},
		"it has failed":             {job(node, ended(batchv1.JobFailed, "")), false},
		"a Job of another node":     {job("node-8", batchv1.JobStatus{}), false},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newJobWorld(t, newTask(class), template(), tt.earlier)
			<-time.After(time.Minute)
			synctest.Wait()
			_, err := w.kube.BatchV1().Jobs(namespace).Get(t.Context(), theJob, metav1.GetOptions{})
			is.Equal(t, apierrors.IsNotFound(err), tt.waits, "waits")
			if tt.waits {
				w.until("", "Waiting: the")
				before := w.beats()
				<-time.After(2 * time.Minute)
				synctest.Wait()
				is.Equal(t, w.beats(), before, "heartbeats")
			}
			switch tt.earlier.(type) {
			case *corev1.Pod:
				must.Do(t, w.kube.CoreV1().Pods(namespace).Delete(t.Context(), "earlier", metav1.DeleteOptions{}))
			case *batchv1.Job:
				must.Do(t, w.kube.BatchV1().Jobs(namespace).Delete(t.Context(), earlier, metav1.DeleteOptions{}))
			}
			w.job()
		})
	}
}

// newRefusingWorld returns a world with a claimed task, in which refuse returns the error of each
// attempt to create a Job.
func newRefusingWorld(t *testing.T, refuse func() error) *jobWorld {
	t.Helper()
	w := newJobWorld(t, newTask(class, func(t *v1alpha1.NodeTask) { t.Status.State = v1alpha1.NodeTaskOffered }), template())
	w.kube.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		err := refuse()
		return err != nil, nil, err
	})
	must.Get(w.api.MaintenanceV1alpha1().NodeTasks().Update(t.Context(), newTask(class), metav1.UpdateOptions{}))(t)
	return w
}

// TestJobThatCannotBeCreated has a webhook that refuses all Jobs, for a moment or for ever.
func TestJobThatCannotBeCreated(t *testing.T) {
	for name, refusal := range map[string]error{
		"the webhook fails":   apierrors.NewInternalError(errors.New("no endpoints")),
		"the webhook refuses": apierrors.NewForbidden(batchv1.Resource("jobs"), theJob, errors.New("no endpoints")),
	} {
		bubble.Run(t, name, func(t *testing.T) {
			var passes atomic.Bool
			w := newRefusingWorld(t, func() error {
				if passes.Load() {
					return nil
				}
				return refusal
			})
			w.until("", "no endpoints")
			<-time.After(time.Minute)
			synctest.Wait()
			is.True(t, strings.Contains(w.status().Message, "no endpoints"), "message %q", w.status().Message)
			if name == "the webhook fails" {
				passes.Store(true)
				w.job()
				return
			}
			w.until(v1alpha1.NodeTaskResultFailed, "the Job could not be created within 4m0s")
		})
	}
}

// TestNoJobAfterTheClaim has a claim that ends while the Job cannot be created, and a watch that
// does not show it: the worker asks before it creates the Job.
func TestNoJobAfterTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newRefusingWorld(t, func() error { return apierrors.NewServiceUnavailable("it restarts") })
		w.until("", "it restarts")
		created := func() (count int) {
			for _, action := range w.kube.Actions() {
				if action.Matches("create", "jobs") {
					count++
				}
			}
			return count
		}
		w.api.PrependReactor("patch", "nodetasks", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewConflict(v1alpha1.Resource("nodetasks"), node, errors.New("another UID"))
		})
		before := created()
		<-time.After(time.Minute)
		synctest.Wait()
		is.Equal(t, created(), before, "attempts after the end of the claim")
	})
}

func TestJobIsCreatedAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fails := 3
		w := newRefusingWorld(t, func() error {
			if fails--; fails < 0 {
				return nil
			}
			return apierrors.NewServiceUnavailable("it restarts")
		})
		w.job()
		is.Equal(t, w.status().Result, "", "result")
	})
}
