// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
)

// overriddenReason is the reason of the event about a maintenance whose order is not followed.
const overriddenReason = "DrainOrderOverridden"

// Scope is what a Recorder looks at.
type Scope struct {
	// Nodes selects the nodes. Their labels that it looks at must not change.
	Nodes labels.Selector
	// Namespaces are those of the pods and Evacuations.
	Namespaces []string
	// AuditLog is the file that kube-apiserver writes its audit log to.
	AuditLog string
	// Witness, if not nil, is told what happens to pods and Evacuations, and what the recorder
	// fails with.
	Witness *Witness
}

// Recorder watches a cluster and keeps the history of it, and the books of its budgets.
type Recorder struct {
	Scope

	kube kubernetes.Interface
	log  Log

	mu      sync.Mutex
	history *History
	// books count the healthy pods of budgets. There are none before Start has seen all pods.
	books *Books
	// budgets is how budgets opened and closed.
	budgets Budgets
	// waiting are events of Haulout's server that have no place in the history yet.
	waiting []foreignEvent
	// arrived has an element if there are any.
	arrived chan struct{}
	// placed is closed and recreated with each event.
	placed chan struct{}
	failed error
}

type foreignEvent struct {
	watch.Event

	seen time.Time
}

// Start begins to record; it ends with the context. It fails if a budget of the namespace is broken
// already.
func Start(
	ctx context.Context, kube kubernetes.Interface, haulout clientset.Interface, scope Scope,
) (*Recorder, error) {
	log, err := OpenLog(scope.AuditLog)
	if err != nil {
		return nil, err
	}
	var budgets []policyv1.PodDisruptionBudget
	for _, namespace := range scope.Namespaces {
		list, err := kube.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		budgets = append(budgets, list.Items...)
	}
	r := &Recorder{
		Scope: scope, kube: kube, log: log, history: NewHistory(), arrived: make(chan struct{}, 1),
		placed: make(chan struct{}),
	}
	resources := []Resource{
		{Client: kube.CoreV1().RESTClient(), Name: "pods", See: r.seeHost},
		{Client: kube.CoreV1().RESTClient(), Name: "nodes", See: r.seeHost},
		{
			Client: kube.PolicyV1().RESTClient(), Name: "poddisruptionbudgets",
			See: func(e watch.Event) { r.budgets.See(e, time.Now()) },
		},
		{Client: kube.EventsV1().RESTClient(), Name: "events", See: r.seeEvent},
		{
			Client: haulout.MaintenanceV1alpha1().RESTClient(), Name: "nodemaintenances", MayRestart: true,
			See: r.seeHaulout, SeeState: r.seeHauloutState,
		},
		{
			Client: haulout.MaintenanceV1alpha1().RESTClient(), Name: "evacuations", MayRestart: true,
			See: r.seeHaulout, SeeState: r.seeHauloutState,
		},
	}
	for _, resource := range resources {
		resource.Fail = r.fail
		if err := Follow(ctx, resource); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	pods := make([]corev1.Pod, 0, len(r.history.pods))
	for _, p := range r.history.pods {
		if p.gone.at == never {
			pods = append(pods, *p.Pod)
		}
	}
	if r.books, err = OpenBooks(budgets, pods); err != nil {
		return nil, err
	}
	r.history.Begin()
	go r.place(ctx)
	return r, nil
}

func (r *Recorder) seeHost(event watch.Event) {
	switch object := event.Object.(type) {
	case *corev1.Pod:
		if !slices.Contains(r.Namespaces, object.Namespace) {
			return
		}
		if r.Witness != nil {
			r.Witness.SeePod(event.Type, object, time.Now())
		}
	case *corev1.Node:
		if !r.Nodes.Matches(labels.Set(object.Labels)) {
			return
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.history.HostEvent(event, time.Now()); err != nil {
		r.failed = errors.Join(r.failed, err)
	}
	if pod, ok := event.Object.(*corev1.Pod); ok && r.books != nil {
		r.books.Observe(event.Type, pod)
	}
	r.wake()
}

func (r *Recorder) seeEvent(event watch.Event) {
	if e, ok := event.Object.(*eventsv1.Event); ok && e.Reason == overriddenReason {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.history.Overridden(e.Regarding.UID)
	}
}

func (r *Recorder) seeHaulout(event watch.Event)      { r.seeHauloutAs(event, true) }
func (r *Recorder) seeHauloutState(event watch.Event) { r.seeHauloutAs(event, false) }

// seeHauloutAs takes an event, before which others of the same object may have been missed unless
// it is consecutive.
func (r *Recorder) seeHauloutAs(event watch.Event, isConsecutive bool) {
	if e, ok := event.Object.(*v1alpha1.Evacuation); ok {
		if !slices.Contains(r.Namespaces, e.Namespace) {
			return
		}
		if r.Witness != nil {
			r.Witness.See(event.Type, e, time.Now(), isConsecutive)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, foreignEvent{event, time.Now()})
	select {
	case r.arrived <- struct{}{}:
	default:
	}
}

// place gives the events of Haulout's server their place in the history of the host cluster, events
// since the last version together.
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
		for _, event := range batch {
			err = errors.Join(err, r.history.HauloutEvent(event.Event, now, event.seen))
		}
		r.failed = errors.Join(r.failed, err)
		r.wake()
		r.mu.Unlock()
	}
}

// now returns the present version of the host cluster: that of a list that was not answered from a
// cache alone. It waits for a kube-apiserver that cannot answer.
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

func (r *Recorder) fail(err error) {
	if r.Witness != nil {
		r.Witness.Report("%v", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = errors.Join(r.failed, err)
	r.wake()
}

func (r *Recorder) wake() {
	close(r.placed)
	r.placed = make(chan struct{})
}

// Wait waits until check, which sees the present state, returns an empty text. Until then that says
// what is missing.
func (r *Recorder) Wait(ctx context.Context, check func(*View) (missing string)) error {
	for {
		r.mu.Lock()
		missing, failed, placed := check(&View{r.history}), r.failed, r.placed
		r.mu.Unlock()
		if failed != nil {
			return failed
		}
		if missing == "" {
			return nil
		}
		select {
		case <-placed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), missing)
		}
	}
}

// Settle waits until everything that has happened to pods so far has been recorded: it makes a pod
// that never runs, and removes it.
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
	return r.Wait(ctx, func(v *View) string {
		if p := v.history.pods[marker.UID]; p == nil || p.gone.at == never {
			return "the last event of the pods has not come"
		}
		return ""
	})
}

// Missed describes the Deployments that had fewer healthy pods at some time than in the beginning:
// a drain that replaces pods before they leave finds none.
func (r *Recorder) Missed() ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.books.Missed(), r.failed
}

// Calls returns the requests to make pods leave so far.
func (r *Recorder) Calls() ([]Call, error) {
	calls, err := r.log.Calls()
	return slices.DeleteFunc(calls, func(c Call) bool { return !slices.Contains(r.Namespaces, c.Namespace) }), err
}

// View is the present state of what is recorded.
type View struct {
	history *History
}

// Asked counts the pods that were told to end since the recording began.
func (v *View) Asked() int { return v.history.asked }

// Evacuated returns the UIDs of the pods that a maintenance asked for and that were told to end
// since: by an eviction, or because their Deployment was scaled back.
func (v *View) Evacuated() []types.UID {
	var pods []types.UID
	for uid := range v.history.byPod {
		if v.history.evacuated(uid) {
			pods = append(pods, uid)
		}
	}
	return pods
}

// Drained reports whether a maintenance says so of itself.
func (v *View) Drained(name string) bool {
	condition := v.drained(name)
	return condition != nil && condition.Status == metav1.ConditionTrue
}

// Progress is what a maintenance says of its drain.
func (v *View) Progress(name string) string {
	if condition := v.drained(name); condition != nil {
		return condition.Message
	}
	return "it does not say"
}

func (v *View) drained(name string) *metav1.Condition {
	if nm := v.maintenance(name); nm != nil {
		return meta.FindStatusCondition(nm.Status.Conditions, v1alpha1.ConditionDrained)
	}
	return nil
}

// Done reports whether a maintenance has put everything back, or is gone.
func (v *View) Done(name string) bool {
	nm := v.maintenance(name)
	return nm == nil || nm.Spec.Stage == v1alpha1.NodeMaintenanceStageComplete && len(nm.Finalizers) == 0
}

func (v *View) maintenance(name string) *v1alpha1.NodeMaintenance {
	for _, m := range v.history.maintenances {
		if m.last.Name == name && m.gone == nil {
			return m.last
		}
	}
	return nil
}

// Evacuations returns the UIDs of the pods of the Evacuations that exist.
func (v *View) Evacuations() []types.UID {
	var pods []types.UID
	for _, e := range v.history.evacuations {
		if !e.gone {
			pods = append(pods, e.Spec.PodRef.UID)
		}
	}
	return pods
}

// Closed returns the names of the nodes that are not schedulable.
func (v *View) Closed() []string {
	var closed []string
	for _, n := range v.history.nodes {
		if n.gone.at == never && n.last.Spec.Unschedulable {
			closed = append(closed, n.last.Name)
		}
	}
	slices.Sort(closed)
	return closed
}

// evacuated reports whether a pod that a maintenance has asked for was told to go, in any way.
func (h *History) evacuated(uid types.UID) bool {
	p := h.pods[uid]
	return p != nil && p.asked.at != never &&
		slices.ContainsFunc(h.byPod[uid], func(e *evacuationRecord) bool { return e.made != nil })
}
