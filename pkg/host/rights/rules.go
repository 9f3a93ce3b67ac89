// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// VerbMaintain is the verb that grants the right to maintain nodes, without the right to delete
	// them. It applies to ResourceNodes and ResourceNodePools of the API group of Haulout, which
	// are names for the rules of an authorizer and have no objects.
	VerbMaintain = "maintain"
	// ResourceNodes is the resource of which the names are those of nodes.
	ResourceNodes = "nodes"
	// ResourceNodePools is the resource of which the names are those of pools.
	ResourceNodePools = "nodepools"
	// VerbAssign is the verb that grants the right to have nodes offered to the workers of a class:
	// on ResourceWorkers of the API group of Haulout.
	VerbAssign = "assign"
	// VerbProgress is the verb that grants the right to claim nodes as a worker of a class, and to
	// report the work: on ResourceWorkers for all nodes, on its subresource WorkersOfNode only for
	// the node that the token of the user names. For the class of persons, the former also needs
	// the right to maintain the node.
	VerbProgress = "progress"
	// ResourceWorkers is the resource of which the names are the classes of workers.
	ResourceWorkers = "workers"
	// WorkersOfNode is the subresource of ResourceWorkers for the node of the user.
	WorkersOfNode = "node"
)

// Rules are the options that decide which rights are sufficient to maintain a node. A user needs
// one of these:
//
//	delete    nodes NAME      of the core API group
//	maintain  nodes NAME      of maintenance.haulout.dev
//	maintain  nodepools POOL  of maintenance.haulout.dev, unless it is a control-plane node
type Rules struct {
	// PoolLabel is the key of the label whose value is the pool of a node. If it is empty, there
	// are no pools.
	PoolLabel string
	// EveryByName disables the shortcut of a single check for all nodes: by default, only the
	// control-plane nodes and a hundred other nodes are checked by name for a user who may maintain
	// all nodes. Set this if an authorizer denies individual nodes by name to such a user.
	EveryByName bool
}

// PoolOf returns the pool of a node, or "". Control-plane nodes have no pool, so that the right to
// them is always granted by name.
func (r Rules) PoolOf(node *corev1.Node) string {
	if r.PoolLabel == "" || node == nil || protocol.IsControlPlane(node) {
		return ""
	}
	return node.Labels[r.PoolLabel]
}

// subject is what a check is about: a node, all nodes if the name is empty, a pool, or a class of
// workers.
type subject struct {
	isPool, isWorker bool
	name             string
}

// reviews returns the access reviews about a subject, of which one has to be allowed.
func (s subject) reviews(u user.Info) []authorizer.AttributesRecord {
	if s.isPool {
		return []authorizer.AttributesRecord{attributes(u, VerbMaintain, v1alpha1.SchemeGroupVersion, ResourceNodePools, s.name)}
	}
	if s.isWorker {
		return []authorizer.AttributesRecord{attributes(u, VerbAssign, v1alpha1.SchemeGroupVersion, ResourceWorkers, s.name)}
	}
	return []authorizer.AttributesRecord{
		attributes(u, "delete", corev1.SchemeGroupVersion, "nodes", s.name),
		attributes(u, VerbMaintain, v1alpha1.SchemeGroupVersion, ResourceNodes, s.name),
	}
}

func (s subject) String() string {
	switch {
	case s.isPool:
		return fmt.Sprintf("node pool %q", s.name)
	case s.isWorker:
		return fmt.Sprintf("workers %q", s.name)
	case s.name == "":
		return "all nodes"
	}
	return fmt.Sprintf("node %q", s.name)
}

func attributes(u user.Info, verb string, version schema.GroupVersion, resource, name string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{
		User: u, Verb: verb, APIGroup: version.Group, APIVersion: version.Version, Resource: resource, Name: name, ResourceRequest: true,
	}
}

// ask reports whether a user may maintain a subject.
func ask(ctx context.Context, a authorizer.UnconditionalAuthorizer, u user.Info, s subject) (bool, error) {
	for _, review := range s.reviews(u) {
		decision, _, err := a.Authorize(ctx, review)
		switch {
		case decision == authorizer.DecisionAllow:
			return true, nil
		case err != nil:
			return false, fmt.Errorf("ask whether user %q may maintain %s: %w", u.GetName(), s, err)
		}
	}
	return false, nil
}
