// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package previewer creates previews of NodeMaintenances. For each request it gathers the inputs of
// pkg/drain/forecast from the caches of this replica and from the cluster.
package previewer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/forecast"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/host/read"
	"haulout.dev/haulout/pkg/host/rights"
)

const (
	// atOnce is the maximum number of concurrent previews. A preview of 150,000 pods allocates
	// 112 MB, most of which is garbage before it ends.
	atOnce = 2
	// startWithin is how long a request waits for other previews to finish.
	startWithin = 10 * time.Second
	// workFor is how long a request may take.
	workFor = 45 * time.Second
	// retryAfter is the delay, in seconds, after which a client may repeat a request that found too
	// many previews in progress. Clients repeat such a request themselves, up to ten times.
	retryAfter = 10
	// noRetry: a request that timed out is not repeated. The next one would time out, too, and the
	// user would see nothing for minutes.
	noRetry = 0
	// askAtMost is the maximum number of nodes that are checked by name for each maintenance. The
	// preview assumes that the requester may maintain all further nodes.
	askAtMost = 1000
)

// Config has the dependencies and options of a Previewer.
type Config struct {
	// Host is the client of the host cluster.
	Host kubernetes.Interface
	// Nodes returns all nodes (see CachedNodes).
	Nodes func(context.Context) ([]*corev1.Node, error)
	// Caches returns synced caches of the host cluster, or nil if there are none at the moment.
	Caches func() *host.Caches
	// Stopping is closed when the server shuts down: no request then waits for caches.
	Stopping <-chan struct{}
	// Authorizer is the authorizer of the host cluster.
	Authorizer authorizer.UnconditionalAuthorizer
	// Evacuators are the classes of the enabled built-in evacuators.
	Evacuators []string
	// Rules are the rules about the right to maintain nodes that admission has as well.
	Rules rights.Rules
	// Maintenances returns all maintenances that have not ended (see NotDone).
	Maintenances func(context.Context) ([]*v1alpha1.NodeMaintenance, error)
	// UnprotectedAllAtOnce is set if pods that no budget protects do not wait for other pods of
	// their owner.
	UnprotectedAllAtOnce bool
	// Clock is the clock.
	Clock clock.PassiveClock
}

// Previewer creates previews.
type Previewer struct {
	config     Config
	evacuators sets.Set[string]
	slots      chan struct{}
}

// New returns a Previewer.
func New(config Config) *Previewer {
	return &Previewer{config: config, evacuators: sets.New(config.Evacuators...), slots: make(chan struct{}, atOnce)}
}

// NotDone returns a function for Config.Maintenances that reads the cache of an informer and omits
// maintenances that end, so that a preview does not have to read them.
func NotDone(informer informers.NodeMaintenanceInformer) func(context.Context) ([]*v1alpha1.NodeMaintenance, error) {
	// Informer() registers the informer, so that the factory starts it.
	synced, lister := informer.Informer().HasSynced, informer.Lister()
	return func(ctx context.Context) ([]*v1alpha1.NodeMaintenance, error) {
		if err := waitFor(ctx, synced, "NodeMaintenances"); err != nil {
			return nil, err
		}
		all, err := lister.List(labels.Everything())
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(all, v1alpha1.IsEnding), nil
	}
}

// CachedNodes returns a function for Config.Nodes that reads the cache of an informer. Admission
// decides about rights to nodes by the same cache.
func CachedNodes(informer coreinformers.NodeInformer) func(context.Context) ([]*corev1.Node, error) {
	synced, lister := informer.Informer().HasSynced, informer.Lister()
	return func(ctx context.Context) ([]*corev1.Node, error) {
		if err := waitFor(ctx, synced, "Nodes"); err != nil {
			return nil, err
		}
		return lister.List(labels.Everything())
	}
}

func waitFor(ctx context.Context, synced cache.InformerSynced, kind string) error {
	if !synced() && !cache.WaitForCacheSync(ctx.Done(), synced) {
		return fmt.Errorf("the cache of %s is not synced yet", kind)
	}
	return nil
}

// Preview returns the preview of a maintenance. Its errors may be returned to clients.
func (p *Previewer) Preview(ctx context.Context, nm *v1alpha1.NodeMaintenance) (*v1alpha1.NodeMaintenancePreview, error) {
	ctx, cancel := context.WithTimeout(ctx, workFor)
	defer cancel()
	caches, err := p.awaitCaches(ctx)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(startWithin)
	defer timer.Stop()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-timer.C:
		return nil, apierrors.NewTooManyRequests("too many previews are in progress, try again later", retryAfter)
	case <-ctx.Done():
		return nil, apierrors.NewTimeoutError("the preview did not start in time", noRetry)
	}
	out, err := p.work(ctx, nm, caches)
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return out, nil
	case ctx.Err() != nil, hasMoments(ctx):
		return nil, apierrors.NewTimeoutError("the cluster could not be read in time", noRetry)
	case errors.As(err, &status):
		// If a read by the server fails, for example with Forbidden or NotFound, the error must not
		// look like an error about the client or the maintenance.
		return nil, apierrors.NewInternalError(fmt.Errorf("read the host cluster: %w", err))
	}
	return nil, apierrors.NewInternalError(err)
}

// awaitCaches waits for the caches, before the preview takes the place of another one.
func (p *Previewer) awaitCaches(ctx context.Context) (caches *host.Caches, err error) {
	stopping := func() bool {
		select {
		case <-p.config.Stopping:
			return true
		default:
			return false
		}
	}
	done := func() bool {
		caches = p.config.Caches()
		return caches != nil || stopping()
	}
	switch {
	case !done() && !cache.WaitForCacheSync(ctx.Done(), done):
		return nil, apierrors.NewTimeoutError("this server has not read the pods, budgets and owners of the cluster yet; if it cannot, its log says why", noRetry)
	case caches == nil:
		// Clients repeat the request, and may reach another replica.
		err := apierrors.NewServiceUnavailable("the server is shutting down")
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		return nil, err
	}
	return caches, nil
}

// hasMoments reports whether the deadline of a context is so near that the rate limiter may have
// refused a request which would have to wait until after the deadline.
func hasMoments(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < time.Second
}

func (p *Previewer) work(ctx context.Context, nm *v1alpha1.NodeMaintenance, caches *host.Caches) (*v1alpha1.NodeMaintenancePreview, error) {
	s := &forecast.Situation{Now: p.config.Clock.Now(), Evacuators: p.evacuators, UnprotectedAllAtOnce: p.config.UnprotectedAllAtOnce}
	nodes, err := p.config.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	all, err := p.config.Maintenances(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.choose(ctx, s, nm, all, nodes); err != nil {
		return nil, err
	}
	if n := s.Subject.Ignored; n > 0 {
		warning.AddWarning(ctx, "", fmt.Sprintf("spec.newNodes: matching nodes that are ignored because they were created later: %d", n))
	}
	if !v1alpha1.IsEnding(nm) {
		if err := p.authorize(ctx, s); err != nil {
			return nil, err
		}
		if err := p.look(ctx, s, nodes, caches); err != nil {
			return nil, err
		}
	}
	return forecast.Decide(ctx, s)
}

// choose selects the maintenances that affect the preview, and their nodes.
func (p *Previewer) choose(ctx context.Context, s *forecast.Situation, nm *v1alpha1.NodeMaintenance,
	all []*v1alpha1.NodeMaintenance, nodes []*corev1.Node) error {
	var err error
	if s.Subject, err = member(ctx, nm, nodes); err != nil {
		return err
	}
	// reached are the nodes of the subject and, transitively, of the draining maintenances that
	// share nodes with it.
	reached := sets.New[string]()
	reach := func(m *forecast.Member) {
		for _, n := range m.Nodes {
			reached.Insert(n.Name)
		}
	}
	reach(&s.Subject)
	touches := func(m forecast.Member) bool {
		return slices.ContainsFunc(m.Nodes, func(n *corev1.Node) bool { return reached.Has(n.Name) })
	}
	var candidates []forecast.Member
	for _, other := range all {
		if other.Name == nm.Name || v1alpha1.IsEnding(other) {
			continue
		}
		m, err := member(ctx, other, nodes)
		if err != nil {
			return err
		}
		if touches(m) {
			s.Sharing = append(s.Sharing, m)
		}
		if v1alpha1.IsDraining(other) && !v1alpha1.IsPaused(other) {
			candidates = append(candidates, m)
		}
	}
	if v1alpha1.IsEnding(nm) {
		return nil
	}
	for {
		i := slices.IndexFunc(candidates, touches)
		if i < 0 {
			return nil
		}
		reach(&candidates[i])
		s.Draining = append(s.Draining, candidates[i])
		candidates = slices.Delete(candidates, i, i+1)
	}
}

func member(ctx context.Context, nm *v1alpha1.NodeMaintenance, nodes []*corev1.Node) (forecast.Member, error) {
	m := forecast.Member{NodeMaintenance: nm, Refused: sets.New[string]()}
	selector, err := nodeselector.Of(nm)
	if err != nil {
		return m, fmt.Errorf("parse the node selector of maintenance %s: %w", nm.Name, err)
	}
	m.Nodes, m.Ignored, err = selector.Select(ctx, nodes)
	return m, err
}

// authorize determines the nodes that the maintenances may not change. It uses no cached results of
// access reviews.
func (p *Previewer) authorize(ctx context.Context, s *forecast.Situation) error {
	unchecked, err := p.refuse(ctx, &s.Subject)
	if err != nil {
		return err
	}
	s.Unchecked = unchecked
	for i := range s.Draining {
		if _, err := p.refuse(ctx, &s.Draining[i]); err != nil {
			return err
		}
	}
	return nil
}

// refuse sets the nodes of a maintenance that its requester may not maintain, and returns the
// number of nodes that were not checked.
func (p *Previewer) refuse(ctx context.Context, m *forecast.Member) (unchecked int, err error) {
	requester := m.Spec.RequestedBy
	if requester == nil || requester.Username == "" {
		for _, n := range m.Nodes {
			m.Refused.Insert(n.Name)
		}
		return 0, nil
	}
	var nodes rights.Nodes
	for _, n := range m.Nodes {
		nodes.Add(p.config.Rules, n.Name, n)
	}
	q := rights.Questioner{
		Authorizer: p.config.Authorizer, User: rights.UserOf(requester), Rules: p.config.Rules, AtMost: askAtMost,
	}
	verdict, err := q.Ask(ctx, nodes)
	m.Refused.Insert(verdict.Refused...)
	return verdict.Unasked, err
}

// look reads the pods on the relevant nodes, and the objects that their evacuation depends on.
func (p *Previewer) look(ctx context.Context, s *forecast.Situation, nodes []*corev1.Node, caches *host.Caches) error {
	touched, touchedNames := touchedNodes(s)
	s.Pods = forecast.NewPods(touched, p.evacuators, podcache.NodeOf)
	if len(touched) == 0 {
		return nil
	}
	reader := read.Reader{Client: p.config.Host, Caches: caches}
	reader.Pods(touchedNames, s.Pods.Add)
	var err error
	if s.Budgets, err = reader.Budgets(s.Pods.Namespaces()); err != nil {
		return err
	}
	if s.TerminatingNamespaces, err = reader.TerminatingNamespaces(ctx); err != nil {
		return err
	}
	unread := sets.New[read.Optional]()
	s.Pinned, err = reader.PinnedClaims(ctx, s.Pods.Claims(), freeNodes(s, nodes))
	if apierrors.IsForbidden(err) {
		unread.Insert(read.OptionalVolumes)
	} else if err != nil {
		return err
	}
	names := read.NewOwnerNames(p.evacuators)
	s.Pods.Owners(names.Add)
	owners, err := reader.Owners(ctx, names, nodes)
	if err != nil {
		return err
	}
	s.Owners = owners
	for _, kind := range sets.List(unread.Insert(owners.Unread()...)) {
		warning.AddWarning(ctx, "", fmt.Sprintf("not known: %s, since the server may not read %s; "+
			"update its ClusterRole", unknownWithout[kind], kind))
	}
	return nil
}

// unknownWithout has, by kind, the part of a preview that is unknown if the server may not read the
// kind.
var unknownWithout = map[read.Optional]string{
	read.OptionalJobs:    "which Jobs fail permanently when their pods are evicted",
	read.OptionalVolumes: "which pods can start again only on the nodes of this maintenance, and which Deployments cannot be scaled up",
}

// freeNodes returns the nodes on which pods may start while the maintenance holds its nodes.
func freeNodes(s *forecast.Situation, nodes []*corev1.Node) []*corev1.Node {
	held := sets.New[string]()
	for _, n := range s.Subject.Allowed() {
		held.Insert(n.Name)
	}
	var free []*corev1.Node
	for _, n := range nodes {
		if !n.Spec.Unschedulable && !held.Has(n.Name) {
			free = append(free, n)
		}
	}
	return free
}

// touchedNodes returns the nodes that the maintenances drain or would drain, and those for whose
// pods they wait.
func touchedNodes(s *forecast.Situation) ([]*corev1.Node, sets.Set[string]) {
	var nodes []*corev1.Node
	names := sets.New[string]()
	members := append([]forecast.Member{s.Subject}, s.Draining...)
	for i := range members {
		for _, n := range slices.Concat(members[i].Allowed(), members[i].Awaited()) {
			if !names.Has(n.Name) {
				names.Insert(n.Name)
				nodes = append(nodes, n)
			}
		}
	}
	return nodes, names
}
