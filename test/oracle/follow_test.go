// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func pod(name, version string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: version}}
}

// server answers each list request with the next of its lists. It sends its events to the first
// watch, and ends that watch with the error that the version has expired.
type server struct {
	lists  []corev1.PodList
	events []watch.Event
	// watched is the number of watches so far.
	watched chan struct{}
}

func (s *server) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			if len(s.lists) == 0 {
				return nil, errors.New("not up yet")
			}
			list := s.lists[0]
			s.lists = s.lists[1:]
			return &list, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			w := watch.NewFakeWithChanSize(len(s.events)+1, false)
			for _, event := range s.events {
				w.Action(event.Type, event.Object)
			}
			if len(s.lists) > 0 || s.events != nil {
				status := apierrors.NewResourceExpired("too old").Status()
				w.Error(&status)
			}
			s.events = nil
			s.watched <- struct{}{}
			return w, nil
		},
	}
}

func TestFollow(t *testing.T) {
	list := func(version string, pods ...*corev1.Pod) corev1.PodList {
		l := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: version}}
		for _, p := range pods {
			l.Items = append(l.Items, *p)
		}
		return l
	}
	events := []watch.Event{{Type: watch.Modified, Object: pod("a", "3")}, {Type: watch.Added, Object: pod("b", "4")}}
	for name, test := range map[string]struct {
		mayRestart bool
		want       []string
	}{
		"what a server does not remember is an error": {
			want: []string{"ADDED a 1", "MODIFIED a 3", "ADDED b 4", "failed"},
		},
		"what a server does not remember is told by the state that it comes back with": {
			mayRestart: true,
			want: []string{
				"ADDED a 1", "MODIFIED a 3", "ADDED b 4", "relisted MODIFIED b 6", "relisted ADDED c 7",
				"relisted DELETED a 3",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			told := make(chan string, 100)
			s := &server{
				lists:  []corev1.PodList{list("2", pod("a", "1")), list("8", pod("b", "6"), pod("c", "7"))},
				events: slices.Clone(events), watched: make(chan struct{}, 10),
			}
			f := &follower{known: map[types.UID]runtime.Object{}, listWatch: s.listWatch(), Resource: Resource{
				Name: "pods", MayRestart: test.mayRestart, Fail: func(error) { told <- "failed" },
				See: func(e watch.Event, relisted bool) {
					p, prefix := e.Object.(*corev1.Pod), ""
					if relisted {
						prefix = "relisted "
					}
					told <- fmt.Sprintf("%s%s %s %s", prefix, e.Type, p.Name, p.ResourceVersion)
				},
			}}
			version := must.Get(f.list(t.Context(), false))(t)
			go f.run(t.Context(), version)
			for i, want := range test.want {
				select {
				case got := <-told:
					is.True(t, got == want, "event %d: got %q, want %q", i, got, want)
				case <-time.After(time.Minute):
					t.Fatalf("event %d, %q, does not come", i, want)
				}
			}
		})
	}
}
