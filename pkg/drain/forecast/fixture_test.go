// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/surge"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

var now = time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)

type (
	podList = []*corev1.Pod
	limits  = []policyv1.PodDisruptionBudget
	list    = []string
)

// scene has the parts of a Situation that a test sets.
type scene struct {
	// allAtOnce sets UnprotectedAllAtOnce.
	allAtOnce  bool
	subject    *v1alpha1.NodeMaintenance
	nodes      []*corev1.Node
	refused    []string
	pods       []*corev1.Pod
	budgets    []policyv1.PodDisruptionBudget
	namespaces []string
	evacuators []string
	owners     owners
	pinned     []string
	draining   []Member
	sharing    []Member
}

// preview returns the preview of a subject that selects every node of the scene.
func (s scene) preview(t *testing.T) *v1alpha1.NodeMaintenancePreview {
	t.Helper()
	if s.subject == nil {
		s.subject = maintenance("subject")
	}
	if s.nodes == nil {
		s.nodes = []*corev1.Node{node("n1"), node("n2")}
	}
	all := s.nodes
	for _, m := range s.draining {
		all = append(all, m.Nodes...)
	}
	evacuators := sets.New(s.evacuators...)
	pinned := sets.New[types.NamespacedName]()
	for _, claim := range s.pinned {
		pinned.Insert(types.NamespacedName{Namespace: "shop", Name: claim})
	}
	pods := NewPods(all, evacuators, nodeOf)
	for _, pod := range s.pods {
		pods.Add(pod)
	}
	return must.Get(Decide(t.Context(), &Situation{
		Subject:  Member{NodeMaintenance: s.subject, Nodes: s.nodes, Refused: sets.New(s.refused...)},
		Draining: s.draining, Sharing: s.sharing, Pods: pods, Budgets: s.budgets,
		TerminatingNamespaces: sets.New(s.namespaces...), Owners: s.owners, Evacuators: evacuators, Pinned: pinned,
		UnprotectedAllAtOnce: s.allAtOnce, Now: now,
	}))(t)
}

// maintenance returns a maintenance in stage Idle with the default plan.
func maintenance(
	name string, modifiers ...func(*v1alpha1.NodeMaintenance),
) *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID("uid-" + name), Generation: 3,
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
		},
		Spec: v1alpha1.NodeMaintenanceSpec{RequestedBy: &authenticationv1.UserInfo{Username: "ann"}},
	}
	for _, modify := range modifiers {
		modify(nm)
	}
	v1alpha1.SetDefaults_NodeMaintenanceSpec(&nm.Spec)
	if nm.Spec.Stage == "" {
		nm.Spec.Stage = v1alpha1.NodeMaintenanceStageIdle
	}
	return nm
}

func atStage(stage v1alpha1.NodeMaintenanceStage) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.Stage = stage }
}

func created(ago time.Duration) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.CreationTimestamp = metav1.NewTime(now.Add(-ago)) }
}

func planned(entries ...v1alpha1.DrainPlanEntry) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) { nm.Spec.DrainPlan = entries }
}

// reached sets the targets of a node in the status.
func reached(name string, targets ...v1alpha1.DrainPlanEntry) func(*v1alpha1.NodeMaintenance) {
	return func(nm *v1alpha1.NodeMaintenance) {
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef:      v1alpha1.NodeReference{Name: name, UID: types.UID("uid-" + name)},
			DrainTargets: targets,
		})
	}
}

func entry(podType v1alpha1.PodType, priority int32, app string) v1alpha1.DrainPlanEntry {
	e := v1alpha1.DrainPlanEntry{PodType: podType, PodPriority: priority}
	if app != "" {
		e.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	}
	return e
}

func node(name string, modifiers ...func(*corev1.Node)) *corev1.Node {
	return build.With(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}, modifiers...)
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func unreachable(n *corev1.Node) {
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
}

func withAgent(n *corev1.Node) {
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.AnnotationKeptStaticPods, protocol.EncodeKeptStaticPods("", false, nil))
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
		Type: v1alpha1.NodeConditionAgentReady, Status: corev1.ConditionTrue,
	})
}

// pod returns a ready pod of the ReplicaSet rs in the namespace shop, with the label app.
func pod(name, app, on string, modifiers ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: on},
		Status:     build.Ready(),
	}
	ownedBy("apps/v1", "ReplicaSet", "rs")(p)
	return build.With(p, modifiers...)
}

func ownedBy(apiVersion, kind, name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID("uid-" + name), Controller: ptr.To(true)},
		}
	}
}

func bare(p *corev1.Pod) { p.OwnerReferences = nil }

func unready(p *corev1.Pod) { p.Status.Conditions = nil }

func in(namespace string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Namespace = namespace }
}

func withPriority(priority int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Priority = &priority }
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
}

func held(finalizers ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Finalizers = finalizers }
}

// goneBy sets the deletion timestamp of the pod.
func goneBy(since time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(now.Add(-since))) }
}

func nominated(p *corev1.Pod) {
	p.Status = corev1.PodStatus{Phase: corev1.PodPending, NominatedNodeName: p.Spec.NodeName}
	p.Spec.NodeName = ""
}

func inPhase(phase corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = phase }
}

// pods returns the pods app-1, app-2 and so on of a node.
func pods(count int, app, on string, modifiers ...func(*corev1.Pod)) []*corev1.Pod {
	var out []*corev1.Pod
	for i := range count {
		out = append(out, pod(fmt.Sprintf("%s-%d", app, i+1), app, on, modifiers...))
	}
	return out
}

// budget returns a budget with maxUnavailable 1 for the label app. It allows the given number of
// disruptions, and its ten pods are all healthy.
func budget(
	name, app string, allowed int32, modifiers ...func(*policyv1.PodDisruptionBudget),
) policyv1.PodDisruptionBudget {
	b := policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			MaxUnavailable: ptr.To(intstr.FromInt32(1)),
		},
		Status: policyv1.PodDisruptionBudgetStatus{
			DisruptionsAllowed: allowed, CurrentHealthy: 10, DesiredHealthy: 9, ExpectedPods: 10,
		},
	}
	return *build.With(&b, modifiers...)
}

// web returns the budget web for pods with the label web.
func web(allowed int32, modifiers ...func(*policyv1.PodDisruptionBudget)) policyv1.PodDisruptionBudget {
	return budget("web", "web", allowed, modifiers...)
}

// webs returns pods with the label web on the node n1.
func webs(count int, modifiers ...func(*corev1.Pod)) []*corev1.Pod {
	return pods(count, "web", "n1", modifiers...)
}

func unhealthy(healthy int32) func(*policyv1.PodDisruptionBudget) {
	return func(b *policyv1.PodDisruptionBudget) { b.Status.CurrentHealthy = healthy }
}

func closed(b *policyv1.PodDisruptionBudget) { b.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(0)) }

func lettingUnreadyGo(b *policyv1.PodDisruptionBudget) {
	b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
}

func failed(b *policyv1.PodDisruptionBudget) {
	b.Status.DisruptionsAllowed = 0
	b.Status.Conditions = []metav1.Condition{{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: "no controllers found",
	}}
}

// owners has the ReplicaSet rs of the Deployment web if rs is set, and the DaemonSet agent if agent
// is set, both for the label app=web.
type owners struct {
	rs, agent bool
	// web changes the Deployment.
	web func(*appsv1.Deployment)
	// job is returned for every name of a Job; nil if there is none.
	job *batchv1.Job
}

func recreating(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType }

func unscaled(d *appsv1.Deployment) {
	d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeDisabled}
}

// pastBudgets makes a Deployment replace pods whose budget never allows an eviction.
func pastBudgets(d *appsv1.Deployment) {
	d.Annotations = map[string]string{v1alpha1.AnnotationSurge: v1alpha1.SurgeAlways}
}

func serving(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways }

var selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}

func (o owners) ReplicaSet(_ context.Context, _, name string) (*appsv1.ReplicaSet, error) {
	if !o.rs || name != "rs" {
		return nil, nil
	}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: "uid-rs", OwnerReferences: build.Owner("apps/v1", "Deployment", "web", "uid-web"),
		},
		Spec: appsv1.ReplicaSetSpec{Selector: selector},
	}, nil
}

func (o owners) Deployment(_ context.Context, _, name string) (*appsv1.Deployment, error) {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-web"}, Spec: appsv1.DeploymentSpec{Selector: selector},
	}
	if o.web != nil {
		o.web(d)
	}
	return d, nil
}

func (o owners) Surge(namespace, name string) *surge.Candidate {
	d, _ := o.Deployment(context.Background(), namespace, name)
	return &surge.Candidate{Deployment: d}
}

func (o owners) Job(string, string) *batchv1.Job { return o.job }

func (o owners) DaemonSet(_ context.Context, _, name string) (*appsv1.DaemonSet, error) {
	if !o.agent {
		return nil, nil
	}
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       appsv1.DaemonSetSpec{Selector: selector},
	}, nil
}

func (o owners) Node(_ context.Context, name string) (*corev1.Node, error) {
	return node(name, withAgent), nil
}

// outline returns a line for each wave, and a line for each of its nodes.
func outline(out *v1alpha1.NodeMaintenancePreview) []string {
	var lines []string
	for i := range out.Waves {
		w := &out.Waves[i]
		line := fmt.Sprintf("%d: %s<=%d", w.Index, w.PodType, w.PodPriority)
		if w.PodSelector != nil {
			line += " " + metav1.FormatLabelSelector(w.PodSelector)
		}
		line += fmt.Sprintf(": %d pods on %d nodes, %d asked", w.PodCount, w.NodeCount, w.PodsAsked)
		if w.PodsTerminating > 0 {
			line += fmt.Sprintf(", %d terminating", w.PodsTerminating)
		}
		lines = append(lines, line)
		for _, n := range w.Nodes {
			text := fmt.Sprintf("  %s(%d)", n.Name, n.PodCount)
			for _, namespace := range n.Namespaces {
				var names []string
				for _, p := range namespace.Pods {
					names = append(names, p.Name)
				}
				text += " " + namespace.Name + "/" + strings.Join(names, ",")
			}
			lines = append(lines, text)
		}
	}
	return lines
}

// troubles returns a line for each blocker.
func troubles(out *v1alpha1.NodeMaintenancePreview) []string {
	var lines []string
	for i := range out.Blockers {
		b := &out.Blockers[i]
		line := fmt.Sprintf("%s %s: %d", b.Effect, b.Reason, b.PodCount)
		for _, budget := range b.Budgets {
			line += fmt.Sprintf(" %s(%d)", budget.Name, budget.DisruptionsAllowed)
		}
		if b.Rounds > 0 {
			line += fmt.Sprintf(" in %d rounds", b.Rounds)
		}
		lines = append(lines, line)
	}
	return lines
}

// nodeOf returns the node for which a pod counts: the node to which it is bound, or else the
// nominated node.
func nodeOf(pod *corev1.Pod) string {
	return cmp.Or(pod.Spec.NodeName, pod.Status.NominatedNodeName)
}
