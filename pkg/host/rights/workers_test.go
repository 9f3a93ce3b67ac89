// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// mayAssign lets bob assign one class of workers, and refuses everything else.
type mayAssign struct {
	class   string
	revoked atomic.Bool
}

func (m *mayAssign) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser().GetName() == "bob" && a.GetVerb() == "assign" && a.GetAPIGroup() == "maintenance.haulout.dev" &&
		a.GetResource() == "workers" && a.GetSubresource() == "" && a.GetName() == m.class && !m.revoked.Load() {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func TestWhoMayAssignWorkers(t *testing.T) {
	const class = "reboot.example.com"
	for name, test := range map[string]struct {
		user, class string
		want        bool
	}{
		"the class that is granted": {"bob", class, true},
		"another class":             {"bob", "job.example.com", false},
		"another user":              {"ann", class, false},
	} {
		q := Questioner{Authorizer: &mayAssign{class: class}, User: UserOf(asUser(test.user))}
		is.Equal(t, must.Get(q.MayAssign(t.Context(), test.class))(t), test.want, name)
	}
	is.Equal(t, NewCache(CacheConfig{}).AskWorker(t.Context(), nil, class, nil), Answer{}, "without a requester")

	synctest.Test(t, func(t *testing.T) {
		authorizer := &mayAssign{class: class}
		cache := NewCache(CacheConfig{Authorizer: authorizer, Clock: clock.RealClock{}})
		var told []string
		cache.Subscribe(func(node string) { told = append(told, node) })
		ask := func(class string) Answer { return cache.AskWorker(t.Context(), bob, class, []*corev1.Node{node("a")}) }
		is.Equal(t, ask(class).Err, ErrAsking, "before the first answer")
		synctest.Wait()
		is.Equal(t, ask(class), Answer{Allowed: true}, "the class that is granted")
		is.Slices(t, told, []string{"a"}, "nodes whose answer is there")
		ask("job.example.com")
		synctest.Wait()
		is.Equal(t, ask("job.example.com"), Answer{}, "another class")

		authorizer.revoked.Store(true)
		elapse(AnswerTTL)
		is.True(t, ask(class).Stale, "an expired answer is not stale")
		synctest.Wait()
		is.Equal(t, ask(class), Answer{}, "a revoked right")
	})
}
