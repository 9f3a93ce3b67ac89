// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestExpressionsOnTheOldestKubernetes compiles the expressions of all shipped policies and
// webhooks with the functions of the oldest supported version of Kubernetes.
func TestExpressionsOnTheOldestKubernetes(t *testing.T) {
	compiled := 0
	for _, file := range must.Get(filepath.Glob("../../artifacts/*/*.yaml"))(t) {
		for _, object := range admissionObjects(t, file) {
			compiler := must.Get(cel.NewCompositedCompiler(environment.MustBaseEnvSet(oldestKube)))(t)
			declared := cel.OptionalVariableDeclarations{HasAuthorizer: true}
			variables, expressions := expressionsOf(object)
			for _, variable := range variables {
				expressions = append(expressions, variable)
			}
			compiler.CompileAndStoreVariables(variables, declared, environment.NewExpressions)
			for _, expression := range expressions {
				compiled++
				if err := compiler.CompileCELExpression(expression, declared, environment.NewExpressions).Error; err != nil {
					t.Errorf("%s: %s: %v", file, expression.GetExpression(), err)
				}
			}
		}
	}
	is.True(t, compiled > 0, "no manifest has an expression")
}

// admissionObjects returns the policies and webhooks of a file.
func admissionObjects(t *testing.T, file string) (found []runtime.Object) {
	t.Helper()
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(must.Get(os.ReadFile(file))(t))))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return found
		}
		must.Do(t, err)
		// Files of other kinds are the business of verify-manifests.
		object, kind, err := newDecoder().Decode(document, nil, nil)
		if kind != nil && kind.Group == admissionregistrationv1.GroupName {
			must.Do(t, err)
			found = append(found, object)
		}
	}
}

func expressionsOf(object runtime.Object) (variables []cel.NamedExpressionAccessor, others []cel.ExpressionAccessor) {
	var conditions []admissionregistrationv1.MatchCondition
	switch o := object.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		conditions = o.Spec.MatchConditions
		for _, v := range o.Spec.Variables {
			variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
		}
		for _, v := range o.Spec.Validations {
			others = append(others, &validating.ValidationCondition{Expression: v.Expression})
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			conditions = append(conditions, o.Webhooks[i].MatchConditions...)
		}
	case *admissionregistrationv1.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			conditions = append(conditions, o.Webhooks[i].MatchConditions...)
		}
	}
	for i := range conditions {
		others = append(others, (*matchconditions.MatchCondition)(&conditions[i]))
	}
	return variables, others
}
