// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package noderights refuses requests of users who lack the right to maintain nodes, or to have them
// offered to workers.
package noderights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host/rights"
)

const (
	// AskAtMost is the maximum number of joining nodes for which a request checks the rights. The
	// controller checks the other nodes before it changes them.
	AskAtMost = 500
	// RefusalsAtMost is the number of refused nodes after which the checks stop. An error names at
	// most this number of nodes.
	RefusalsAtMost = 10
)

// Checker checks the rights of the user of a request. It has no cache of its own: if a conflict
// repeats the request, the delegated authorizer uses its cache.
type Checker struct {
	// Authorizer is the authorizer of the host cluster.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules are the rules with which the nodes to check were added.
	Rules rights.Rules
	// Effect says in errors what the user cannot do with the refused nodes. It completes a sentence
	// after a comma.
	Effect string
}

func (c Checker) questioner(a admission.Attributes) rights.Questioner {
	return rights.Questioner{
		Authorizer: c.Authorizer, User: a.GetUserInfo(), Rules: c.Rules, AtMost: AskAtMost, RefusalsAtMost: RefusalsAtMost,
	}
}

// Check returns an error if the user of the request may not maintain the nodes that it releases, or
// those that stay or join. Otherwise it returns the pools through which the user may maintain nodes,
// by the name of the node.
func (c Checker) Check(ctx context.Context, a admission.Attributes, leaving, joining rights.Nodes) (map[string]string, error) {
	q := c.questioner(a)
	asking, cancel := withTimeToAnswer(ctx)
	defer cancel()
	verdict, err := q.AskChange(asking, leaving, joining)
	released := len(leaving.ControlPlane) + len(leaving.Others)
	switch {
	case len(verdict.Refused) > 0:
		return nil, admission.NewForbidden(a, fmt.Errorf("user %q may not maintain %s", a.GetUserInfo().GetName(),
			c.describeRefused(asking, q, verdict, leaving, joining)))
	case errors.Is(err, context.DeadlineExceeded) && released > 0:
		return nil, admission.NewForbidden(a, fmt.Errorf("the authorizer did not answer in time whether user %q may maintain each of the %d nodes to release; "+
			"release the nodes in steps, by narrowing spec.nodeSelector", a.GetUserInfo().GetName(), released))
	case err != nil:
		return nil, apierrors.NewInternalError(err)
	}
	return verdict.Pools, nil
}

// CheckWorker returns an error if the user of the request may not have nodes offered to the workers
// of a class.
func (c Checker) CheckWorker(ctx context.Context, a admission.Attributes, class string) error {
	allowed, err := c.questioner(a).MayAssign(ctx, class)
	switch {
	case err != nil:
		return apierrors.NewInternalError(err)
	case !allowed:
		return admission.NewForbidden(a, fmt.Errorf("user %q cannot %s workers %q: this needs the verb %s on %s of %s",
			a.GetUserInfo().GetName(), rights.VerbAssign, class, rights.VerbAssign, rights.ResourceWorkers, v1alpha1.GroupName))
	}
	return nil
}

// withTimeToAnswer returns a context that ends shortly before the request does, so that time for a
// response is left.
func withTimeToAnswer(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)*4/5)
}

// describeRefused names the refused nodes that the user may read, counts the other refused nodes,
// and describes which rights would be sufficient. A selector matches labels, so the name of a
// matching node, or its pool, would reveal its labels to a user who may not read the node.
func (c Checker) describeRefused(ctx context.Context, q rights.Questioner, verdict rights.Verdict, all ...rights.Nodes) string {
	var names, pools []string
	for _, name := range verdict.Refused {
		if !q.MayGet(ctx, name) {
			continue
		}
		names = append(names, name)
		for _, nodes := range all {
			pools = append(pools, nodes.Pools[name]...)
		}
	}
	text := fmt.Sprintf("%d of the nodes", len(verdict.Refused))
	if verdict.More {
		text = fmt.Sprintf("at least %d of the nodes", len(verdict.Refused))
	}
	switch hidden := len(verdict.Refused) - len(names); {
	case len(names) == 0:
	case hidden > 0:
		text += fmt.Sprintf(" (%s and %d that the user may not get)", strings.Join(names, ", "), hidden)
	default:
		text += fmt.Sprintf(" (%s)", strings.Join(names, ", "))
	}
	slices.Sort(pools)
	return text + ", " + c.Effect + "; " + c.sufficient(slices.Compact(pools))
}

// sufficient describes which rights are sufficient to maintain a node. pools are the pools of
// refused nodes.
func (c Checker) sufficient(pools []string) string {
	text := fmt.Sprintf("for each node, one of these rights is needed: %q on nodes (the core API group), or %q on nodes of %s",
		"delete", rights.VerbMaintain, v1alpha1.GroupName)
	if c.Rules.PoolLabel == "" {
		return text
	}
	which := "the name of a pool"
	if len(pools) > 0 {
		which = "here " + strings.Join(pools, ", ")
	}
	return text + fmt.Sprintf(", or, except for control-plane nodes, %q on nodepools of that group (the pool is the label %s; %s)",
		rights.VerbMaintain, c.Rules.PoolLabel, which)
}
