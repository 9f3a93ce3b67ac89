// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/pkg/admission/taskwarning"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/rollout/window"
)

// warningLength is the maximum length of a warning; kubectl prints one per line.
const warningLength = 160

// warnings returns what is probably unintended. An error never makes the request fail.
func (p *Plugin) warnings(ctx context.Context, w *write) []string {
	rollout := &v1alpha1.NodeMaintenanceRollout{}
	if err := v1alpha1.Convert_maintenance_NodeMaintenanceRollout_To_v1alpha1_NodeMaintenanceRollout(w.rollout, rollout, nil); err != nil {
		return nil
	}
	texts := slices.Concat(warnOfExtent(w), p.warnOfLimits(rollout, w.selected), p.warnOfWindows(rollout),
		taskwarning.Of("spec.template.task", rollout.Spec.Template.Task, w.selected), p.warnOfOthers(ctx, rollout, w.selected))
	for i := range texts {
		texts[i] = protocol.OneLine(texts[i], warningLength)
	}
	return texts
}

// warnOfExtent warns of selectors that match all nodes or none.
func warnOfExtent(w *write) []string {
	switch len(w.selected) {
	case 0:
		return []string{"spec.nodeSelector: no node matches now; nodes that match later join the rollout"}
	case len(w.all):
		return []string{fmt.Sprintf("spec.nodeSelector: all nodes of the cluster match (%d)", len(w.selected))}
	}
	return nil
}

// warnOfLimits warns if every unit is larger than a limit allows, and of nodes without a label that
// the rollout divides them by: a limit with a misspelt key allows all of them in one domain.
func (p *Plugin) warnOfLimits(rollout *v1alpha1.NodeMaintenanceRollout, selected []*corev1.Node) []string {
	var texts []string
	if reason := next.NoneFits(rollout, selected); reason != "" {
		texts = append(texts, "spec.limits: no unit fits: "+reason)
	}
	for i, limit := range rollout.Spec.Limits {
		if n := without(limit.TopologyKey, selected); n > 0 {
			texts = append(texts, fmt.Sprintf("spec.limits[%d].topologyKey: %d of %d matching nodes have no label %s; they count as one domain",
				i, n, len(selected), limit.TopologyKey))
		}
	}
	// Single nodes without the label are units of their own on purpose.
	if key := rollout.Spec.UnitKey; len(selected) > 0 && without(key, selected) == len(selected) {
		texts = append(texts, fmt.Sprintf("spec.unitKey: no matching node has the label %s; each is a unit of its own", key))
	}
	return texts
}

// without returns how many of the nodes have no value of a label; 0 if the key is empty.
func without(key string, nodes []*corev1.Node) (n int) {
	for _, node := range nodes {
		if key != "" && node.Labels[key] == "" {
			n++
		}
	}
	return n
}

// warnOfWindows warns if no unit can ever start.
func (p *Plugin) warnOfWindows(rollout *v1alpha1.NodeMaintenanceRollout) []string {
	state, err := window.At(rollout.Spec.Windows, p.clock.Now())
	if err != nil || state.Open || !state.Until.IsZero() {
		return nil
	}
	return []string{"spec.windows: no window opens any more"}
}

// warnOfOthers warns of other rollouts over the same nodes.
func (p *Plugin) warnOfOthers(ctx context.Context, rollout *v1alpha1.NodeMaintenanceRollout, selected []*corev1.Node) []string {
	others, err := p.rollouts.List(labels.Everything())
	if err != nil {
		return nil
	}
	var names []string
	for _, other := range others {
		if other.Name == rollout.Name || other.DeletionTimestamp != nil || other.Spec.Stage == v1alpha1.RolloutStageComplete {
			continue
		}
		if shared, err := matching(ctx, other.Spec.NodeSelector, selected); err == nil && len(shared) > 0 {
			names = append(names, other.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return []string{"spec.nodeSelector: nodes are also in the rollouts " + strings.Join(names, ", ")}
}
