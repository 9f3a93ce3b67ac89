// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
)

// Health is how many pods of a PodDisruptionBudget were healthy, since the books were opened.
type Health struct {
	// Name is the namespace and the name of the budget.
	Name string
	// Expected is the number of its pods in the beginning, Floor how many of them must be healthy
	// at any time.
	Expected, Floor int
	// Healthy is how many are healthy now, Lowest how few ever were.
	Healthy, Lowest int
	// Below counts the moments in which a healthy pod was lost that left fewer of them than Floor.
	Below int

	namespace string
	selector  labels.Selector
}

// Books count the healthy pods of budgets and of Deployments from the events of pods.
type Books struct {
	mu      sync.Mutex
	open    bool
	pods    map[types.UID]*entry
	budgets []*Health
	// healthy counts the healthy pods of each Deployment, before the healthy pods that it had when
	// the books were opened, and lowest the fewest healthy pods since then.
	healthy, before, lowest map[string]int
}

// entry is what the books remember of a pod.
type entry struct {
	// deployment is the app of the pod; "" if no Deployment owns it.
	deployment     string
	healthy, asked bool
	budgets        []*Health
}

// OpenBooks opens the books with the pods that there are. It fails if a budget is broken already.
func OpenBooks(budgets []policyv1.PodDisruptionBudget, pods []corev1.Pod) (*Books, error) {
	b := &Books{pods: map[types.UID]*entry{}, healthy: map[string]int{}}
	for i := range budgets {
		health, err := newHealth(&budgets[i], pods)
		if err != nil {
			return nil, err
		}
		b.budgets = append(b.budgets, health)
	}
	for i := range pods {
		b.Observe(watch.Added, &pods[i])
	}
	for _, health := range b.budgets {
		health.Lowest = health.Healthy
		if health.Healthy < health.Floor {
			return nil, fmt.Errorf("budget %s is broken before anything has begun: %d pods are healthy, %d are needed",
				health.Name, health.Healthy, health.Floor)
		}
	}
	b.before, b.lowest, b.open = maps.Clone(b.healthy), maps.Clone(b.healthy), true
	return b, nil
}

func newHealth(pdb *policyv1.PodDisruptionBudget, pods []corev1.Pod) (*Health, error) {
	selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("budget %s/%s: %w", pdb.Namespace, pdb.Name, err)
	}
	h := &Health{Name: pdb.Namespace + "/" + pdb.Name, namespace: pdb.Namespace, selector: selector}
	for i := range pods {
		if h.covers(&pods[i]) {
			h.Expected++
		}
	}
	if h.Floor, err = floor(&pdb.Spec, h.Expected); err != nil {
		return nil, fmt.Errorf("budget %s: %w", h.Name, err)
	}
	return h, nil
}

func (h *Health) covers(p *corev1.Pod) bool {
	return p.Namespace == h.namespace && h.selector.Matches(labels.Set(p.Labels))
}

// floor is how many of the expected pods have to be healthy. Percentages are rounded up, as the
// disruption controller does.
func floor(spec *policyv1.PodDisruptionBudgetSpec, expected int) (int, error) {
	if spec.MaxUnavailable != nil {
		away, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, expected, true)
		return max(expected-away, 0), err
	}
	if spec.MinAvailable == nil {
		return 0, nil
	}
	return intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, expected, true)
}

// Observe enters an event of a pod. Events have to come in the order in which they happened.
func (b *Books) Observe(event watch.EventType, p *corev1.Pod) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.pods[p.UID]
	if !ok {
		known = b.enter(p)
	}
	deleted := event == watch.Deleted
	known.asked = known.asked || deleted || p.DeletionTimestamp != nil
	b.setHealthy(known, IsReady(p) && !isFinished(p) && !known.asked)
	if deleted {
		delete(b.pods, p.UID)
	}
}

func (b *Books) enter(p *corev1.Pod) *entry {
	known := &entry{}
	// Pods of tests have the name of their Deployment as a label.
	if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "ReplicaSet" {
		known.deployment = p.Namespace + "/" + p.Labels["app"]
	}
	for _, h := range b.budgets {
		if h.covers(p) {
			known.budgets = append(known.budgets, h)
		}
	}
	b.pods[p.UID] = known
	return known
}

func (b *Books) setHealthy(known *entry, healthy bool) {
	if known.healthy == healthy {
		return
	}
	known.healthy = healthy
	change := 1
	if !healthy {
		change = -1
	}
	if name := known.deployment; name != "" {
		b.healthy[name] += change
		if b.open {
			b.lowest[name] = min(b.lowest[name], b.healthy[name])
		}
	}
	for _, h := range known.budgets {
		h.Healthy += change
		if b.open {
			h.Lowest = min(h.Lowest, h.Healthy)
			if !healthy && h.Healthy < h.Floor {
				h.Below++
			}
		}
	}
}

// Budgets returns the health of all budgets.
func (b *Books) Budgets() []Health {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make([]Health, 0, len(b.budgets))
	for _, h := range b.budgets {
		out = append(out, *h)
	}
	return out
}

// Broken describes the budgets that had fewer healthy pods at some time than they demand.
func (b *Books) Broken() []string {
	var found []string
	for _, h := range b.Budgets() {
		if h.Lowest < h.Floor {
			found = append(found,
				fmt.Sprintf("budget %s had %d healthy pods, %d are needed", h.Name, h.Lowest, h.Floor))
		}
	}
	return found
}

// Missed describes the Deployments that had fewer healthy pods at some time than when the books
// were opened: a drain that replaces pods before they leave finds none. Deployments that do not
// surge do not promise that.
func (b *Books) Missed() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []string
	for _, name := range slices.Sorted(maps.Keys(b.before)) {
		if is, was := b.lowest[name], b.before[name]; is < was {
			found = append(found, fmt.Sprintf("Deployment %s had %d of %d healthy pods", name, is, was))
		}
	}
	return found
}

// IsReady reports whether the condition Ready of a pod is True.
func IsReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func isFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
