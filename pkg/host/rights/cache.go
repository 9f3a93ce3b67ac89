// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/identity"
)

const (
	// AnswerTTL is the time for which an answer is valid. A granted or revoked right takes effect
	// after this time at the latest.
	AnswerTTL = 5 * time.Minute

	// renewAfter is the age at which Run renews an answer, so that callers do not get expired
	// answers.
	renewAfter = 4 * time.Minute
	// renewEvery is how often Run checks for answers to renew.
	renewEvery = 20 * time.Second
	// forgetAfter is the time for which an answer is kept after its last use. It is longer than the
	// resync period of maintenances.
	forgetAfter = 30 * time.Minute
	// answerWithin is the timeout of an access review. After a timeout, the waiting access reviews
	// of the same user fail as well.
	answerWithin = 10 * time.Second
	// perUser is the maximum number of concurrent access reviews of one user. For a user whose last
	// access review timed out, and for a user who has no answer yet, the maximum is 1: if the
	// authorizer does not respond for one user, the access reviews of other users must not wait for
	// it.
	perUser = AtOnce / 2
	// silentAtOnce is the maximum number of concurrent access reviews of all users together whose
	// last access review timed out.
	silentAtOnce = AtOnce / 2
	// askAgainAfter is the time after which a failed access review may be repeated.
	askAgainAfter = time.Second
)

// ErrAsking is the error of an Answer until the authorizer responds for the first time. Then the
// Cache calls its subscribers.
var ErrAsking = errors.New("the authorizer has not responded yet")

// errTimeout is the error of an access review without a response.
var errTimeout = errors.New("the authorizer did not respond in time")

// Answer is the known result of the access reviews for one user and one node.
type Answer struct {
	// Allowed is set if the user may maintain the node.
	Allowed bool
	// Pool is the pool of the node if Allowed comes from the right to this pool.
	Pool string
	// Stale is set if Allowed comes from an expired access review. A stale answer is sufficient to
	// keep a node that the maintenance already holds, but not to hold another node.
	Stale bool
	// Err is the reason why there is no valid answer: ErrAsking, or the error of the last access
	// review. If Err is set and Stale is false, it is not known whether the user may maintain
	// the node.
	Err error
}

// CacheConfig has the dependencies and options of a Cache.
type CacheConfig struct {
	// Authorizer is the authorizer of the host cluster.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules decide which rights are sufficient.
	Rules Rules
	// Clock is the clock for the expiry of answers.
	Clock clock.WithTicker
}

// Cache caches which users may maintain which nodes. It makes access reviews in the background, so
// no caller waits for them. It is safe for concurrent use.
type Cache struct {
	config      CacheConfig
	subscribers []func(node string)

	mu    sync.Mutex
	users map[string]*userAnswers
	// turns has the users with waiting access reviews, in round-robin order.
	turns []*userAnswers
	// asked is the number of access reviews in progress. silent is the number of those for users
	// whose last access review timed out.
	asked, silent int
}

type userAnswers struct {
	user user.Info
	// known has the answers about nodes, about all nodes, and about pools.
	known map[subject]*knownAnswer
	// sampled are the worker nodes that are checked by name although the user may maintain all
	// nodes.
	sampled map[string]struct{}

	// queue has the waiting access reviews, in order. asked is the number of access reviews in
	// progress. hasTurn is set if the user is in Cache.turns.
	queue   []question
	asked   int
	hasTurn bool
	// isAnswered is set if the authorizer responded to the last access review, isSilent if that
	// access review timed out. Both are false before the first access review ends.
	isAnswered, isSilent bool
}

// knownAnswer is the state of one access review, with the last answer to it.
type knownAnswer struct {
	uid  types.UID
	used time.Time
	// answered is set if there was an answer. at is the time of the answer, and allowed the result.
	answered, allowed bool
	at                time.Time
	// asking is set while the access review is queued or in progress.
	asking bool
	// err is the error of the last access review, and failedAt the time of the error. err is nil if
	// the last access review succeeded.
	err      error
	failedAt time.Time
	// waiting are the names of the nodes to report to the subscribers with the next answer. served
	// are the names of all nodes for which this answer was used. They are reported when the answer
	// changes.
	waiting, served sets.Set[string]
}

// question is a check of one subject. The answer is stored in known.
type question struct {
	of    *userAnswers
	about subject
	known *knownAnswer
	// ofSilent is set if the previous access review of the user had timed out when this one was
	// sent.
	ofSilent bool
}

// NewCache returns a Cache. Run renews the answers. Without Run they expire and are requested
// again.
func NewCache(config CacheConfig) *Cache {
	return &Cache{config: config, users: map[string]*userAnswers{}}
}

// Subscribe registers a function that must not block. It is called with the name of each node for
// which Ask had no valid answer, when the answer arrives or the access review fails for the first
// time. It is also called with the name of each node whose answer changes later. Call Subscribe
// before the first Ask.
func (c *Cache) Subscribe(answered func(node string)) {
	c.subscribers = append(c.subscribers, answered)
}

// PoolOf returns the present pool of a node, see Rules.
func (c *Cache) PoolOf(node *corev1.Node) string { return c.config.Rules.PoolOf(node) }

// Ask returns, by name, whether the user may maintain each of the nodes, as far as this is known
// now. It requests unknown answers in the background. A missing answer for one node does not affect
// the answers for other nodes. For each node, the first row that applies selects the check that
// decides:
//
//	there is no requester                     none: not allowed
//	the requester is the node                 none: allowed
//	EveryByName, or the user may not          the check of the pool; unless that is allowed or
//	maintain all nodes                        unknown, the check of the node
//	no answer for all nodes                   the same if there was an answer for the pool or the
//	                                          node before, otherwise unknown
//	node of the control plane, refused        the check of the node; if that is refused, the check
//	before, or one of a hundred others        of the pool
//	any other node                            the check of all nodes
//
// Then the first row that applies selects the answer:
//
//	answered within AnswerTTL                 this answer
//	answered before that: allowed             allowed, Stale
//	answered before that: not allowed, and    not allowed
//	no access review has failed since
//	otherwise                                 unknown: Err
func (c *Cache) Ask(ctx context.Context, requester *authenticationv1.UserInfo, nodes []*corev1.Node) map[string]Answer {
	answers := make(map[string]Answer, len(nodes))
	if requester == nil || requester.Username == "" {
		for _, node := range nodes {
			answers[node.Name] = Answer{}
		}
		return answers
	}
	if own, isNode := identity.NodeOf(UserOf(requester)); isNode {
		isOwn := func(node *corev1.Node) bool { return node.Name == own }
		if slices.ContainsFunc(nodes, isOwn) {
			answers[own] = Answer{Allowed: true}
		}
		nodes = slices.DeleteFunc(slices.Clone(nodes), isOwn)
	}
	if len(nodes) == 0 {
		return answers
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.of(requester)
	var all Answer
	if !c.config.Rules.EveryByName {
		all = c.answer(ctx, of, subject{}, "", nodes)
	}
	for _, node := range nodes {
		answers[node.Name] = c.ofNode(ctx, of, node, all)
	}
	return answers
}

// AskWorker returns whether the user may have nodes offered to the workers of a class, as far as
// this is known now, with the same rules for expired answers as Ask. The subscribers are called for
// the given nodes.
func (c *Cache) AskWorker(ctx context.Context, requester *authenticationv1.UserInfo, class string, nodes []*corev1.Node) Answer {
	if requester == nil || requester.Username == "" {
		return Answer{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answer(ctx, c.of(requester), subject{isWorker: true, name: class}, "", nodes)
}

// ofNode returns the answer for one node. all is the answer for all nodes. The caller must have
// locked mu.
func (c *Cache) ofNode(ctx context.Context, of *userAnswers, node *corev1.Node, all Answer) Answer {
	if all.Allowed && !of.isAskedByName(node) {
		return all
	}
	named, one := subject{name: node.Name}, []*corev1.Node{node}
	pool := subject{isPool: true, name: c.config.Rules.PoolOf(node)}
	byName := func() Answer { return c.answer(ctx, of, named, node.UID, one) }
	byPool := func() Answer {
		if pool.name == "" {
			return Answer{}
		}
		answer := c.answer(ctx, of, pool, "", one)
		if answer.Allowed {
			answer.Pool = pool.name
		}
		return answer
	}
	if all.Allowed {
		answer := byName()
		if answer.Allowed || answer.Err != nil {
			return answer
		}
		return byPool()
	}
	knowsName := of.hasAnswer(named, node.UID)
	if all.Err != nil && !knowsName && !of.hasAnswer(pool, "") {
		// Do not make an access review for each of thousands of nodes: they would fail as well.
		return all
	}
	answer := byPool()
	switch {
	case answer.Allowed && !answer.Stale:
		return answer
	case !knowsName && answer.Err != nil:
		// Do not check each node of a pool by name before the answer about the pool is there.
		return answer
	case !knowsName && all.Err != nil:
		return all
	}
	return better(answer, byName())
}

// better returns the answer to the question whether one of two rights is granted.
func better(a, b Answer) Answer {
	switch {
	case b.Allowed && (!b.Stale || !a.Allowed), !a.Allowed && a.Err == nil:
		return b
	}
	return a
}

// isAskedByName reports whether a node needs a check of its own although the user may maintain all
// nodes.
func (u *userAnswers) isAskedByName(node *corev1.Node) bool {
	named := subject{name: node.Name}
	return protocol.IsControlPlane(node) || u.hasAnswer(named, node.UID) && !u.known[named].allowed || u.samples(node.Name)
}

// hasAnswer reports whether there was an answer about a subject.
func (u *userAnswers) hasAnswer(about subject, uid types.UID) bool {
	known := u.known[about]
	return known != nil && known.uid == uid && known.answered
}

// samples reports whether the node is in the sample of nodes that are checked by name. It adds the
// node if the sample is not full.
func (u *userAnswers) samples(name string) bool {
	if _, ok := u.sampled[name]; ok {
		return true
	}
	if len(u.sampled) >= besideShortcut {
		return false
	}
	u.sampled[name] = struct{}{}
	return true
}

// answer returns the answer about a subject; uid is that of the node if it is one. If the answer
// has expired, it requests a new one, and the subscribers are called for the given nodes later. The
// caller must have locked mu.
func (c *Cache) answer(ctx context.Context, of *userAnswers, about subject, uid types.UID, nodes []*corev1.Node) Answer {
	now := c.config.Clock.Now()
	known := of.known[about]
	if known == nil || known.uid != uid {
		known = &knownAnswer{uid: uid, waiting: sets.New[string](), served: sets.New[string]()}
		of.known[about] = known
	}
	known.used = now
	for _, node := range nodes {
		known.served.Insert(node.Name)
	}
	if known.answered && now.Sub(known.at) < AnswerTTL {
		return Answer{Allowed: known.allowed}
	}
	c.ask(ctx, question{of: of, about: about, known: known})
	for _, node := range nodes {
		known.waiting.Insert(node.Name)
	}
	err := known.err
	if err == nil {
		err = ErrAsking
	}
	switch {
	case known.answered && known.allowed:
		return Answer{Allowed: true, Stale: true, Err: err}
	case known.answered && known.err == nil:
		// A negative answer does not expire. It is valid until there is a new answer.
		return Answer{}
	}
	return Answer{Err: err}
}

// ask adds an access review to the queue, unless it is already there or failed a moment ago. The
// caller must have locked mu.
func (c *Cache) ask(ctx context.Context, q question) {
	if q.known.asking || q.known.err != nil && c.config.Clock.Since(q.known.failedAt) < askAgainAfter {
		return
	}
	q.known.asking = true
	q.of.queue = append(q.of.queue, q)
	if !q.of.hasTurn {
		q.of.hasTurn = true
		c.turns = append(c.turns, q.of)
	}
	// Many callers share an answer, so the access review must not end with the context of one
	// caller.
	c.start(context.WithoutCancel(ctx))
}

// start sends as many of the waiting access reviews as the limits allow. The caller must have
// locked mu.
func (c *Cache) start(ctx context.Context) {
	for c.asked < AtOnce {
		q, ok := c.next()
		if !ok {
			return
		}
		c.asked++
		q.of.asked++
		if q.ofSilent {
			c.silent++
		}
		go c.work(ctx, q)
	}
}

// next removes an access review from the queue of the next user whose limits allow one. The caller
// must have locked mu.
func (c *Cache) next() (question, bool) {
	for range len(c.turns) {
		of := c.turns[0]
		c.turns = c.turns[1:]
		if len(of.queue) == 0 {
			of.hasTurn = false
			continue
		}
		c.turns = append(c.turns, of)
		if of.asked >= perUser || of.asked > 0 && !of.isAnswered || of.isSilent && c.silent >= silentAtOnce {
			continue
		}
		q := of.queue[0]
		of.queue = of.queue[1:]
		q.ofSilent = of.isSilent
		return q, true
	}
	return question{}, false
}

// work makes an access review, reports the answer to the subscribers, and starts further access
// reviews.
func (c *Cache) work(ctx context.Context, q question) {
	asking, cancel := context.WithTimeoutCause(ctx, answerWithin, errTimeout)
	allowed, err := ask(asking, c.config.Authorizer, q.of.user, q.about)
	timedOut := asking.Err() != nil
	cancel()
	for _, node := range c.finish(ctx, q, allowed, err, timedOut) {
		for _, answered := range c.subscribers {
			answered(node)
		}
	}
}

// finish stores the answer to an access review and returns the nodes to report. After a timeout,
// the waiting access reviews of the same user fail as well, because each of them would probably
// time out.
func (c *Cache) finish(ctx context.Context, q question, allowed bool, err error, timedOut bool) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.start(ctx)
	c.asked--
	q.of.asked--
	if q.ofSilent {
		c.silent--
	}
	q.of.isAnswered, q.of.isSilent = !timedOut, timedOut
	now := c.config.Clock.Now()
	if err == nil {
		if q.known.answered && q.known.allowed != allowed {
			q.known.waiting = q.known.waiting.Union(q.known.served)
		}
		q.known.answered, q.known.allowed, q.known.at = true, allowed, now
		q.known.asking, q.known.err = false, nil
		return q.known.told()
	}
	told := q.known.fail(err, now)
	if timedOut {
		for _, other := range q.of.queue {
			told = append(told, other.known.fail(errTimeout, now)...)
		}
		q.of.queue = nil
	}
	return told
}

// fail records the error of an access review and returns the nodes to report. It reports only the
// first failure. After that, callers call Ask again without a report.
func (k *knownAnswer) fail(err error, now time.Time) []string {
	first := k.err == nil
	k.asking, k.err, k.failedAt = false, err, now
	if !first {
		return nil
	}
	return k.told()
}

// told returns the nodes to report, and empties the set.
func (k *knownAnswer) told() []string {
	names := k.waiting.UnsortedList()
	k.waiting = sets.New[string]()
	return names
}

// of returns the answers for a user. The caller must have locked mu.
func (c *Cache) of(requester *authenticationv1.UserInfo) *userAnswers {
	identity := identify(requester)
	of := c.users[identity]
	if of == nil {
		of = &userAnswers{user: UserOf(requester), known: map[subject]*knownAnswer{}, sampled: map[string]struct{}{}}
		c.users[identity] = of
	}
	return of
}

// Run renews the answers that are in use before they expire, until the context ends.
func (c *Cache) Run(ctx context.Context) {
	ticker := c.config.Clock.NewTicker(renewEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			c.renew(ctx)
		}
	}
}

// renew repeats the access reviews that have failed or whose answers expire soon.
func (c *Cache) renew(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	failing := 0
	var failed error
	for _, q := range c.due() {
		if q.known.err != nil {
			failing, failed = failing+1, q.known.err
		}
		c.ask(ctx, q)
	}
	if failing > 0 {
		klog.FromContext(ctx).Error(failed, "The authorizer does not respond to checks of rights on nodes", "questions", failing)
	}
}

// due returns the access reviews to repeat, and removes unused answers. The caller must have locked
// mu.
func (c *Cache) due() []question {
	now := c.config.Clock.Now()
	var due []question
	for identity, of := range c.users {
		maps.DeleteFunc(of.known, func(_ subject, known *knownAnswer) bool { return now.Sub(known.used) > forgetAfter })
		maps.DeleteFunc(of.sampled, func(name string, _ struct{}) bool { return of.known[subject{name: name}] == nil })
		if len(of.known) == 0 {
			delete(c.users, identity)
		}
		for about, known := range of.known {
			if known.err != nil || known.answered && now.Sub(known.at) >= renewAfter {
				due = append(due, question{of: of, about: about, known: known})
			}
		}
	}
	return due
}

// identify returns a key that differs for users who may have different rights.
func identify(u *authenticationv1.UserInfo) string {
	extra := make([]string, 0, len(u.Extra))
	for key, values := range u.Extra {
		extra = append(extra, fmt.Sprintf("%q=%q", key, []string(values)))
	}
	slices.Sort(extra)
	return fmt.Sprintf("%q %q %q %s", u.Username, u.UID, slices.Sorted(slices.Values(u.Groups)), strings.Join(extra, " "))
}
