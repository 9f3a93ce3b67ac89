// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	policyv1beta1 "k8s.io/api/policy/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"

	"haulout.dev/haulout/pkg/admission/evictionreview"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func interception(t *testing.T) admissionregistrationv1.ValidatingWebhook {
	t.Helper()
	content := must.Get(os.ReadFile("../../artifacts/eviction-interception/webhook.yaml"))(t)
	object, _, err := newDecoder().Decode(content, nil, nil)
	must.Do(t, err)
	configuration, ok := object.(*admissionregistrationv1.ValidatingWebhookConfiguration)
	must.True(t, ok && len(configuration.Webhooks) == 1, "got %T, want a configuration with one webhook", object)
	return configuration.Webhooks[0]
}

// TestInterception compares the settings on which the safety of a cluster depends.
func TestInterception(t *testing.T) {
	webhook := interception(t)
	is.Equal(t, *webhook.FailurePolicy, admissionregistrationv1.Ignore, "failurePolicy")
	is.Equal(t, *webhook.SideEffects, admissionregistrationv1.SideEffectClassNoneOnDryRun, "sideEffects")
	service := webhook.ClientConfig.Service
	is.Equal(t, service.Namespace+"/"+service.Name, "default/kubernetes", "Service")
	is.Equal(t, *service.Path, evictionreview.Path, "path")
	is.Equal(t, len(webhook.ClientConfig.CABundle), 0, "caBundle")
}

// TestInterceptedEvictions evaluates the conditions of the webhook as kube-apiserver does.
func TestInterceptedEvictions(t *testing.T) {
	webhook := interception(t)
	compiler := must.Get(cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())))(t)
	var conditions []cel.ExpressionAccessor
	for i := range webhook.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&webhook.MatchConditions[i]))
	}
	matcher := matchconditions.NewMatcher(
		compiler.CompileCondition(conditions, cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions),
		webhook.FailurePolicy, "webhook", "validating", webhook.Name,
	)
	marked := metav1.ObjectMeta{Name: "db-1", Annotations: map[string]string{v1alpha1.AnnotationEvictNow: "me"}}
	other := metav1.ObjectMeta{Name: "db-1", Annotations: map[string]string{"example.com/why": "me"}}
	v1, beta := policyv1.SchemeGroupVersion.WithKind("Eviction"), policyv1beta1.SchemeGroupVersion.WithKind("Eviction")
	for name, test := range map[string]struct {
		kind     schema.GroupVersionKind
		eviction runtime.Object
		want     bool
	}{
		"of kubectl":                         {v1, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "db-1"}}, true},
		"without metadata, as of Karpenter":  {v1, &policyv1.Eviction{}, true},
		"with another annotation":            {v1, &policyv1.Eviction{ObjectMeta: other}, true},
		"with the mark":                      {v1, &policyv1.Eviction{ObjectMeta: marked}, false},
		"v1beta1, as of cluster-autoscaler":  {beta, &policyv1beta1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "db-1"}}, true},
		"v1beta1 with the mark of the owner": {beta, &policyv1beta1.Eviction{ObjectMeta: marked}, false},
	} {
		t.Run(name, func(t *testing.T) {
			attributes := &admission.VersionedAttributes{
				Attributes: admission.NewAttributesRecord(
					test.eviction, nil, test.kind, "blue", "db-1", corev1.SchemeGroupVersion.WithResource("pods"), "eviction",
					admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "alice"},
				),
				VersionedKind: test.kind,
			}
			attributes.VersionedObject.Set(test.eviction)
			result := matcher.Match(t.Context(), attributes, nil, nil)
			must.Do(t, result.Error)
			is.Equal(t, result.Matches, test.want, "intercepted")
		})
	}
}
