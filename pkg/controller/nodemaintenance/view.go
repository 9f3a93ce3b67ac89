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

package nodemaintenance

import (
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	maintenancev1alpha1 "haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	drainplan "haulout.dev/haulout/pkg/drain/plan"
	controllercache "haulout.dev/haulout/pkg/host/cache"
)

// livePod is a pod that counts for a node.
type livePod struct {
	*corev1.Pod
	plan drainplan.Pod
	left drainplan.LeftReason
	// own: it is a pod of this server.
	own bool
	// keptAt is when its closed budget is a reason to keep it, zero if it is not waiting for one.
	keptAt time.Time
	// evacuation is the pod's Evacuation, or nil.
	evacuation *maintenancev1alpha1.Evacuation
}

// nodeView is what the caches hold of the pods of a node. It is never changed: what changes is seen
// in a new one.
type nodeView struct {
	// pods are the live pods that count for the node, sorted by namespace and name.
	pods []livePod
	// recheck is when the next of its pods is to be kept, zero if none waits for that.
	recheck time.Time
	// plan is the node as the planner sees it: without the pods that are left running.
	plan *drainplan.Node
}

// views keeps the views of nodes until a pod or an Evacuation on them changes, so that an event
// costs what is on its node, not what is in the cluster.
type views struct {
	mu     sync.Mutex
	byNode map[string]*viewSlot
}

type viewSlot struct {
	// uid is that of the node that the view is about.
	uid types.UID
	// changes counts the events of the node: a view that was begun before one of them is not kept.
	changes uint64
	view    *nodeView
}

func newViews() *views {
	return &views{byNode: map[string]*viewSlot{}}
}

// of returns the view of a node, from build if none is kept.
func (v *views) of(node *corev1.Node, build func(*corev1.Node) (*nodeView, error)) (*nodeView, error) {
	v.mu.Lock()
	slot := v.byNode[node.Name]
	if slot == nil || slot.uid != node.UID {
		slot = &viewSlot{uid: node.UID}
		v.byNode[node.Name] = slot
	}
	if kept := slot.view; kept != nil {
		v.mu.Unlock()
		return kept, nil
	}
	changes := slot.changes
	v.mu.Unlock()
	view, err := build(node)
	if err != nil {
		return nil, err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if slot.changes == changes {
		slot.view = view
	}
	return view, nil
}

// drop notes that something on a node has changed.
func (v *views) drop(node string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if slot := v.byNode[node]; slot != nil {
		slot.changes++
		slot.view = nil
	}
}

// retain forgets the nodes that are not to be kept.
func (v *views) retain(keep func(node string) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for node := range v.byNode {
		if !keep(node) {
			delete(v.byNode, node)
		}
	}
}

// view returns what the caches hold of the pods of a node.
func (c *Controller) view(node *corev1.Node) (*nodeView, error) {
	view, err := c.views.of(node, c.buildView)
	if err != nil || view.recheck.IsZero() {
		return view, err
	}
	wait := view.recheck.Sub(c.clock.Now())
	if wait <= 0 {
		c.views.drop(node.Name)
		return c.views.of(node, c.buildView)
	}
	for _, name := range c.selection.maintenancesOn(node.Name) {
		c.queue.AddAfter(name, wait)
	}
	return view, nil
}

func (c *Controller) buildView(node *corev1.Node) (*nodeView, error) {
	objects, err := c.podIndexer.ByIndex(controllercache.PodsByNode, node.Name)
	if err != nil {
		return nil, err
	}
	view := &nodeView{pods: make([]livePod, 0, len(objects)), plan: &drainplan.Node{Name: node.Name, UID: node.UID}}
	for _, obj := range objects {
		if pod := controllercache.UnpackPod(obj); drainplan.IsLive(pod) {
			live := c.classify(pod, node)
			if !live.keptAt.IsZero() && live.left == "" && (view.recheck.IsZero() || live.keptAt.Before(view.recheck)) {
				view.recheck = live.keptAt
			}
			view.pods = append(view.pods, live)
		}
	}
	slices.SortFunc(view.pods, func(a, b livePod) int {
		if a.Namespace != b.Namespace {
			return strings.Compare(a.Namespace, b.Namespace)
		}
		return strings.Compare(a.Name, b.Name)
	})
	view.plan.Pods = leaving(view.pods)
	return view, nil
}

func (c *Controller) classify(pod *corev1.Pod, node *corev1.Node) livePod {
	plan := drainplan.PodOf(pod, node.UID)
	live := livePod{Pod: pod, plan: plan, left: drainplan.Left(pod, plan.Type, c.evacuators), own: c.isOwn(pod)}
	live.evacuation = c.evacuationOf(pod)
	if live.evacuation != nil && live.left == "" && plan.Type == maintenancev1alpha1.PodTypeDaemonSet {
		var waits bool
		if live.keptAt, waits = protocol.KeptByBudgetAt(live.evacuation, c.budgetPatience); waits && !c.clock.Now().Before(live.keptAt) {
			live.left = drainplan.LeftBudget
		}
	}
	if live.own && live.left == "" && c.hasComeBack(pod, node) {
		live.left = drainplan.LeftOwn
	}
	return live
}

func leaving(pods []livePod) []drainplan.Pod {
	out := make([]drainplan.Pod, 0, len(pods))
	for i := range pods {
		if pods[i].left == "" {
			out = append(out, pods[i].plan)
		}
	}
	return out
}
