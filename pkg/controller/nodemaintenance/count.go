/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodemaintenance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/controller/nodestate"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
)

// nodeCount is what one node adds to the status of a maintenance and what is to be done there.
type nodeCount struct {
	// targets are the drain targets that the node has reached.
	targets drainplan.Targets

	pending, evacuating, stuck, left int32
	// covered counts the pods that the plan covers, targeted those of them that are asked to leave.
	covered, targeted int
	// targetedOwn are those of the targeted ones that are pods of this server.
	targetedOwn int
	blocked     []*maintenancev1alpha1.Evacuation
	// refused are the pods that cannot have an Evacuation because their namespace goes away.
	refused []*corev1.Pod
	// uncreatable are the pods that are asked to leave and for which twice no Evacuation could be
	// created, or joined.
	uncreatable []uncreatablePod
	// reported is the latest report of an evacuator, terminating the latest time by which a
	// targeted pod is to have stopped.
	reported, terminating time.Time
	// leftOnPurpose names the pods that stay, with the reason.
	leftOnPurpose []string
	// unasked are the pods that are asked to leave and need an Evacuation, or our finalizer on
	// theirs.
	unasked []*nodestate.Pod
	// unwanted are the Evacuations with our finalizer of pods that the targets do not cover (any
	// more).
	unwanted []*maintenancev1alpha1.Evacuation
}

// count adds the pods of a node up. covered are all entries of the plan, targets the entries that
// the node has reached.
func (c *Controller) count(view *nodestate.View, covered, targets drainplan.Targets) *nodeCount {
	n := &nodeCount{targets: targets}
	for i := range view.Pods {
		pod := &view.Pods[i]
		targeted := pod.Kept == "" && targets.Cover(pod.Plan)
		waitsForBudget := pod.Kept == drainplan.LeftBudget && targets.Cover(pod.Plan)
		if pod.Ours && !targeted && !waitsForBudget {
			n.unwanted = append(n.unwanted, pod.Evacuation)
		}
		if pod.Kept != "" {
			n.left++
			n.leftOnPurpose = append(n.leftOnPurpose, fmt.Sprintf("%s of %s/%s", pod.Kept, pod.Namespace, ownerName(pod.Pod)))
			continue
		}
		if !covered.Cover(pod.Plan) && pod.Evacuation == nil {
			continue
		}
		n.covered++
		if targeted {
			n.targeted++
			if pod.StopsAt.After(n.terminating) {
				n.terminating = pod.StopsAt
			}
			if pod.Own {
				n.targetedOwn++
			}
			// A pod that is only nominated for the node is left to the scheduler, which drops the
			// nomination of a cordoned node.
			if step := decideEvacuation(pod); pod.Bound && (step == stepCreate || step == stepAdopt) {
				n.unasked = append(n.unasked, pod)
			}
		}
		if pod.Evacuation == nil {
			n.pending++
			if c.state.Requests.InTerminatingNamespace(pod.UID) {
				n.refused = append(n.refused, pod.Pod)
			} else if why := c.state.Requests.Failure(pod.UID); why != "" && targeted {
				n.stuck++
				n.uncreatable = append(n.uncreatable, uncreatablePod{pod.Namespace, pod.Name, why})
			}
			continue
		}
		n.evacuating++
		if at := pod.Evacuation.Status.EvacuationProgressTimestamp; at != nil && at.After(n.reported) {
			n.reported = at.Time
		}
		if nodestate.TrueReason(pod.Evacuation, maintenancev1alpha1.ConditionBlocked) != "" {
			n.stuck++
			n.blocked = append(n.blocked, pod.Evacuation)
		} else if why := c.state.Requests.Failure(pod.UID); why != "" && targeted && !pod.Ours {
			n.stuck++
			n.uncreatable = append(n.uncreatable, uncreatablePod{pod.Namespace, pod.Name, why})
		}
	}
	return n
}

// uncreatablePod is a pod for which no Evacuation could be created, and why.
type uncreatablePod struct{ namespace, name, why string }

// addendum comes between what the plan has to say about a node and what else there is to say.
const addendum = "; "

// leastAddendum is the room that is worth saying something more in.
const leastAddendum = len(addendum) + 40

// messageOf is what there is to say about the node: what the plan says, the pods for which no
// Evacuation can speak because their namespace takes no new objects.
func (n *nodeCount) messageOf(planned string) string {
	message := planned
	add := func(text string) {
		if room := drainplan.MaxMessageBytes - len(message); room >= leastAddendum {
			message += drainplan.Fit(addendum+text, room)
		}
	}
	if len(n.refused) > 0 {
		names := make([]string, 0, len(n.refused))
		for _, pod := range n.refused {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
		slices.Sort(names)
		add(wording.Count(len(names), "pod") + " of terminating namespaces: " + strings.Join(names, ", "))
	}
	if len(n.uncreatable) > 0 {
		pod := n.uncreatable[0]
		add(fmt.Sprintf("no Evacuation for %s, such as %s/%s: %s", wording.Count(len(n.uncreatable), "pod"), pod.namespace, pod.name, pod.why))
	}
	return message
}

// isMessageOf reports whether a message is what the plan says, whatever was added.
func isMessageOf(message, planned string) bool {
	return message == planned || strings.HasPrefix(message, planned+addendum)
}

// fill writes the counters into the status of the node.
func (n *nodeCount) fill(entry *maintenancev1alpha1.NodeMaintenanceNodeStatus) {
	entry.PodsPendingEvacuation = n.pending
	entry.PodsEvacuating = n.evacuating
	entry.PodsBlocked = n.stuck
	entry.PodsKept = n.left
}

func ownerName(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && owner.Kind != "Node" {
		return owner.Name
	}
	return pod.Name
}

// remainder is what is left on the nodes of a maintenance.
type remainder struct {
	// covered counts the pods that the plan covers, and targeted the covered pods that are asked to
	// leave. evacuating counts the pods that have an Evacuation, and refused the pods that cannot
	// have an Evacuation because their namespace is terminating.
	covered, targeted, evacuating, refused int
	refusedNamespaces                      map[string]int
	blocked                                []*maintenancev1alpha1.Evacuation
	uncreatable                            []uncreatablePod
	reported, terminating                  time.Time
	left                                   map[string]int
}

func newRemainder() *remainder {
	return &remainder{refusedNamespaces: map[string]int{}, left: map[string]int{}}
}

// add adds what is left on one node.
func (r *remainder) add(n *nodeCount) {
	r.covered += n.covered
	r.targeted += n.targeted
	r.evacuating += int(n.evacuating)
	r.refused += len(n.refused)
	for _, pod := range n.refused {
		r.refusedNamespaces[pod.Namespace]++
	}
	r.blocked = append(r.blocked, n.blocked...)
	r.uncreatable = append(r.uncreatable, n.uncreatable...)
	if n.reported.After(r.reported) {
		r.reported = n.reported
	}
	if n.terminating.After(r.terminating) {
		r.terminating = n.terminating
	}
	for _, what := range n.leftOnPurpose {
		r.left[what]++
	}
}
