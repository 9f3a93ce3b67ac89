// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package read

import (
	"context"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/drain/forecast"
	"haulout.dev/haulout/pkg/drain/surge"
)

// OwnerNames are the names of pod owners that determine evacuators.
type OwnerNames struct {
	evacuators              sets.Set[string]
	replicaSets, daemonSets sets.Set[types.NamespacedName]
	jobs                    sets.Set[types.NamespacedName]
}

// NewOwnerNames returns an empty set. It only collects Jobs, and owners whose built-in evacuators
// are enabled.
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

// Owners are the owners of pods that were read, with their identity, owners and selector, and for
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

// Optional is a kind that only a part of a prediction depends on. A ClusterRole that was not
// changed with the version of the server may lack the right to read it.
type Optional string

const (
	// OptionalJobs are Jobs: without them it is not known which Jobs fail for good.
	OptionalJobs Optional = "Jobs"
	// OptionalVolumes are volumes and their claims: without them it is not known which pods and
	// Deployments are tied to a node.
	OptionalVolumes Optional = "PersistentVolumeClaims and PersistentVolumes"
)

// Unread returns the kinds that the server may not read. What depends on them is not known.
func (o *Owners) Unread() []Optional { return o.unread }

// unlessForbidden returns the error of the reads of a kind, and nil if the server may not read it.
func (o *Owners) unlessForbidden(kind Optional, err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	o.unread = append(o.unread, kind)
	return nil
}

var _ forecast.Owners = &Owners{}

// Owners reads the owners of pods and the Deployments of ReplicaSets. The caller passes the nodes.
// Owners that do not exist are omitted, and so are Jobs and claims that the server may not read.
func (r Reader) Owners(ctx context.Context, names *OwnerNames, nodes []*corev1.Node) (*Owners, error) {
	o := &Owners{nodes: make(map[string]*corev1.Node, len(nodes))}
	for _, node := range nodes {
		o.nodes[node.Name] = node
	}
	apps := r.Client.AppsV1()
	var err error
	o.replicaSets, err = owners(ctx, r, names.replicaSets, ownerKind[appsv1.ReplicaSet]{
		get: func(ctx context.Context, n types.NamespacedName) (*appsv1.ReplicaSet, error) {
			return apps.ReplicaSets(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
		},
		list: func(ctx context.Context, namespace string, options metav1.ListOptions) ([]appsv1.ReplicaSet, string, error) {
			list, err := apps.ReplicaSets(namespace).List(ctx, options)
			return itemsOf(list, err, func(l *appsv1.ReplicaSetList) []appsv1.ReplicaSet { return l.Items })
		},
		strip: func(full *appsv1.ReplicaSet) *appsv1.ReplicaSet {
			return &appsv1.ReplicaSet{ObjectMeta: identity(full), Spec: appsv1.ReplicaSetSpec{Selector: full.Spec.Selector}}
		},
	})
	if err != nil {
		return nil, err
	}
	deployments := sets.New[types.NamespacedName]()
	for name, replicaSet := range o.replicaSets {
		if owner := metav1.GetControllerOfNoCopy(replicaSet); owner != nil && owner.Kind == "Deployment" {
			deployments.Insert(types.NamespacedName{Namespace: name.Namespace, Name: owner.Name})
		}
	}
	o.deployments, err = owners(ctx, r, deployments, ownerKind[appsv1.Deployment]{
		get: func(ctx context.Context, n types.NamespacedName) (*appsv1.Deployment, error) {
			return apps.Deployments(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
		},
		list: func(ctx context.Context, namespace string, options metav1.ListOptions) ([]appsv1.Deployment, string, error) {
			list, err := apps.Deployments(namespace).List(ctx, options)
			return itemsOf(list, err, func(l *appsv1.DeploymentList) []appsv1.Deployment { return l.Items })
		},
		strip: surge.DecidesOf,
	})
	if err != nil {
		return nil, err
	}
	if err := r.surges(ctx, o); err != nil {
		return nil, err
	}
	o.daemonSets, err = owners(ctx, r, names.daemonSets, ownerKind[appsv1.DaemonSet]{
		get: func(ctx context.Context, n types.NamespacedName) (*appsv1.DaemonSet, error) {
			return apps.DaemonSets(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
		},
		list: func(ctx context.Context, namespace string, options metav1.ListOptions) ([]appsv1.DaemonSet, string, error) {
			list, err := apps.DaemonSets(namespace).List(ctx, options)
			return itemsOf(list, err, func(l *appsv1.DaemonSetList) []appsv1.DaemonSet { return l.Items })
		},
		strip: func(full *appsv1.DaemonSet) *appsv1.DaemonSet {
			return &appsv1.DaemonSet{ObjectMeta: identity(full), Spec: appsv1.DaemonSetSpec{Selector: full.Spec.Selector}}
		},
	})
	if err != nil {
		return nil, err
	}
	o.jobs, err = r.jobs(ctx, names.jobs)
	return o, o.unlessForbidden(OptionalJobs, err)
}

// jobs reads Jobs: how many failures they allow and have had.
func (r Reader) jobs(ctx context.Context, names sets.Set[types.NamespacedName]) (map[types.NamespacedName]*batchv1.Job, error) {
	batch := r.Client.BatchV1()
	return owners(ctx, r, names, ownerKind[batchv1.Job]{
		get: func(ctx context.Context, n types.NamespacedName) (*batchv1.Job, error) {
			return batch.Jobs(n.Namespace).Get(ctx, n.Name, metav1.GetOptions{})
		},
		list: func(ctx context.Context, namespace string, options metav1.ListOptions) ([]batchv1.Job, string, error) {
			list, err := batch.Jobs(namespace).List(ctx, options)
			return itemsOf(list, err, func(l *batchv1.JobList) []batchv1.Job { return l.Items })
		},
		strip: func(full *batchv1.Job) *batchv1.Job {
			return &batchv1.Job{
				ObjectMeta: identity(full),
				Spec: batchv1.JobSpec{
					BackoffLimit: full.Spec.BackoffLimit, BackoffLimitPerIndex: full.Spec.BackoffLimitPerIndex, PodFailurePolicy: full.Spec.PodFailurePolicy,
				},
				Status: batchv1.JobStatus{Failed: full.Status.Failed},
			}
		},
	})
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
	var mu sync.Mutex
	o.autoscalers = map[types.NamespacedName][]*autoscalingv2.HorizontalPodAutoscaler{}
	err := r.byNamespace(ctx, namespaces, func(ctx context.Context, namespace string, options metav1.ListOptions) (string, error) {
		list, err := r.Client.AutoscalingV2().HorizontalPodAutoscalers(namespace).List(ctx, options)
		if err != nil {
			return "", err
		}
		mu.Lock()
		defer mu.Unlock()
		for i := range list.Items {
			a := &list.Items[i]
			if name, ok := surge.Scales(a); ok && o.deployments[name] != nil {
				a.ManagedFields = nil
				o.autoscalers[name] = append(o.autoscalers[name], a)
			}
		}
		return list.Continue, nil
	})
	if err != nil {
		return err
	}
	for _, list := range o.autoscalers {
		slices.SortFunc(list, func(a, b *autoscalingv2.HorizontalPodAutoscaler) int { return strings.Compare(a.Name, b.Name) })
	}
	// Few templates have claims. Read them one by one, so that the server does not need the right
	// to list all claims.
	o.oneNodeClaims = sets.New[types.NamespacedName]()
	names := claims.UnsortedList()
	err = inParallel(ctx, len(names), func(ctx context.Context, i int) error {
		claim, err := r.Client.CoreV1().PersistentVolumeClaims(names[i].Namespace).Get(ctx, names[i].Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && surge.OneNode(claim) {
			mu.Lock()
			defer mu.Unlock()
			o.oneNodeClaims.Insert(names[i])
		}
		return err
	})
	return o.unlessForbidden(OptionalVolumes, err)
}

// ReplicaSet implements evacuators.Owners.
func (o *Owners) ReplicaSet(_ context.Context, namespace, name string) (*appsv1.ReplicaSet, error) {
	return o.replicaSets[types.NamespacedName{Namespace: namespace, Name: name}], nil
}

// Deployment implements evacuators.Owners.
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

// DaemonSet implements evacuators.Owners.
func (o *Owners) DaemonSet(_ context.Context, namespace, name string) (*appsv1.DaemonSet, error) {
	return o.daemonSets[types.NamespacedName{Namespace: namespace, Name: name}], nil
}

// Node implements evacuators.Owners.
func (o *Owners) Node(_ context.Context, name string) (*corev1.Node, error) {
	return o.nodes[name], nil
}

// ownerKind defines how to read the owners of a kind, and what to keep.
type ownerKind[T any] struct {
	get   func(context.Context, types.NamespacedName) (*T, error)
	list  func(ctx context.Context, namespace string, options metav1.ListOptions) (items []T, next string, err error)
	strip func(*T) *T
}

// owners reads objects, one by one if there are few.
func owners[T any, P interface {
	*T
	metav1.Object
}](ctx context.Context, r Reader, names sets.Set[types.NamespacedName], kind ownerKind[T]) (map[types.NamespacedName]*T, error) {
	var mu sync.Mutex
	found := make(map[types.NamespacedName]*T, names.Len())
	keep := func(full *T) {
		name := types.NamespacedName{Namespace: P(full).GetNamespace(), Name: P(full).GetName()}
		if !names.Has(name) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		found[name] = kind.strip(full)
	}
	if names.Len() <= readByName {
		list := names.UnsortedList()
		return found, inParallel(ctx, len(list), func(ctx context.Context, i int) error {
			object, err := kind.get(ctx, list[i])
			if apierrors.IsNotFound(err) {
				return nil
			}
			if err == nil {
				keep(object)
			}
			return err
		})
	}
	namespaces := sets.New[string]()
	for name := range names {
		namespaces.Insert(name.Namespace)
	}
	return found, r.byNamespace(ctx, namespaces, func(ctx context.Context, namespace string, options metav1.ListOptions) (string, error) {
		items, next, err := kind.list(ctx, namespace, options)
		for i := range items {
			keep(&items[i])
		}
		return next, err
	})
}

func itemsOf[L metav1.ListInterface, T any](list L, err error, items func(L) []T) ([]T, string, error) {
	if err != nil {
		return nil, "", err
	}
	return items(list), list.GetContinue(), nil
}

func identity(object metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), OwnerReferences: object.GetOwnerReferences(),
	}
}
