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

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/test/internal/audit"
	"haulout.dev/haulout/test/internal/follow"
)

// observer knows the pods, the nodes and the maintenances of the cluster from watching them. Events
// come to it each one and in order: an informer might skip the moment in which a budget is broken.
type observer struct {
	kube    kubernetes.Interface
	haulout clientset.Interface
	changed chan struct{}

	mu           sync.Mutex
	pods         map[types.UID]*corev1.Pod
	nodes        map[string]*corev1.Node
	cordoned     sets.Set[string] // every node that was ever seen unschedulable
	maintenances map[string]*v1alpha1.NodeMaintenance
	ledger       *audit.Ledger
	failed       error
}

func newObserver(kubeconfig string) (*observer, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.UserAgent = "haulout-demo"
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	haulout, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &observer{
		kube: kube, haulout: haulout, changed: make(chan struct{}, 1),
		pods: map[types.UID]*corev1.Pod{}, nodes: map[string]*corev1.Node{}, cordoned: sets.New[string](),
		maintenances: map[string]*v1alpha1.NodeMaintenance{},
	}, nil
}

// start begins to watch; it ends with the context.
func (o *observer) start(ctx context.Context) error {
	for name, client := range map[string]cache.Getter{
		"pods":             o.kube.CoreV1().RESTClient(),
		"nodes":            o.kube.CoreV1().RESTClient(),
		"nodemaintenances": o.haulout.MaintenanceV1alpha1().RESTClient(),
	} {
		if err := follow.Start(ctx, follow.Resource{Client: client, Name: name, See: o.see, Fail: o.fail}); err != nil {
			return err
		}
	}
	return nil
}

// see takes note of an event.
func (o *observer) see(event watch.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	gone := event.Type == watch.Deleted
	switch object := event.Object.(type) {
	case *corev1.Pod:
		remember(o.pods, object.UID, object, gone)
		if o.ledger != nil {
			o.ledger.Observe(event.Type, object)
		}
	case *corev1.Node:
		remember(o.nodes, object.Name, object, gone)
		if object.Spec.Unschedulable {
			o.cordoned.Insert(object.Name)
		}
	case *v1alpha1.NodeMaintenance:
		remember(o.maintenances, object.Name, object, gone)
	}
	o.notify()
}

func remember[K comparable, T any](objects map[K]T, key K, object T, gone bool) {
	if gone {
		delete(objects, key)
		return
	}
	objects[key] = object
}

func (o *observer) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failed = errors.Join(o.failed, err)
	o.notify()
}

// notify wakes the goroutine that waits; one wake-up that is still on its way stands for all.
func (o *observer) notify() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// openLedger begins to keep the books, with the pods that there are now.
func (o *observer) openLedger(
	budgets []policyv1.PodDisruptionBudget, plan []v1alpha1.DrainPlanEntry, nodes []string,
) (*audit.Ledger, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ledger := audit.New(nodes...)
	pods := make([]corev1.Pod, 0, len(o.pods))
	for _, pod := range o.pods {
		pods = append(pods, *pod)
	}
	if err := ledger.Open(budgets, pods, plan); err != nil {
		return nil, err
	}
	o.ledger = ledger
	return ledger, nil
}

// readyPods counts the pods that are ready.
func (o *observer) readyPods() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	count := 0
	for _, pod := range o.pods {
		if pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			count++
		}
	}
	return count
}

// unschedulable returns those of the nodes that are closed to new pods.
func (o *observer) unschedulable(nodes []string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var closed []string
	for _, name := range nodes {
		if node, ok := o.nodes[name]; ok && node.Spec.Unschedulable {
			closed = append(closed, name)
		}
	}
	return closed
}

// marked returns the nodes that have something of the maintenance: an annotation of ours,
// without which no condition is ours either.
func (o *observer) marked(nodes []string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var marked []string
	for _, name := range nodes {
		if node, ok := o.nodes[name]; ok {
			for key := range node.Annotations {
				if strings.HasPrefix(key, v1alpha1.GroupName+"/") {
					marked = append(marked, name+" ("+key+")")
				}
			}
		}
	}
	return marked
}

// strangers returns nodes that were cordoned at some time although they are none of the given ones.
func (o *observer) strangers(nodes []string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return sets.List(o.cordoned.Difference(sets.New(nodes...)))
}

// maintenance returns what was last seen of a maintenance; nil if it does not exist.
func (o *observer) maintenance(name string) *v1alpha1.NodeMaintenance {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.maintenances[name]
}

// redrawInterval is how often the seconds are redrawn while nothing else changes. Nothing is
// asked for then.
const redrawInterval = 250 * time.Millisecond

// wait waits until check returns an empty text. Until then the text says what is missing; it
// becomes the error when the time is over. show, if any, is called after each change and from time
// to time.
func (o *observer) wait(ctx context.Context, show func(), check func() (missing string)) error {
	ticker := time.NewTicker(redrawInterval)
	defer ticker.Stop()
	for {
		o.mu.Lock()
		failed := o.failed
		o.mu.Unlock()
		if failed != nil {
			return failed
		}
		missing := check()
		if show != nil {
			show()
		}
		if missing == "" {
			return nil
		}
		select {
		case <-o.changed:
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), missing)
		}
	}
}
