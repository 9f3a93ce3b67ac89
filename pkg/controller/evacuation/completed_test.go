// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/selection"
	"haulout.dev/haulout/pkg/host"
	"haulout.dev/haulout/pkg/host/informertest"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestNoEvacuationOutlivesItsTTL: an Evacuation with any finalizers is deleted when its pod has
// been gone for the TTL.
func TestNoEvacuationOutlivesItsTTL(t *testing.T) {
	for name, finalizers := range map[string][]string{
		"a foreign finalizer beside an instigator":          {theirs, foreign},
		"a foreign finalizer beside the maintenance's":      {ours, foreign},
		"the garbage collector's finalizer for dependents":  {ours, metav1.FinalizerDeleteDependents},
		"the garbage collector's finalizer without waiting": {theirs, metav1.FinalizerOrphanDependents},
		"another instigator":                                {theirs},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			w := newWorld(t, 0, newEvacuation(withFinalizers(finalizers...)), newPod(), newNode(corev1.ConditionTrue), newBudget("1", 0))
			w.host.answer(refuse)
			w.until("the eviction is active", 0, hasClass(evict))
			must.Do(w, w.client.Tracker().Delete(podsResource, "shop", podName))
			w.until("the Evacuation is complete", 0, podDeleted)
			<-time.After(DefaultCompletedTTL - time.Second)
			synctest.Wait()
			if !podDeleted(w.get()) {
				t.Errorf("got %+v before the end of the TTL, want the complete Evacuation", w.get())
			}
			<-time.After(time.Second)
			synctest.Wait()
			if e := w.get(); e != nil {
				t.Errorf("got an Evacuation with the finalizers %v after the TTL, want none", e.Finalizers)
			}
		})
	}
}

// TestCompleteEvacuationsOfANamespaceAreBounded: within the TTL, 250 Evacuations of one namespace
// become complete.
func TestCompleteEvacuationsOfANamespaceAreBounded(t *testing.T) {
	for name, tt := range map[string]struct{ pods, want int }{
		"a namespace without pods":   {0, 100},
		"a namespace with 20 pods":   {20, 100},
		"a namespace with 150 pods":  {150, 150},
		"a namespace with 1000 pods": {1000, 250},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			var pods []runtime.Object
			for i := range tt.pods {
				pods = append(pods, newPod(func(p *corev1.Pod) {
					p.Name, p.UID = fmt.Sprintf("other-%d", i), types.UID(fmt.Sprintf("uid-other-%d", i))
				}))
			}
			left := func(i int) *v1alpha1.Evacuation {
				return newEvacuation(withFinalizers(theirs, foreign),
					withCondition(v1alpha1.ConditionComplete, v1alpha1.ReasonPodDeleted, -time.Duration(i)*100*time.Millisecond),
					func(e *v1alpha1.Evacuation) {
						e.Name, e.UID = fmt.Sprintf("left-%d", i), types.UID(fmt.Sprintf("uid-left-%d", i))
						e.Spec.PodRef = v1alpha1.PodReference{Name: e.Name, UID: e.UID}
					})
			}
			w := newWorld(t, 0, left(0), pods...)
			for i := 1; i < 250; i++ {
				must.Do(w, w.api.client.Tracker().Add(left(i)))
				// The fake watch buffers a hundred events, and the deletion of a surplus Evacuation
				// is an event, too.
				if synctest.Wait(); i%25 == 0 {
					<-time.After(surplusCheck)
					synctest.Wait()
				}
			}
			<-time.After(surplusCheck)
			synctest.Wait()
			list := must.Get(w.api.client.MaintenanceV1alpha1().Evacuations("shop").List(t.Context(), metav1.ListOptions{}))(w)
			is.Equal(t, len(list.Items), tt.want, "Evacuations")
			for i := range tt.want {
				if !slices.ContainsFunc(list.Items, func(e v1alpha1.Evacuation) bool { return e.Name == left(i).Name }) {
					t.Errorf("got no Evacuation %s, want the newest %d", left(i).Name, tt.want)
				}
			}
			<-time.After(DefaultCompletedTTL)
			synctest.Wait()
			list = must.Get(w.api.client.MaintenanceV1alpha1().Evacuations("shop").List(t.Context(), metav1.ListOptions{}))(w)
			is.Equal(t, len(list.Items), 0, "Evacuations after the TTL")
		})
	}
}

// countedIndexer counts the objects that its ByIndex returns.
type countedIndexer struct {
	cache.Indexer
	read int
}

func (c *countedIndexer) ByIndex(name, value string) ([]any, error) {
	objects, err := c.Indexer.ByIndex(name, value)
	c.read += len(objects)
	return objects, err
}

// TestManyCompleteEvacuationsAreCheap: a sync of a complete Evacuation does not read the other
// Evacuations of its namespace, and each surplus Evacuation is enqueued once.
func TestManyCompleteEvacuationsAreCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 2000
		clock := informertest.Clock{}
		hostClient, client := fake.NewClientset(), newFakeAPI(clock).client
		cluster := must.Get(host.NewCluster(host.Clients{Client: hostClient, Unlimited: hostClient, Maintenance: client, Recorder: events.NewFakeRecorder(100)}, 0))(t)
		selected := must.Get(selection.New(cluster.Nodes.Informer(), cluster.NodeMaintenances.Informer(), clock))(t)
		c := must.Get(New(Config{Cluster: cluster, Selection: selected, State: newState(t, cluster, selected), Clock: clock, Evictions: &fakeHost{client: hostClient}}))(t)
		defer c.queue.ShutDown()
		defer c.hanging.ShutDown()
		indexer := &countedIndexer{Indexer: c.evacuationIndexer}
		c.evacuationIndexer = indexer
		for i := range many {
			must.Do(t, indexer.Add(newEvacuation(withCondition(v1alpha1.ConditionComplete, v1alpha1.ReasonPodDeleted, -time.Duration(i)*time.Millisecond),
				func(e *v1alpha1.Evacuation) {
					e.Name, e.UID = fmt.Sprintf("left-%d", i), types.UID(fmt.Sprintf("uid-left-%d", i))
				})))
		}
		syncAll := func() {
			for i := range many {
				evacuation := must.Get(c.evacuationLister.Evacuations("shop").Get(fmt.Sprintf("left-%d", i)))(t)
				_, err := c.gather(t.Context(), evacuation)
				must.Do(t, err)
			}
			<-time.After(surplusCheck)
			synctest.Wait()
		}
		syncAll()
		is.Equal(t, c.queue.Len(), 1, "keys after a sync of each")
		namespace, _ := c.queue.Get()
		must.Do(t, c.sync(t.Context(), namespace))
		c.queue.Done(namespace)
		is.Equal(t, c.queue.Len(), many-minCompleted, "Evacuations that are surplus")
		syncAll()
		must.Do(t, c.sync(t.Context(), namespace))
		is.Equal(t, c.queue.Len(), many-minCompleted+1, "keys after a second count, with that of the namespace")
		is.True(t, indexer.read <= 2*many, "%d objects were read in %d syncs, want %d in each of 2 counts", indexer.read, 2*many, many)
	})
}
