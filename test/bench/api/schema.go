// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// structural returns a model as a CustomResourceDefinition requires it: without references and
// without extensions that are only for built-in kinds.
func structural(models map[string]common.OpenAPIDefinition, name string) (map[string]any, error) {
	model, ok := models[name]
	if !ok {
		return nil, fmt.Errorf("model %q not found", name)
	}
	content, err := json.Marshal(model.Schema)
	if err != nil {
		return nil, err
	}
	var schema map[string]any
	if err := json.Unmarshal(content, &schema); err != nil {
		return nil, err
	}
	return inline(models, schema)
}

// inline replaces references to models by the models.
func inline(models map[string]common.OpenAPIDefinition, schema map[string]any) (map[string]any, error) {
	if reference, ok := schema["$ref"].(string); ok {
		return structural(models, strings.TrimPrefix(reference, refPrefix))
	}
	for key := range schema {
		if strings.HasPrefix(key, "x-kubernetes-patch-") || key == "x-kubernetes-group-version-kind" ||
			key == "x-kubernetes-unions" {
			delete(schema, key)
		}
	}
	// The generator writes the zero value of each required field. It is not a default, and may not
	// even be valid.
	if schema["default"] == "" {
		delete(schema, "default")
	}
	if properties, ok := schema["properties"].(map[string]any); ok {
		for name, property := range properties {
			replaced, err := inlineAny(models, property)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			properties[name] = replaced
		}
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if nested, ok := schema[key].(map[string]any); ok {
			replaced, err := inline(models, nested)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			schema[key] = replaced
		}
	}
	return schema, nil
}

func inlineAny(models map[string]common.OpenAPIDefinition, schema any) (map[string]any, error) {
	object, ok := schema.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%v is not a schema", schema)
	}
	return inline(models, object)
}

const refPrefix = "#/definitions/"

// reference returns a reference from one model to another.
func reference(name string) spec.Ref { return spec.MustCreateRef(refPrefix + name) }
