// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package rights checks in the host cluster whether a user may maintain nodes. A user needs this
// right for the nodes of a maintenance. Rules describes which rights are sufficient. They are
// checked by access reviews, each of which is one call of the authorizer. A Questioner checks many
// nodes for one request. A Cache checks nodes repeatedly for the controllers, for many users.
//
// If a user may maintain all nodes, only the control plane and a hundred other nodes are checked by
// name: authorizers that deny individual nodes to such a user are rare, and a cluster may have
// thousands of nodes. Otherwise the pools of the nodes are checked, once each, and then the nodes
// of other pools by name.
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
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/util/workqueue"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/identity"
)

const (
	// AtOnce is the maximum number of concurrent access reviews.
	AtOnce = 16
	// besideShortcut is the maximum number of worker nodes that are checked by name although the
	// user may maintain all nodes.
	besideShortcut = 100
)

// Nodes are the names of the nodes to check. They are checked in the order of the lists.
type Nodes struct {
	// ControlPlane are the nodes of the control plane, which are always checked by name.
	ControlPlane []string
	// Others are all other nodes.
	Others []string
	// Pools are the pools of a node, by its name. The right to one of them is sufficient for the
	// node.
	Pools map[string][]string
}

// Add adds a node and its pool. The node is nil if the cluster does not have it. stored are the
// pools through which maintenances have taken the node, so that they are sufficient to release it;
// "" is none.
func (n *Nodes) Add(rules Rules, name string, node *corev1.Node, stored ...string) {
	if protocol.IsControlPlane(node) {
		n.ControlPlane = append(n.ControlPlane, name)
	} else {
		n.Others = append(n.Others, name)
	}
	var pools []string
	for _, pool := range append(slices.Clip(stored), rules.PoolOf(node)) {
		if rules.PoolLabel != "" && pool != "" && !slices.Contains(pools, pool) {
			pools = append(pools, pool)
		}
	}
	if len(pools) == 0 {
		return
	}
	if n.Pools == nil {
		n.Pools = map[string][]string{}
	}
	n.Pools[name] = pools
}

func (n Nodes) names() []string { return slices.Concat(n.ControlPlane, n.Others) }

// except returns the nodes for whose names is returns false.
func (n Nodes) except(is func(name string) bool) Nodes {
	n.ControlPlane = slices.DeleteFunc(slices.Clone(n.ControlPlane), is)
	n.Others = slices.DeleteFunc(slices.Clone(n.Others), is)
	return n
}

// poolsOf returns the pools of the nodes, each once, in the order of the nodes.
func (n Nodes) poolsOf() []string {
	var pools []string
	seen := map[string]bool{}
	for _, name := range n.names() {
		for _, pool := range n.Pools[name] {
			if !seen[pool] {
				seen[pool] = true
				pools = append(pools, pool)
			}
		}
	}
	return pools
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
	// Rules are the rules with which the nodes to check were added.
	Rules Rules
	// AtMost is the maximum number of joining nodes that are checked by name, and of their pools
	// that are checked; 0 means no limit.
	AtMost int
	// RefusalsAtMost is the number of refusals after which no further access reviews are made; 0
	// means no limit.
	RefusalsAtMost int
}

// Verdict is the result of the access reviews for several nodes.
type Verdict struct {
	// Refused are nodes that the user may not maintain, sorted by name.
	Refused []string
	// More is set if there may be further refused nodes, which were not checked because of
	// RefusalsAtMost.
	More bool
	// Unasked is the number of joining nodes that were not checked because of AtMost. It does not
	// include nodes that are covered by the access review for all nodes or for a pool.
	Unasked int
	// Pools are the pools that the user may maintain, by the name of the node, as far as the right
	// to the node comes from its pool.
	Pools map[string]string
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
		isOwn := func(name string) bool { return name == own }
		leaving, joining = leaving.except(isOwn), joining.except(isOwn)
	}
	if len(leaving.names())+len(joining.names()) == 0 {
		return Verdict{}, nil
	}
	r := &request{Questioner: q, pools: map[string]func() (bool, error){}}
	if !q.Rules.EveryByName {
		all, err := q.may(ctx, subject{})
		if err != nil {
			return Verdict{}, err
		}
		if all {
			others := slices.Concat(leaving.Others, joining.Others)
			names := slices.Concat(leaving.ControlPlane, joining.ControlPlane, others[:min(len(others), besideShortcut)])
			return r.each(ctx, names, leaving, joining)
		}
	}
	granted, err := r.byPool(ctx, leaving, joining)
	if err != nil {
		return Verdict{}, err
	}
	isGranted := func(name string) bool { return granted[name] != "" }
	verdict, err := r.each(ctx, leaving.except(isGranted).names(), leaving)
	if err != nil || len(verdict.Refused) > 0 {
		return verdict, err
	}
	names := joining.except(isGranted).names()
	asked := names
	if q.AtMost > 0 {
		asked = names[:min(len(names), q.AtMost)]
	}
	verdict, err = r.each(ctx, asked, joining)
	verdict.Unasked = len(names) - len(asked)
	maps.Copy(granted, verdict.Pools)
	verdict.Pools = granted
	return verdict, err
}

// may makes the access reviews about one subject.
func (q Questioner) may(ctx context.Context, s subject) (bool, error) {
	return ask(ctx, q.Authorizer, q.User, s)
}

// MayGet reports whether the user may read a node, which means that an error may contain its name.
// It returns false if the authorizer does not respond.
func (q Questioner) MayGet(ctx context.Context, name string) bool {
	decision, _, _ := q.Authorizer.Authorize(ctx, attributes(q.User, "get", corev1.SchemeGroupVersion, "nodes", name))
	return decision == authorizer.DecisionAllow
}

// MayAssign reports whether the user may have nodes offered to the workers of a class.
func (q Questioner) MayAssign(ctx context.Context, class string) (bool, error) {
	return q.may(ctx, subject{isWorker: true, name: class})
}

// request remembers the answers about pools, so that there is one access review for each pool.
type request struct {
	Questioner
	mu    sync.Mutex
	pools map[string]func() (bool, error)
}

// mayPool reports whether the user may maintain a pool.
func (r *request) mayPool(ctx context.Context, pool string) (bool, error) {
	r.mu.Lock()
	once := r.pools[pool]
	if once == nil {
		once = sync.OnceValues(func() (bool, error) { return r.may(ctx, subject{isPool: true, name: pool}) })
		r.pools[pool] = once
	}
	r.mu.Unlock()
	return once()
}

// anyPool returns the first of the pools that the user may maintain, or "".
func (r *request) anyPool(ctx context.Context, pools []string) (string, error) {
	for _, pool := range pools {
		if allowed, err := r.mayPool(ctx, pool); allowed || err != nil {
			return pool, err
		}
	}
	return "", nil
}

// byPool checks the pools of the nodes, and returns the pool that grants the right to a node, by
// its name.
func (r *request) byPool(ctx context.Context, leaving, joining Nodes) (map[string]string, error) {
	pools := joining.poolsOf()
	if r.AtMost > 0 {
		pools = pools[:min(len(pools), r.AtMost)]
	}
	pools = slices.Concat(leaving.poolsOf(), pools)
	allowed, errs := make([]bool, len(pools)), make([]error, len(pools))
	workqueue.ParallelizeUntil(ctx, AtOnce, len(pools), func(i int) { allowed[i], errs[i] = r.mayPool(ctx, pools[i]) })
	if err := cmp.Or(cmp.Or(errs...), ctx.Err()); err != nil {
		return nil, err
	}
	may := map[string]bool{}
	for i, pool := range pools {
		may[pool] = allowed[i]
	}
	granted := map[string]string{}
	for _, nodes := range []Nodes{leaving, joining} {
		for name, pools := range nodes.Pools {
			if i := slices.IndexFunc(pools, func(pool string) bool { return may[pool] }); i >= 0 {
				granted[name] = pools[i]
			}
		}
	}
	return granted, nil
}

// answer is the result of the access reviews for one node.
type answer struct {
	given, allowed bool
	pool           string
	err            error
}

// node checks one node by name and, if that is refused, its pools.
func (r *request) node(ctx context.Context, name string, pools []string) answer {
	allowed, err := r.may(ctx, subject{name: name})
	if allowed || err != nil {
		return answer{given: true, allowed: allowed, err: err}
	}
	pool, err := r.anyPool(ctx, pools)
	return answer{given: true, allowed: pool != "" && err == nil, pool: pool, err: err}
}

// each checks each of the named nodes, up to the limit of refusals. of has their pools.
func (r *request) each(ctx context.Context, names []string, of ...Nodes) (verdict Verdict, firstErr error) {
	limit := r.RefusalsAtMost
	if limit == 0 {
		limit = len(names) + 1
	}
	// Stop only further access reviews. The access reviews in progress must finish.
	asking, stop := context.WithCancel(ctx)
	defer stop()
	answers := make([]answer, len(names))
	var refusals atomic.Int64
	workqueue.ParallelizeUntil(asking, AtOnce, len(names), func(i int) {
		var pools []string
		for _, nodes := range of {
			pools = append(pools, nodes.Pools[names[i]]...)
		}
		answers[i] = r.node(ctx, names[i], pools)
		if answers[i].err != nil || !answers[i].allowed && refusals.Add(1) >= int64(limit) {
			stop()
		}
	})
	answered := 0
	verdict.Pools = map[string]string{}
	for i, a := range answers {
		if a.given {
			answered++
		}
		switch {
		case a.err != nil:
			firstErr = cmp.Or(firstErr, a.err)
		case a.given && !a.allowed:
			verdict.Refused = append(verdict.Refused, names[i])
		case a.pool != "":
			verdict.Pools[names[i]] = a.pool
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
