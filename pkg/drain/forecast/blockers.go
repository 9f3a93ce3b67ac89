// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/pdb"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/drain/surge"
)

const (
	// overdueAfter is how long a pod may still exist after the end of its grace period.
	overdueAfter   = 30 * time.Second
	namesInMessage = 3
)

// blocker is a problem that one or more pods share.
type blocker struct {
	v1alpha1.PreviewBlocker
	pods []*leavingPod
	// names are the names for the message of the blocker.
	names []string
	// completing are the pods if the plan lets them complete.
	completing drainplan.Completing
}

func (b *blocker) add(pod *leavingPod, names ...string) {
	b.pods = append(b.pods, pod)
	for _, name := range names {
		if len(b.names) <= namesInMessage && !slices.Contains(b.names, name) {
			b.names = append(b.names, name)
		}
	}
}

// named returns the first names, joined.
func (b *blocker) named() string {
	if len(b.names) > namesInMessage {
		return strings.Join(b.names[:namesInMessage], ", ") + " and others"
	}
	return strings.Join(b.names, ", ")
}

// kind identifies a blocker by its effect, reason and budgets.
type kind struct {
	effect  v1alpha1.PreviewEffect
	reason  string
	budgets string
}

type trouble struct {
	*decision
	// budgets has the budgets of the Situation.
	budgets *pdb.Index
	found   map[kind]*blocker
	uses    map[*policyv1.PodDisruptionBudget]*budgetUse
	// unprotected has the pods that no budget protects, by their owner.
	unprotected map[string][]*leavingPod
	ofJobs      map[types.NamespacedName][]*leavingPod
}

func newTrouble(d *decision) *trouble {
	t := &trouble{decision: d, budgets: pdb.NewIndex(nil), found: map[kind]*blocker{}, uses: map[*policyv1.PodDisruptionBudget]*budgetUse{},
		unprotected: map[string][]*leavingPod{}, ofJobs: map[types.NamespacedName][]*leavingPod{}}
	for i := range d.Budgets {
		t.budgets.Set(&d.Budgets[i])
	}
	return t
}

// of returns the blocker with this effect, reason and budgets. It creates the blocker on first use.
func (t *trouble) of(effect v1alpha1.PreviewEffect, reason string, budgets ...*policyv1.PodDisruptionBudget) *blocker {
	k := kind{effect: effect, reason: reason}
	for _, budget := range budgets {
		k.budgets += pdb.NameOf(budget).String() + " "
	}
	if t.found[k] == nil {
		b := &blocker{}
		b.Effect, b.Reason = effect, reason
		for _, budget := range budgets {
			b.Budgets = append(b.Budgets, v1alpha1.PreviewBudget{
				Namespace: budget.Namespace, Name: budget.Name, DisruptionsAllowed: int32(pdb.Allowed(budget)),
			})
		}
		t.found[k] = b
	}
	return t.found[k]
}

func (t *trouble) look(pod *leavingPod, on *nodeState) {
	if pod.completes() {
		t.addCompleting(pod)
		return
	}
	if pod.Nominated {
		t.of(v1alpha1.PreviewEffectNotNow, v1alpha1.ReasonPodNominated).add(pod)
		return
	}
	if on.unreachable {
		t.of(v1alpha1.PreviewEffectNotNow, v1alpha1.ReasonNodeUnreachable).add(pod, pod.Node)
	}
	if pod.Terminating() {
		if t.Now.After(pod.GoneBy.Add(overdueAfter)) && !on.unreachable {
			t.addOverdue(pod)
		}
		return
	}
	if len(pod.finalizers) > 0 {
		t.of(v1alpha1.PreviewEffectDelayed, v1alpha1.ReasonPodFinalizer).add(pod, pod.finalizers...)
	}
	if t.TerminatingNamespaces.Has(pod.Namespace) {
		t.of(v1alpha1.PreviewEffectNotNow, v1alpha1.ReasonNamespaceTerminating).add(pod, pod.Namespace)
		return
	}
	if len(pod.Classes) == 0 {
		t.of(v1alpha1.PreviewEffectNever, v1alpha1.ReasonNoEvacuator).add(pod)
	}
	if name, ok := pod.jobOf(); ok {
		job := types.NamespacedName{Namespace: pod.Namespace, Name: name}
		t.ofJobs[job] = append(t.ofJobs[job], pod)
	}
	if pod.Owner == nil {
		t.of(v1alpha1.PreviewEffectLost, v1alpha1.ReasonNoController).add(pod)
	}
	if len(pod.responders) > 0 {
		t.of(v1alpha1.PreviewEffectUnasked, v1alpha1.ReasonEvictionResponders).add(pod, pod.responders...)
	}
	if pod.Held {
		t.addBudgets(pod, t.budgets.Matching(pod.Namespace, pod.Labels))
	}
}

// addBudgets adds a pod to the blockers of the budgets that select it. A budget that allows no
// disruption at the moment is not treated as one that never allows an eviction.
func (t *trouble) addBudgets(pod *leavingPod, budgets []*policyv1.PodDisruptionBudget) {
	if len(budgets) == 0 {
		t.addUnprotected(pod)
		return
	}
	if len(budgets) > 1 {
		refusal := pdb.ExplainSeveral(budgets)
		b := t.of(v1alpha1.PreviewEffectNever, refusal.Reason, budgets...)
		b.Message = refusal.Message
		b.add(pod)
		return
	}
	budget := budgets[0]
	if !pod.Ready && pdb.LetsUnreadyGo(budget) {
		return
	}
	why, never := pdb.NeverAllows(budget)
	refusal := pod.Refusal
	if never && pod.Surge != nil {
		refusal = pod.Surge.RefuseUnder(budget)
	}
	switch {
	case never && (pod.Surge == nil || !refusal.IsZero()):
		t.addNever(pod, budget, refusal)
	case never:
		t.addReplaced(pod, budget, "allows no eviction as it is ("+why+")")
	case pod.Surge != nil && opensWithOneMore(budget):
		t.addReplaced(pod, budget, "allows no eviction now")
	default:
		if t.uses[budget] == nil {
			t.uses[budget] = &budgetUse{budget: budget, byWave: map[int]int{}}
		}
		t.uses[budget].add(pod)
		if t.isPinned(pod) {
			t.uses[budget].pinned = append(t.uses[budget].pinned, pod)
		}
	}
}

// addCompleting adds a pod that the plan lets complete. A pod that always restarts never does.
func (t *trouble) addCompleting(pod *leavingPod) {
	const reason = v1alpha1.ReasonProgressWaitingForCompletion
	if pod.Restarts && pod.Until.IsZero() {
		t.of(v1alpha1.PreviewEffectNever, reason).add(pod)
		return
	}
	b := t.of(v1alpha1.PreviewEffectDelayed, reason)
	b.completing.Add(pod.Name, pod.Until)
	b.add(pod)
}

func (t *trouble) addOverdue(pod *leavingPod) {
	if len(pod.finalizers) > 0 {
		t.of(v1alpha1.PreviewEffectNotNow, v1alpha1.ReasonPodFinalizer).add(pod, pod.finalizers...)
		return
	}
	t.of(v1alpha1.PreviewEffectNotNow, v1alpha1.ReasonPodTerminating).add(pod)
}

// addNever adds a pod whose budget never allows an eviction and whose Deployment is not scaled up
// because of the refusal. If an operator owns the pod, it may move the pod's role to another pod,
// and the budget then allows the eviction.
func (t *trouble) addNever(pod *leavingPod, budget *policyv1.PodDisruptionBudget, refusal surge.Refusal) {
	owner, effect := pdb.OwnerOf(pod.Owner), v1alpha1.PreviewEffectNever
	if owner.IsOperator() {
		effect = v1alpha1.PreviewEffectNotNow
	}
	if pod.Surge != nil && !surge.IsAlways(pod.Surge.Deployment.Annotations) {
		// Only the budget prevents a replacement, so the remedy names the annotation that allows
		// the replacement.
		owner, refusal = pdb.OwnerDeployment, surge.Refusal{}
	}
	why := pdb.Explain(budget, owner)
	if !refusal.IsZero() {
		why = why.NotReplacedFirst(pod.Deployment, refusal.String())
	}
	b := t.of(effect, why.Reason, budget)
	if b.Message == "" {
		b.Message = why.Message
	}
	b.add(pod)
}

// addReplaced adds a pod that leaves when its replacement is available, although its budget allows
// no eviction.
func (t *trouble) addReplaced(pod *leavingPod, budget *policyv1.PodDisruptionBudget, says string) {
	b := t.of(v1alpha1.PreviewEffectDelayed, v1alpha1.ReasonPodDisruptionBudget, budget)
	b.Message = fmt.Sprintf("PodDisruptionBudget %s %s. The pods leave when their Deployment has been scaled up within its maxSurge and other pods are "+
		"available in their place.", budget.Name, says)
	b.add(pod)
}

// addJobs adds the pods of Jobs that fail permanently when their pods are evicted. It counts the
// pods of all waves together. This is wrong for a Job that ends between two waves, which is rare.
func (t *trouble) addJobs() {
	byName := func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }
	for _, name := range slices.SortedFunc(maps.Keys(t.ofJobs), byName) {
		pods := t.ofJobs[name]
		job := t.Owners.Job(name.Namespace, name.Name)
		if job == nil || !failsJob(job, int32(len(pods))) {
			continue
		}
		for _, pod := range pods {
			t.of(v1alpha1.PreviewEffectLost, v1alpha1.ReasonJobFails).add(pod, name.String())
		}
	}
}

// jobOf returns the name of the Job that owns a pod; ok is false if no Job owns it.
func (p *Pod) jobOf() (name string, ok bool) {
	if p.Owner == nil || p.Owner.Kind != "Job" || p.Owner.APIVersion != batchv1.SchemeGroupVersion.String() {
		return "", false
	}
	return p.Owner.Name, true
}

// failsJob reports whether a Job fails permanently if the given number of its pods is evicted at
// the same time. An evicted pod counts as failed, unless the Job's pod failure policy ignores
// disrupted pods (KEP-3329). A Job that counts failures per index (KEP-3850) permanently loses an
// index only if it allows no failures of the index.
func failsJob(job *batchv1.Job, evicted int32) bool {
	if action, ok := onDisruption(job.Spec.PodFailurePolicy); ok {
		switch action {
		case batchv1.PodFailurePolicyActionIgnore:
			return false
		case batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionFailIndex:
			return true
		}
	}
	if limit := job.Spec.BackoffLimitPerIndex; limit != nil {
		return *limit == 0
	}
	limit := job.Spec.BackoffLimit
	return limit != nil && job.Status.Failed+evicted > *limit
}

// onDisruption returns the action of the first rule that matches a disrupted pod.
func onDisruption(policy *batchv1.PodFailurePolicy) (batchv1.PodFailurePolicyAction, bool) {
	if policy == nil {
		return "", false
	}
	for i := range policy.Rules {
		for _, pattern := range policy.Rules[i].OnPodConditions {
			// The API server defaults the status to True.
			if pattern.Type == corev1.DisruptionTarget && (pattern.Status == "" || pattern.Status == corev1.ConditionTrue) {
				return policy.Rules[i].Action, true
			}
		}
	}
	return "", false
}

// all returns the blockers, the worst first.
func (t *trouble) all() []*blocker {
	for _, use := range t.uses {
		t.addUse(use)
	}
	t.addTurns()
	t.addJobs()
	all := make([]*blocker, 0, len(t.found))
	for _, b := range t.found {
		b.explain()
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b *blocker) int {
		return cmp.Or(
			cmp.Compare(badness(a.Effect), badness(b.Effect)),
			-cmp.Compare(len(a.pods), len(b.pods)),
			strings.Compare(a.Reason, b.Reason),
			slices.CompareFunc(a.Budgets, b.Budgets, func(x, y v1alpha1.PreviewBudget) int {
				return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
			}),
		)
	})
	return all
}

// badness returns the rank of an effect; the worst effect has the lowest rank.
func badness(e v1alpha1.PreviewEffect) int {
	return slices.Index([]v1alpha1.PreviewEffect{
		v1alpha1.PreviewEffectNever, v1alpha1.PreviewEffectNotNow, v1alpha1.PreviewEffectLost, v1alpha1.PreviewEffectUnasked,
		v1alpha1.PreviewEffectDelayed,
	}, e)
}

// explain sets the message for the reason of a blocker, unless it already has a message.
func (b *blocker) explain() {
	if b.Message != "" {
		return
	}
	switch b.Reason {
	case v1alpha1.ReasonNodeUnreachable:
		b.Message = fmt.Sprintf("The kubelet does not respond on %s, so it cannot confirm that a pod there has stopped. "+
			"Bring the nodes back, or make sure that they are off and then taint them with node.kubernetes.io/out-of-service.", b.named())
	case v1alpha1.ReasonNamespaceTerminating:
		b.Message = fmt.Sprintf("No Evacuation can be created in a namespace that is being deleted: %s. The pods leave with their namespace.", b.named())
	case v1alpha1.ReasonNoEvacuator:
		b.Message = "No evacuator is able to remove these pods: they cannot be evicted, and the owner in their owner references does not exist or does not select them. " +
			"Correct their owner references, or delete them by hand."
	case v1alpha1.ReasonProgressWaitingForCompletion:
		b.Message = b.explainCompletion()
	case v1alpha1.ReasonTurnsByOwner:
		b.Message = fmt.Sprintf("No PodDisruptionBudget protects the pods of %s. Only some pods of a workload may be missing at the same time, "+
			"so these pods leave in groups, each when the replacements of the previous group are ready or have had time to start.", b.named())
	case v1alpha1.ReasonPodTerminating:
		b.Message = "The grace period of the pods has ended and they have not stopped. Check their containers and the kubelets of their nodes."
	case v1alpha1.ReasonNoController:
		b.Message = "No controller owns the pods, so nothing recreates them after they have left."
	case v1alpha1.ReasonJobFails:
		b.Message = fmt.Sprintf("An evicted pod counts as failed, and these Jobs allow no more failures, so they fail permanently: %s. "+
			"Wait until they have ended, raise their backoffLimit, or make their podFailurePolicy ignore the condition DisruptionTarget.", b.named())
	case v1alpha1.ReasonEvictionResponders:
		b.Message = fmt.Sprintf("The pods name eviction responders that the drain does not ask, so they leave without the steps of these: %s. "+
			"A responder that is also an evacuator is asked: name it in an annotation of the pods.", b.named())
	case v1alpha1.ReasonPodNominated:
		b.Message = "The scheduler has nominated these nodes for the pods, but not bound the pods to them. The drain does not evict the pods: " +
			"it waits until the scheduler drops the nomination or binds them to other nodes."
	case v1alpha1.ReasonPodFinalizer:
		b.Message = fmt.Sprintf("The pods remain after they have stopped until their finalizers are removed: %s.", b.named())
		if b.Effect == v1alpha1.PreviewEffectNotNow {
			b.Message = fmt.Sprintf("The grace period of the pods has ended, but finalizers prevent their deletion: %s. Check the controllers that added them.", b.named())
		}
	}
}

// explainCompletion returns the message about pods that the plan lets complete.
func (b *blocker) explainCompletion() string {
	const waits = "The drain plan waits until these pods complete (behavior WaitCompleted)"
	switch until := b.completing.Until; {
	case b.Effect == v1alpha1.PreviewEffectNever:
		return waits + ", without a limit, and their containers restart whenever they end (restartPolicy Always). " +
			"Set waitSeconds in the entry of the plan, or select only pods that complete."
	case !until.IsZero():
		return fmt.Sprintf("%s. It asks those that are left to leave from %s on.", waits, until.UTC().Format(time.RFC3339))
	}
	return waits + ", without a limit."
}

func (d *decision) describeBlockers(out *v1alpha1.NodeMaintenancePreview) {
	listed := d.blockers[:min(len(d.blockers), MaxBlockers)]
	out.BlockersOmitted = int32(len(d.blockers) - len(listed))
	for _, b := range listed {
		pods := make([]*Pod, 0, len(b.pods))
		for _, pod := range b.pods {
			pods = append(pods, pod.Pod)
		}
		b.PodCount = int32(len(pods))
		b.Pods, b.PodsOmitted = references(pods)
		out.Blockers = append(out.Blockers, b.PreviewBlocker)
	}
}

// describePodsKept adds the pods that are kept running to the preview, the reason with most pods
// first.
func (d *decision) describePodsKept(out *v1alpha1.NodeMaintenancePreview) {
	for reason, pods := range d.kept {
		kept := v1alpha1.PreviewPodsKept{Reason: string(reason), PodCount: int32(len(pods))}
		kept.Pods, kept.PodsOmitted = references(pods)
		out.PodsKept = append(out.PodsKept, kept)
		out.PodsKeptCount += kept.PodCount
	}
	slices.SortFunc(out.PodsKept, func(a, b v1alpha1.PreviewPodsKept) int {
		return cmp.Or(-cmp.Compare(a.PodCount, b.PodCount), strings.Compare(a.Reason, b.Reason))
	})
}

// references returns references to the first pods, and the number of pods that it omits.
func references(pods []*Pod) (listed []v1alpha1.PreviewPodReference, omitted int32) {
	sorted := slices.SortedFunc(slices.Values(pods), func(a, b *Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.Node, b.Node))
	})
	for _, pod := range sorted[:min(len(sorted), MaxPodsOfGroup)] {
		listed = append(listed, v1alpha1.PreviewPodReference{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Node})
	}
	return listed, int32(len(sorted) - len(listed))
}

// describeMaintenances adds the other maintenances on the same nodes to the preview.
func (d *decision) describeMaintenances(out *v1alpha1.NodeMaintenancePreview) {
	for i := range d.Sharing {
		other := &d.Sharing[i]
		shared := v1alpha1.PreviewMaintenance{Name: other.Name, Stage: other.Spec.Stage}
		for _, n := range other.Nodes {
			if d.nodes[n.Name] == nil {
				continue
			}
			shared.NodeCount++
			if d.result.FastForwarded[d.subject][n.Name] == other.Name {
				shared.NodesFastForwarded++
			}
		}
		out.Maintenances = append(out.Maintenances, shared)
	}
	slices.SortFunc(out.Maintenances, func(a, b v1alpha1.PreviewMaintenance) int { return strings.Compare(a.Name, b.Name) })
	out.Maintenances = out.Maintenances[:min(len(out.Maintenances), MaxMaintenances)]
}

func (d *decision) describeNodes(out *v1alpha1.NodeMaintenancePreview) {
	username := ""
	if d.Subject.Spec.RequestedBy != nil {
		username = d.Subject.Spec.RequestedBy.Username
	}
	listed := d.Subject.Nodes[:min(len(d.Subject.Nodes), MaxNodes)]
	out.NodesOmitted = int32(len(d.Subject.Nodes) - len(listed))
	for _, n := range listed {
		counts := d.nodes[n.Name]
		described := v1alpha1.PreviewNode{
			Name: n.Name, UID: n.UID, Refused: counts.refused, PodCount: int32(counts.pods), PodsKept: int32(counts.kept),
			PodsWaiting: int32(counts.waiting), Message: counts.completing.MessageOf(d.result.Messages[d.subject][n.Name], counts.asked),
		}
		if counts.refused {
			described.Message = drainplan.NotAuthorizedMessage(username)
		}
		out.Nodes = append(out.Nodes, described)
	}
}
