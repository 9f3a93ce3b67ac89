// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/rollout/next"
	"haulout.dev/haulout/pkg/rollout/nodeexpr"
)

// goal is doneWhen of a rollout, with its values for the nodes as they are in the cache: an
// expression takes longer to evaluate than all other steps of a decision together. A nil goal is
// one without an expression. Only the worker of the queue uses it.
type goal struct {
	rollout types.UID
	program *nodeexpr.Program
	values  map[string]value
}

// value is the value of the expression for a state of a node.
type value struct {
	node      *corev1.Node
	done, met bool
	err       error
}

// goalOf returns the goal of a rollout, nil if it has no expression.
func (c *Controller) goalOf(r *v1alpha1.NodeMaintenanceRollout) (*goal, error) {
	if r.Spec.Template.Task == nil || r.Spec.Template.Task.DoneWhen == "" {
		return nil, nil
	}
	if known := c.goals[r.Name]; known != nil && known.rollout == r.UID {
		return known, nil
	}
	program, err := nodeexpr.Compile(r.Spec.Template.Task.DoneWhen)
	if err != nil {
		return nil, fmt.Errorf("doneWhen: %w", err)
	}
	c.goals[r.Name] = &goal{rollout: r.UID, program: program, values: map[string]value{}}
	return c.goals[r.Name], nil
}

// of returns the goal for a node. done is set if the work of the rollout on it is done: the values
// of before are not stored for such a node, so an expression that only compares with them is true.
func (g *goal) of(node *corev1.Node, done bool) (next.Goal, error) {
	if g == nil {
		return next.NoGoal, nil
	}
	known := g.values[node.Name]
	if known.node != node || known.done != done {
		known = g.evaluate(node, done)
		g.values[node.Name] = known
	}
	switch {
	case known.met:
		return next.GoalMet, nil
	case done && known.err != nil:
		return next.NoGoal, nil
	}
	return next.GoalUnmet, known.err
}

func (g *goal) evaluate(node *corev1.Node, done bool) value {
	v := value{node: node, done: done}
	var before v1alpha1.NodeVersions
	if !done {
		before = protocol.VersionsOf(node)
	}
	v.met, v.err = g.program.Eval(nodeexpr.Of(node), before)
	return v
}

// isMet reports whether a node whose work is not done needs no work.
func (g *goal) isMet(node *corev1.Node) bool { return g != nil && g.evaluate(node, false).met }

// keepOnly drops the values for nodes that do not exist.
func (g *goal) keepOnly(nodes map[string]*corev1.Node) {
	if g != nil && len(g.values) > len(nodes) {
		maps.DeleteFunc(g.values, func(name string, _ value) bool { return nodes[name] == nil })
	}
}
