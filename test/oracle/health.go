// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
)

// disruptionLag is the time that the disruption controller may take to count a change. Within this
// time, a budget may still allow an eviction after a change of its spec forbids it, and the
// Eviction API does not take the deletion of another pod into account.
const disruptionLag = 5 * time.Second

// healthChange is the moment at which a pod became healthy or unhealthy.
type healthChange struct {
	*Observation
	*corev1.Pod

	healthy bool
	// age is the time for which a pod that is no longer healthy was healthy.
	age time.Duration
}

// healthChanges returns the changes of all pods.
func healthChanges(log Log) iter.Seq[healthChange] {
	return func(yield func(healthChange) bool) {
		since := map[types.UID]time.Time{}
		for o, pod := range Each[*corev1.Pod](log) {
			at, was := since[pod.UID]
			healthy := isHealthy(o, pod)
			switch {
			case healthy == was:
				continue
			case healthy:
				since[pod.UID] = o.Seen
			default:
				delete(since, pod.UID)
			}
			if !yield(healthChange{o, pod, healthy, o.Seen.Sub(at)}) {
				return
			}
		}
	}
}

// isHealthy reports whether a pod is ready and not about to end.
func isHealthy(o *Observation, p *corev1.Pod) bool {
	return o.Type != watch.Deleted && IsReady(p) && !isFinished(p) && p.DeletionTimestamp == nil
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

// Span is the number of healthy pods: at the beginning, now, and the lowest one.
type Span struct{ Before, Healthy, Lowest int }

func (s *Span) count(t healthChange) {
	if t.healthy {
		s.Healthy++
	} else {
		s.Healthy--
	}
	if t.Initial {
		s.Before, s.Lowest = s.Healthy, s.Healthy
	}
	s.Lowest = min(s.Lowest, s.Healthy)
}

// Workload is the owner of pods. Pods of tests have its name as the label app.
type Workload struct{ Kind, Namespace, Name string }

// Availability counts the healthy pods of workloads.
func Availability(log Log) map[Workload]Span {
	spans := map[Workload]Span{}
	for t := range healthChanges(log) {
		workload := Workload{Namespace: t.Namespace, Name: t.Labels["app"]}
		if owner := metav1.GetControllerOf(t.Pod); owner != nil {
			workload.Kind = owner.Kind
		}
		span := spans[workload]
		span.count(t)
		spans[workload] = span
	}
	return spans
}

// Missed describes the Deployments that at some time had fewer healthy pods than at the beginning.
// There are none if the drain replaced all pods before they left.
func Missed(log Log) []string {
	var found []string
	for workload, span := range Availability(log) {
		if workload.Kind == "ReplicaSet" && span.Lowest < span.Before {
			found = append(found, fmt.Sprintf("Deployment %s/%s had %d of %d healthy pods",
				workload.Namespace, workload.Name, span.Lowest, span.Before))
		}
	}
	slices.Sort(found)
	return found
}

// Health is the number of healthy pods of a PodDisruptionBudget that existed at the beginning.
type Health struct {
	Span

	// Name is the namespace and the name of the budget.
	Name string
	// Expected is the number of the budget's pods at the beginning, and Floor the number of pods
	// that had to be healthy then.
	Expected, Floor int
	// Losses are the losses of healthy pods since the beginning.
	Losses []Loss

	selector labels.Selector
	terms    []term
}

// Loss is the moment in which a healthy pod of a budget was lost.
type Loss struct {
	// Pod is the name of the pod, Age the time for which it had been healthy.
	Pod  string
	Age  time.Duration
	Seen time.Time
	// Healthy is the number of remaining healthy pods, and Floor the number that had to be healthy.
	Healthy, Floor int
}

// term is the floor of a budget between two changes of its spec.
type term struct {
	at    moment
	seen  time.Time
	floor int
}

// HealthOf counts the healthy pods of budgets, in the order of their names.
func HealthOf(log Log) []*Health {
	budgets := map[string]*Health{}
	for o, pdb := range Each[*policyv1.PodDisruptionBudget](log) {
		name := pdb.Namespace + "/" + pdb.Name
		h := budgets[name]
		if h == nil && o.Initial {
			h = newHealth(log, name, pdb)
			budgets[name] = h
		}
		if h != nil {
			h.change(o, pdb)
		}
	}
	sorted := slices.SortedFunc(maps.Values(budgets), func(a, b *Health) int { return cmp.Compare(a.Name, b.Name) })
	for t := range healthChanges(log) {
		for _, h := range sorted {
			if !h.covers(t.Pod) {
				continue
			}
			h.count(t)
			if !t.Initial && !t.healthy {
				h.Losses = append(h.Losses, Loss{t.Name, t.age, t.Seen, h.Healthy, h.floorAt(t.Observation)})
			}
		}
	}
	return sorted
}

func newHealth(log Log, name string, pdb *policyv1.PodDisruptionBudget) *Health {
	h := &Health{Name: name}
	// The API has validated it.
	h.selector, _ = metav1.LabelSelectorAsSelector(pdb.Spec.Selector)
	pods := map[types.UID]bool{}
	for o, pod := range Each[*corev1.Pod](log) {
		if o.Initial && h.covers(pod) {
			pods[pod.UID] = o.Type != watch.Deleted && !isFinished(pod)
		}
	}
	for _, exists := range pods {
		if exists {
			h.Expected++
		}
	}
	h.Floor = floor(&pdb.Spec, h.Expected)
	return h
}

func (h *Health) covers(p *corev1.Pod) bool {
	namespace, _, _ := strings.Cut(h.Name, "/")
	return p.Namespace == namespace && h.selector.Matches(labels.Set(p.Labels))
}

// change records a change of the budget.
func (h *Health) change(o *Observation, pdb *policyv1.PodDisruptionBudget) {
	now := term{at: o.stamp().at, seen: o.Seen, floor: floor(&pdb.Spec, h.Expected)}
	if o.Type == watch.Deleted {
		now.floor = 0
	}
	if last := len(h.terms) - 1; last < 0 || h.terms[last].floor != now.floor {
		h.terms = append(h.terms, now)
	}
}

// floorAt returns how many pods had to be healthy at an observation of a pod: the lowest floor of
// the current term and of the terms that ended a short time before.
func (h *Health) floorAt(o *Observation) int {
	lowest := math.MaxInt
	for i, t := range h.terms {
		if i > 0 && t.at >= o.at {
			break
		}
		isOver := i+1 < len(h.terms) && h.terms[i+1].at < o.at && h.terms[i+1].seen.Add(disruptionLag).Before(o.Seen)
		if !isOver {
			lowest = min(lowest, t.floor)
		}
	}
	return lowest
}

// Broken returns the losses that left fewer healthy pods than the budget demanded.
func (h *Health) Broken() []Loss {
	return slices.DeleteFunc(slices.Clone(h.Losses), func(l Loss) bool { return l.Healthy >= l.Floor })
}

// floor returns how many of the expected pods have to be healthy. Percentages are rounded up, as
// the disruption controller does.
func floor(spec *policyv1.PodDisruptionBudgetSpec, expected int) int {
	switch {
	case spec.MaxUnavailable != nil:
		away, _ := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, expected, true)
		return max(expected-away, 0)
	case spec.MinAvailable != nil:
		least, _ := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, expected, true)
		return least
	}
	return 0
}

// brokenBudgets describes the budgets that had fewer healthy pods after a loss than they demanded.
func brokenBudgets(log Log) []string {
	var found []string
	for _, h := range HealthOf(log) {
		if broken := h.Broken(); len(broken) > 0 {
			worst := slices.MinFunc(broken, func(a, b Loss) int { return cmp.Compare(a.Healthy-a.Floor, b.Healthy-b.Floor) })
			found = append(found,
				fmt.Sprintf("budget %s had %d healthy pods, %d are needed", h.Name, worst.Healthy, worst.Floor))
		}
	}
	return found
}
