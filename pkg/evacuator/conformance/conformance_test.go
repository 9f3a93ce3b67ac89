// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
)

const class = "flush.example.com"

var evacuations = v1alpha1.SchemeGroupVersion.WithResource("evacuations")

// cluster is an API with the behaviour that the checks need, and one evacuator of the class.
type cluster struct {
	kube *kubefake.Clientset
	api  *fake.Clientset
	// evacuate is the evacuator; its context ends when the evacuation is cancelled.
	evacuate func(context.Context, *task)

	mu    sync.Mutex
	count int
	ends  map[string]context.CancelFunc
}

// task is an evacuation on which the evacuator works.
type task struct {
	*cluster
	name, pod string
}

func newCluster(evacuate func(context.Context, *task)) *cluster {
	c := &cluster{
		kube: kubefake.NewClientset(), api: fake.NewClientset(), evacuate: evacuate,
		ends: map[string]context.CancelFunc{},
	}
	c.api.PrependReactor("create", "evacuations", c.create)
	c.api.PrependReactor("patch", "evacuations", c.withdraw)
	return c
}

func (c *cluster) create(action clienttesting.Action) (bool, runtime.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := action.(clienttesting.CreateAction).GetObject().(*v1alpha1.Evacuation).DeepCopy()
	c.count++
	e.Name, e.UID = fmt.Sprintf("%s-%d", e.Spec.PodRef.Name, c.count), types.UID(fmt.Sprint(c.count))
	e.Status.ActiveEvacuatorClass = class
	ctx, cancel := context.WithCancel(context.Background())
	c.ends[e.Name] = cancel
	// Wait until the check has started its watch.
	time.AfterFunc(time.Second, func() { c.evacuate(ctx, &task{c, e.Name, e.Spec.PodRef.Name}) })
	return true, e, c.api.Tracker().Create(evacuations, e, e.Namespace)
}

// withdraw deletes the Evacuation a moment later if its evacuator allows the cancellation.
func (c *cluster) withdraw(action clienttesting.Action) (bool, runtime.Object, error) {
	name := action.(clienttesting.PatchAction).GetName()
	time.AfterFunc(time.Second/2, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		stored, err := c.api.Tracker().Get(evacuations, "shop", name)
		if err != nil {
			return
		}
		policy := stored.(*v1alpha1.Evacuation).Status.EvacuationCancellationPolicy
		if policy == v1alpha1.EvacuationCancellationPolicyForbid {
			return
		}
		c.ends[name]()
		_ = c.api.Tracker().Delete(evacuations, "shop", name)
	})
	return true, &v1alpha1.Evacuation{}, nil
}

// write changes the status; a deleted Evacuation accepts no report.
func (t *task) write(mod func(*v1alpha1.EvacuationStatus)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	stored, err := t.api.Tracker().Get(evacuations, "shop", t.name)
	if err != nil {
		return
	}
	e := stored.(*v1alpha1.Evacuation).DeepCopy()
	e.Status.EvacuationProgressTimestamp = &metav1.Time{Time: time.Now()}
	mod(&e.Status)
	_ = t.api.Tracker().Update(evacuations, e, "shop")
}

func (t *task) report() { t.write(func(*v1alpha1.EvacuationStatus) {}) }

func (t *task) forbid() {
	t.write(func(st *v1alpha1.EvacuationStatus) {
		st.EvacuationCancellationPolicy = v1alpha1.EvacuationCancellationPolicyForbid
	})
}

// remove deletes the pod, and completes the Evacuation.
func (t *task) remove() {
	_ = t.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "shop", t.pod)
	t.write(func(st *v1alpha1.EvacuationStatus) {
		st.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionComplete, Status: metav1.ConditionTrue}}
	})
}

// works waits for the given time. It returns false if the evacuation is cancelled before.
func works(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func TestCalledOff(t *testing.T) {
	for name, tt := range map[string]struct {
		evacuate func(context.Context, *task)
		// unexamined and says describe the expected error; if neither is set, no error is expected.
		unexamined bool
		says       string
	}{
		"an evacuator that stops passes": {evacuate: func(ctx context.Context, t *task) {
			if t.report(); works(ctx, 5*time.Second) {
				t.remove()
			}
		}},
		"an evacuator that continues fails": {says: "the pod was stopped", evacuate: func(_ context.Context, t *task) {
			t.report()
			time.AfterFunc(5*time.Second, t.remove)
		}},
		"a quick evacuator that is cancelled in time passes": {evacuate: func(ctx context.Context, t *task) {
			if works(ctx, 0) {
				t.remove()
			}
		}},
		"a quick evacuator that continues fails": {
			says: "the pod was stopped",
			evacuate: func(ctx context.Context, t *task) {
				if !works(ctx, 0) {
					time.AfterFunc(time.Second, t.remove)
					return
				}
				t.remove()
			},
		},
		"an evacuator that forbids the cancellation and ends is not examined": {
			unexamined: true, says: "forbids",
			evacuate: func(_ context.Context, t *task) {
				t.forbid()
				time.AfterFunc(5*time.Second, t.remove)
			},
		},
		"an evacuator that forbids the cancellation and never ends fails": {
			says: "ends the evacuation", evacuate: func(_ context.Context, t *task) { t.forbid() },
		},
		"an evacuator that forbids the cancellation at the last moment is not examined": {
			unexamined: true, says: "after its cancellation", evacuate: func(_ context.Context, t *task) {
				t.report()
				t.forbid()
				time.AfterFunc(5*time.Second, t.remove)
			},
		},
		"an evacuator that reports nothing fails": {says: "the evacuator reports", evacuate: func(context.Context, *task) {}},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			c := newCluster(tt.evacuate)
			config := &Config{
				Class: class, Kube: c.kube, Maintenance: c.api, Namespace: "shop", Deadline: 10 * time.Second,
				Patience: time.Minute, Quiet: 10 * time.Second,
				NewPod: func(name string) *corev1.Pod {
					return &corev1.Pod{
						ObjectMeta: metav1.ObjectMeta{UID: types.UID("uid-" + name)},
						Status:     corev1.PodStatus{Phase: corev1.PodRunning},
					}
				},
			}
			err := config.check(t.Context(), isCalledOff)
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want an error with %q", err, tt.says)
			}
			is.Equal(t, errors.Is(err, ErrUnexamined), tt.unexamined, "that it was not examined")
		})
	}
}
