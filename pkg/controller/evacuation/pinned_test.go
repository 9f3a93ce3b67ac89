// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	policylisters "k8s.io/client-go/listers/policy/v1"
	"k8s.io/client-go/rest"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/eviction"
	"haulout.dev/haulout/pkg/host/podcache"
	"haulout.dev/haulout/pkg/testing/bubble"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/must"
)

// volumeOn returns a local PersistentVolume on a node, and the claim data that is bound to it.
func volumeOn(node string) []runtime.Object {
	return []runtime.Object{
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "disk"},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "disk"},
			Spec:       corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: build.Labelled(corev1.LabelHostname, node)}},
		},
	}
}

// claiming adds a volume to a pod for each of the claims.
func claiming(claims ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for i, claim := range claims {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v-%d", i), VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}})
		}
	}
}

// named sets the hostname label of a node to the name of the node.
func named(node *corev1.Node) *corev1.Node {
	node.Labels = map[string]string{corev1.LabelHostname: node.Name}
	return node
}

// unscheduled returns a pod of the budget web for which the scheduler has found no node.
func unscheduled(name string, mods ...func(*corev1.Pod)) *corev1.Pod {
	p := podOn(name, "web", "", corev1.ConditionFalse)
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
	})
	return build.With(p, mods...)
}

// TestPodThatCanOnlyRunOnAHeldNode covers the missing member of a StatefulSet. It has no node, and
// the maintenance holds the only node that it can run on.
func TestPodThatCanOnlyRunOnAHeldNode(t *testing.T) {
	claiming := claiming("data")
	selecting := func(node string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
	}
	for name, tt := range map[string]struct {
		limit   func(*corev1.Pod)
		volumes []runtime.Object
		want    string
	}{
		"its volume is on a held node":      {claiming, volumeOn("node-8"), "BudgetPodsCordoned"},
		"its volume is on another node":     {claiming, volumeOn("node-9"), "UnhealthyPodsHoldBudget"},
		"it selects a held node":            {selecting("node-8"), nil, "BudgetPodsCordoned"},
		"it selects another node":           {selecting("node-9"), nil, "UnhealthyPodsHoldBudget"},
		"it may run on any node":            {func(*corev1.Pod) {}, nil, "UnhealthyPodsHoldBudget"},
		"its claim does not exist":          {claiming, nil, "UnhealthyPodsHoldBudget"},
		"it selects a node that is unknown": {selecting("node-99"), nil, "UnhealthyPodsHoldBudget"},
	} {
		bubble.Run(t, name, func(t *testing.T) {
			here, there := named(cordoned(testNode)), named(cordoned("node-8"))
			free := named(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-9", UID: "uid-node-9"}})
			missing := unscheduled("web-2", tt.limit)
			objects := append([]runtime.Object{newPod(labelled("web")), here, there, free, missing, budgetOf("web")}, tt.volumes...)
			w := newWorld(t, 0, newEvacuation(), objects...)
			w.host.answer(refuse)
			must.Do(w, w.api.client.Tracker().Add(asking("alpha", here)))
			must.Do(w, w.api.client.Tracker().Add(asking("beta", there)))
			w.until("the condition has the reason "+tt.want, time.Second, hasReason(v1alpha1.ConditionBlocked, tt.want))
			message := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.ConditionBlocked).Message
			hint := "work on node-8 first, and release it by removing it from the node selector of NodeMaintenance beta"
			if held := tt.want == "BudgetPodsCordoned"; strings.Contains(message, hint) != held {
				t.Errorf("got message %q, want %q in it: %v", message, hint, held)
			}
		})
	}
}

// slowHost is a host cluster in which a read takes some time, and is aborted when its context ends.
type slowHost struct {
	objects map[string]runtime.Object
	takes   time.Duration
	calls   atomic.Int32
}

func (h *slowHost) RoundTrip(r *http.Request) (*http.Response, error) {
	h.calls.Add(1)
	select {
	case <-time.After(h.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	response := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": []string{runtime.ContentTypeJSON}}, Request: r}
	var object any = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}
	if found := h.objects[r.URL.Path]; found != nil {
		object = found
	} else {
		response.StatusCode = http.StatusNotFound
	}
	body, err := json.Marshal(object)
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, err
}

// waitingFor returns a function that explains why the budget web allows no disruption. Pod web-1
// waits for that budget, the other pods of the budget have no node, and maintenance beta holds
// node-8. Create the controller outside of a bubble, since it starts goroutines.
func waitingFor(t *testing.T, host *slowHost, healthy int32, pods ...*corev1.Pod) func(context.Context) *eviction.Blocker {
	t.Helper()
	client := fake.NewClientset()
	c, _ := newIdleController(t, client, newEvacuation())
	factory := informers.NewSharedInformerFactory(client, 0)
	budgets, nodes := factory.Policy().V1().PodDisruptionBudgets().Informer().GetIndexer(), factory.Core().V1().Nodes()
	podIndexer := factory.Core().V1().Pods().Informer().GetIndexer()
	budget, held := budgetOf("web"), named(cordoned("node-8"))
	budget.Status.CurrentHealthy = healthy
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(budgets.Add(budget))
	must(nodes.Informer().GetIndexer().Add(held))
	must(nodes.Informer().GetIndexer().Add(named(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-9"}})))
	for _, p := range pods {
		must(podIndexer.Add(p))
		host.objects["/api/v1/namespaces/shop/pods/"+p.Name] = p
	}
	var err error
	c.host, err = kubernetes.NewForConfig(&rest.Config{Host: "http://host", Transport: host, QPS: -1})
	must(err)
	c.budgetLister, c.podLister, c.nodeLister = policylisters.NewPodDisruptionBudgetLister(budgets), podcache.PodLister(podIndexer), nodes.Lister()
	c.holders = holdersOf(asking("beta", held))
	waiting := podOn("web-1", "web", testNode, corev1.ConditionTrue)
	state := eviction.State{
		Known: true, Budget: key("web"), Blocker: &eviction.Blocker{Reason: v1alpha1.ReasonPodDisruptionBudget},
	}
	return func(ctx context.Context) *eviction.Blocker { return c.standoff(ctx, waiting, state, start) }
}

// TestReadsOfPodsWithoutANodeAreLimited: the users of a namespace determine what the pods of a
// budget claim and select, and every pod that waits for the budget causes these reads.
func TestReadsOfPodsWithoutANodeAreLimited(t *testing.T) {
	requiring := func(values ...string) *corev1.NodeSelector {
		return build.Labelled(corev1.LabelHostname, values...)
	}
	limitedTo := func(values ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: requiring(values...)}}
		}
	}
	all := func(n int, name func(int) string) []string {
		var out []string
		for i := range n {
			out = append(out, name(i))
		}
		return out
	}
	same := func(int) string { return "claim-0" }
	each := func(i int) string { return fmt.Sprintf("claim-%d", i) }
	elsewhere := func(n int) []string {
		return append(all(n, func(i int) string { return fmt.Sprintf("gone-%d", i) }), "node-8")
	}
	for name, tt := range map[string]struct {
		pods    []*corev1.Pod
		healthy int32
		// on are the nodes of the volumes.
		on    []string
		takes time.Duration
		calls int32
		held  bool
	}{
		"a pod that selects the held node": {pods: []*corev1.Pod{unscheduled("web-2", limitedTo("node-8"))}, healthy: 1, calls: 1, held: true},
		"volumes that name one claim":      {pods: []*corev1.Pod{unscheduled("web-2", claiming(all(2000, same)...))}, healthy: 1, on: []string{"node-8"}, calls: 3, held: true},
		"as many claims as are read":       {pods: []*corev1.Pod{unscheduled("web-2", claiming(all(16, each)...))}, healthy: 1, on: []string{"node-8"}, calls: 33, held: true},
		"more claims":                      {pods: []*corev1.Pod{unscheduled("web-2", claiming(all(17, each)...))}, healthy: 1, on: []string{"node-8"}, calls: 1},
		"values that are not compared":     {pods: []*corev1.Pod{unscheduled("web-2", limitedTo(elsewhere(500)...))}, healthy: 1, calls: 1},
		"values of a volume":               {pods: []*corev1.Pod{unscheduled("web-2", claiming("claim-0"))}, healthy: 1, on: elsewhere(500), calls: 3},
		"a budget that would stay closed":  {pods: []*corev1.Pod{unscheduled("web-2", limitedTo("node-8"))}, healthy: 0},
		"more pods than are read": {
			pods: []*corev1.Pod{
				unscheduled("web-2", limitedTo("node-8")), unscheduled("web-3", limitedTo("node-8")), unscheduled("web-4", limitedTo("node-8")), unscheduled("web-5", limitedTo("node-8")),
			}, healthy: 1, calls: 3, held: true,
		},
		"a slow host cluster": {
			pods: []*corev1.Pod{unscheduled("web-2", claiming(all(16, each)...)), unscheduled("web-3", claiming(all(16, each)...))}, healthy: 1,
			on: []string{"node-8"}, takes: 300 * time.Millisecond, calls: 8,
		},
	} {
		t.Run(name, func(t *testing.T) {
			host := &slowHost{takes: tt.takes, objects: map[string]runtime.Object{}}
			for i := range 20 {
				volume := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: requiring(tt.on...)}}}
				host.objects[fmt.Sprintf("/api/v1/persistentvolumes/volume-%d", i)] = volume
				host.objects["/api/v1/namespaces/shop/persistentvolumeclaims/"+each(i)] = &corev1.PersistentVolumeClaim{
					Spec: corev1.PersistentVolumeClaimSpec{VolumeName: fmt.Sprintf("volume-%d", i)},
				}
			}
			ask := waitingFor(t, host, tt.healthy, tt.pods...)
			synctest.Test(t, func(t *testing.T) {
				for range 3 {
					if got := ask(t.Context()); (got != nil) != tt.held {
						t.Errorf("got blocker %+v, want one: %t", got, tt.held)
					}
				}
			})
			if got := host.calls.Load(); got > tt.calls {
				t.Errorf("got %d reads, want at most %d", got, tt.calls)
			}
		})
	}
}

// TestPodsThatWaitForOneBudgetShareItsReads: several workers need the pods of a budget at the same
// time.
func TestPodsThatWaitForOneBudgetShareItsReads(t *testing.T) {
	host := &slowHost{takes: time.Second, objects: map[string]runtime.Object{}}
	ask := waitingFor(t, host, 1, unscheduled("web-2", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "node-8"} }))
	synctest.Test(t, func(t *testing.T) {
		var workers sync.WaitGroup
		for range 8 {
			workers.Go(func() {
				if got := ask(t.Context()); got == nil || got.Reason != v1alpha1.ReasonBudgetPodsCordoned {
					t.Errorf("got blocker %+v, want %s", got, v1alpha1.ReasonBudgetPodsCordoned)
				}
			})
		}
		workers.Wait()
	})
	if got := host.calls.Load(); got != 1 {
		t.Errorf("got %d reads, want 1 for all of them", got)
	}
}
