// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"haulout.dev/haulout/pkg/generated/openapi"
)

func TestStructural(t *testing.T) {
	text := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"string"}, Default: ""}}
	models := map[string]common.OpenAPIDefinition{
		"outer": {Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Type: []string{"object"},
			Properties: map[string]spec.Schema{
				"one": {SchemaProps: spec.SchemaProps{Ref: reference("inner"), Default: map[string]any{}}},
				"many": {
					SchemaProps: spec.SchemaProps{
						Type: []string{"array"},
						Items: &spec.SchemaOrArray{
							Schema: &spec.Schema{SchemaProps: spec.SchemaProps{Ref: reference("inner")}},
						},
					},
				},
				"map": {
					SchemaProps: spec.SchemaProps{
						Type: []string{"object"}, AdditionalProperties: &spec.SchemaOrBool{Allows: true, Schema: &text},
					},
				},
			},
		}}},
		"inner": {Schema: spec.Schema{
			SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{"name": text}},
			VendorExtensible: spec.VendorExtensible{Extensions: spec.Extensions{
				"x-kubernetes-map-type": "atomic", "x-kubernetes-patch-strategy": "merge",
			}},
		}},
		"broken": {Schema: spec.Schema{SchemaProps: spec.SchemaProps{Ref: reference("unknown")}}},
	}
	inner := `{"type":"object","x-kubernetes-map-type":"atomic","properties":{"name":{"type":"string"}}}`
	var want map[string]any
	if err := json.Unmarshal(
		[]byte(`{"type":"object","properties":{"one":`+inner+`,"many":{"type":"array","items":`+inner+
			`},"map":{"type":"object","additionalProperties":{"type":"string"}}}}`),
		&want,
	); err != nil {
		t.Fatal(err)
	}
	got, err := structural(models, "outer")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if _, err := structural(models, "broken"); err == nil {
		t.Error("got no error for a reference to an unknown model")
	}
}

func TestModelsOfHauloutHaveNoReferences(t *testing.T) {
	for of, field := range map[resource]string{
		nodeMaintenances: `"nodeSelectorTerms"`, evacuations: `"activeEvacuatorClass"`,
	} {
		model, err := structural(openapi.GetOpenAPIDefinitions(reference), of.model)
		if err != nil {
			t.Fatal(err)
		}
		content, err := json.Marshal(model)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(content), `"$ref"`) || !strings.Contains(string(content), field) {
			t.Errorf("%s: got a reference, or no field %s: %s", of.kind, field, content)
		}
	}
}

func TestByTurns(t *testing.T) {
	var done []string
	var sums [2]time.Duration
	if err := byTurns(settings{turns: 3}, 10, &sums, func(who, from, to int) (time.Duration, error) {
		done = append(done, fmt.Sprintf("%d: %d-%d", who, from, to))
		return time.Duration(to - from), nil
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"0: 0-3", "1: 0-3", "1: 3-6", "0: 3-6", "0: 6-10", "1: 6-10"}; !slices.Equal(done, want) ||
		sums != [2]time.Duration{10, 10} {
		t.Errorf("got %q in %v, want %q and a sum of 10 for each", done, sums, want)
	}
}

func TestPrintFigures(t *testing.T) {
	var out strings.Builder
	if err := printFigures(&out, []figure{
		newFigure("create, per object", [2]time.Duration{3 * time.Second, 2 * time.Second}, 100),
	}); err != nil {
		t.Fatal(err)
	}
	want := "FIGURE              OURS      CRD       OURS / CRD\ncreate, per object  30.00 ms  20.00 ms  1.50\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestMiddle(t *testing.T) {
	given := []time.Duration{9, 1, 5}
	if got := middle(given); got != 5 || !slices.Equal(given, []time.Duration{9, 1, 5}) {
		t.Errorf("got %v of %v, want 5 of the same slice", got, given)
	}
}
