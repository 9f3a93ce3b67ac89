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

	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/util/workqueue"
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
	// askFor bounds how long a caller waits for answers. What is not answered then is an error of
	// that node, and the next call goes on from there.
	askFor = 10 * time.Second
)

// Answer is what is known of one user and one node.
type Answer struct {
	// Allowed: the user may delete the node.
	Allowed bool
	// Stale: the authorizer does not answer, and Allowed is its last answer, a yes that has
	// expired. It is good enough to keep a node that is held already, not to take another one.
	Stale bool
	// Err is why the authorizer has not answered. Without Stale nothing is known of the node.
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
}

// Cache remembers who may delete which node. It is safe for concurrent use.
type Cache struct {
	config CacheConfig
	// asking makes callers with the same question wait for one answer.
	asking singleflight.Group

	mu    sync.Mutex
	users map[string]*userAnswers
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

type knownAnswer struct {
	uid      types.UID
	allowed  bool
	at, used time.Time
}

// question is about one node, or about all of them if it has no name.
type question struct {
	identity string
	user     user.Info
	name     string
	uid      types.UID
}

// NewCache returns a Cache. Run renews its answers; without Run they expire and are asked for
// again.
func NewCache(config CacheConfig) *Cache {
	return &Cache{config: config, users: map[string]*userAnswers{}}
}

// Ask returns whether the user may delete each of the nodes, by name. An answer that is missing
// does not affect those of other nodes.
func (c *Cache) Ask(ctx context.Context, requester *authenticationv1.UserInfo, nodes []*corev1.Node) map[string]Answer {
	answers := make(map[string]Answer, len(nodes))
	if requester == nil || requester.Username == "" {
		for _, node := range nodes {
			answers[node.Name] = Answer{}
		}
		return answers
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askFor, errors.New("the authorizer did not answer in time"))
	defer cancel()
	q := question{identity: identify(requester), user: UserOf(requester)}
	var all Answer
	if !c.config.EveryByName && len(nodes) > 0 {
		all = c.answer(ctx, q)
	}
	byName := c.chooseByName(q, nodes, all, answers)
	var mu sync.Mutex
	workqueue.ParallelizeUntil(context.WithoutCancel(ctx), AtOnce, len(byName), func(i int) {
		q := q
		q.name, q.uid = byName[i].Name, byName[i].UID
		answer := c.answer(ctx, q)
		mu.Lock()
		defer mu.Unlock()
		answers[q.name] = answer
	})
	return answers
}

// chooseByName fills in the answers of the nodes that the answer about all nodes covers and returns
// the others.
func (c *Cache) chooseByName(q question, nodes []*corev1.Node, all Answer, answers map[string]Answer) []*corev1.Node {
	if !all.Allowed && (all.Err == nil || c.config.EveryByName) {
		return nodes
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.of(q)
	var byName []*corev1.Node
	for _, node := range nodes {
		entry := known.byName[node.Name]
		answered := entry != nil && entry.uid == node.UID
		switch {
		case !all.Allowed:
			// Nothing is known of all nodes. Thousands of further questions would not be answered
			// either.
			if answered {
				byName = append(byName, node)
			} else {
				answers[node.Name] = Answer{Err: all.Err}
			}
		case IsControlPlane(node), answered && !entry.allowed, known.samples(node.Name):
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

// answer returns what is known, after asking if that has expired.
func (c *Cache) answer(ctx context.Context, q question) Answer {
	known, ok := c.known(q)
	if ok && c.config.Clock.Since(known.at) < AnswerTTL {
		return Answer{Allowed: known.allowed}
	}
	allowed, err := c.ask(ctx, q)
	switch {
	case err == nil:
		return Answer{Allowed: allowed}
	case ok && known.allowed:
		return Answer{Allowed: true, Stale: true, Err: err}
	}
	return Answer{Err: err}
}

// ask asks the authorizer and remembers the answer. Several callers with the same question share
// it, so it is not bound to the context of one of them.
func (c *Cache) ask(ctx context.Context, q question) (bool, error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	result := c.asking.DoChan(q.identity+" "+string(q.uid)+" "+q.name, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askFor)
		defer cancel()
		allowed, err := ask(ctx, c.config.Authorizer, q.user, "delete", q.name)
		if err == nil {
			c.remember(q, allowed)
		}
		return allowed, err
	})
	select {
	case r := <-result:
		return r.Err == nil && r.Val.(bool), r.Err
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

func (c *Cache) known(q question) (knownAnswer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry := c.of(q).byName[q.name]
	if entry == nil || entry.uid != q.uid {
		return knownAnswer{}, false
	}
	entry.used = c.config.Clock.Now()
	return *entry, true
}

func (c *Cache) remember(q question, allowed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers, now := c.of(q), c.config.Clock.Now()
	entry := answers.byName[q.name]
	if entry == nil || entry.uid != q.uid {
		entry = &knownAnswer{uid: q.uid, used: now}
		answers.byName[q.name] = entry
	}
	entry.allowed, entry.at = allowed, now
}

// of returns the answers of a user; mu is held.
func (c *Cache) of(q question) *userAnswers {
	answers := c.users[q.identity]
	if answers == nil {
		answers = &userAnswers{user: q.user, byName: map[string]*knownAnswer{}, sampled: map[string]struct{}{}}
		c.users[q.identity] = answers
	}
	return answers
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

func (c *Cache) renew(ctx context.Context) {
	due := c.due()
	var mu sync.Mutex
	var failed error
	workqueue.ParallelizeUntil(ctx, AtOnce, len(due), func(i int) {
		if _, err := c.ask(ctx, due[i]); err != nil {
			mu.Lock()
			defer mu.Unlock()
			failed = err
		}
	})
	if failed != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(failed, "Could not renew answers about rights on nodes", "questions", len(due))
	}
}

// due returns the questions whose answers are to be renewed, and drops answers that are not in use.
func (c *Cache) due() []question {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.config.Clock.Now()
	var due []question
	for identity, answers := range c.users {
		maps.DeleteFunc(answers.byName, func(_ string, entry *knownAnswer) bool { return now.Sub(entry.used) > forgetAfter })
		maps.DeleteFunc(answers.sampled, func(name string, _ struct{}) bool { return answers.byName[name] == nil })
		if len(answers.byName) == 0 {
			delete(c.users, identity)
		}
		for name, entry := range answers.byName {
			if now.Sub(entry.at) >= renewAfter {
				due = append(due, question{identity: identity, user: answers.user, name: name, uid: entry.uid})
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
