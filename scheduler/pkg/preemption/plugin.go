// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package preemption makes room for pending pods like kube-scheduler's DefaultPreemption, but does
// not break PodDisruptionBudgets of pods whose PriorityClass forbids it (KEP-3280). It wraps
// DefaultPreemption and adds two things: it restricts which pods may be victims, and it removes
// pods that a budget protects through the Eviction API, not by deletion.
package preemption

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	policylisters "k8s.io/client-go/listers/policy/v1"
	schedulinglisters "k8s.io/client-go/listers/scheduling/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/preemption"

	"haulout.dev/haulout/pkg/drain/pdb"
)

const (
	// Name is the plugin's name in the KubeSchedulerConfiguration.
	Name = "HauloutPreemption"

	// role grants the rights that the role system:kube-scheduler lacks.
	role = "haulout-scheduler"

	// maxDiagnoses is the maximum number of nodes in one attempt for which the search is repeated
	// with all pods, to find out which of the protected pods prevent the preemption.
	maxDiagnoses = 100

	startTimeout = 30 * time.Second
)

// Plugin replaces DefaultPreemption.
type Plugin struct {
	*defaultpreemption.DefaultPreemption
	handle   fwk.Handle
	features feature.Features
	// otherwise is the threshold of classes without a threshold, and of pods without a class.
	otherwise int32
	classes   schedulinglisters.PriorityClassLister
	budgets   policylisters.PodDisruptionBudgetLister
	gate      *gate
	waiting   *waitingRoom
	bad       *badThresholds
}

var (
	_ fwk.PreEnqueuePlugin         = &Plugin{}
	_ fwk.PostFilterPlugin         = &Plugin{}
	_ fwk.PodGroupPostFilterPlugin = &Plugin{}
	_ fwk.EnqueueExtensions        = &Plugin{}
	_ upstream.Interface           = &Plugin{}
)

// New returns the plugin. Invalid arguments and missing rights are errors, which stop
// kube-scheduler at its start.
func New(ctx context.Context, given runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := decodeArgs(given)
	if err != nil {
		return nil, fmt.Errorf("args of %s: %w", Name, err)
	}
	if err := checkRights(ctx, handle); err != nil {
		return nil, err
	}
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	inner, err := defaultpreemption.New(ctx, args.upstream(), handle, features)
	if err != nil {
		return nil, fmt.Errorf("args of %s: %w", Name, err)
	}
	informers := handle.SharedInformerFactory()
	p := &Plugin{
		DefaultPreemption: inner,
		handle:            handle,
		features:          features,
		otherwise:         args.threshold(),
		classes:           informers.Scheduling().V1().PriorityClasses().Lister(),
		budgets:           informers.Policy().V1().PodDisruptionBudgets().Lister(),
	}
	registerMetrics()
	if p.bad, err = newBadThresholds(handle); err != nil {
		return nil, err
	}
	if p.waiting, err = newWaitingRoom(ctx, handle); err != nil {
		return nil, err
	}
	go wait.UntilWithContext(ctx, p.waiting.tick, wakeInterval)
	p.gate = newGate(handle, p.rules, inner.Executor.PreemptPod, p.waiting)
	inner.Evaluator.PluginName = Name
	inner.Evaluator.Interface = p
	inner.Executor.PreemptPod = p.gate.preempt
	return p, nil
}

// checkRights checks the rights that the role system:kube-scheduler lacks. Without the right to
// list PriorityClasses, their informer would wait forever and report that only in a log. It returns
// no error if the API server does not answer: the scheduler waits for it, as for its informers.
func checkRights(ctx context.Context, handle fwk.Handle) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := handle.ClientSet()
	if _, err := client.SchedulingV1().PriorityClasses().List(ctx, metav1.ListOptions{Limit: 1}); apierrors.IsForbidden(err) {
		return fmt.Errorf("%s cannot read PriorityClasses: %w; the ClusterRole %s grants this right", Name, err, role)
	}
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "create", Resource: "pods", Subresource: "eviction",
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot check whether pods may be evicted")
		return nil
	}
	if !review.Status.Allowed {
		return fmt.Errorf("%s may not create pods/eviction; the ClusterRole %s grants this right", Name, role)
	}
	return nil
}

// Name returns the name of the plugin.
func (p *Plugin) Name() string { return Name }

// EventsToRegister returns an error if the profile also enables DefaultPreemption, which would run
// first and break budgets. The error stops kube-scheduler.
func (p *Plugin) EventsToRegister(ctx context.Context) ([]fwk.ClusterEventWithHint, error) {
	profile, lists := p.handle.(interface{ ListPlugins() *config.Plugins })
	if !lists {
		return nil, fmt.Errorf("%s cannot check whether profile %q enables %s", Name, p.handle.ProfileName(), defaultpreemption.Name)
	}
	plugins := profile.ListPlugins()
	for _, set := range []config.PluginSet{plugins.PostFilter, plugins.PodGroupPostFilter, plugins.PreEnqueue} {
		for _, plugin := range set.Enabled {
			if plugin.Name == defaultpreemption.Name {
				return nil, fmt.Errorf("profile %q enables both %s and %s: disable it in plugins.multiPoint.disabled",
					p.handle.ProfileName(), defaultpreemption.Name, Name)
			}
		}
	}
	return p.DefaultPreemption.EventsToRegister(ctx)
}

// rules returns the current rules for a pending pod or group with the given priority.
func (p *Plugin) rules(priority int32) (*rules, error) {
	classes, err := p.classes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	r := &rules{priority: priority, refused: p.gate.isRefused, now: p.gate.clock.Now()}
	r.thresholds = newThresholds(classes, p.otherwise, p.groupClasses, p.bad.report)
	if !r.restrict() {
		return r, nil
	}
	budgets, err := p.budgets.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	r.budgets = pdb.NewIndex(budgets)
	return r, nil
}

// attempt is one search for victims for one pending pod.
type attempt struct {
	*rules
	diagnoses atomic.Int32
	// searched is set when the pod is found to be eligible.
	searched bool

	mu   sync.Mutex
	held heldPods
}

func (a *attempt) hold(pods heldPods) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held.add(pods)
}

type attemptKey struct{}

// PostFilter searches for a node on which the pod fits if other pods are removed.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, m fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	var o outcome
	priority := corev1helpers.PodPriority(pod)
	p.waiting.begin(waiter{uid: pod.UID, priority: priority, pods: []*corev1.Pod{pod}})
	defer func() { p.conclude(pod.UID, o) }()
	r, err := p.rules(priority)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	a := &attempt{rules: r}
	result, status := p.DefaultPreemption.PostFilter(context.WithValue(ctx, attemptKey{}, a), state, pod, m)
	o = outcome{searched: a.searched && status.Code() != fwk.Error, found: status.IsSuccess(), restricted: a.restrict(), held: a.held}
	return result, status
}

// outcome is the result of an attempt.
type outcome struct {
	// searched is false if the attempt ended before the search for victims, or with an error.
	searched bool
	// found is set if victims were found.
	found bool
	// restricted is set if budgets can protect some pods from this preemptor.
	restricted bool
	held       heldPods
}

// conclude counts the attempt, and makes the pod or group wait for the budgets that it needs.
func (p *Plugin) conclude(uid types.UID, o outcome) {
	switch {
	case !o.searched:
	case o.found && o.restricted:
		attempts.WithLabelValues(resultWithinBudgets).Inc()
	case !o.found && o.held.any():
		attempts.WithLabelValues(resultHeldBack).Inc()
	default:
		attempts.WithLabelValues(resultUnrestricted).Inc()
	}
	p.waiting.end(uid, o)
}

// PodEligibleToPreemptOthers returns false while victims that were evicted for the pod are not gone
// yet. Upstream checks the condition DisruptionTarget of the victims, which its cache shows late.
func (p *Plugin) PodEligibleToPreemptOthers(ctx context.Context, pod *corev1.Pod, nominated *fwk.Status) (bool, string) {
	if eligible, why := p.DefaultPreemption.PodEligibleToPreemptOthers(ctx, pod, nominated); !eligible {
		return false, why
	}
	if p.gate.awaitsVictims(pod.UID, func(node string) bool {
		cordoned := node == pod.Status.NominatedNodeName && nominated.Code() == fwk.UnschedulableAndUnresolvable
		return !cordoned && p.isNominated(node, pod)
	}) {
		return false, "not eligible because a pod that was evicted for it is not gone yet."
	}
	if a, ok := ctx.Value(attemptKey{}).(*attempt); ok {
		a.searched = true
	}
	return true, ""
}

// isNominated reports whether one of the pods is nominated for the node. It reads the scheduler's
// memory, because the API server shows status.nominatedNodeName late.
func (p *Plugin) isNominated(node string, pods ...*corev1.Pod) bool {
	for _, info := range p.handle.NominatedPodsForNode(node) {
		if slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.UID == info.GetPod().UID }) {
			return true
		}
	}
	return false
}

// SelectVictimsOnNode calls upstream's method without the pods that must not become victims.
func (p *Plugin) SelectVictimsOnNode(ctx context.Context, state fwk.CycleState, preemptor *corev1.Pod, node fwk.NodeInfo,
	victims []*upstream.DomainVictim, budgets []*policyv1.PodDisruptionBudget,
) ([]*corev1.Pod, int, *fwk.Status) {
	a, _ := ctx.Value(attemptKey{}).(*attempt)
	if a == nil {
		return nil, 0, fwk.AsStatus(fmt.Errorf("%s was called for victims outside of PostFilter", Name))
	}
	choose := p.DefaultPreemption.SelectVictimsOnNode
	if !a.restrict() {
		return choose(ctx, state, preemptor, node, victims, budgets)
	}
	if p.gate.isLeftOut(preemptor.UID, node.Node().Name) {
		a.hold(a.heldOf(podsOf(victims)))
		return nil, 0, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) with pods whose preemption was refused a moment ago")
	}
	started := time.Now()
	offered, held := offer(a.rules, victims)
	offerDuration.Observe(time.Since(started).Seconds())
	if len(held) == 0 {
		return choose(ctx, state, preemptor, node, victims, budgets)
	}
	diagnose := a.diagnoses.Add(1) <= maxDiagnoses
	var freshState fwk.CycleState
	var freshNode fwk.NodeInfo
	if diagnose {
		freshState, freshNode = state.Clone(), node.Snapshot()
	}
	pods, violations, status := choose(ctx, state, preemptor, node, offered, budgets)
	if status.IsSuccess() || status.Code() == fwk.Error {
		return pods, violations, status
	}
	// The pod waits for the budgets of all of these pods: each of them may make the preemption
	// possible.
	all := a.heldOf(podsOf(held))
	inTheWay := all
	if diagnose {
		chosen, _, chosenStatus := choose(ctx, freshState, preemptor, freshNode, victims, budgets)
		if !chosenStatus.IsSuccess() {
			// The pod would not fit without budgets either.
			return nil, 0, chosenStatus
		}
		// If upstream chose none of the protected pods, all of them prevent the preemption: the
		// pods that may be victims do not make enough room.
		if named := a.heldOf(among(chosen, all)); named.any() {
			inTheWay = named
		}
	}
	a.hold(all)
	// The text has no names, because upstream counts the nodes with the same text.
	return nil, 0, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf(
		"node(s) with pods that PodDisruptionBudgets protect; preempting them needs priority %d", inTheWay.threshold))
}

// among returns the pods that are in held.
func among(pods []*corev1.Pod, held heldPods) []*corev1.Pod {
	var both []*corev1.Pod
	for _, pod := range pods {
		if held.pods.Has(pod.UID) {
			both = append(both, pod)
		}
	}
	return both
}

// groupClasses returns the names of the PriorityClasses of all groups that the pod belongs to. It
// stops at a group that does not exist.
func (p *Plugin) groupClasses(pod *corev1.Pod) []string {
	if !p.features.EnableGenericWorkload || pod.Spec.SchedulingGroup == nil || pod.Spec.SchedulingGroup.PodGroupName == nil {
		return nil
	}
	manager := p.handle.PodGroupManager()
	group, err := manager.PodGroups().Get(pod.Namespace, *pod.Spec.SchedulingGroup.PodGroupName)
	if err != nil {
		return nil
	}
	classes := []string{group.Spec.PriorityClassName}
	if !p.features.EnableCompositePodGroup {
		return classes
	}
	parent := group.Spec.ParentCompositePodGroupName
	for range schedulingv1beta1.WorkloadMaxTreeDepth {
		if parent == nil {
			break
		}
		composite, err := manager.CompositePodGroups().Get(pod.Namespace, *parent)
		if err != nil {
			break
		}
		classes = append(classes, composite.Spec.PriorityClassName)
		parent = composite.Spec.ParentCompositePodGroupName
	}
	return classes
}

// logger returns the logger for code that runs outside of a call of the framework.
func logger(ctx context.Context) klog.Logger {
	return klog.LoggerWithName(klog.FromContext(ctx), Name)
}
