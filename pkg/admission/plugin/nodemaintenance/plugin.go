// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodemaintenance authorizes users to put nodes under maintenance, and warns about
// selectors that are probably unintended. It does not warn about pods: the preview predicts the
// effects of a drain on them.
package nodemaintenance

import (
	"context"
	"errors"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"

	"haulout.dev/haulout/pkg/admission/initializer"
	"haulout.dev/haulout/pkg/admission/noderights"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/size"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/identity"
)

// PluginName is the name of the plugin in flags and configuration.
const PluginName = "NodeMaintenance"

// Register adds the plugin. The rules are read when the plugin is created, after flag parsing.
func Register(plugins *admission.Plugins, rules *rights.Rules) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) { return New(*rules), nil })
}

// Plugin admits NodeMaintenances.
type Plugin struct {
	noderights.Base

	// nodeName is the node of this server, if it runs in a pod.
	nodeName string

	// warners are the checks for warnings, the most important first.
	warners []warner
}

var _ admission.ValidationInterface = &Plugin{}

// New returns the plugin, which must still be initialized.
func New(rules rights.Rules) *Plugin {
	p := &Plugin{Base: noderights.NewBase(rules)}
	p.warners = []warner{p.warnOfServerNode, warnOfExtent, p.warnOfControlPlane, p.warnOfOthers, warnOfGroups, warnOfTask, warnOfStatusSize}
	return p
}

// SetDependencies sets the informers of Haulout's API, the identity of the server, and its node.
func (p *Plugin) SetDependencies(d initializer.Dependencies) {
	p.Base.SetDependencies(d)
	p.nodeName = d.NodeName
}

// Validate refuses writes that the user is not allowed to make, and adds warnings.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != maintenance.Resource("nodemaintenances") || p.Identity.Is(a.GetUserInfo()) {
		return nil
	}
	switch a.GetSubresource() {
	case "":
	case "status":
		return admission.NewForbidden(a, errors.New("the status has the progress of the drain; only the Haulout server may write it"))
	default:
		return nil
	}
	nm, old, err := noderights.ObjectsOf[maintenance.NodeMaintenance](a)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	node, isNode := identity.NodeOf(a.GetUserInfo())
	switch {
	case isNode:
		if err := validateOfNode(a, node, nm, old); err != nil {
			return err
		}
		// The other writes of a node only end a maintenance, so they need no further checks.
		if old != nil {
			return nil
		}
	case nm != nil && old != nil && (!needsAuthorization(nm, old) || isGarbageCollection(a.GetUserInfo(), nm, old)):
		return nil
	}
	if !p.WaitForReady() {
		return apierrors.NewServiceUnavailable("the caches of nodes and NodeMaintenances are not synced yet, try again later")
	}
	change, err := p.changeOf(ctx, nm, old)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	var pools map[string]string
	if !isNode {
		if pools, err = p.authorize(ctx, a, nm, old, change); err != nil {
			return err
		}
	}
	if err := p.validateShutdowns(a, nm, old); err != nil {
		return err
	}
	if !sendsToNodes(nm, old) {
		for _, text := range warnOfUncordon(nm, old, change) {
			warning.AddWarning(ctx, "", text)
		}
		return nil
	}
	if err := p.validateHolders(ctx, a, nm, change); err != nil {
		return err
	}
	if err := validateStatusSize(nm, change.selected, pools); err != nil {
		return err
	}
	p.warn(ctx, nm, change)
	return nil
}

// needsAuthorization reports whether an update can affect nodes. Changes of owners, finalizers,
// labels and annotations count as well: the garbage collector, Argo CD and kubectl apply delete or
// change an object because of them, with their own rights. An annotation lets a rollout take the
// nodes again, and another one makes the maintenance that of a shutdown.
func needsAuthorization(nm, old *maintenance.NodeMaintenance) bool {
	return !apiequality.Semantic.DeepEqual(nm.Spec, old.Spec) ||
		nm.GenerateName != old.GenerateName || !apiequality.Semantic.DeepEqual(nm.Labels, old.Labels) ||
		!apiequality.Semantic.DeepEqual(nm.Annotations, old.Annotations) ||
		!apiequality.Semantic.DeepEqual(nm.OwnerReferences, old.OwnerReferences) ||
		!apiequality.Semantic.DeepEqual(nm.Finalizers, old.Finalizers)
}

// isGarbageCollection reports whether the garbage collector makes an update that only removes its
// own finalizers.
func isGarbageCollection(u user.Info, nm, old *maintenance.NodeMaintenance) bool {
	return noderights.RemovesOwnFinalizers(u, nm.Finalizers, old.Finalizers) && apiequality.Semantic.DeepEqual(nm.Spec, old.Spec) &&
		apiequality.Semantic.DeepEqual(nm.OwnerReferences, old.OwnerReferences)
}

// sendsToNodes reports whether a write changes the set of nodes of a maintenance, or the effect on
// them.
func sendsToNodes(nm, old *maintenance.NodeMaintenance) bool {
	if nm == nil || nm.Spec.Stage == maintenance.NodeMaintenanceStageComplete {
		return false
	}
	return old == nil || nm.Spec.Stage != old.Spec.Stage || nm.Spec.NewNodes != old.Spec.NewNodes ||
		!apiequality.Semantic.DeepEqual(nm.Spec.NodeSelector, old.Spec.NodeSelector)
}

// validateStatusSize refuses a maintenance whose status could not be stored with all its drain
// targets and pools: otherwise the server would cordon its nodes, but could not store the progress
// of the drain. pools are the pools through which the user may maintain nodes, by the name of the
// node. The status keeps the pools that it has as well.
func validateStatusSize(nm *maintenance.NodeMaintenance, selected []*corev1.Node, pools map[string]string) error {
	versioned := &v1alpha1.NodeMaintenance{}
	if err := v1alpha1.Convert_maintenance_NodeMaintenance_To_v1alpha1_NodeMaintenance(nm, versioned, nil); err != nil {
		return apierrors.NewInternalError(err)
	}
	nodes := len(selected)
	stored := sets.New(versioned.Status.Pools...)
	for _, node := range selected {
		if pool := pools[node.Name]; pool != "" {
			stored.Insert(pool)
		}
	}
	bytes := size.StatusBytes(versioned.Spec.DrainPlan, nodes) + size.PoolsBytes(stored.UnsortedList(), nodes) + size.TaskBytes(versioned.Spec.Task, nodes)
	if bytes <= size.MaxStatusBytes {
		return nil
	}
	if versioned.Spec.Task != nil && bytes-size.TaskBytes(versioned.Spec.Task, nodes) <= size.MaxStatusBytes {
		return apierrors.NewInvalid(maintenance.Kind("NodeMaintenance"), nm.Name, field.ErrorList{field.Invalid(
			field.NewPath("spec", "nodeSelector"), field.OmitValueType{}, fmt.Sprintf(
				"selects %d nodes, too many for a task: at most %d are allowed with spec.task and this plan",
				nodes, size.MaxNodes(versioned)))})
	}
	return apierrors.NewInvalid(maintenance.Kind("NodeMaintenance"), nm.Name, field.ErrorList{field.Invalid(
		field.NewPath("spec", "drainPlan"), field.OmitValueType{}, fmt.Sprintf(
			"is too large for %d nodes: the status repeats its selectors for each node and would take %d KiB, at most %d KiB are allowed; "+
				"select fewer nodes per NodeMaintenance or use fewer or shorter podSelectors",
			nodes, bytes>>10, size.MaxStatusBytes>>10))})
}

func (p *Plugin) warn(ctx context.Context, nm *maintenance.NodeMaintenance, c *change) {
	for _, text := range p.warnings(ctx, &write{nm: nm, change: c}) {
		warning.AddWarning(ctx, "", text)
	}
}
