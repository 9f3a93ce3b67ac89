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

package framework

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	clientset "haulout.dev/haulout/pkg/generated/clientset/versioned"
)

// ServiceAccount makes a service account, which goes with its namespace, and returns the clients of who has its token.
func (c *Cluster) ServiceAccount(tb testing.TB, namespace, name string) Clients {
	tb.Helper()
	admin := c.As(tb)
	accounts := admin.Kube.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Create(tb.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	token, err := accounts.CreateToken(tb.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	config := rest.AnonymousClientConfig(admin.Config)
	config.BearerToken = token.Status.Token
	return Clients{Config: config, Kube: kubernetes.NewForConfigOrDie(config), Haulout: clientset.NewForConfigOrDie(config)}
}

// GrantIn lets a service account do what the rules say, in one namespace, which need not be that of the account.
func (c *Cluster) GrantIn(tb testing.TB, namespace, accountNamespace, account string, rules ...rbacv1.PolicyRule) {
	tb.Helper()
	rbac := c.As(tb).Kube.RbacV1()
	name := Name("e2e")
	if _, err := rbac.Roles(namespace).Create(tb.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	if _, err := rbac.RoleBindings(namespace).Create(tb.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: accountNamespace, Name: account}},
	}, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
}
