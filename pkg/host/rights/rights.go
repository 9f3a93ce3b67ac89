// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package rights checks in the host cluster whether a user may delete nodes. A user needs this
// right for the nodes of a maintenance. Each check is an access review, which is one call of the
// authorizer. A Questioner checks many nodes for one request. A Cache checks nodes repeatedly for
// the controllers, for many users.
//
// If a user may delete all nodes, only the control plane and a hundred other nodes are checked by
// name: authorizers that deny individual nodes to such a user are rare, and a cluster may have
// thousands of nodes.
//
// A node may put itself under maintenance, as the node agent does at a shutdown. So if the user is
// a node, no access review is made for that node. For other nodes, it needs the same right as any
// user.
//
// The content of a Cache may be lost at any time.
package rights

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/util/workqueue"

	"haulout.dev/haulout/pkg/identity"
)

const (
	// AtOnce is the maximum number of concurrent access reviews.
	AtOnce = 16
	// besideShortcut is the maximum number of worker nodes that are checked by name although the
	// user may delete all nodes.
	besideShortcut = 100
)

// Nodes are the names of the nodes to check. They are checked in the order of the lists.
type Nodes struct {
	// ControlPlane are the nodes of the control plane, which are always checked by name.
	ControlPlane []string
	// Others are all other nodes.
	Others []string
}

func (n Nodes) names() []string { return slices.Concat(n.ControlPlane, n.Others) }

// without returns the nodes except the node with the given name.
func (n Nodes) without(name string) Nodes {
	is := func(other string) bool { return other == name }
	return Nodes{
		ControlPlane: slices.DeleteFunc(slices.Clone(n.ControlPlane), is), Others: slices.DeleteFunc(slices.Clone(n.Others), is),
	}
}

// UserOf returns the user in spec.requestedBy of a NodeMaintenance.
func UserOf(u *authenticationv1.UserInfo) user.Info {
	extra := make(map[string][]string, len(u.Extra))
	for key, values := range u.Extra {
		extra[key] = values
	}
	return &user.DefaultInfo{Name: u.Username, UID: u.UID, Groups: u.Groups, Extra: extra}
}

// Questioner makes access reviews for one user, without a cache.
type Questioner struct {
	// Authorizer is the authorizer of the host cluster.
	Authorizer authorizer.UnconditionalAuthorizer
	// User is the user whose rights are checked.
	User user.Info
	// EveryByName disables the shortcut of a single access review for all nodes.
	EveryByName bool
	// AtMost is the maximum number of joining nodes that are checked by name; 0 means no limit.
	AtMost int
	// RefusalsAtMost is the number of refusals after which no further access reviews are made; 0
	// means no limit.
	RefusalsAtMost int
}

// Verdict is the result of the access reviews for several nodes.
type Verdict struct {
	// Refused are nodes that the user may not delete, sorted by name.
	Refused []string
	// More is set if there may be further refused nodes, which were not checked because of
	// RefusalsAtMost.
	More bool
	// Unasked is the number of joining nodes that were not checked because of AtMost. It does not
	// include nodes that are covered by the access review for all nodes.
	Unasked int
}

// Ask checks joining nodes. It returns an error if an access review failed, unless a node was
// refused.
func (q Questioner) Ask(ctx context.Context, joining Nodes) (Verdict, error) {
	return q.AskChange(ctx, Nodes{}, joining)
}

// AskChange checks the nodes that leave a maintenance, then the nodes that stay or join. It checks
// all leaving nodes, since a controller checks nodes again before it holds them, but not before it
// releases them.
func (q Questioner) AskChange(ctx context.Context, leaving, joining Nodes) (Verdict, error) {
	if own, isNode := identity.NodeOf(q.User); isNode {
		leaving, joining = leaving.without(own), joining.without(own)
	}
	if len(leaving.names())+len(joining.names()) == 0 {
		return Verdict{}, nil
	}
	if !q.EveryByName {
		all, err := q.mayDelete(ctx, "")
		if err != nil {
			return Verdict{}, err
		}
		if all {
			others := slices.Concat(leaving.Others, joining.Others)
			names := slices.Concat(leaving.ControlPlane, joining.ControlPlane, others[:min(len(others), besideShortcut)])
			return q.byName(ctx, names)
		}
	}
	verdict, err := q.byName(ctx, leaving.names())
	if err != nil || len(verdict.Refused) > 0 {
		return verdict, err
	}
	names := joining.names()
	asked := names
	if q.AtMost > 0 {
		asked = names[:min(len(names), q.AtMost)]
	}
	verdict, err = q.byName(ctx, asked)
	verdict.Unasked = len(names) - len(asked)
	return verdict, err
}

// mayDelete checks one node, or all nodes if the name is empty.
func (q Questioner) mayDelete(ctx context.Context, name string) (bool, error) {
	return ask(ctx, q.Authorizer, q.User, "delete", name)
}

// MayGet reports whether the user may read a node, which means that an error may contain its name.
// It returns false if the authorizer does not respond.
func (q Questioner) MayGet(ctx context.Context, name string) bool {
	allowed, err := ask(ctx, q.Authorizer, q.User, "get", name)
	return err == nil && allowed
}

func ask(ctx context.Context, a authorizer.UnconditionalAuthorizer, u user.Info, verb, name string) (bool, error) {
	decision, _, err := a.Authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: verb, APIVersion: "v1", Resource: "nodes", Name: name, ResourceRequest: true,
	})
	allowed := decision == authorizer.DecisionAllow
	if err != nil && !allowed {
		return false, fmt.Errorf("ask whether user %q may %s node %q: %w", u.GetName(), verb, name, err)
	}
	return allowed, nil
}

// byName checks each of the nodes, up to the limit of refusals.
func (q Questioner) byName(ctx context.Context, names []string) (verdict Verdict, firstErr error) {
	limit := q.RefusalsAtMost
	if limit == 0 {
		limit = len(names) + 1
	}
	// Stop only further access reviews. The access reviews in progress must finish.
	asking, stop := context.WithCancel(ctx)
	defer stop()
	type answer struct {
		given, allowed bool
		err            error
	}
	answers := make([]answer, len(names))
	var refusals atomic.Int64
	workqueue.ParallelizeUntil(asking, AtOnce, len(names), func(i int) {
		allowed, err := q.mayDelete(ctx, names[i])
		answers[i] = answer{true, allowed, err}
		if err != nil || !allowed && refusals.Add(1) >= int64(limit) {
			stop()
		}
	})
	answered := 0
	for i, a := range answers {
		if a.given {
			answered++
		}
		switch {
		case a.err != nil:
			firstErr = cmp.Or(firstErr, a.err)
		case a.given && !a.allowed:
			verdict.Refused = append(verdict.Refused, names[i])
		}
	}
	if err := ctx.Err(); err != nil && firstErr == nil {
		// A node must not count as allowed if there was no time to check it.
		firstErr = err
	}
	slices.Sort(verdict.Refused)
	verdict.More = len(verdict.Refused) > limit || answered < len(names)
	verdict.Refused = verdict.Refused[:min(len(verdict.Refused), limit)]
	return verdict, firstErr
}
