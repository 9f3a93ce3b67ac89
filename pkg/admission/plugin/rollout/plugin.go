// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package rollout authorizes users to roll maintenances over nodes and to hold rollouts, and warns
// about rollouts that are probably unintended.
package rollout

import (
	"context"
	"errors"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/admission/noderights"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	listers "haulout.dev/haulout/pkg/generated/listers/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/rights"
)

// PluginName is the name of the plugin in flags and configuration.
const PluginName = "NodeMaintenanceRollout"

// Register adds the plugin. The rules are read when the plugin is created, after flag parsing.
func Register(plugins *admission.Plugins, rules *rights.Rules) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) { return New(*rules), nil })
}

// Plugin admits NodeMaintenanceRollouts.
type Plugin struct {
	noderights.Base

	clock    clock.PassiveClock
	rollouts listers.NodeMaintenanceRolloutLister
}

var _ admission.ValidationInterface = &Plugin{}

// New returns the plugin, which must still be initialized.
func New(rules rights.Rules) *Plugin {
	return &Plugin{Base: noderights.NewBase(rules), clock: clock.RealClock{}}
}

// SetDependencies sets the informers of Haulout's API and the identity of the server.
func (p *Plugin) SetDependencies(d initializer.Dependencies) {
	p.Base.SetDependencies(d)
	rollouts := d.Informers.Maintenance().V1alpha1().NodeMaintenanceRollouts()
	p.rollouts = rollouts.Lister()
	p.WaitFor(rollouts.Informer().HasSynced)
}

// Validate refuses writes that the user is not allowed to make, and adds warnings.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != maintenance.Resource("nodemaintenancerollouts") || p.Identity.Is(a.GetUserInfo()) {
		return nil
	}
	switch a.GetSubresource() {
	case "":
	case "status":
		return admission.NewForbidden(a, errors.New("the status has the progress of the rollout; only the Haulout server may write it"))
	default:
		return nil
	}
	rollout, old, err := noderights.ObjectsOf[maintenance.NodeMaintenanceRollout](a)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	w := &write{rollout: rollout, old: old}
	if w.changesNothing(a.GetUserInfo()) || w.onlyOwnHolds(a.GetUserInfo()) {
		return nil
	}
	if !p.WaitForReady() {
		return apierrors.NewServiceUnavailable("the caches of nodes, NodeMaintenances and NodeMaintenanceRollouts are not synced yet, try again later")
	}
	if err := p.readNodes(ctx, w, a.GetUserInfo().GetName()); err != nil {
		return apierrors.NewInternalError(err)
	}
	if err := p.authorize(ctx, a, w); err != nil {
		return err
	}
	if w.startsNodes() {
		for _, text := range p.warnings(ctx, w) {
			warning.AddWarning(ctx, "", text)
		}
	}
	return nil
}

// write is a write of a rollout and its effect on nodes.
type write struct {
	// rollout is the object as it will be stored, nil in a deletion. old is nil in a creation.
	rollout, old *maintenance.NodeMaintenanceRollout
	// all are the nodes of the cluster. selected are those that match after the write, sorted by
	// name.
	all, selected []*corev1.Node
	// leaving are the nodes that match, or are in units, only before the write. The value is nil
	// for a node that does not exist.
	leaving map[string]*corev1.Node
	// pools are the pools through which the units have taken their nodes, by the name of the node.
	pools map[string]string
}

func (w *write) isUpdate() bool { return w.rollout != nil && w.old != nil }

// sameMetadata reports whether an update keeps the metadata that users write. The owners decide
// what the garbage collector deletes, and the finalizers when: it may remove its own.
func (w *write) sameMetadata(u user.Info) bool {
	a, b := &w.rollout.ObjectMeta, &w.old.ObjectMeta
	return a.GenerateName == b.GenerateName && apiequality.Semantic.DeepEqual(a.Labels, b.Labels) && apiequality.Semantic.DeepEqual(a.Annotations, b.Annotations) &&
		apiequality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) &&
		(slices.Equal(a.Finalizers, b.Finalizers) || noderights.RemovesOwnFinalizers(u, a.Finalizers, b.Finalizers))
}

func (w *write) changesNothing(u user.Info) bool {
	return w.isUpdate() && w.sameMetadata(u) && apiequality.Semantic.DeepEqual(w.rollout.Spec, w.old.Spec)
}

// startsNodes reports whether the rollout may act on nodes because of the write.
func (w *write) startsNodes() bool {
	if w.rollout == nil || w.rollout.Spec.Stage == maintenance.RolloutStageComplete {
		return false
	}
	return w.old == nil || !validation.OnlyHoldsChange(&w.rollout.Spec, &w.old.Spec)
}
