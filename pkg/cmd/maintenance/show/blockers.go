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

package show

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/screen"
)

// Blocker is a pod that cannot leave its node.
type Blocker struct {
	Namespace, Pod, Node string
	// Reason is that of the condition Blocked, and Message what it says: what is in the way and what can be done.
	Reason, Message string
	Since           time.Time
	// evacuator is whose turn it is to take the pod away.
	evacuator string
	// turn is that of the evacuator if the pod is not blocked and waits for it, see WaitingOf.
	turn *turn
}

// podsShown is how many pods are listed with what they have in common.
const podsShown = 20

// Blocked says whether an Evacuation is blocked.
func Blocked(e *v1alpha1.Evacuation) bool {
	return meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionBlocked) && !meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionComplete)
}

// BlockersOf returns the pods that cannot leave, those that have waited longest first. Only nodes that on returns true for count; nil stands for
// all.
func BlockersOf(evacuations []v1alpha1.Evacuation, on func(node string) bool) []Blocker {
	var blockers []Blocker
	for i := range evacuations {
		e := &evacuations[i]
		if !Blocked(e) || on != nil && !on(e.Spec.NodeName) {
			continue
		}
		condition := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionBlocked)
		blockers = append(blockers, Blocker{
			Namespace: e.Namespace, Pod: e.Spec.PodRef.Name, Node: e.Spec.NodeName, Reason: condition.Reason, Message: condition.Message,
			Since: condition.LastTransitionTime.Time, evacuator: e.Status.ActiveEvacuatorClass,
		})
	}
	sortBlockers(blockers)
	return blockers
}

func sortBlockers(blockers []Blocker) {
	slices.SortFunc(blockers, func(a, b Blocker) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
}

// move is whose turn it is to do something about a reason, and the command that shows them what there is to see.
type move struct {
	who, look string
}

const (
	ownerOfApp    = "the owner of the app in namespace %s"
	administrator = "an administrator of the cluster"
	operator      = "whoever operates node %[3]s"
	budgets       = "kubectl describe poddisruptionbudgets -n %s"
)

// moves are by reason of the condition Blocked and of blockers of previews. %s stands for the namespace, %[2]s for
// the pod, %[3]s for the node and %[4]s for the evacuator.
var moves = map[string]move{
	v1alpha1.ReasonPodDisruptionBudget:           {ownerOfApp, budgets},
	v1alpha1.ReasonPodDisruptionBudgetSyncFailed: {ownerOfApp, budgets},
	v1alpha1.ReasonMultiplePodDisruptionBudgets:  {ownerOfApp, budgets},
	v1alpha1.ReasonUnhealthyPodsHoldBudget:       {ownerOfApp, "kubectl get pods -n %s -o wide"},
	v1alpha1.ReasonTooManyDisruptedPods:          {administrator, budgets},
	v1alpha1.ReasonEvacuatorNotProgressing:       {"whoever runs the evacuator %[4]s", "kubectl get evacuations -n %s -o wide"},
	v1alpha1.ReasonPodTerminating:                {operator, "kubectl describe pod -n %s %[2]s"},
	v1alpha1.ReasonPodFinalizer:                  {"whoever runs the controllers behind the finalizers", "kubectl get pod -n %s %[2]s -o jsonpath='{.metadata.finalizers}'"},
	v1alpha1.ReasonNodeUnreachable:               {operator, "kubectl describe node %[3]s"},
	v1alpha1.ReasonNoEvacuator:                   {administrator, "kubectl describe pod -n %s %[2]s"},
	v1alpha1.ReasonRecreated:                     {ownerOfApp, "kubectl get pods -n %s -o wide"},
	v1alpha1.ReasonEvictionForbidden:             {administrator, "kubectl describe evacuations -n %s"},
	v1alpha1.ReasonEvictionError:                 {administrator, "kubectl describe evacuations -n %s"},
	v1alpha1.ReasonNoController:                  {ownerOfApp, "kubectl get pod -n %s %[2]s -o yaml"},
	v1alpha1.ReasonNamespaceTerminating:          {"whoever deletes namespace %s", "kubectl describe namespace %s"},
	waitsForEvacuator:                            {"the evacuator %[4]s", "kubectl get evacuations -n %s -o wide"},
}

// Who says whose move it is.
func (b *Blocker) Who() string {
	if b.turn != nil {
		return b.turn.move(b.evacuator)
	}
	return b.fill(b.move().who)
}

// WhoUntil is Who with the time until when it is theirs, if there is one.
func (b *Blocker) WhoUntil() string {
	if b.turn != nil {
		return b.turn.moveUntil(b.evacuator)
	}
	return b.Who()
}

// Look is a command that shows them what there is to see.
func (b *Blocker) Look() string { return b.fill(b.move().look) }

func (b *Blocker) move() move {
	if m, ok := moves[b.Reason]; ok {
		return m
	}
	return move{administrator, "kubectl describe evacuations -n %s"}
}

func (b *Blocker) fill(format string) string {
	if !strings.Contains(format, "%") {
		return format
	}
	// The last verb prints nothing: without it arguments that a format has no use for would be complained about.
	return fmt.Sprintf(format+"%[5]s", b.Namespace, b.Pod, b.Node, orNone(b.evacuator), "")
}

// group is blockers that have everything in common but the pod.
type group struct {
	first *Blocker
	all   []Blocker
}

// groups puts together what the same people have to do the same about.
func groups(blockers []Blocker) []*group {
	var out []*group
	at := map[[3]string]*group{}
	for i := range blockers {
		b := &blockers[i]
		key := [3]string{b.Reason, b.Message, b.Who()}
		if at[key] == nil {
			at[key] = &group{first: b}
			out = append(out, at[key])
		}
		at[key].all = append(at[key].all, *b)
	}
	return out
}

// lines shows what a group has in common, then the first of its pods in rows, of which shown are pods.
func (g *group) lines(rows [][]string, shown int, o Options) []screen.Line {
	lines := wrap("  ", g.first.Message, o.columns(), screen.Plain)
	lines = append(lines, plain("  move   %s", g.first.Who()), plain("  look   %s", g.first.Look()))
	lines = append(lines, table("  ", rows, nil)...)
	lines = append(lines, more(len(g.all)-shown, "pod", "  ")...)
	return append(lines, screen.Line{})
}

// Blockers shows pods that cannot leave with what is in the way, whose move it is and what they can do. refused are the nodes that are left
// alone, see Refused. waiting are the pods that wait for their evacuators, see WaitingOf: they come last, and apart.
func Blockers(blockers []Blocker, refused []Refusal, waiting []Blocker, now time.Time, o Options) []screen.Line {
	lines := blocked(blockers, refused, now, o)
	if len(waiting) == 0 {
		return lines
	}
	if len(blockers)+len(refused) == 0 {
		lines = []screen.Line{plain("Nothing is blocked.")}
	}
	lines = append(append(lines, screen.Line{}), waitingGroups(waiting, now, o)...)
	return append(lines, line(screen.Heading, "%s waiting for evacuators that report no progress.", plural(len(waiting), "pod")))
}

func blocked(blockers []Blocker, refused []Refusal, now time.Time, o Options) []screen.Line {
	if len(blockers)+len(refused) == 0 {
		return []screen.Line{plain("Nothing is in the way.")}
	}
	var lines []screen.Line
	for _, r := range refused {
		lines = append(lines, line(screen.Warning, "Node %s is left alone: %s", r.Node, r.Message), plain("  move   %s", r.Who), screen.Line{})
	}
	if len(blockers) == 0 {
		return lines[:len(lines)-1]
	}
	for _, g := range groups(blockers) {
		lines = append(lines, line(screen.Warning, "%s: %s", g.first.Reason, plural(len(g.all), "pod")))
		rows := [][]string{{"NAMESPACE", "POD", "NODE", "BLOCKED FOR"}}
		shown := o.cut(len(g.all), podsShown)
		for i := range g.all[:shown] {
			b := &g.all[i]
			rows = append(rows, []string{b.Namespace, b.Pod, b.Node, ago(now, b.Since)})
		}
		lines = append(lines, g.lines(rows, shown, o)...)
	}
	return append(lines, line(screen.Heading, "%s cannot leave.", plural(len(blockers), "pod")))
}

// BlockerTable is Blockers in one row for each pod.
func BlockerTable(blockers []Blocker, now time.Time) []screen.Line {
	rows := [][]string{{"NAMESPACE", "POD", "NODE", "SINCE", "REASON", "MOVE", "MESSAGE"}}
	for i := range blockers {
		b := &blockers[i]
		rows = append(rows, []string{b.Namespace, b.Pod, b.Node, ago(now, b.Since), b.Reason, b.WhoUntil(), b.Message})
	}
	return table("", rows, nil)
}

// more says how many things were left out of a list, if any.
func more(count int, noun, indent string) []screen.Line {
	if count <= 0 {
		return nil
	}
	return []screen.Line{line(screen.Faint, "%s... and %s (-o wide lists all)", indent, plural(count, "more "+noun))}
}

// Refusal is a node that is left alone because the requester of the maintenance may not delete it.
type Refusal struct {
	Node, Message, Who string
}

// refusedStart is how the message of such a node begins; see drainplan.NotAuthorizedMessage.
const refusedStart = "Not drained: "

// Refused returns the nodes that are left alone.
func Refused(nm *v1alpha1.NodeMaintenance) []Refusal {
	var refused []Refusal
	for i := range nm.Status.NodeStatuses {
		n := &nm.Status.NodeStatuses[i]
		if strings.HasPrefix(n.DrainMessage, refusedStart) {
			refused = append(refused, Refusal{
				Node: n.NodeRef.Name, Message: strings.TrimPrefix(n.DrainMessage, refusedStart),
				Who: administrator + ", who can grant delete on the node; or take the node out of the selector",
			})
		}
	}
	return refused
}
