// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

const (
	server = "system:serviceaccount:haulout-system:haulout-apiserver"

	scaleDownDisabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	doNotDisrupt      = "karpenter.sh/do-not-disrupt"
)

// policiesIn returns the policies of a file of artifacts/base, keyed by the resource that they
// match.
func policiesIn(t *testing.T, file string) map[string]*admissionregistrationv1.ValidatingAdmissionPolicy {
	t.Helper()
	content := must.Get(os.ReadFile("../../artifacts/base/" + file))(t)
	policies, bound := map[string]*admissionregistrationv1.ValidatingAdmissionPolicy{}, map[string]bool{}
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := newDecoder().Decode(document, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		switch o := object.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			policies[o.Spec.MatchConstraints.ResourceRules[0].Resources[0]] = o
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			bound[o.Spec.PolicyName] = true
		}
	}
	for _, policy := range policies {
		is.True(t, bound[policy.Name], "policy %s is not bound", policy.Name)
	}
	return policies
}

// oldestKube is the version whose CEL functions a new policy may use on Kubernetes 1.34, the oldest
// supported version: kube-apiserver accepts those that the version before it has, too.
var oldestKube = version.MajorMinor(1, 33)

// compile compiles a policy as the oldest supported kube-apiserver does.
func compile(t *testing.T, policy *admissionregistrationv1.ValidatingAdmissionPolicy) validating.Validator {
	t.Helper()
	compiler := must.Get(cel.NewCompositedCompiler(environment.MustBaseEnvSet(oldestKube)))(t)
	declared := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	var variables []cel.NamedExpressionAccessor
	for _, v := range policy.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(variables, declared, environment.NewExpressions)
	var conditions, validations, messages []cel.ExpressionAccessor
	for i := range policy.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i]))
	}
	for _, v := range policy.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message})
		var message cel.ExpressionAccessor
		if v.MessageExpression != "" {
			message = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
		messages = append(messages, message)
	}
	fail := policy.Spec.FailurePolicy
	matcher := matchconditions.NewMatcher(
		compiler.CompileCondition(conditions, declared, environment.NewExpressions), fail, "policy", "validate",
		policy.Name,
	)
	return validating.NewValidator(
		compiler.CompileCondition(validations, declared, environment.NewExpressions), matcher,
		compiler.CompileCondition(nil, declared, environment.NewExpressions),
		compiler.CompileCondition(messages, cel.OptionalVariableDeclarations{}, environment.NewExpressions), fail, nil,
	)
}

type update struct {
	resource, subresource string
	kind                  schema.GroupVersionKind
	old                   runtime.Object
	change                func(runtime.Object)
	// extra are attributes of the user.
	extra map[string][]string
}

// denied returns the messages of the policy if it denies the update by a user.
func (u update) denied(t *testing.T, policy *admissionregistrationv1.ValidatingAdmissionPolicy, name string) []string {
	t.Helper()
	next := u.old.DeepCopyObject()
	u.change(next)
	gvr := u.kind.GroupVersion().WithResource(u.resource)
	attributes := &admission.VersionedAttributes{
		Attributes: admission.NewAttributesRecord(
			next, u.old, u.kind, "ns", "name", gvr, u.subresource, admission.Update, &metav1.UpdateOptions{}, false,
			&user.DefaultInfo{Name: name, Extra: u.extra},
		),
		VersionedKind: u.kind,
	}
	attributes.VersionedObject.Set(next)
	attributes.VersionedOldObject.Set(u.old)
	result := compile(t, policy).Validate(t.Context(), gvr, attributes, nil, nil, celconfig.RuntimeCELCostBudget, nil)
	var messages []string
	for _, decision := range result.Decisions {
		is.True(t, decision.Evaluation != validating.EvalError, "the policy has an evaluation error: %s", decision.Message)
		if decision.Action == validating.ActionDeny {
			messages = append(messages, decision.Message)
		}
	}
	return messages
}

func annotate(key string) func(runtime.Object) {
	return func(o runtime.Object) {
		object := o.(metav1.Object)
		annotations := map[string]string{key: "new"}
		for k, v := range object.GetAnnotations() {
			if k != key {
				annotations[k] = v
			}
		}
		object.SetAnnotations(annotations)
	}
}

func TestPoliciesForUpdatesOfTheServer(t *testing.T) {
	theirs := metav1.ObjectMeta{
		Name: "name", Labels: map[string]string{"app": "a"}, Annotations: map[string]string{"theirs": "x"},
	}
	container := corev1.Container{Name: "c", Image: "i"}
	pod := update{resource: "pods", kind: corev1.SchemeGroupVersion.WithKind("Pod"), old: &corev1.Pod{
		ObjectMeta: theirs, Spec: corev1.PodSpec{Containers: []corev1.Container{container}},
	}}
	deployment := update{
		resource: "deployments",
		kind:     appsv1.SchemeGroupVersion.WithKind("Deployment"),
		old: &appsv1.Deployment{
			ObjectMeta: theirs, Spec: appsv1.DeploymentSpec{
				Replicas: ptr.To[int32](1),
				Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{container}}},
			},
		},
	}
	autoscaler := update{
		resource: "horizontalpodautoscalers",
		kind:     autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
		old: &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: theirs, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 3},
		},
	}
	node := update{resource: "nodes", kind: corev1.SchemeGroupVersion.WithKind("Node"), old: &corev1.Node{
		ObjectMeta: theirs, Spec: corev1.NodeSpec{
			ProviderID: "p", Taints: []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}},
		},
	}}
	status := update{resource: "nodes", subresource: "status", kind: node.kind, old: &corev1.Node{
		ObjectMeta: theirs, Status: corev1.NodeStatus{
			Phase:      corev1.NodeRunning,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}}
	protected := func(value string) update {
		return update{resource: "nodes", kind: node.kind, old: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "name", Annotations: map[string]string{doNotDisrupt: value},
		}}}
	}
	spec := func(o runtime.Object) *corev1.NodeSpec { return &o.(*corev1.Node).Spec }
	stat := func(o runtime.Object) *corev1.NodeStatus { return &o.(*corev1.Node).Status }
	for name, tc := range map[string]struct {
		of     update
		change func(runtime.Object)
		denied bool
	}{
		"allows the deletion cost of a pod": {pod, annotate(corev1.PodDeletionCost), false},
		"allows an annotation of Haulout on a pod": {
			pod, annotate("maintenance.haulout.dev/original-pod-deletion-cost"), false,
		},
		"denies another annotation of a pod":     {pod, annotate("sidecar.example.com/inject"), true},
		"denies the value of another annotation": {pod, annotate("theirs"), true},
		"denies the removal of another annotation": {
			pod, func(o runtime.Object) { o.(*corev1.Pod).Annotations = nil }, true,
		},
		"denies the image of a pod": {
			pod, func(o runtime.Object) { o.(*corev1.Pod).Spec.Containers[0].Image = "evil" }, true,
		},
		"denies the labels of a pod": {pod, func(o runtime.Object) { o.(*corev1.Pod).Labels = nil }, true},
		"denies the finalizers of a pod": {
			pod, func(o runtime.Object) { o.(*corev1.Pod).Finalizers = []string{"a/b"} }, true,
		},
		"allows the replicas of a Deployment": {
			deployment, func(o runtime.Object) { o.(*appsv1.Deployment).Spec.Replicas = ptr.To[int32](2) }, false,
		},
		"allows an annotation of Haulout on a Deployment": {
			deployment, annotate("maintenance.haulout.dev/surge-record"), false,
		},
		"denies the template of a Deployment": {
			deployment, func(o runtime.Object) { o.(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Image = "evil" }, true,
		},
		"denies a pause of a Deployment": {
			deployment, func(o runtime.Object) { o.(*appsv1.Deployment).Spec.Paused = true }, true,
		},
		"denies the deletion cost of a Deployment": {deployment, annotate(corev1.PodDeletionCost), true},
		"allows the minReplicas of an autoscaler": {
			autoscaler, func(o runtime.Object) {
				o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MinReplicas = ptr.To[int32](2)
			}, false,
		},
		"denies the maxReplicas of an autoscaler": {
			autoscaler, func(o runtime.Object) { o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.MaxReplicas = 9 }, true,
		},
		"allows spec.unschedulable of a node": {node, func(o runtime.Object) { spec(o).Unschedulable = true }, false},
		"allows a taint of Haulout on a node": {node, func(o runtime.Object) {
			spec(o).Taints = append(spec(o).Taints, corev1.Taint{
				Key: "maintenance.haulout.dev/drain", Effect: corev1.TaintEffectNoSchedule,
			})
		}, false},
		"allows an annotation of Haulout on a node": {node, annotate("maintenance.haulout.dev/cordoned-by"), false},
		"allows the annotations for autoscalers on a node": {node, func(o runtime.Object) {
			object := o.(metav1.Object)
			object.SetAnnotations(map[string]string{"theirs": "x", scaleDownDisabled: "true", doNotDisrupt: "true"})
		}, false},
		"denies another value of an annotation for autoscalers": {node, annotate(doNotDisrupt), true},
		"allows the removal of the annotations for autoscalers": {protected("true"), func(o runtime.Object) {
			o.(metav1.Object).SetAnnotations(nil)
		}, false},
		"denies the removal of a user's other value": {protected("false"), func(o runtime.Object) {
			o.(metav1.Object).SetAnnotations(nil)
		}, true},
		"denies a change of a user's other value": {protected("false"), func(o runtime.Object) {
			o.(metav1.Object).SetAnnotations(map[string]string{doNotDisrupt: "true"})
		}, true},
		"denies the annotations for autoscalers with the status": {status, func(o runtime.Object) {
			o.(metav1.Object).SetAnnotations(map[string]string{"theirs": "x", doNotDisrupt: "true"})
		}, true},
		"denies the annotations for autoscalers on a pod": {pod, annotate(doNotDisrupt), true},
		"denies the removal of another taint":             {node, func(o runtime.Object) { spec(o).Taints = nil }, true},
		"denies the providerID of a node":                 {node, func(o runtime.Object) { spec(o).ProviderID = "q" }, true},
		"denies the labels of a node":                     {node, func(o runtime.Object) { o.(*corev1.Node).Labels["app"] = "b" }, true},
		"allows a condition of Haulout on a node": {status, func(o runtime.Object) {
			stat(o).Conditions = append(stat(o).Conditions, corev1.NodeCondition{Type: "Drained"})
		}, false},
		"denies the Ready condition of a node": {
			status, func(o runtime.Object) { stat(o).Conditions[0].Status = corev1.ConditionFalse }, true,
		},
		"denies the removal of another condition": {status, func(o runtime.Object) { stat(o).Conditions = nil }, true},
		"denies the phase of a node":              {status, func(o runtime.Object) { stat(o).Phase = corev1.NodeTerminated }, true},
	} {
		t.Run(name, func(t *testing.T) {
			resource := tc.of.resource
			if tc.of.subresource != "" {
				resource += "/" + tc.of.subresource
			}
			policy := policiesIn(t, "admission-policies.yaml")[resource]
			must.True(t, policy != nil, "no policy for %s", resource)
			tc.of.change = tc.change
			if messages := tc.of.denied(t, policy, server); (len(messages) > 0) != tc.denied {
				t.Errorf("denied with %q, want denied: %v", messages, tc.denied)
			}
			if messages := tc.of.denied(t, policy, "system:serviceaccount:kube-system:other"); len(messages) > 0 {
				t.Errorf("another user is denied with %q", messages)
			}
		})
	}
}

// TestOlderPolicyForNodes compares two writes under the policy of the version before the
// annotations for autoscalers: it refuses a cordon with them, and accepts one without.
func TestOlderPolicyForNodes(t *testing.T) {
	policy := policiesIn(t, "admission-policies.yaml")["nodes"]
	must.True(t, len(policy.Spec.Variables) > 0, "the policy for nodes has no variables")
	for i := range policy.Spec.Variables {
		if policy.Spec.Variables[i].Name == "protections" {
			policy.Spec.Variables[i].Expression = "['']"
		}
	}
	cordon := func(protect bool) func(runtime.Object) {
		return func(o runtime.Object) {
			node := o.(*corev1.Node)
			node.Spec.Unschedulable = true
			node.Annotations = map[string]string{"maintenance.haulout.dev/tainted-by": "m"}
			if protect {
				node.Annotations[doNotDisrupt] = "true"
			}
		}
	}
	for _, protect := range []bool{true, false} {
		of := update{resource: "nodes", kind: corev1.SchemeGroupVersion.WithKind("Node"), old: &corev1.Node{}, change: cordon(protect)}
		is.Equal(t, len(of.denied(t, policy, server)) > 0, protect, "denied")
	}
}
