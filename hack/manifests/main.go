// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command manifests reads manifests from its standard input and reports what a cluster would reject
// or misinterpret: unknown kinds and fields, duplicate objects, and rights without bounds. It needs
// no cluster.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	kubernetesscheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func main() {
	count, errs := check(os.Stdin)
	for _, err := range errs {
		fmt.Fprintln(os.Stderr, err)
	}
	if len(errs) > 0 {
		os.Exit(1)
	}
	fmt.Printf("%d checked\n", count)
}

// newDecoder returns a decoder for all manifests of artifacts/. It rejects unknown and duplicate
// fields.
func newDecoder() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubernetesscheme.AddToScheme, apiregistrationv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		utilruntime.Must(add(scheme))
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// check returns the number of objects and the errors in them.
func check(manifests io.Reader) (count int, errs []error) {
	decoder := newDecoder()
	seen := map[string]bool{}
	documents := yaml.NewYAMLReader(bufio.NewReader(manifests))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			if count == 0 {
				errs = append(errs, errors.New("no objects found"))
			}
			return count, errs
		}
		if err != nil {
			return count, append(errs, err)
		}
		object, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w in\n%s", err, document))
			continue
		}
		count++
		accessor, err := meta.Accessor(object)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		name := fmt.Sprintf("%s %s/%s", kind.GroupKind(), accessor.GetNamespace(), accessor.GetName())
		if seen[name] {
			errs = append(errs, fmt.Errorf("%s is defined twice", name))
		}
		seen[name] = true
		if deployment, ok := object.(*appsv1.Deployment); ok && toleratesHeld(deployment) {
			errs = append(errs, fmt.Errorf("%s tolerates %s: the scheduler would bind the server's pod to the node that it drains", name, v1alpha1.TaintHeld))
		}
		for i, rule := range rulesOf(object) {
			if unbounded(rule) {
				errs = append(errs, fmt.Errorf("%s: rules[%d] has a *, which grants rights to future kinds as well; list the needed ones", name, i))
			}
		}
	}
}

func rulesOf(object runtime.Object) []rbacv1.PolicyRule {
	switch role := object.(type) {
	case *rbacv1.ClusterRole:
		return role.Rules
	case *rbacv1.Role:
		return role.Rules
	}
	return nil
}

// toleratesHeld reports whether the pods of a Deployment tolerate the taint of nodes under
// maintenance. A toleration without a key tolerates every taint.
func toleratesHeld(deployment *appsv1.Deployment) bool {
	return slices.ContainsFunc(deployment.Spec.Template.Spec.Tolerations, func(toleration corev1.Toleration) bool {
		return toleration.Key == "" || toleration.Key == v1alpha1.TaintHeld
	})
}

func unbounded(rule rbacv1.PolicyRule) bool {
	return slices.Contains(slices.Concat(rule.Verbs, rule.APIGroups, rule.Resources, rule.NonResourceURLs), rbacv1.VerbAll)
}
