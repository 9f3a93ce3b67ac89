// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/holds"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/host/eventref"
	"haulout.dev/haulout/pkg/host/rights"
)

// gather reads all inputs of the decision about a node. If the authorizer does not respond, gather
// returns an error and the facts: maintenances that already hold the node continue to hold it.
func (c *Controller) gather(ctx context.Context, node *corev1.Node) (facts, error) {
	f := facts{
		node: node, holders: marks.Owners{}, task: c.state.TaskOn(node.Name), hands: c.state.HandsOn(node),
		protect: c.protect, now: c.clock.Now(),
	}
	f.cordon, f.foreignCordon = c.ours(node, v1alpha1.AnnotationCordonedBy)
	f.taint, f.foreignTaint = c.ours(node, v1alpha1.AnnotationTaintedBy)
	if !f.foreignTaint {
		mark := marks.Read(node, v1alpha1.AnnotationTaintedBy)
		f.added, f.recordedOwn = mark.Taints, mark.OwnPods
	}
	protection := marks.ReadProtection(node)
	if f.foreignProtection = len(protection.Annotations) > 0 && !c.isOurStorage(protection.Storage); !f.foreignProtection {
		f.protections = protection.Annotations
	}
	var err error
	if f.ownPods, err = c.state.OwnPodsOn(node.Name); err != nil {
		return f, err
	}
	c.noteForeign(node)
	wanting, err := c.wanting(ctx, &f)
	if wanting == nil {
		return f, err
	}
	errs := []error{err}
	for name, uid := range f.released() {
		if wants, known := wanting[name]; known && wants.UID == uid {
			continue
		}
		if holds.Keeps(f.task, uid) {
			f.holders[name] = uid
			continue
		}
		ended, err := c.hasEnded(ctx, name, uid, node)
		if err != nil {
			errs = append(errs, err)
		}
		if !ended {
			f.holders[name] = uid
		}
	}
	var all []*v1alpha1.NodeMaintenance
	for _, w := range wanting {
		all = append(all, w.NodeMaintenance)
	}
	for _, nm := range marks.Choose(node.Name, all, len(f.holders), nil) {
		f.holders[nm.Name] = nm.UID
		f.mayWork = f.mayWork || wanting[nm.Name].mayWork
		f.drainsDaemonSets = f.drainsDaemonSets || !f.hands.LetsPodsBack(nm, node.Name) && c.asksDaemonSets(&f, nm)
	}
	return f, errors.Join(errs...)
}

// wantingMaintenance is a maintenance that holds a node, unless the node already has the maximum
// number of holders.
type wantingMaintenance struct {
	*v1alpha1.NodeMaintenance
	// mayWork is set if its requester may maintain the node now.
	mayWork bool
}

// wanting returns, by name, the maintenances in stage Cordon or Drain that select a node and whose
// requester may maintain it, or could when the hold began. A maintenance that ends is one of them
// while a worker has the node for it, and so is one whose worker has registered the node again.
// wanting also sets makesSchedulable and undecided of the facts. The map is nil if the maintenances
// cannot be read. Any other error concerns a single maintenance.
func (c *Controller) wanting(ctx context.Context, f *facts) (map[string]wantingMaintenance, error) {
	node := f.node
	wanting := map[string]wantingMaintenance{}
	var errs []error
	for _, name := range c.selection.MaintenancesOn(node.Name) {
		nm, err := c.maintenanceLister.Get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if v1alpha1.UncordonsOnly(nm) && !v1alpha1.IsDone(nm) && !c.state.Cordons.IsLifted(node, nm.UID) {
			f.makesSchedulable = nm
		}
		held := f.cordon.Has(nm) || f.taint.Has(nm)
		if !f.isHolding(nm) || !held && c.selection.TooLarge(nm) != nil {
			continue
		}
		answer := c.rights.Ask(ctx, nm.Spec.RequestedBy, []*corev1.Node{node})[node.Name]
		switch {
		case held || answer.Err == nil:
		case errors.Is(answer.Err, rights.ErrAsking):
			f.undecided = true
		default:
			errs = append(errs, fmt.Errorf("ask whether user %q may maintain node %s: %w", v1alpha1.RequesterOf(nm), node.Name, answer.Err))
		}
		mayWork := answer.Allowed && (held || !answer.Stale)
		if held || mayWork {
			wanting[name] = wantingMaintenance{NodeMaintenance: nm, mayWork: mayWork}
		}
	}
	if nm, err := c.reinstalledFor(f); err != nil {
		errs = append(errs, err)
	} else if nm != nil {
		wanting[nm.Name] = wantingMaintenance{NodeMaintenance: nm, mayWork: true}
	}
	return wanting, errors.Join(errs...)
}

// reinstalledFor returns the maintenance for which a worker has registered the node again, nil if
// none has. The node may not have its labels yet, by which the maintenance selects it, or by which
// its requester may maintain it: that the work goes on was decided when the claim was granted. A
// node that is registered after the work has ended is not taken.
func (c *Controller) reinstalledFor(f *facts) (*v1alpha1.NodeMaintenance, error) {
	if f.task == nil || f.task.Spec.NodeUID == f.node.UID || !protocol.IsInHands(f.task.Status.State) {
		return nil, nil
	}
	nm, err := c.maintenanceLister.Get(f.task.Spec.Maintenance.Name)
	if apierrors.IsNotFound(err) || err == nil && (nm.UID != f.task.Spec.Maintenance.UID || !f.isHolding(nm)) {
		return nil, nil
	}
	if err == nil && !holds.Keeps(f.task, nm.UID) && !f.cordon.Has(nm) && !f.taint.Has(nm) {
		return nil, nil
	}
	return nm, err
}

// noteForeign sends an event, once for each node and storage, if the annotations of a node are from
// a server with another storage.
func (c *Controller) noteForeign(node *corev1.Node) {
	storage := ""
	for _, key := range []string{v1alpha1.AnnotationCordonedBy, v1alpha1.AnnotationTaintedBy} {
		if id := marks.Read(node, key).Storage; id != "" && !c.isOurStorage(id) {
			storage = id
		}
	}
	var was string
	c.foreign.Change(node.UID, func(before string, _ bool) (string, bool) {
		was = before
		return storage, storage != ""
	})
	nodesWithForeignMarks.Set(float64(len(c.foreign.Keys())))
	if storage != "" && storage != was {
		c.recorder.Eventf(eventref.Node(node), nil, corev1.EventTypeWarning, EventForeignMarks, actionMaintain, "%s",
			eventref.Note("The node has annotations of storage %.64q, but this server has storage %s: they stay until the server is started with --adopt-storage", storage, c.storage))
	}
}

// ours returns the maintenances that an annotation of a node names, if the annotation is from our
// storage. foreign is true if the annotation is from another storage, or cannot be read.
func (c *Controller) ours(node *corev1.Node, annotation string) (o marks.Owners, foreign bool) {
	if _, there := node.Annotations[annotation]; !there {
		return nil, false
	}
	m := marks.Read(node, annotation)
	if !c.isOurStorage(m.Storage) {
		return nil, true
	}
	return m.Maintenances, false
}

func (c *Controller) isOurStorage(id string) bool {
	return id == c.storage || id != "" && id == c.adopted
}

// hasEnded reports whether a maintenance that an annotation names no longer holds the node. It
// reads the maintenance live if the cache does not have it.
func (c *Controller) hasEnded(ctx context.Context, name string, uid types.UID, node *corev1.Node) (bool, error) {
	nm, err := c.maintenanceLister.Get(name)
	if err != nil || nm.UID != uid {
		nm, err = c.maintenance.MaintenanceV1alpha1().NodeMaintenances().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && nm.UID != uid {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("read maintenance %s, named in an annotation of node %s: %w", name, node.Name, err)
		}
		// The cache does not have the maintenance yet.
		return v1alpha1.IsDone(nm), nil
	}
	return !v1alpha1.IsHolding(nm) || !slices.Contains(c.selection.MaintenancesOn(node.Name), name), nil
}

// isHolding reports whether a maintenance holds the node: by its stage, or because a worker has the
// node for it.
func (f *facts) isHolding(nm *v1alpha1.NodeMaintenance) bool {
	return v1alpha1.IsHolding(nm) || holds.Keeps(f.task, nm.UID)
}

// asksDaemonSets reports whether the stored targets of a maintenance for the node include DaemonSet
// pods.
func (c *Controller) asksDaemonSets(f *facts, nm *v1alpha1.NodeMaintenance) bool {
	targets := holds.Targets(nm, f.node)
	if holds.Keeps(f.task, nm.UID) {
		targets = holds.Stored(nm, f.node) // even if the maintenance ends: its worker is not done
	}
	return c.evacuators.Has(v1alpha1.EvacuatorClassDaemonSet) && slices.ContainsFunc(targets, func(e v1alpha1.DrainPlanEntry) bool {
		return e.PodType == v1alpha1.PodTypeDaemonSet
	})
}
