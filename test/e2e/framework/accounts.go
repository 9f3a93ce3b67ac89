// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
	"haulout.dev/haulout/pkg/testing/must"
)

// ServiceAccount creates a service account in a namespace of the test, and returns clients with its
// token.
func (c *Cluster) ServiceAccount(tb testing.TB, namespace, name string) Clients {
	tb.Helper()
	admin := c.As(tb)
	accounts := admin.Kube.CoreV1().ServiceAccounts(namespace)
	must.Get(accounts.Create(tb.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}))(tb)
	return c.withToken(tb, namespace, name, nil)
}

// PodToken returns clients with a token of the service account of a pod, as the kubelet gives it to
// the pod: it is bound to the pod and names its node.
func (c *Cluster) PodToken(tb testing.TB, pod *corev1.Pod) Clients {
	tb.Helper()
	return c.withToken(tb, pod.Namespace, pod.Spec.ServiceAccountName, &authenticationv1.BoundObjectReference{
		Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID,
	})
}

func (c *Cluster) withToken(tb testing.TB, namespace, account string, bound *authenticationv1.BoundObjectReference) Clients {
	tb.Helper()
	admin := c.As(tb)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: bound}}
	token := must.Get(admin.Kube.CoreV1().ServiceAccounts(namespace).CreateToken(tb.Context(), account, request, metav1.CreateOptions{}))(tb)
	config := rest.AnonymousClientConfig(admin.Config)
	config.BearerToken = token.Status.Token
	return Clients{
		Config: config, Kube: kubernetes.NewForConfigOrDie(config), Haulout: clientset.NewForConfigOrDie(config),
	}
}

// GrantIn grants a service account the rules in one namespace, which may differ from the account's
// namespace, and waits until they are in effect.
func (c *Cluster) GrantIn(tb testing.TB, namespace, accountNamespace, account string, rules ...rbacv1.PolicyRule) {
	tb.Helper()
	rbac := c.As(tb).Kube.RbacV1()
	name := Name("e2e")
	must.Get(rbac.Roles(namespace).Create(tb.Context(),
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}))(tb)
	must.Get(rbac.RoleBindings(namespace).Create(tb.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: accountNamespace, Name: account}},
	}, metav1.CreateOptions{}))(tb)
	c.inEffect(tb, serviceaccount.MakeUsername(accountNamespace, account), namespace, rules)
}

// Grant grants a user the rules in the whole cluster, and waits until they are in effect.
func (c *Cluster) Grant(tb testing.TB, user string, rules ...rbacv1.PolicyRule) {
	tb.Helper()
	roles := c.As(tb).Kube.RbacV1().ClusterRoles()
	role := must.Get(roles.Create(tb.Context(),
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: Name("e2e")}, Rules: rules}, metav1.CreateOptions{}))(tb)
	tb.Cleanup(func() { _ = roles.Delete(background(), role.Name, metav1.DeleteOptions{}) })
	c.Bind(tb, user, role.Name)
}

// Bind binds a user to a ClusterRole, and waits until its rules are in effect.
func (c *Cluster) Bind(tb testing.TB, user, clusterRole string) {
	tb.Helper()
	rbac := c.As(tb).Kube.RbacV1()
	role := must.Get(rbac.ClusterRoles().Get(tb.Context(), clusterRole, metav1.GetOptions{}))(tb)
	binding := must.Get(rbac.ClusterRoleBindings().Create(tb.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: Name("e2e")},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{}))(tb)
	tb.Cleanup(func() { _ = rbac.ClusterRoleBindings().Delete(background(), binding.Name, metav1.DeleteOptions{}) })
	c.inEffect(tb, user, "", role.Rules)
}

// inEffect waits until kube-apiserver, which caches roles and bindings, allows a user the rules in
// a namespace, or in all namespaces if the namespace is empty. It sends SubjectAccessReviews
// instead of requests of the user, because servers cache refusals for seconds.
func (c *Cluster) inEffect(tb testing.TB, user, namespace string, rules []rbacv1.PolicyRule) {
	tb.Helper()
	reviews := c.As(tb).Kube.AuthorizationV1().SubjectAccessReviews()
	for _, rule := range rules {
		resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
		attributes := &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource,
			Subresource: subresource,
		}
		if len(rule.ResourceNames) > 0 {
			attributes.Name = rule.ResourceNames[0]
		}
		Eventually(
			tb, fmt.Sprintf("%s may %s %s", user, attributes.Verb, rule.Resources[0]),
			func(ctx context.Context) (bool, error) {
				review, err := reviews.Create(ctx, &authorizationv1.SubjectAccessReview{
					Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: attributes},
				}, metav1.CreateOptions{})
				return err == nil && review.Status.Allowed, err
			},
		)
	}
}
