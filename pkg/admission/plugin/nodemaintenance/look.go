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
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/preflight"
	"haulout.dev/haulout/pkg/survey"
)

const (
	// lookFor is how long a request waits for its warnings about pods.
	lookFor = 3 * time.Second
	// looksAtOnce bounds the memory that requests take together.
	looksAtOnce = 4
	// podsAtMost bounds what a look reads.
	podsAtMost = 50_000
)

// looker looks at the pods on nodes.
type looker struct {
	client     kubernetes.Interface
	evacuators sets.Set[string]
	slots      chan struct{}
	// timeLimit and podLimit bound a look.
	timeLimit time.Duration
	podLimit  int
}

func newLooker(evacuators []string) *looker {
	return &looker{evacuators: sets.New(evacuators...), slots: make(chan struct{}, looksAtOnce), timeLimit: lookFor, podLimit: podsAtMost}
}

// outlook is what the pods on the selected nodes have in store.
type outlook struct {
	tally preflight.Tally
	// read is how many pods were read when the limit ended the look; 0 if it came to its end.
	read int
	// late and failed say why there is nothing to tell.
	late, failed bool
}

// look never fails a request, whatever happens: at worst the outlook says that it does not know.
func (l *looker) look(ctx context.Context, nodes []*corev1.Node) *outlook {
	out := &outlook{}
	if len(nodes) == 0 {
		return out
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeFor(ctx))
	defer cancel()
	if err := l.fill(ctx, out, nodes); err != nil {
		klog.FromContext(ctx).Info("Could not look at the pods on the nodes of a maintenance, for its warnings", "nodes", len(nodes), "err", err)
		return &outlook{late: ctx.Err() != nil, failed: ctx.Err() == nil}
	}
	return out
}

// timeFor returns how long a request may wait. The write itself needs some of the request's time, too.
func (l *looker) timeFor(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(l.timeLimit, time.Until(deadline)/2)
	}
	return l.timeLimit
}

func (l *looker) fill(ctx context.Context, out *outlook, nodes []*corev1.Node) error {
	select {
	case l.slots <- struct{}{}:
		defer func() { <-l.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c := &collection{evacuators: l.evacuators, limit: l.podLimit, nodes: make(map[string]*corev1.Node, len(nodes))}
	for _, node := range nodes {
		c.nodes[node.Name] = node
	}
	reader := survey.Reader{Client: l.client}
	if err := reader.Pods(ctx, sets.KeySet(c.nodes), c.add, c.more); err != nil {
		return err
	}
	budgets, err := reader.Budgets(ctx, c.namespaces())
	if err != nil {
		return err
	}
	check := preflight.NewCheck(budgets)
	// held are the findings that the pods' Deployments may help with. Owners are read for these alone.
	var held []preflight.Finding
	owners := survey.NewOwnerNames(sets.New(v1alpha1.EvacuatorClassDeployment).Intersection(l.evacuators))
	for i := range c.pods {
		// Many budgets in a namespace with many pods take their time.
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, f := range check.Pod(c.pods[i]) {
			if f.Kind != preflight.BudgetNeverAllows || f.Pod.Owner == nil {
				out.tally.Add(f)
				continue
			}
			held = append(held, f)
			owners.Add(f.Pod.Namespace, f.Pod.Owner)
		}
	}
	if err := l.weigh(ctx, out, reader, held, owners); err != nil {
		return err
	}
	if c.cut {
		out.read = c.read
	}
	return nil
}

// weigh counts pods that no eviction can remove, unless they are replaced before they leave.
func (l *looker) weigh(ctx context.Context, out *outlook, reader survey.Reader, held []preflight.Finding, names *survey.OwnerNames) error {
	owners, err := reader.Owners(ctx, names, nil)
	if err != nil {
		return err
	}
	for i := range held {
		handling, err := preflight.HandlingOf(ctx, &held[i].Pod, l.evacuators, owners)
		if err != nil {
			return err
		}
		handling.Weigh(&held[i])
		out.tally.Add(held[i])
	}
	return nil
}

// collection gathers pods from lists, and keeps of each only what is looked at.
type collection struct {
	nodes      map[string]*corev1.Node
	evacuators sets.Set[string]
	limit      int

	mu   sync.Mutex
	pods []preflight.Pod
	read int
	// cut: something was left out because of the limit.
	cut bool
}

func (c *collection) add(list []corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read += len(list)
	for i := range list {
		node := c.nodes[list[i].Spec.NodeName]
		if node == nil {
			continue
		}
		if pod, staying := preflight.PodOf(&list[i], node, c.evacuators); staying {
			c.pods = append(c.pods, pod)
		}
	}
}

// more says whether more is to be read; who asks would read it.
func (c *collection) more() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read >= c.limit {
		c.cut = true
	}
	return !c.cut
}

// namespaces returns the namespaces of the pods.
func (c *collection) namespaces() sets.Set[string] {
	found := sets.New[string]()
	for i := range c.pods {
		found.Insert(c.pods[i].Namespace)
	}
	return found
}

// lastLook is what a request has seen already. It is seen again only if the request turns out to be about other nodes, when what it patches has
// changed meanwhile.
type lastLook struct {
	mu      sync.Mutex
	nodes   []string
	outlook *outlook
}

// at returns the outlook on the nodes.
func (s *lastLook) at(nodes []*corev1.Node, look func() *outlook) *outlook {
	keys := make([]string, 0, len(nodes))
	for _, node := range nodes {
		keys = append(keys, node.Name+" "+string(node.UID))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.outlook == nil || !slices.Equal(s.nodes, keys) {
		s.nodes, s.outlook = keys, look()
	}
	return s.outlook
}
