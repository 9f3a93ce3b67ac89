// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	"haulout.dev/haulout/pkg/host/rights"
)

// maxHoldsOfOne is how many of the 16 holds of a rollout a user may have who may not maintain its
// nodes or not assign its workers.
const maxHoldsOfOne = 4

// onlyHolds reports whether an update changes holds and nothing else.
func (w *write) onlyHolds(u user.Info) bool {
	return w.isUpdate() && w.sameMetadata(u) && validation.OnlyHoldsChange(&w.rollout.Spec, &w.old.Spec)
}

// onlyOwnHolds reports whether an update only adds holds, and changes or removes only holds that
// the same user has added. It needs no right to nodes: a hold stops what the user may see. A user
// without this right must not take the places of all holds.
func (w *write) onlyOwnHolds(u user.Info) bool {
	if !w.onlyHolds(u) || w.foreignHold(u.GetName()) != nil {
		return false
	}
	own := 0
	for i := range w.rollout.Spec.Holds {
		if w.rollout.Spec.Holds[i].By == u.GetName() {
			own++
		}
	}
	return own <= maxHoldsOfOne || len(w.rollout.Spec.Holds) <= len(w.old.Spec.Holds)
}

// foreignHold returns a hold of another user that the write removes or changes; nil if there is
// none.
func (w *write) foreignHold(name string) *maintenance.RolloutHold {
	for i := range w.old.Spec.Holds {
		hold := &w.old.Spec.Holds[i]
		kept := slices.ContainsFunc(w.rollout.Spec.Holds, func(now maintenance.RolloutHold) bool { return validation.SameHold(&now, hold) })
		if !kept && hold.By != name {
			return hold
		}
	}
	return nil
}

// isByRequester reports whether a user deletes or changes the own rollout.
func (w *write) isByRequester(name string) bool {
	return w.old != nil && w.old.Spec.RequestedBy != nil && w.old.Spec.RequestedBy.Username == name
}

// readNodes reads the nodes that the write of a user affects. Of the nodes that the requester
// releases, only those in units count. Otherwise one node that gets a label of the selector would
// keep the requester from narrowing, stopping and deleting the rollout.
func (p *Plugin) readNodes(ctx context.Context, w *write, name string) error {
	var err error
	if w.all, err = p.Nodes.List(labels.Everything()); err != nil {
		return err
	}
	w.leaving, w.pools = map[string]*corev1.Node{}, map[string]string{}
	var before []*corev1.Node
	if w.old != nil {
		for i := range w.old.Status.Current {
			p.readUnit(w, &w.old.Status.Current[i])
		}
		if before, err = matching(ctx, w.old.Spec.NodeSelector, w.all); err != nil {
			return err
		}
	}
	if w.rollout != nil {
		if w.selected, err = matching(ctx, w.rollout.Spec.NodeSelector, w.all); err != nil {
			return err
		}
		if w.rollout.Spec.Stage == maintenance.RolloutStageComplete {
			// All nodes leave, also those that match only after this write.
			before = append(before, w.selected...)
			w.selected = nil
		}
	}
	if !w.isByRequester(name) {
		for _, node := range before {
			w.leaving[node.Name] = node
		}
	}
	for _, node := range w.selected {
		delete(w.leaving, node.Name)
	}
	return nil
}

// readUnit reads the nodes of a unit, and the pools through which its maintenance has taken them.
// The pool of a node that was deleted does not count for a new node with the same name.
func (p *Plugin) readUnit(w *write, unit *maintenance.RolloutUnit) {
	nm, err := p.Maintenances.Get(unit.Maintenance)
	isOwn := err == nil && protocol.BelongsTo(nm, w.old.UID)
	for _, ref := range unit.Nodes {
		node, err := p.Nodes.Get(ref.Name)
		if err != nil {
			node = nil
		}
		w.leaving[ref.Name] = node
		if isOwn && (node == nil || node.UID == ref.UID) {
			w.pools[ref.Name] = v1alpha1.PoolOf(nm, v1alpha1.NodeStatusOf(nm, v1alpha1.NodeReference{Name: ref.Name, UID: ref.UID}))
		}
	}
}

// matching returns the nodes that match a selector, sorted by name. New nodes are included: they
// are due if doneWhen is false for them.
func matching(ctx context.Context, selector *corev1.NodeSelector, all []*corev1.Node) ([]*corev1.Node, error) {
	s, err := nodeselector.New(selector, nil, v1alpha1.NewNodesPolicyJoin)
	if err != nil {
		return nil, fmt.Errorf("parse the node selector: %w", err)
	}
	nodes, _, err := s.Select(ctx, all)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, err
}

// authorize refuses the write if the user may not maintain the nodes that readNodes has read, or
// may not have them offered to the workers of the task. To stop or to delete a rollout needs no
// right to its workers. As for a maintenance, the right to the pool through which a unit has taken
// a node is sufficient to release it: a worker may reinstall the node, and another user may
// change its labels.
func (p *Plugin) authorize(ctx context.Context, a admission.Attributes, w *write) error {
	checker := p.Checker("and so may not roll a maintenance over them")
	var leaving, joining rights.Nodes
	for _, name := range slices.Sorted(maps.Keys(w.leaving)) {
		leaving.Add(p.Rules, name, w.leaving[name], w.pools[name])
	}
	for _, node := range w.selected {
		joining.Add(p.Rules, node.Name, node)
	}
	_, err := checker.Check(ctx, a, leaving, joining)
	if err == nil && w.rollout != nil && w.rollout.Spec.Stage != maintenance.RolloutStageComplete {
		if task := w.rollout.Spec.Template.Task; task != nil {
			err = checker.CheckWorker(ctx, a, task.Worker)
		}
	}
	if apierrors.IsForbidden(err) && w.onlyHolds(a.GetUserInfo()) {
		return p.refuseHold(a, w)
	}
	return err
}

// refuseHold returns the error about a hold of another user, or about too many own ones.
func (p *Plugin) refuseHold(a admission.Attributes, w *write) error {
	hold := w.foreignHold(a.GetUserInfo().GetName())
	if hold == nil {
		return admission.NewForbidden(a, fmt.Errorf("spec.holds: a user who may not maintain the nodes of the rollout and assign its workers can have at most %d holds", maxHoldsOfOne))
	}
	return admission.NewForbidden(a, fmt.Errorf("spec.holds[%s]: was added by user %q; changing or removing it needs the right to maintain the nodes of the rollout and to assign its workers",
		hold.Name, cmp.Or(hold.By, "unknown")))
}
