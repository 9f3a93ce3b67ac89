// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodetask authorizes workers to claim nodes and to report their work, and users to start
// the work on a node again. Only the server creates NodeTasks.
package nodetask

import (
	"context"
	"errors"
	"fmt"
	"io"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"haulout.dev/haulout/pkg/admission/noderights"
	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/rights"
	"haulout.dev/haulout/pkg/identity"
)

// PluginName is the name of the plugin in flags and configuration.
const PluginName = "NodeTask"

// takesBack is the effect of a deletion, and of the success of failed work.
const takesBack = "and so may not take it back from its worker"

var resource = maintenance.Resource("nodetasks")

// Register adds the plugin. The rules are read when the plugin is created, after flag parsing.
func Register(plugins *admission.Plugins, rules *rights.Rules) {
	plugins.Register(PluginName, func(io.Reader) (admission.Interface, error) { return New(*rules), nil })
}

// Plugin admits NodeTasks.
type Plugin struct {
	noderights.Base
}

var _ admission.ValidationInterface = &Plugin{}

// New returns the plugin, which must still be initialized.
func New(rules rights.Rules) *Plugin {
	return &Plugin{Base: noderights.NewBase(rules)}
}

// Validate refuses writes that the user is not allowed to make.
func (p *Plugin) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != resource || p.Identity.Is(a.GetUserInfo()) {
		return nil
	}
	task, old, err := noderights.ObjectsOf[maintenance.NodeTask](a)
	switch {
	case err != nil:
		return apierrors.NewInternalError(err)
	case a.GetSubresource() == "status":
		return p.validateReport(ctx, a, task, old)
	case a.GetSubresource() != "":
		return nil
	case a.GetOperation() == admission.Create:
		return admission.NewForbidden(a, errors.New("nodetasks are created by the server"))
	case a.GetOperation() == admission.Delete:
		// A deletion makes the drain go on, and takes the node back from a worker.
		return p.mayMaintain(ctx, a, old, takesBack)
	case a.GetUserInfo().GetName() == identity.GarbageCollector, changesNothing(task, old):
		// The garbage collector removes its own finalizers from a task that is being deleted. A
		// migration of the storage writes tasks as they are.
		return nil
	}
	return admission.NewForbidden(a, errors.New("only the server changes nodetasks; workers write their status"))
}

// changesNothing reports whether an update keeps the task.
func changesNothing(task, old *maintenance.NodeTask) bool {
	task = task.DeepCopy()
	task.ManagedFields = old.ManagedFields
	return apiequality.Semantic.DeepEqual(task, old)
}

// validateReport checks the right to claim a node and to report the work. A worker that is the node
// itself can only write the task of this node. A worker in a pod, such as one of a DaemonSet, needs
// a smaller right for the node of its pod than for all nodes. A person needs the right to maintain
// the node as well: the roles for users of single pools have the class of persons. Who had it when
// they claimed the node keeps it until the work ends: meanwhile the node, which they may reinstall,
// can vanish or leave its pool.
func (p *Plugin) validateReport(ctx context.Context, a admission.Attributes, task, old *maintenance.NodeTask) error {
	u, class := a.GetUserInfo(), old.Spec.Worker
	node, onlyNode := identity.NodeOfToken(u)
	if onlyNode && node != old.Name {
		return admission.NewForbidden(a, fmt.Errorf("the token of user %q is for node %q only", u.GetName(), node))
	}
	subresources := []string{""}
	if node == old.Name {
		subresources = []string{rights.WorkersOfNode, ""}
	}
	for _, subresource := range subresources {
		allowed, err := p.may(ctx, u, authorizer.AttributesRecord{
			Verb: rights.VerbProgress, Resource: rights.ResourceWorkers, Subresource: subresource, Name: class,
		})
		switch {
		case err != nil:
			return err
		case allowed && class == v1alpha1.WorkerClassPerson && subresource == "" && old.Status.ClaimedBy != u.GetName():
			return p.mayMaintain(ctx, a, old, "and so may not work on it")
		case allowed:
			return nil
		}
	}
	// Who may start failed work over may also say that it was done by hand.
	if old.Status.State == maintenance.NodeTaskFailed && task.Status.Result == maintenance.NodeTaskResultDone {
		allowed, err := p.may(ctx, u, authorizer.AttributesRecord{Verb: "delete", Resource: resource.Resource, Name: old.Name})
		switch {
		case err != nil:
			return err
		case allowed:
			return p.mayMaintain(ctx, a, old, takesBack)
		}
	}
	return admission.NewForbidden(a, fmt.Errorf("user %q cannot %s workers %q", u.GetName(), rights.VerbProgress, class))
}

// may asks the authorizer about a resource of Haulout.
func (p *Plugin) may(ctx context.Context, u user.Info, about authorizer.AttributesRecord) (bool, error) {
	about.User, about.APIGroup, about.APIVersion, about.ResourceRequest = u, v1alpha1.GroupName, v1alpha1.SchemeGroupVersion.Version, true
	decision, _, err := p.Authorizer.Authorize(ctx, about)
	if decision != authorizer.DecisionAllow && err != nil {
		return false, apierrors.NewInternalError(fmt.Errorf("check whether user %q may %s %s %q: %w", u.GetName(), about.Verb, about.Resource, about.Name, err))
	}
	return decision == authorizer.DecisionAllow, nil
}

// mayMaintain checks the right to maintain the node. If the work has failed and the node does not
// exist any more, the right to the pool through which the maintenance has taken it is sufficient:
// otherwise the operators of the pool could not end the failure. The error says what the user
// cannot do without the right.
func (p *Plugin) mayMaintain(ctx context.Context, a admission.Attributes, task *maintenance.NodeTask, effect string) error {
	if !p.WaitForReady() {
		return apierrors.NewServiceUnavailable("the caches of nodes and NodeMaintenances are not synced yet, try again later")
	}
	node, err := p.Nodes.Get(task.Name)
	var pools []string
	switch {
	case apierrors.IsNotFound(err):
		node = nil
		if task.Status.State == maintenance.NodeTaskFailed {
			pools = p.poolsOf(task)
		}
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	var nodes rights.Nodes
	nodes.Add(p.Rules, task.Name, node, pools...)
	_, err = p.Checker(effect).Check(ctx, a, nodes, rights.Nodes{})
	return err
}

// poolsOf returns the pools through which the maintenance of a task has taken its node, which does
// not exist any more. A worker may have registered the node again before it was deleted, so an
// entry for each of them may be left.
func (p *Plugin) poolsOf(task *maintenance.NodeTask) (pools []string) {
	nm, err := p.Maintenances.Get(task.Spec.Maintenance.Name)
	if err != nil || nm.UID != task.Spec.Maintenance.UID {
		return nil
	}
	for i := range nm.Status.NodeStatuses {
		if status := &nm.Status.NodeStatuses[i]; status.NodeRef.Name == task.Name {
			pools = append(pools, v1alpha1.PoolOf(nm, status))
		}
	}
	return pools
}
