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
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// warningsAtMost and warningLength keep the warnings of a response readable; kubectl prints each on a line.
	warningsAtMost = 8
	warningLength  = 120

	// bytesPerNode is about what a node takes in a stored status: its name and UID, a message, counters.
	bytesPerNode = 200
	// bytesPerTarget is about what a target without selector takes.
	bytesPerTarget = 20
	// largeStatus leaves some room below etcd's default limit of 1.5 MiB for a request.
	largeStatus = 1 << 20
)

// write is what warners look at: a maintenance as it is about to be stored.
type write struct {
	nm *maintenance.NodeMaintenance
	// selected are the nodes of its selector, ordered by name.
	selected []*corev1.Node
	// all are the nodes of the cluster.
	all []*corev1.Node
	// touched are the nodes that were authorized.
	touched nodeSet
	// outlook is what the pods on the selected nodes have in store.
	outlook *outlook
}

// warner looks for one kind of trouble. A warner never fails: what it cannot find out it does not warn of.
type warner func(context.Context, *write) []string

func (p *Plugin) newWrite(ctx context.Context, nm *maintenance.NodeMaintenance, touched nodeSet) (*write, error) {
	selected, err := p.selectedNodes(nm.Spec.NodeSelector)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(selected, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	all, err := p.nodes.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	outlook := p.remembered(ctx).look.at(selected, func() *outlook { return p.looker.look(ctx, selected) })
	return &write{nm: nm, selected: selected, all: all, touched: touched, outlook: outlook}, nil
}

func (p *Plugin) warnings(ctx context.Context, w *write) []string {
	var texts []string
	for _, warn := range p.warners {
		for _, text := range warn(ctx, w) {
			texts = append(texts, cut(text))
		}
	}
	return texts[:min(len(texts), warningsAtMost)]
}

// warnOfServerNode warns that the drain will take the server itself along.
func (p *Plugin) warnOfServerNode(_ context.Context, w *write) []string {
	runsHere := func(node *corev1.Node) bool { return node.Name == p.self.NodeName }
	if p.self.NodeName == "" || !slices.ContainsFunc(w.selected, runsHere) {
		return nil
	}
	return []string{"spec.nodeSelector: the Haulout server itself runs on node " + p.self.NodeName}
}

// warnOfExtent warns of selectors that say too much or nothing.
func warnOfExtent(_ context.Context, w *write) []string {
	var texts []string
	selected := len(w.selected)
	controlPlane, selectedControlPlane := 0, 0
	for _, node := range w.all {
		if isControlPlane(node) {
			controlPlane++
		}
	}
	for _, node := range w.selected {
		if isControlPlane(node) {
			selectedControlPlane++
		}
	}
	switch {
	case selected == 0:
		return []string{"spec.nodeSelector: no node matches now; nodes that match later join the maintenance"}
	case selected == len(w.all):
		texts = append(texts, fmt.Sprintf("spec.nodeSelector: all nodes of the cluster match (%d)", selected))
	}
	if controlPlane > 0 && selectedControlPlane == controlPlane {
		texts = append(texts, fmt.Sprintf("spec.nodeSelector: all control-plane nodes match (%d)", controlPlane))
	}
	if asked := len(w.touched); asked > askAtMost {
		texts = append(texts, fmt.Sprintf("spec.nodeSelector: %d nodes; whether you may delete each is looked at when its turn comes", asked))
	}
	return texts
}

// warnOfOthers names the maintenances that already hold some of the nodes.
func (p *Plugin) warnOfOthers(_ context.Context, w *write) []string {
	others, err := p.maintenances.List(labels.Everything())
	if err != nil {
		return nil
	}
	selected := make(map[string]bool, len(w.selected))
	for _, node := range w.selected {
		selected[node.Name] = true
	}
	var names []string
	for _, other := range others {
		active := other.Spec.Stage == v1alpha1.NodeMaintenanceStageCordon || other.Spec.Stage == v1alpha1.NodeMaintenanceStageDrain
		if active && other.Name != w.nm.Name && overlaps(other, selected, w.selected) {
			names = append(names, other.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return []string{listNames("spec.nodeSelector: under maintenance already by ", names)}
}

// overlaps looks into the status first, which costs a lookup per node; the selector is matched only for a maintenance that has no status yet.
func overlaps(other *v1alpha1.NodeMaintenance, names map[string]bool, nodes []*corev1.Node) bool {
	if len(other.Status.NodeStatuses) > 0 {
		return slices.ContainsFunc(other.Status.NodeStatuses, func(s v1alpha1.NodeMaintenanceNodeStatus) bool { return names[s.NodeRef.Name] })
	}
	if other.Spec.NodeSelector == nil {
		return false
	}
	selector, err := nodeaffinity.NewNodeSelector(other.Spec.NodeSelector)
	return err == nil && slices.ContainsFunc(nodes, selector.Match)
}

// warnOfStatusSize warns of a status that may outgrow an object: each node repeats the targets that are open on it, and in the end that is one
// for each pod type and each selector of the plan.
func warnOfStatusSize(_ context.Context, w *write) []string {
	targets := map[string]int{}
	for i := range w.nm.Spec.DrainPlan {
		entry := &w.nm.Spec.DrainPlan[i]
		size := bytesPerTarget
		if entry.PodSelector != nil {
			size += entry.PodSelector.Size()
		}
		targets[string(entry.PodType)+" "+planorder.CanonicalSelector(entry.PodSelector)] = size
	}
	perNode := bytesPerNode
	for _, size := range targets {
		perNode += size
	}
	estimate := perNode * len(w.selected)
	if estimate < largeStatus {
		return nil
	}
	return []string{fmt.Sprintf("spec.drainPlan: the status of %d nodes with %d targets may take %.1f MiB; messages may be left out",
		len(w.selected), len(targets), float64(estimate)/(1<<20))}
}

// listNames appends as many names as there is room for, and the number of the others.
func listNames(prefix string, names []string) string {
	for n := min(len(names), warningLength/3); n > 1; n-- {
		text := prefix + strings.Join(names[:n], ", ")
		if left := len(names) - n; left > 0 {
			text += fmt.Sprintf(" and %d more", left)
		}
		if utf8.RuneCountInString(text) <= warningLength {
			return text
		}
	}
	if len(names) > 1 {
		return cutTo(prefix+names[0], warningLength-16) + fmt.Sprintf(" and %d more", len(names)-1)
	}
	return cut(prefix + names[0])
}

func cut(text string) string { return cutTo(text, warningLength) }

func cutTo(text string, length int) string {
	if utf8.RuneCountInString(text) <= length {
		return text
	}
	return string([]rune(text)[:length-1]) + "…"
}
