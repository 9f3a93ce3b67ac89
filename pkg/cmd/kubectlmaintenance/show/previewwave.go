// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"strings"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/wording"
	"haulout.dev/haulout/pkg/cmd/kubectlmaintenance/screen"
)

// ways tells what is in the way of each pod of a preview.
type ways struct {
	// listed has the blockers of the pods that a blocker lists, and omitted those of pods that it
	// does not list, by reason.
	listed  map[reasonOfPod]*v1alpha1.PreviewBlocker
	omitted map[string][]*v1alpha1.PreviewBlocker
}

type reasonOfPod struct {
	pod    v1alpha1.PreviewPodReference
	reason string
}

func waysOf(p *v1alpha1.NodeMaintenancePreview) *ways {
	w := &ways{listed: map[reasonOfPod]*v1alpha1.PreviewBlocker{}, omitted: map[string][]*v1alpha1.PreviewBlocker{}}
	for i := range p.Blockers {
		b := &p.Blockers[i]
		for _, pod := range b.Pods {
			if key := (reasonOfPod{pod, b.Reason}); w.listed[key] == nil {
				w.listed[key] = b
			}
		}
		if int(b.PodCount) > len(b.Pods) {
			w.omitted[b.Reason] = append(w.omitted[b.Reason], b)
		}
	}
	return w
}

// of returns what is in the way of a pod, with the effect: a budget that never opens has the same
// reason as one that lets the pods leave in groups.
func (w *ways) of(ref v1alpha1.PreviewPodReference, pod *v1alpha1.PreviewPod) string {
	var all []string
	for _, reason := range pod.Blockers {
		b := w.listed[reasonOfPod{ref, reason}]
		if rest := w.omitted[reason]; b == nil && len(rest) == 1 {
			b = rest[0]
		}
		if effect := shortEffect(b); effect != "" {
			reason += ": " + effect
		}
		all = append(all, reason)
	}
	if pod.Terminating {
		all = append(all, "terminating")
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}

func shortEffect(b *v1alpha1.PreviewBlocker) string {
	switch {
	case b == nil:
		return ""
	case b.Effect == v1alpha1.PreviewEffectDelayed && b.Reason == v1alpha1.ReasonProgressWaitingForCompletion:
		return "completes first"
	case b.Effect == v1alpha1.PreviewEffectDelayed && b.Rounds > 1:
		return fmt.Sprintf("in %d groups", b.Rounds)
	}
	return cmp.Or(effects[b.Effect].short, string(b.Effect))
}

// previewLoad is the set of pods of a workload in a wave that leave in the same way.
type previewLoad struct {
	workload
	evacuators, inTheWay string
	pod                  string
	node                 string
	pods                 int
	nodes                map[string]bool
	blocked              bool
}

// previewLoads returns the pods of a wave, by workload. -o wide has each pod.
func previewLoads(w *v1alpha1.PreviewWave, all *ways, o Options) []*previewLoad {
	type key struct {
		workload
		evacuators, inTheWay string
	}
	var loads []*previewLoad
	byKey := map[key]*previewLoad{}
	for _, node := range w.Nodes {
		for _, namespace := range node.Namespaces {
			for i := range namespace.Pods {
				pod := &namespace.Pods[i]
				k := key{
					workloadOfPreview(namespace.Name, pod), handlers(pod),
					all.of(v1alpha1.PreviewPodReference{Namespace: namespace.Name, Name: pod.Name, Node: node.Name}, pod),
				}
				l := byKey[k]
				if l == nil || o.Wide {
					l = &previewLoad{
						workload: k.workload, evacuators: k.evacuators, inTheWay: k.inTheWay, pod: pod.Name, node: node.Name,
						nodes: map[string]bool{}, blocked: len(pod.Blockers) > 0,
					}
					loads, byKey[k] = append(loads, l), l
				}
				l.pods++
				l.nodes[node.Name] = true
			}
		}
	}
	return loads
}

// row is the row of a workload, or of its pod if it has only one in the wave.
func (l *previewLoad) row() []string {
	title, node := l.kind+" "+l.name, wording.Count(len(l.nodes), "node")
	if l.pods == 1 {
		title = "Pod " + l.pod
	}
	if len(l.nodes) == 1 {
		node = l.node
	}
	return []string{l.namespace, title, fmt.Sprint(l.pods), node, l.evacuators, l.inTheWay}
}

// previewColumns are the columns of the workloads of a wave. A narrow terminal does not show the
// evacuators, then the nodes, then the number of pods.
func previewColumns() grid {
	return grid{
		indent: "  ", rows: [][]string{{"NAMESPACE", "WORKLOAD", "PODS", "NODE", "EVACUATORS", "IN THE WAY"}},
		styles: []screen.Style{screen.Faint}, drop: []int{4, 3, 2}, cut: true,
	}
}

// previewWaves shows the waves, with a row for each workload. All waves have the same columns.
func previewWaves(p *v1alpha1.NodeMaintenancePreview, o Options) []screen.Line {
	ways, all := waysOf(p), previewColumns()
	isNarrow := o.Columns > 0 && o.Columns < narrow
	if isNarrow {
		all.joinNamespace()
	}
	grids := make([]grid, len(p.Waves))
	listed := make([]int, len(p.Waves))
	for i := range p.Waves {
		grids[i], listed[i] = previewGrid(&p.Waves[i], ways, o)
		if isNarrow {
			grids[i].joinNamespace()
		}
		all.rows = append(all.rows, grids[i].rows[1:]...)
	}
	widths := all.widths(o.escaped(all.rows), o.Columns)
	var lines []screen.Line
	for i := range p.Waves {
		w := &p.Waves[i]
		lines = append(append(lines, previewTitle(w)), grids[i].linesOf(widths, o)...)
		lines = append(lines, o.more(int(w.PodCount)-listed[i]-int(w.PodsOmitted), "pod", "  ")...)
		lines = append(append(lines, o.omitted(int(w.PodsOmitted), "of a wave")...), screen.Line{})
	}
	return lines
}

// omitted shows the number of pods that the server did not list.
func (o Options) omitted(count int, of string) []screen.Line {
	if count <= 0 {
		return nil
	}
	return o.Fit(line(screen.Faint, "  %s %s (the server does not list all pods %s)", o.ellipsis(), wording.Count(count, "more pod"), of))
}

func previewTitle(w *v1alpha1.PreviewWave) screen.Line {
	entry := Entry(v1alpha1.DrainPlanEntry{PodType: w.PodType, PodPriority: w.PodPriority, PodSelector: w.PodSelector})
	var by []string
	for _, e := range w.Evacuators {
		by = append(by, fmt.Sprintf("%s %d", handler(e.EvacuatorClass), e.PodCount))
	}
	if w.PodsWaiting > 0 {
		by = append(by, fmt.Sprintf("completion %d", w.PodsWaiting))
	}
	title := fmt.Sprintf("WAVE %d  %s  %s on %s", w.Index+1, entry, wording.Count(w.PodCount, "pod"), wording.Count(w.NodeCount, "node"))
	if len(by) > 0 {
		title += ", by " + strings.Join(by, ", ")
	}
	return line(screen.Heading, "%s", title)
}

// previewGrid returns the rows of a wave, and the number of pods in them.
func previewGrid(w *v1alpha1.PreviewWave, all *ways, o Options) (g grid, listed int) {
	const loadsShown = 20
	loads := previewLoads(w, all, o)
	loads = loads[:o.cut(len(loads), loadsShown)]
	g = previewColumns()
	for _, l := range loads {
		style := screen.Plain
		if l.blocked {
			style = screen.Warning
		}
		listed += l.pods
		g.rows, g.styles = append(g.rows, l.row()), append(g.styles, style)
	}
	return g, listed
}
