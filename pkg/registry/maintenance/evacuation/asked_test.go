// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
)

// TestOnlyTheServerRecordsEvictions checks that other users cannot set, change or remove the time
// of the last eviction.
func TestOnlyTheServerRecordsEvictions(t *testing.T) {
	isServer := func(u user.Info) bool { return u.GetName() == "server" }
	strategy := NewStrategy(registrytest.Scheme, isServer, 5*time.Minute, clocktesting.NewFakePassiveClock(time.Now()))
	with := func(value string) *maintenance.Evacuation {
		e := &maintenance.Evacuation{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"theirs": "x"}}}
		if value != "" {
			e.Annotations[v1alpha1.AnnotationEvictionAsked] = value
		}
		return e
	}
	for name, test := range map[string]struct {
		user, before, written, want string
		create                      bool
	}{
		"the server creates it":    {user: "server", create: true, written: "a", want: "a"},
		"another user creates one": {user: "alice", create: true, written: "a"},
		"the server changes it":    {user: "server", before: "a", written: "b", want: "b"},
		"another user changes it":  {user: "alice", before: "a", written: "b", want: "a"},
		"another user removes it":  {user: "alice", before: "a", want: "a"},
		"another user adds it":     {user: "alice", written: "b"},
		"another user leaves it":   {user: "alice", before: "a", written: "a", want: "a"},
		"another user without it":  {user: "alice"},
		"the server may remove it": {user: "server", before: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: test.user})
			written := with(test.written)
			if test.create {
				strategy.PrepareForCreate(ctx, written)
			} else {
				strategy.PrepareForUpdate(ctx, written, with(test.before))
			}
			is.Equal(t, written.Annotations[v1alpha1.AnnotationEvictionAsked], test.want)
			is.Equal(t, written.Annotations["theirs"], "x", "another annotation")
		})
	}
	t.Run("another user removes all annotations", func(t *testing.T) {
		written := &maintenance.Evacuation{}
		strategy.PrepareForUpdate(genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"}), written, with("a"))
		is.Equal(t, written.Annotations[v1alpha1.AnnotationEvictionAsked], "a")
	})
}
