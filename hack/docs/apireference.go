// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"haulout.dev/haulout/pkg/generated/openapi"
)

// typePrefix starts the names of our types in the OpenAPI.
const typePrefix = "dev.haulout.haulout.pkg.apis.maintenance.v1alpha1."

// kinds are the kinds in the order of the page. The types of the fields of a kind follow the kind.
var kinds = []string{"NodeMaintenance", "NodeMaintenanceRollout", "NodeTask", "Evacuation", "NodeMaintenancePreview"}

// writeAPIReference writes the page about every kind and field of the API. The texts are the
// comments of the Go types, which the server publishes in its OpenAPI.
func writeAPIReference(w io.Writer, _ *source) error {
	return writeTypes(w, openapi.GetOpenAPIDefinitions(spec.MustCreateRef))
}

func writeTypes(w io.Writer, definitions map[string]common.OpenAPIDefinition) error {
	fmt.Fprint(w, "<!-- Written by hack/update-docs.sh from the API types. Do not edit. -->\n\n# API reference\n\n"+
		"`maintenance.haulout.dev/v1alpha1`. [api.md](api.md) explains how the objects behave.\n")
	shown := map[string]bool{}
	for _, kind := range kinds {
		queue := []string{typePrefix + kind}
		for len(queue) > 0 {
			name := queue[0]
			queue = queue[1:]
			if shown[name] {
				continue
			}
			shown[name] = true
			definition, ok := definitions[name]
			if !ok {
				return fmt.Errorf("the OpenAPI has no %s", name)
			}
			queue = append(queue, writeType(w, strings.TrimPrefix(name, typePrefix), &definition.Schema)...)
		}
	}
	for name := range definitions {
		if strings.HasPrefix(name, typePrefix) && !strings.HasSuffix(name, "List") && !shown[name] {
			return fmt.Errorf("no field of %[2]q refers to type %[1]s", name, kinds)
		}
	}
	return nil
}

// writeType writes one type, and returns the types of this API to which its fields refer.
func writeType(w io.Writer, name string, schema *spec.Schema) []string {
	fmt.Fprintf(w, "\n## %s\n\n%s\n\n| field | type | |\n|---|---|---|\n", name, wrapped(schema.Description))
	var next []string
	fields := make([]string, 0, len(schema.Properties))
	for field := range schema.Properties {
		if field != "apiVersion" && field != "kind" {
			fields = append(fields, field)
		}
	}
	slices.Sort(fields)
	for _, field := range fields {
		property := schema.Properties[field]
		kind, ref := typeOf(&property)
		if strings.HasPrefix(ref, typePrefix) {
			next = append(next, ref)
		}
		text := strings.ReplaceAll(strings.Join(strings.Fields(property.Description), " "), "|", "\\|")
		if slices.Contains(schema.Required, field) {
			text = "**required.** " + text
		}
		fmt.Fprintf(w, "| `%s` | %s | %s |\n", field, kind, text)
	}
	return next
}

// columns is the maximum width of prose on a page; test/docs checks it.
const columns = 100

// wrapped wraps a text to columns.
func wrapped(text string) string {
	var out strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		switch width := utf8.RuneCountInString(word); {
		case column == 0:
			column = width
		case column+1+width > columns:
			out.WriteByte('\n')
			column = width
		default:
			out.WriteByte(' ')
			column += 1 + width
		}
		out.WriteString(word)
	}
	return out.String()
}

// typeOf returns the name of a field's type for the page, and the type of this API to which the
// field refers, if any.
func typeOf(schema *spec.Schema) (kind, ref string) {
	if ref := schema.Ref.String(); ref != "" {
		return linkTo(ref), ref
	}
	for i := range schema.AllOf {
		if ref := schema.AllOf[i].Ref.String(); ref != "" {
			return linkTo(ref), ref
		}
	}
	switch {
	case schema.Type.Contains("array") && schema.Items != nil && schema.Items.Schema != nil:
		kind, ref := typeOf(schema.Items.Schema)
		return "list of " + kind, ref
	case schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil:
		kind, ref := typeOf(schema.AdditionalProperties.Schema)
		return "map of " + kind, ref
	case schema.Format != "":
		return schema.Format, ""
	case len(schema.Type) > 0:
		return schema.Type[0], ""
	}
	return "any", ""
}

// linkTo returns the name of a type as a link to its section.
func linkTo(ref string) string {
	short := ref[strings.LastIndex(ref, ".")+1:]
	if strings.HasPrefix(ref, typePrefix) {
		return fmt.Sprintf("[%s](#%s)", short, strings.ToLower(short))
	}
	return short
}
