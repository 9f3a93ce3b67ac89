// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/token"
	"strings"
	"testing"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"haulout.dev/haulout/pkg/testing/must"
)

func parse(t *testing.T, content string) *source {
	t.Helper()
	s := &source{positions: token.NewFileSet()}
	must.Do(t, s.add("code.go", "package code\n"+content))
	return s
}

func TestMetrics(t *testing.T) {
	for sentence, tc := range map[string]struct{ code, want, failure string }{
		"a metric without labels": {
			code: `var a = metrics.NewGauge(&metrics.GaugeOpts{Namespace: "haulout", Name: "a", ` +
				`Help: "What " + "it is.", StabilityLevel: metrics.ALPHA})`,
			want: "| `haulout_a` | gauge |  | What it is. |",
		},
		"a metric with labels": {
			code: `var a = metrics.NewCounterVec(&metrics.CounterOpts{Namespace: "haulout", Subsystem: "s", ` +
				`Name: "a_total", Help: "A | B.", StabilityLevel: metrics.ALPHA}, []string{"x", "y"})`,
			want: "| `haulout_s_a_total` | counter | `x`, `y` | A \\| B. |",
		},
		"a metric whose name is not a literal": {
			code: `var a = metrics.NewGauge(&metrics.GaugeOpts{Name: name, Help: "A.", ` +
				`StabilityLevel: metrics.ALPHA})`,
			failure: "code.go:2:45: Name of a metric must be a literal",
		},
		"a metric that is not ALPHA": {
			code:    `var a = metrics.NewGauge(&metrics.GaugeOpts{Name: "a", Help: "A."})`,
			failure: "stability",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			expectPage(
				t, tc.want, tc.failure,
				func(out *strings.Builder) error { return writeMetrics(out, parse(t, tc.code)) },
			)
		})
	}
}

func TestEvents(t *testing.T) {
	for sentence, tc := range map[string]struct{ code, want, failure string }{
		"an event that a function sends": {
			code: "// EventA: it has\n// happened.\nconst EventA = \"Happened\"\n" +
				"func f() { c.nodeEvent(n, corev1.EventTypeWarning, EventA) }",
			want: "| `Happened` | Warning | node | it has happened. |",
		},
		"an event of both types, in literals": {
			code: "// EventA: it. About the node.\nconst EventA = \"It\"\n" +
				"func f() { d.e = event{corev1.EventTypeNormal, EventA, n}; d.e = event{corev1.EventTypeWarning, EventA, n} }",
			want: "| `It` | Normal, Warning | node | it. |",
		},
		"an event about two kinds of objects": {
			code: "// EventA: it.\nconst EventA = \"It\"\n" +
				"func f() { c.nodeEvent(n, EventA); c.maintenanceEvent(n, EventA) }",
			want: "| `It` | Normal | node, NodeMaintenance | it. |",
		},
		"an event with its object in the comment": {
			code: "// EventA: it. About the pod.\nconst EventA = \"It\"",
			want: "| `It` | Normal | pod | it. |",
		},
		"an event without a known object": {code: "// EventA: it.\nconst EventA = \"It\"", failure: "About the node"},
		"an event without a comment":      {code: "const EventA = \"It\"", failure: "needs a comment"},
	} {
		t.Run(sentence, func(t *testing.T) {
			expectPage(
				t, tc.want, tc.failure,
				func(out *strings.Builder) error { return writeEvents(out, parse(t, tc.code)) },
			)
		})
	}
}

func TestAPIReference(t *testing.T) {
	text := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"string"}, Description: "A |\nB."}}
	list := spec.Schema{
		SchemaProps: spec.SchemaProps{
			Type: []string{"array"}, Items: &spec.SchemaOrArray{Schema: spec.RefSchema(typePrefix + "Part")},
		},
	}
	complete := func() map[string]common.OpenAPIDefinition {
		definitions := map[string]common.OpenAPIDefinition{
			typePrefix + "Part": {Schema: spec.Schema{SchemaProps: spec.SchemaProps{Description: "Of a kind."}}},
		}
		for _, kind := range kinds {
			definitions[typePrefix+kind] = common.OpenAPIDefinition{Schema: spec.Schema{SchemaProps: spec.SchemaProps{
				Description: "A kind.", Properties: map[string]spec.Schema{
					"kind":  text,
					"name":  text,
					"parts": list,
				}, Required: []string{"name"},
			}}}
		}
		return definitions
	}
	for sentence, tc := range map[string]struct {
		change        func(map[string]common.OpenAPIDefinition)
		want, failure string
	}{
		"a required field, then a field of another type": {
			want: "| `name` | string | **required.** A \\| B. |\n| `parts` | list of [Part](#part) |  |\n",
		},
		"the type of a field follows the kind that uses it": {want: "\n## Part\n\nOf a kind.\n"},
		"a type without a definition": {
			change:  func(definitions map[string]common.OpenAPIDefinition) { delete(definitions, typePrefix+"Part") },
			failure: "has no " + typePrefix + "Part",
		},
		"an unused type": {
			change: func(definitions map[string]common.OpenAPIDefinition) {
				definitions[typePrefix+"Lost"] = common.OpenAPIDefinition{}
			},
			failure: "refers to type " + typePrefix + "Lost",
		},
	} {
		t.Run(sentence, func(t *testing.T) {
			definitions := complete()
			if tc.change != nil {
				tc.change(definitions)
			}
			expectPage(t, tc.want, tc.failure, func(out *strings.Builder) error { return writeTypes(out, definitions) })
		})
	}
}

func expectPage(t *testing.T, want, failure string, write func(*strings.Builder) error) {
	t.Helper()
	var out strings.Builder
	err := write(&out)
	switch {
	case failure != "" && (err == nil || !strings.Contains(err.Error(), failure)):
		t.Errorf("got error %v, want one that contains %q", err, failure)
	case failure == "" && err != nil:
		t.Error(err)
	case !strings.Contains(out.String(), want):
		t.Errorf("got page %s, want a line %s", out.String(), want)
	}
}
