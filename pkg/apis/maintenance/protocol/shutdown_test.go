// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestShutdownName(t *testing.T) {
	const boot = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	for name, test := range map[string]struct {
		node, bootID, want string
	}{
		"a boot ID of Linux":            {"worker-1", boot, "shutdown-worker-1-1b4e28ba"},
		"in upper case":                 {"worker-1", strings.ToUpper(boot), "shutdown-worker-1-1b4e28ba"},
		"without dashes":                {"worker-1", strings.ReplaceAll(boot, "-", ""), "shutdown-worker-1-1b4e28ba"},
		"a node name with dots":         {"ip-10-0-0-1.eu.internal", boot, "shutdown-ip-10-0-0-1.eu.internal-1b4e28ba"},
		"a boot ID that is a time":      {"win-1", "2026-07-30T08:00:00Z", "shutdown-win-1-7460b111"},
		"a boot ID that is not a name":  {"win-1", "../..", "shutdown-win-1-0cfd1c96"},
		"the longest name that is kept": {strings.Repeat("n", 235), boot, "shutdown-" + strings.Repeat("n", 235) + "-1b4e28ba"},
		"a longer name": {
			strings.Repeat("n", 236), boot, "shutdown-" + strings.Repeat("n", 218) + "-f8a312893a730576-1b4e28ba",
		},
		"a long name cut after a dot": {
			strings.Repeat("n", 216) + ".-" + strings.Repeat("m", 30), boot, "shutdown-" + strings.Repeat("n", 216) + "-898e04d474893671-1b4e28ba",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := ShutdownName(test.node, test.bootID)
			is.True(t, got == test.want, "ShutdownName() = %q, want %q", got, test.want)
			is.Equal(t, ShutdownNamePrefix(test.node), test.want[:len(test.want)-bootDigits])
			if errs := validation.IsDNS1123Subdomain(got); len(errs) > 0 {
				t.Errorf("%q is not a valid name: %v", got, errs)
			}
		})
	}
}

func TestShutdownNamesDiffer(t *testing.T) {
	long := strings.Repeat("n", 240)
	seen := map[string]string{}
	for _, node := range []string{"a", "a-b", "b", long, long + "a", long + "b"} {
		for _, boot := range []string{"", "0", "1", "2026-07-30T08:00:00Z", "2026-07-30T08:00:01Z", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"} {
			name := ShutdownName(node, boot)
			if other, ok := seen[name]; ok {
				t.Errorf("%s and %s/%s have the same name %q", other, node, boot, name)
			}
			seen[name] = node + "/" + boot
		}
	}
}

func TestNodeOfShutdown(t *testing.T) {
	const boot = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	long := strings.Repeat("n", 240)
	type change = func(*metav1.ObjectMeta, *corev1.NodeSelector)
	for name, test := range map[string]struct {
		node   string
		change change
		want   string
	}{
		"as the node agent makes it":  {node: "worker-1", want: "worker-1"},
		"of a node with a long name":  {node: long, want: long},
		"with labels of another user": {node: "worker-1", change: func(m *metav1.ObjectMeta, _ *corev1.NodeSelector) { m.Labels = map[string]string{"a": "b"} }, want: "worker-1"},
		"without a boot ID":           {node: "worker-1", change: func(m *metav1.ObjectMeta, _ *corev1.NodeSelector) { m.Annotations = nil }},
		"with another boot ID": {node: "worker-1", change: func(m *metav1.ObjectMeta, _ *corev1.NodeSelector) {
			m.Annotations[v1alpha1.AnnotationBootID] = "other"
		}},
		"with another name": {node: "worker-1", change: func(m *metav1.ObjectMeta, _ *corev1.NodeSelector) { m.Name = "kernel-update" }},
		"that selects another node": {node: "worker-1", change: func(_ *metav1.ObjectMeta, s *corev1.NodeSelector) {
			s.NodeSelectorTerms[0].MatchFields[0].Values[0] = "worker-2"
		}},
		"that selects a second node": {node: "worker-1", change: func(_ *metav1.ObjectMeta, s *corev1.NodeSelector) {
			s.NodeSelectorTerms[0].MatchFields[0].Values = []string{"worker-1", "worker-2"}
		}},
		"that selects all but the node": {node: "worker-1", change: func(_ *metav1.ObjectMeta, s *corev1.NodeSelector) {
			s.NodeSelectorTerms[0].MatchFields[0].Operator = corev1.NodeSelectorOpNotIn
		}},
		"that selects by a label as well": {node: "worker-1", change: func(_ *metav1.ObjectMeta, s *corev1.NodeSelector) {
			s.NodeSelectorTerms[0].MatchExpressions = []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpExists}}
		}},
		"with a second term": {node: "worker-1", change: func(_ *metav1.ObjectMeta, s *corev1.NodeSelector) {
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, corev1.NodeSelectorTerm{})
		}},
		"without a term": {node: "worker-1", change: func(_ *metav1.ObjectMeta, s *corev1.NodeSelector) { s.NodeSelectorTerms = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			meta := metav1.ObjectMeta{Name: ShutdownName(test.node, boot), Annotations: map[string]string{v1alpha1.AnnotationBootID: boot}}
			selector := build.Named(test.node)
			if test.change != nil {
				test.change(&meta, selector)
			}
			is.Equal(t, NodeOfShutdown(&meta, selector), test.want)
		})
	}
}

func TestHasBootedSince(t *testing.T) {
	const first, second = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "6c84fb90-12c4-11e1-840d-7b25c5ee775a"
	for name, test := range map[string]struct {
		node, shutdown string
		want           bool
	}{
		"the kernel has booted":                         {node: second, shutdown: first, want: true},
		"the kernel has not booted":                     {node: first, shutdown: first},
		"the kernel has not booted, userspace may have": {node: first, shutdown: first + "-2"},
		"the kernel has booted, after userspace":        {node: second, shutdown: first + "-2", want: true},
		"the kubelet writes upper case":                 {node: "1B4E28BA-2FA1-11D2-883F-0016D3CCA427", shutdown: first},
		"the kubelet has published nothing":             {shutdown: first},
		"the kubelet of Windows":                        {node: "14", shutdown: first},
		"an ID that is not a UUID":                      {node: second, shutdown: "2026-11-01T00:00:00Z at this node 1"},
		"a short ID":                                    {node: second, shutdown: "14"},
	} {
		t.Run(name, func(t *testing.T) {
			is.Equal(t, HasBootedSince(test.node, test.shutdown), test.want)
		})
	}
}
