// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/identity"
)

var resource = maintenance.Resource("evacuations")

// right is a permission in the namespace of an Evacuation.
type right struct {
	verb, group, resource, subresource, namespace, name string
}

func (r right) String() string {
	s := fmt.Sprintf("%s %s", r.verb, r.resource)
	if r.group != "" {
		s += "." + r.group
	}
	if r.subresource != "" {
		s += "/" + r.subresource
	}
	if r.name != "" {
		s += fmt.Sprintf(" %q", r.name)
	}
	return fmt.Sprintf("%s in namespace %q", s, r.namespace)
}

// has reports whether the user of the request has a right. It has no cache of its own: admission
// runs again on each conflict of the storage transaction, but the delegated authorizer caches its
// decisions for ten seconds.
func (p *Plugin) has(ctx context.Context, attrs admission.Attributes, asked right) (bool, error) {
	decision, _, err := p.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User:            attrs.GetUserInfo(),
		Verb:            asked.verb,
		Namespace:       asked.namespace,
		APIGroup:        asked.group,
		APIVersion:      "*",
		Resource:        asked.resource,
		Subresource:     asked.subresource,
		Name:            asked.name,
		ResourceRequest: true,
	})
	allowed := decision == authorizer.DecisionAllow
	if err != nil && !allowed {
		return false, apierrors.NewInternalError(fmt.Errorf("check whether the user may %s: %w", asked, err))
	}
	return allowed, nil
}

// require returns an error if the user of the request does not have a right. The server itself has
// all rights.
func (p *Plugin) require(ctx context.Context, attrs admission.Attributes, needed right) error {
	if p.identity.Is(attrs.GetUserInfo()) {
		return nil
	}
	allowed, err := p.has(ctx, attrs, needed)
	if err != nil || allowed {
		return err
	}
	return apierrors.NewForbidden(resource, nameOf(attrs), fmt.Errorf("user %q cannot %s", attrs.GetUserInfo().GetName(), needed))
}

// nameOf returns the name of the object. The attributes of a create do not have the name yet, and a
// request for a collection has none.
func nameOf(attrs admission.Attributes) string {
	if attrs.GetName() != "" {
		return attrs.GetName()
	}
	if old, ok := attrs.GetOldObject().(*maintenance.Evacuation); ok && old != nil {
		return old.Name
	}
	if evacuation, ok := attrs.GetObject().(*maintenance.Evacuation); ok && evacuation != nil {
		return protocol.CanonicalName(evacuation.Spec.PodRef.Name, evacuation.Spec.PodRef.UID)
	}
	return ""
}

// mayDeletePod checks the right to delete the pod, which is the effect of an evacuation.
func (p *Plugin) mayDeletePod(ctx context.Context, attrs admission.Attributes, podName string) error {
	return p.require(ctx, attrs, right{verb: "delete", resource: "pods", namespace: attrs.GetNamespace(), name: podName})
}

// mayUseInstigators checks that the user has the right to use each instigator that the write adds
// or removes. Only the server adds the instigator of evictions: the right to it is that to withdraw
// the request of a client that has given up.
func (p *Plugin) mayUseInstigators(ctx context.Context, attrs admission.Attributes, finalizers, oldFinalizers []string) error {
	now, before := sets.New(protocol.Instigators(finalizers)...), sets.New(protocol.Instigators(oldFinalizers)...)
	if now.Difference(before).Has(v1alpha1.InstigatorRawEviction) && !p.identity.Is(attrs.GetUserInfo()) {
		return apierrors.NewForbidden(resource, nameOf(attrs),
			fmt.Errorf("only the server adds the instigator %s, when a client evicts the pod", v1alpha1.InstigatorRawEviction))
	}
	for _, name := range sets.List(now.SymmetricDifference(before)) {
		needed := right{verb: "use", group: maintenance.GroupName, resource: "instigators", namespace: attrs.GetNamespace(), name: name}
		if err := p.require(ctx, attrs, needed); err != nil {
			return err
		}
	}
	return nil
}

// mayEndRequests checks the right to use every instigator of an object that a request deletes, or
// that the garbage collector may delete after the request: a deletion withdraws the requests of all
// instigators.
//
// The garbage collector deletes objects because of their owners, and this plugin checked the user
// when the owner was set. In a namespace that is being deleted, the pods are deleted in any case.
// The check reads the namespace, since the user name of the namespace controller differs between
// clusters.
func (p *Plugin) mayEndRequests(ctx context.Context, attrs admission.Attributes, finalizers []string) error {
	if attrs.GetUserInfo().GetName() == identity.GarbageCollector {
		return nil
	}
	err := p.mayUseInstigators(ctx, attrs, nil, finalizers)
	if attrs.GetOperation() != admission.Delete || !apierrors.IsForbidden(err) {
		return err
	}
	namespace, readErr := p.client.CoreV1().Namespaces().Get(ctx, attrs.GetNamespace(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(readErr):
		return err
	case readErr != nil:
		return apierrors.NewInternalError(fmt.Errorf("get namespace %s from the host cluster: %w", attrs.GetNamespace(), readErr))
	case namespace.DeletionTimestamp != nil:
		return nil
	}
	return err
}

// mayProgress checks the right to report as the active evacuator. The node agent is the evacuator
// of the static pods of its node and needs no such right: the right to its class would apply to the
// static pods of all nodes.
func (p *Plugin) mayProgress(ctx context.Context, attrs admission.Attributes, old *maintenance.Evacuation) error {
	class := old.Status.ActiveEvacuatorClass
	if node, isNode := identity.NodeOf(attrs.GetUserInfo()); isNode && class == v1alpha1.EvacuatorClassKubelet && old.Spec.NodeName == node {
		return nil
	}
	if class == "" && !p.identity.Is(attrs.GetUserInfo()) {
		// A SubjectAccessReview without a name would be about all evacuators.
		return apierrors.NewForbidden(resource, attrs.GetName(), fmt.Errorf("no evacuator is active yet"))
	}
	return p.require(ctx, attrs, right{verb: "progress", group: maintenance.GroupName, resource: "evacuators", namespace: attrs.GetNamespace(), name: class})
}

// mayAssign checks the right to add an evacuator that the pod does not name.
func (p *Plugin) mayAssign(ctx context.Context, attrs admission.Attributes, class string) error {
	return p.require(ctx, attrs, right{verb: "assign", group: maintenance.GroupName, resource: "evacuators", namespace: attrs.GetNamespace(), name: class})
}

// mayScale reports whether the user may scale the Deployment. The evacuator scales it with the
// rights of the server. name is empty if the Deployment is not known.
func (p *Plugin) mayScale(ctx context.Context, attrs admission.Attributes, name string) (bool, error) {
	if p.identity.Is(attrs.GetUserInfo()) {
		return true, nil
	}
	return p.has(ctx, attrs, right{
		verb: "update", group: "apps", resource: "deployments", subresource: "scale", namespace: attrs.GetNamespace(), name: name,
	})
}
