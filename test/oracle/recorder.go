// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
)

const (
	// overriddenReason is the reason of the event about a maintenance whose order is not followed.
	overriddenReason = "DrainOrderOverridden"
	// nodeTasks is the resource of NodeTasks.
	nodeTasks = "nodetasks"
	// checkInterval is the time between two checks of Wait.
	checkInterval = 20 * time.Millisecond
)

// Scope has the objects that a Recorder watches.
type Scope struct {
	// Only has the plural names of the resources to watch. If it is empty, the Recorder watches all
	// resources except Deployments.
	Only []string
	// Nodes selects the nodes by labels that must not change.
	Nodes labels.Selector
	// Namespaces are the namespaces of the pods, budgets, Deployments and Evacuations to watch.
	Namespaces []string
	// Budgets are recorded as if they existed at the beginning, to count the healthy pods of
	// workloads without a budget.
	Budgets []policyv1.PodDisruptionBudget
	// AuditLog is the file to which kube-apiserver writes its audit log. If it is empty, the Log
	// has no Calls.
	AuditLog string
}

// Recorder watches a cluster and keeps the log.
type Recorder struct {
	Scope

	// Stop ends the recording.
	Stop func()

	kube    kubernetes.Interface
	haulout clientset.Interface
	audit   AuditLog

	mu  sync.Mutex
	log Log
	// view is the current state of the recorded objects.
	view View
	// waiting has the events of Haulout's server that have no place in the log yet.
	waiting []Observation
	// arrived has an element if waiting has events.
	arrived chan struct{}
	failed  error
}

// Start starts a Recorder, which records until the context ends. It fails if a budget in the scope
// is already broken.
func Start(
	ctx context.Context, kube kubernetes.Interface, haulout clientset.Interface, scope Scope,
) (*Recorder, error) {
	r := &Recorder{
		Scope: scope, kube: kube, haulout: haulout, arrived: make(chan struct{}, 1), view: View{live: map[types.UID]runtime.Object{}},
	}
	ctx, r.Stop = context.WithCancel(ctx)
	if scope.AuditLog != "" {
		var err error
		if r.audit, err = OpenAuditLog(scope.AuditLog); err != nil {
			return nil, err
		}
	}
	for i := range scope.Budgets {
		r.log.Observations = append(r.log.Observations, Observation{
			Event: watch.Event{Type: watch.Added, Object: &scope.Budgets[i]}, Seen: time.Now(),
		})
	}
	for _, resource := range resources(kube, haulout) {
		if len(scope.Only) > 0 && !slices.Contains(scope.Only, resource.Name) ||
			len(scope.Only) == 0 && resource.Name == "deployments" || resource.Name == nodeTasks && !servesTasks(haulout) {
			continue
		}
		if len(scope.Namespaces) == 1 && isNamespaced(resource.Name) {
			resource.Namespace = scope.Namespaces[0]
		}
		resource.See, resource.Fail = r.see, r.fail
		if err := Follow(ctx, resource); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log.begin()
	r.view.asked = 0
	for _, h := range HealthOf(r.log) {
		if h.Healthy < h.Floor {
			return nil, fmt.Errorf("budget %s is broken before anything has begun: %d pods are healthy, %d are needed",
				h.Name, h.Healthy, h.Floor)
		}
	}
	go r.place(ctx)
	return r, nil
}

// servesTasks reports whether the server has NodeTasks. Older ones do not.
func servesTasks(haulout clientset.Interface) bool {
	served, err := haulout.Discovery().ServerResourcesForGroupVersion(v1alpha1.SchemeGroupVersion.String())
	return err == nil && slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == nodeTasks })
}

func resources(kube kubernetes.Interface, haulout clientset.Interface) []Resource {
	ours := haulout.MaintenanceV1alpha1().RESTClient()
	return []Resource{
		{Client: kube.CoreV1().RESTClient(), Name: "pods"},
		{Client: kube.CoreV1().RESTClient(), Name: "nodes"},
		{Client: kube.PolicyV1().RESTClient(), Name: "poddisruptionbudgets"},
		{Client: kube.AppsV1().RESTClient(), Name: "deployments"},
		{Client: kube.EventsV1().RESTClient(), Name: "events"},
		{Client: ours, Name: "nodemaintenances", MayRestart: true},
		{Client: ours, Name: "evacuations", MayRestart: true},
		{Client: ours, Name: nodeTasks, MayRestart: true},
	}
}

// isNamespaced reports whether the objects of a resource are in the namespaces of the scope. Events
// about maintenances are in another namespace.
func isNamespaced(resource string) bool {
	return !slices.Contains([]string{"nodes", "events", "nodemaintenances", nodeTasks}, resource)
}

func (r *Recorder) covers(object runtime.Object) bool {
	switch object := object.(type) {
	case *corev1.Node:
		return r.Nodes.Matches(labels.Set(object.Labels))
	case *eventsv1.Event:
		return object.Reason == overriddenReason
	case *v1alpha1.NodeMaintenance, *v1alpha1.NodeTask:
		return true
	case metav1.Object:
		return slices.Contains(r.Namespaces, object.GetNamespace())
	}
	return false
}

func (r *Recorder) see(event watch.Event, relisted bool) {
	if !r.covers(event.Object) {
		return
	}
	// The managed fields are half of each object, and no rule reads them.
	event.Object.(metav1.Object).SetManagedFields(nil)
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch event.Object.(type) {
	case *v1alpha1.NodeMaintenance, *v1alpha1.Evacuation, *v1alpha1.NodeTask:
		r.waiting = append(r.waiting, Observation{Event: event, Seen: now, relisted: relisted})
		select {
		case r.arrived <- struct{}{}:
		default:
		}
	default:
		r.failed = errors.Join(r.failed, r.log.addHost(event, now))
		r.view.add(event)
	}
}

// place assigns the waiting events of Haulout's server a place in the history of the host cluster.
// All events since the last version get the same place.
func (r *Recorder) place(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.arrived:
		}
		r.mu.Lock()
		batch := r.waiting
		r.waiting = nil
		r.mu.Unlock()
		now, err := r.now(ctx)
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		for _, o := range batch {
			err = errors.Join(err, r.log.addHaulout(o.Event, o.Seen, o.relisted, now))
			r.view.add(o.Event)
		}
		r.failed = errors.Join(r.failed, err)
		r.mu.Unlock()
	}
}

// now returns the current version of the host cluster, from a list that kube-apiserver did not
// answer from its cache alone. It retries until kube-apiserver answers.
func (r *Recorder) now(ctx context.Context) (moment, error) {
	version := ""
	err := wait.PollUntilContextCancel(ctx, relistInterval, true, func(ctx context.Context) (bool, error) {
		list, err := r.kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 1})
		if err == nil {
			version = list.ResourceVersion
		}
		return err == nil, nil
	})
	if err != nil {
		return 0, fmt.Errorf("read the version of the host cluster: %w", err)
	}
	return parseMoment(version)
}

// Settle waits until all events of pods and NodeTasks so far have been recorded. For the pods it
// creates a pod that never runs, and deletes it. The watch of the NodeTasks may be later than that
// of the pods and nodes: work whose end is not recorded would seem to go on.
func (r *Recorder) Settle(ctx context.Context) error {
	marker, err := r.kube.CoreV1().Pods(r.Namespaces[0]).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "judge-"},
		Spec:       corev1.PodSpec{SchedulerName: "none", Containers: []corev1.Container{{Name: "none", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := r.kube.CoreV1().Pods(r.Namespaces[0]).Delete(ctx, marker.Name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	tasks, err := r.tasks(ctx)
	if err != nil {
		return err
	}
	return r.wait(ctx, func() string {
		for o, pod := range Each[*corev1.Pod](r.log) {
			if pod.UID == marker.UID && o.Type == watch.Deleted {
				return missing(r.log, tasks)
			}
		}
		return "the last event of the pods has not come"
	})
}

// tasks lists the NodeTasks, if the Recorder watches them. It retries until Haulout's server
// answers.
func (r *Recorder) tasks(ctx context.Context) (*v1alpha1.NodeTaskList, error) {
	list := &v1alpha1.NodeTaskList{ListMeta: metav1.ListMeta{ResourceVersion: "0"}}
	if len(r.Only) > 0 && !slices.Contains(r.Only, nodeTasks) {
		return list, nil
	}
	err := wait.PollUntilContextCancel(ctx, relistInterval, true, func(ctx context.Context) (bool, error) {
		found, err := r.haulout.MaintenanceV1alpha1().NodeTasks().List(ctx, metav1.ListOptions{})
		if err == nil {
			list = found
		}
		return err == nil || apierrors.IsNotFound(err), nil // an older server does not have them
	})
	if err != nil {
		return nil, fmt.Errorf("list the NodeTasks: %w", err)
	}
	return list, nil
}

func (r *Recorder) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = errors.Join(r.failed, err)
}

// NoteGap notes that events of Haulout's server may be missing between two moments.
func (r *Recorder) NoteGap(from, to time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log.Gaps = append(r.log.Gaps, Gap{from, to})
}

// Log returns what was recorded so far. It fails if events are missing.
func (r *Recorder) Log() (Log, error) {
	r.mu.Lock()
	log, err := r.log, r.failed
	r.mu.Unlock()
	if err != nil || r.AuditLog == "" {
		return log, err
	}
	log.Calls, err = r.audit.Calls()
	log.Calls = slices.DeleteFunc(log.Calls, func(c Call) bool { return !slices.Contains(r.Namespaces, c.Namespace) })
	return log, err
}

// Verdict describes what maintenances did wrong so far, given the names of the nodes that a user
// has cordoned.
func (r *Recorder) Verdict(rules Rules, cordoned ...string) ([]string, error) {
	if len(r.Only) > 0 || r.AuditLog == "" {
		return nil, errors.New("a verdict needs all resources and the audit log")
	}
	log, err := r.Log()
	if err != nil {
		return nil, err
	}
	return Verdict(log, rules, cordoned...), nil
}

// View returns the current state.
func (r *Recorder) View() *View {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &View{maps.Clone(r.view.live), r.view.asked}
}

// Wait waits until a check of the current state returns "". Otherwise the check returns what is
// missing.
func (r *Recorder) Wait(ctx context.Context, check func(*View) (missing string)) error {
	return r.wait(ctx, func() string { return check(&r.view) })
}

// wait calls a check under the lock after each recorded event.
func (r *Recorder) wait(ctx context.Context, check func() (missing string)) error {
	checked, missing := -1, ""
	err := wait.PollUntilContextCancel(ctx, checkInterval, true, func(context.Context) (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.failed != nil {
			return false, r.failed
		}
		if len(r.log.Observations) == checked {
			return false, nil
		}
		checked = len(r.log.Observations)
		missing = check()
		return missing == "", nil
	})
	if ctx.Err() != nil && err != nil {
		return fmt.Errorf("%w: %s", context.Cause(ctx), missing)
	}
	return err
}

// View is the current state of the recorded objects.
type View struct {
	live  map[types.UID]runtime.Object
	asked int
}

func (v *View) add(event watch.Event) {
	uid := event.Object.(metav1.Object).GetUID()
	if pod, ok := event.Object.(*corev1.Pod); ok {
		before, known := v.live[uid].(*corev1.Pod)
		asked := event.Type == watch.Deleted || pod.DeletionTimestamp != nil
		if asked && !(known && before.DeletionTimestamp != nil) {
			v.asked++
		}
	}
	if event.Type == watch.Deleted {
		delete(v.live, uid)
	} else {
		v.live[uid] = event.Object
	}
}

// Asked counts the pods that were told to end since the recording began.
func (v *View) Asked() int { return v.asked }

// PodsOn counts the pods on some nodes that have not ended.
func (v *View) PodsOn(nodes sets.Set[string]) int {
	count := 0
	for _, object := range v.live {
		if pod, ok := object.(*corev1.Pod); ok && !isFinished(pod) && nodes.Has(pod.Spec.NodeName) {
			count++
		}
	}
	return count
}

// Pods returns the pods that exist.
func (v *View) Pods() []*corev1.Pod { return sorted[*corev1.Pod](v) }

// Evacuations returns the Evacuations that exist.
func (v *View) Evacuations() []*v1alpha1.Evacuation { return sorted[*v1alpha1.Evacuation](v) }

// sorted returns the objects of a type in the order of their names.
func sorted[T metav1.Object](v *View) []T {
	var list []T
	for _, object := range v.live {
		if object, ok := object.(T); ok {
			list = append(list, object)
		}
	}
	slices.SortFunc(list, func(a, b T) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return list
}

func (v *View) maintenance(name string) *v1alpha1.NodeMaintenance {
	for _, object := range v.live {
		if nm, ok := object.(*v1alpha1.NodeMaintenance); ok && nm.Name == name {
			return nm
		}
	}
	return nil
}

// Drained checks that maintenances are drained.
func Drained(names ...string) func(*View) string {
	return func(v *View) string {
		for _, name := range names {
			nm := v.maintenance(name)
			if nm == nil {
				return name + " does not exist"
			}
			if !meta.IsStatusConditionTrue(nm.Status.Conditions, v1alpha1.ConditionDrained) {
				return fmt.Sprintf("%s is not drained: %+v", name, nm.Status.Conditions)
			}
		}
		return ""
	}
}

// Done checks that maintenances are complete, or gone.
func Done(names ...string) func(*View) string {
	return func(v *View) string {
		for _, name := range names {
			nm := v.maintenance(name)
			if nm != nil && (nm.Spec.Stage != v1alpha1.NodeMaintenanceStageComplete || len(nm.Finalizers) > 0) {
				return name + " is not done"
			}
		}
		return ""
	}
}

// PutBack checks that maintenances are done and that only the cordons of users are left.
func PutBack(cordoned []string, names ...string) func(*View) string {
	return func(v *View) string {
		var closed []string
		for _, node := range sorted[*corev1.Node](v) {
			if node.Spec.Unschedulable {
				closed = append(closed, node.Name)
			}
		}
		switch left := len(v.Evacuations()); {
		case left > 0:
			return fmt.Sprintf("%d Evacuations are left", left)
		case !slices.Equal(closed, cordoned):
			return fmt.Sprintf("not schedulable are %v, want %v", closed, cordoned)
		}
		return Done(names...)(v)
	}
}

// Asked checks that so many pods were told to end since the recording began.
func Asked(pods int) func(*View) string {
	return func(v *View) string {
		if v.asked >= pods {
			return ""
		}
		return fmt.Sprintf("%d pods were told to end, want %d", v.asked, pods)
	}
}
