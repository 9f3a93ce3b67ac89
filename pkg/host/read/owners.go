// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/forecast"
	"haulout.dev/haulout/pkg/drain/surge"
	"haulout.dev/haulout/pkg/host/owners"
)

// OwnerNames has the names of Jobs, and of the owners that determine the evacuators of a pod.
type OwnerNames struct {
	evacuators              sets.Set[string]
	replicaSets, daemonSets sets.Set[types.NamespacedName]
	jobs                    sets.Set[types.NamespacedName]
}

// NewOwnerNames returns an empty set. The set accepts Jobs, and the owners whose built-in
// evacuators are enabled.
func NewOwnerNames(builtIn sets.Set[string]) *OwnerNames {
	return &OwnerNames{evacuators: builtIn, replicaSets: sets.New[types.NamespacedName](), daemonSets: sets.New[types.NamespacedName](), jobs: sets.New[types.NamespacedName]()}
}

// Add adds the owner of a pod.
func (n *OwnerNames) Add(namespace string, owner *metav1.OwnerReference) {
	name := types.NamespacedName{Namespace: namespace, Name: owner.Name}
	switch {
	case owner.Kind == "ReplicaSet" && n.evacuators.Has(v1alpha1.EvacuatorClassDeployment):
		n.replicaSets.Insert(name)
	case owner.Kind == "DaemonSet" && n.evacuators.Has(v1alpha1.EvacuatorClassDaemonSet):
		n.daemonSets.Insert(name)
	case owner.Kind == "Job" && owner.APIVersion == batchv1.SchemeGroupVersion.String():
		n.jobs.Insert(name)
	}
}

// Owners has the owners of pods that were read: their identity, owners and selector, and for
// Deployments the fields that surges depend on.
type Owners struct {
	replicaSets map[types.NamespacedName]*appsv1.ReplicaSet
	deployments map[types.NamespacedName]*appsv1.Deployment
	daemonSets  map[types.NamespacedName]*appsv1.DaemonSet
	jobs        map[types.NamespacedName]*batchv1.Job
	nodes       map[string]*corev1.Node
	// autoscalers are grouped by the Deployment that they scale, and sorted by name.
	autoscalers map[types.NamespacedName][]*autoscalingv2.HorizontalPodAutoscaler
	// oneNodeClaims are the claims that only one node can use at the same time.
	oneNodeClaims sets.Set[types.NamespacedName]
	// unread are the kinds that the server may not read.
	unread []Optional
}

// Optional is a kind that only a part of a prediction depends on. The server may lack the right to
// read it if its ClusterRole is from an older version.
type Optional string

const (
	// OptionalJobs are Jobs. Without them a preview does not know which Jobs fail permanently.
	OptionalJobs Optional = "Jobs"
	// OptionalVolumes are volumes and their claims. Without them a preview does not know which pods
	// and Deployments are tied to a node.
	OptionalVolumes Optional = "PersistentVolumeClaims and PersistentVolumes"
)

// Unread returns the kinds that the server may not read.
func (o *Owners) Unread() []Optional { return o.unread }

// unlessForbidden returns nil if the server may not read the kind, and records the kind. Otherwise
// it returns err.
func (o *Owners) unlessForbidden(kind Optional, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	o.unread = append(o.unread, kind)
	return nil
}

var _ forecast.Owners = &Owners{}

// Owners reads the owners of pods, and the Deployments of ReplicaSets. The caller provides the
// nodes. It omits owners that do not exist, and Jobs and claims that the server may not read.
func (r Reader) Owners(ctx context.Context, names *OwnerNames, nodes []*corev1.Node) (*Owners, error) {
	o := &Owners{nodes: make(map[string]*corev1.Node, len(nodes))}
	for _, node := range nodes {
		o.nodes[node.Name] = node
	}
	var err error
	o.replicaSets, err = r.replicaSets(ctx, names.replicaSets)
	if err != nil {
		return nil, err
	}
	deployments := sets.New[types.NamespacedName]()
	for name, replicaSet := range o.replicaSets {
		if owner := protocol.ControllerOf(replicaSet, "Deployment"); owner != nil {
			deployments.Insert(types.NamespacedName{Namespace: name.Namespace, Name: owner.Name})
		}
	}
	o.deployments, err = cachedOwners(ctx, deployments, r.Caches.Owners.Deployment)
	if err != nil {
		return nil, err
	}
	if err := r.surges(ctx, o); err != nil {
		return nil, err
	}
	o.daemonSets, err = cachedOwners(ctx, names.daemonSets, r.Caches.Owners.DaemonSet)
	if err != nil {
		return nil, err
	}
	o.jobs, err = readOwners(ctx, names.jobs, owners.Jobs(r.Client))
	return o, o.unlessForbidden(OptionalJobs, err)
}

// surges reads the objects other than Deployments that surges depend on.
func (r Reader) surges(ctx context.Context, o *Owners) error {
	namespaces, claims := sets.New[string](), sets.New[types.NamespacedName]()
	for name, d := range o.deployments {
		namespaces.Insert(name.Namespace)
		for _, claim := range surge.Claims(d) {
			claims.Insert(types.NamespacedName{Namespace: name.Namespace, Name: claim})
		}
	}
	autoscalers, err := r.autoscalers(namespaces)
	if err != nil {
		return err
	}
	o.autoscalers = map[types.NamespacedName][]*autoscalingv2.HorizontalPodAutoscaler{}
	for _, a := range autoscalers {
		if name, ok := surge.Scales(a); ok && o.deployments[name] != nil {
			o.autoscalers[name] = append(o.autoscalers[name], a)
		}
	}
	for _, list := range o.autoscalers {
		slices.SortFunc(list, func(a, b *autoscalingv2.HorizontalPodAutoscaler) int { return strings.Compare(a.Name, b.Name) })
	}
	// Few pod templates have claims. Read the claims one by one, so that the server does not need
	// the right to list all claims.
	names := claims.UnsortedList()
	oneNode, err := collect(ctx, len(names), func(ctx context.Context, i int) ([]types.NamespacedName, error) {
		claim, err := owners.Claims(r.Client).Get(ctx, names[i].Namespace, names[i].Name)
		if err == nil && (claim == nil || !surge.OneNode(claim)) {
			return nil, nil
		}
		return names[i : i+1], err
	})
	o.oneNodeClaims = sets.New(oneNode...)
	return o.unlessForbidden(OptionalVolumes, err)
}

// autoscalers returns the autoscalers of the namespaces.
func (r Reader) autoscalers(namespaces sets.Set[string]) ([]*autoscalingv2.HorizontalPodAutoscaler, error) {
	var autoscalers []*autoscalingv2.HorizontalPodAutoscaler
	for namespace := range namespaces {
		list, err := r.Caches.Autoscalers.Lister().HorizontalPodAutoscalers(namespace).List(labels.Everything())
		if err != nil {
			return nil, err
		}
		autoscalers = append(autoscalers, list...)
	}
	return autoscalers, nil
}

// cachedOwners returns the owners of a kind that the caches have.
func cachedOwners[T any](ctx context.Context, names sets.Set[types.NamespacedName], get func(ctx context.Context, namespace, name string) (*T, error)) (map[types.NamespacedName]*T, error) {
	found := make(map[types.NamespacedName]*T, names.Len())
	for name := range names {
		object, err := get(ctx, name.Namespace, name.Name)
		if err != nil {
			return nil, err
		}
		if object != nil {
			found[name] = object
		}
	}
	return found, nil
}

func (r Reader) replicaSets(ctx context.Context, names sets.Set[types.NamespacedName]) (map[types.NamespacedName]*appsv1.ReplicaSet, error) {
	found, err := cachedOwners(ctx, names, r.Caches.Owners.ReplicaSet)
	if err != nil {
		return nil, err
	}
	// The cache has no selector of a ReplicaSet without replicas, which may have terminating pods.
	unselective := sets.New[types.NamespacedName]()
	for name, set := range found {
		if set.Spec.Selector == nil {
			unselective.Insert(name)
			delete(found, name)
		}
	}
	live, err := readOwners(ctx, unselective, owners.ReplicaSets(r.Client))
	maps.Copy(found, live)
	return found, err
}

// ReplicaSet implements protocol.Owners.
func (o *Owners) ReplicaSet(_ context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	return o.replicaSets[types.NamespacedName{Namespace: namespace, Name: name}], nil
}

// Deployment implements protocol.Owners.
func (o *Owners) Deployment(_ context.Context, namespace, name string) (*appsv1.Deployment, error) {
	return o.deployments[types.NamespacedName{Namespace: namespace, Name: name}], nil
}

// Surge implements forecast.Owners.
func (o *Owners) Surge(namespace, name string) *surge.Candidate {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	d := o.deployments[key]
	if d == nil {
		return nil
	}
	c := &surge.Candidate{Deployment: d, Autoscalers: o.autoscalers[key]}
	for _, claim := range surge.Claims(d) {
		if o.oneNodeClaims.Has(types.NamespacedName{Namespace: namespace, Name: claim}) {
			c.OneNodeClaims = append(c.OneNodeClaims, claim)
		}
	}
	return c
}

// Job implements forecast.Owners.
func (o *Owners) Job(namespace, name string) *batchv1.Job {
	return o.jobs[types.NamespacedName{Namespace: namespace, Name: name}]
}

// DaemonSet implements protocol.Owners.
func (o *Owners) DaemonSet(_ context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	return o.daemonSets[types.NamespacedName{Namespace: namespace, Name: name}], nil
}

// Node implements protocol.Owners.
func (o *Owners) Node(_ context.Context, name string) (*corev1.Node, error) {
	return o.nodes[name], nil
}

// named is a pointer to an owner.
type named[T any] interface {
	*T
	metav1.Object
}

func nameOf[T any, P named[T]](object P) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// readOwners reads the owners of a kind. It reads them one by one if there are few.
func readOwners[T any, P named[T]](ctx context.Context, names sets.Set[types.NamespacedName], kind owners.Kind[T]) (map[types.NamespacedName]*T, error) {
	var found []*T
	var err error
	if names.Len() <= readByName {
		list := names.UnsortedList()
		found, err = collect(ctx, len(list), func(ctx context.Context, i int) ([]*T, error) {
			object, err := kind.Get(ctx, list[i].Namespace, list[i].Name)
			if object == nil {
				return nil, err
			}
			return []*T{kind.Keep(object)}, err
		})
	} else {
		namespaces := sets.New[string]()
		for name := range names {
			namespaces.Insert(name.Namespace)
		}
		found, err = byNamespace(ctx, namespaces, func(ctx context.Context, namespace string, options metav1.ListOptions) (kept []*T, next string, err error) {
			items, next, err := kind.List(ctx, namespace, options)
			for i := range items {
				if names.Has(nameOf[T, P](&items[i])) {
					kept = append(kept, kind.Keep(&items[i]))
				}
			}
			return kept, next, err
		})
	}
	byName := make(map[types.NamespacedName]*T, len(found))
	for _, object := range found {
		byName[nameOf[T, P](object)] = object
	}
	return byName, err
}
