/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package noderights

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
)

const (
	// AnswerTTL is how long an answer counts: a right that is granted or revoked takes effect after
	// this time at the latest.
	AnswerTTL = 5 * time.Minute

	// renewAfter is the age at which Run renews an answer, so that no caller waits for it.
	renewAfter = 4 * time.Minute
	// renewEvery is how often Run looks for answers to renew.
	renewEvery = 20 * time.Second
	// forgetAfter is when an answer that no caller has asked for is dropped. It exceeds the time
	// between two reconciliations of a maintenance in which nothing happens.
	forgetAfter = 30 * time.Minute
	// answerWithin bounds how long a question takes. What is not answered then has failed, and so
	// have the questions that wait behind it.
	answerWithin = 10 * time.Second
	// askAgainAfter is how long a question that has failed is not asked again.
	askAgainAfter = time.Second
)

// ErrAsking is the error of an Answer while the authorizer is asked for the first time. The
// callback of the Cache tells when there is more.
var ErrAsking = errors.New("the authorizer has not answered yet")

// errTimeout is why a question has failed that was not answered.
var errTimeout = errors.New("the authorizer did not answer in time")

// Answer is what is known of one user and one node.
type Answer struct {
	// Allowed: the user may delete the node.
	Allowed bool
	// Stale: Allowed is the last answer of the authorizer, a yes that has expired. It is good
	// enough to keep a node that is held already, not to take another one.
	Stale bool
	// Err is why there is no answer that counts: ErrAsking, or why the last question has failed.
	// Without Stale nothing is known of the node.
	Err error
}

// CacheConfig is what a Cache needs.
type CacheConfig struct {
	// Authorizer is that of the host cluster.
	Authorizer authorizer.UnconditionalAuthorizer
	// EveryByName switches off the question without a name.
	EveryByName bool
	// Clock is the clock that answers expire by.
	Clock clock.WithTicker
	// Answered is called with the name of each node about which Ask had no answer that counts, once
	// there is one or the question has failed for the first time. It must not block. It may
	// be nil.
	Answered func(node string)
}

// Cache remembers who may delete which node. It asks in the background: no caller waits for the
// authorizer. It is safe for concurrent use.
type Cache struct {
	config CacheConfig

	mu    sync.Mutex
	users map[string]*userAnswers
	// queue are the questions that wait to be asked, in the order in which they came; workers is
	// how many goroutines ask.
	queue   []question
	workers int
}

// userAnswers is what is known of one user.
type userAnswers struct {
	user user.Info
	// byName are the answers by the name of the node; the empty name stands for all nodes.
	byName map[string]*knownAnswer
	// sampled are the nodes, beside the control plane's, that are asked about by name although the
	// user may delete all nodes.
	sampled map[string]struct{}
}

// knownAnswer is what is known from one question, which may be under way.
type knownAnswer struct {
	uid  types.UID
	used time.Time
	// answered: allowed is the answer that was given at that time.
	answered, allowed bool
	at                time.Time
	// asking: the question is in the queue or under way.
	asking bool
	// err is why the last question has failed, and failedAt when; nil if it was answered.
	err      error
	failedAt time.Time
	// waiting are the nodes to tell of, by name.
	waiting sets.Set[string]
}

// question is about one node, or about all of them if it has no name. Its answer goes to known.
type question struct {
	user  user.Info
	name  string
	known *knownAnswer
}

// NewCache returns a Cache. Run renews its answers; without Run they expire and are asked for
// again.
func NewCache(config CacheConfig) *Cache {
	if config.Answered == nil {
		config.Answered = func(string) {}
	}
	return &Cache{config: config, users: map[string]*userAnswers{}}
}

// Ask returns whether the user may delete each of the nodes, by name, as far as that is known now.
// What is not known is asked for in the background. An answer that is missing does not affect those
// of other nodes.
func (c *Cache) Ask(ctx context.Context, requester *authenticationv1.UserInfo, nodes []*corev1.Node) map[string]Answer {
	answers := make(map[string]Answer, len(nodes))
	if requester == nil || requester.Username == "" {
		for _, node := range nodes {
			answers[node.Name] = Answer{}
		}
		return answers
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.of(requester)
	var all Answer
	if !c.config.EveryByName && len(nodes) > 0 {
		all = c.answer(ctx, of, "", "", nodes)
	}
	for _, node := range c.chooseByName(of, nodes, all, answers) {
		answers[node.Name] = c.answer(ctx, of, node.Name, node.UID, []*corev1.Node{node})
	}
	return answers
}

// chooseByName fills in the answers of the nodes that the answer about all nodes covers and returns
// the others.
func (c *Cache) chooseByName(of *userAnswers, nodes []*corev1.Node, all Answer, answers map[string]Answer) []*corev1.Node {
	if !all.Allowed && (all.Err == nil || c.config.EveryByName) {
		return nodes
	}
	var byName []*corev1.Node
	for _, node := range nodes {
		known := of.byName[node.Name]
		answered := known != nil && known.uid == node.UID && known.answered
		switch {
		case !all.Allowed:
			// Nothing is known of all nodes. Thousands of further questions would not be answered
			// either.
			if answered {
				byName = append(byName, node)
			} else {
				answers[node.Name] = Answer{Err: all.Err}
			}
		case IsControlPlane(node), answered && !known.allowed, of.samples(node.Name):
			byName = append(byName, node)
		default:
			answers[node.Name] = all
		}
	}
	return byName
}

// samples reports whether the node is among those that are asked about by name beside the control
// plane's, and adds it while there is room.
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

// answer returns what is known about one node, or about all of them if the name is empty. What has
// expired is asked for, and the nodes are told of later; mu is held.
func (c *Cache) answer(ctx context.Context, of *userAnswers, name string, uid types.UID, nodes []*corev1.Node) Answer {
	now := c.config.Clock.Now()
	known := of.byName[name]
	if known == nil || known.uid != uid {
		known = &knownAnswer{uid: uid, waiting: sets.New[string]()}
		of.byName[name] = known
	}
	known.used = now
	if known.answered && now.Sub(known.at) < AnswerTTL {
		return Answer{Allowed: known.allowed}
	}
	c.ask(ctx, question{user: of.user, name: name, known: known})
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
		// A no counts until the authorizer has been asked again.
		return Answer{}
	}
	return Answer{Err: err}
}

// ask has a question asked in the background, unless it is already or has just failed; mu is held.
func (c *Cache) ask(ctx context.Context, q question) {
	if q.known.asking || q.known.err != nil && c.config.Clock.Since(q.known.failedAt) < askAgainAfter {
		return
	}
	q.known.asking = true
	c.queue = append(c.queue, q)
	if c.workers < AtOnce {
		c.workers++
		// Many callers share an answer, so that it is not bound to the context of one of them.
		go c.work(context.WithoutCancel(ctx))
	}
}

// work asks the questions of the queue until it is empty.
func (c *Cache) work(ctx context.Context) {
	for {
		c.mu.Lock()
		if len(c.queue) == 0 {
			c.queue = nil
			c.workers--
			c.mu.Unlock()
			return
		}
		q := c.queue[0]
		c.queue = c.queue[1:]
		c.mu.Unlock()

		asking, cancel := context.WithTimeoutCause(ctx, answerWithin, errTimeout)
		allowed, err := ask(asking, c.config.Authorizer, q.user, "delete", q.name)
		timedOut := asking.Err() != nil
		cancel()
		for _, node := range c.finish(q, allowed, err, timedOut) {
			c.config.Answered(node)
		}
	}
}

// finish takes over the answer to a question and returns the nodes to tell of. An authorizer that
// is silent about this one is not asked the others: each of them would take as long.
func (c *Cache) finish(q question, allowed bool, err error, timedOut bool) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.config.Clock.Now()
	if err == nil {
		q.known.answered, q.known.allowed, q.known.at = true, allowed, now
		q.known.asking, q.known.err = false, nil
		return q.known.told()
	}
	told := q.known.fail(err, now)
	if timedOut {
		for _, other := range c.queue {
			told = append(told, other.known.fail(errTimeout, now)...)
		}
		c.queue = nil
	}
	return told
}

// fail notes that a question has failed and returns the nodes to tell of. They are told of the
// first failure only: a caller that knows of it asks again by itself.
func (k *knownAnswer) fail(err error, now time.Time) []string {
	first := k.err == nil
	k.asking, k.err, k.failedAt = false, err, now
	if !first {
		return nil
	}
	return k.told()
}

// told returns the nodes to tell of, and forgets them.
func (k *knownAnswer) told() []string {
	names := k.waiting.UnsortedList()
	k.waiting = sets.New[string]()
	return names
}

// of returns the answers of a user; mu is held.
func (c *Cache) of(requester *authenticationv1.UserInfo) *userAnswers {
	identity := identify(requester)
	of := c.users[identity]
	if of == nil {
		of = &userAnswers{user: UserOf(requester), byName: map[string]*knownAnswer{}, sampled: map[string]struct{}{}}
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

// renew asks again for answers that expire soon, and what has failed.
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
		klog.FromContext(ctx).Error(failed, "The authorizer does not answer questions about rights on nodes", "questions", failing)
	}
}

// due returns the questions that are to be asked again, and drops answers that are not in use; mu
// is held.
func (c *Cache) due() []question {
	now := c.config.Clock.Now()
	var due []question
	for identity, of := range c.users {
		maps.DeleteFunc(of.byName, func(_ string, known *knownAnswer) bool { return now.Sub(known.used) > forgetAfter })
		maps.DeleteFunc(of.sampled, func(name string, _ struct{}) bool { return of.byName[name] == nil })
		if len(of.byName) == 0 {
			delete(c.users, identity)
		}
		for name, known := range of.byName {
			if known.err != nil || known.answered && now.Sub(known.at) >= renewAfter {
				due = append(due, question{user: of.user, name: name, known: known})
			}
		}
	}
	return due
}

// identify returns a text that differs for users who may differ in rights.
func identify(u *authenticationv1.UserInfo) string {
	extra := make([]string, 0, len(u.Extra))
	for key, values := range u.Extra {
		extra = append(extra, fmt.Sprintf("%q=%q", key, []string(values)))
	}
	slices.Sort(extra)
	return fmt.Sprintf("%q %q %q %s", u.Username, u.UID, slices.Sorted(slices.Values(u.Groups)), strings.Join(extra, " "))
}
