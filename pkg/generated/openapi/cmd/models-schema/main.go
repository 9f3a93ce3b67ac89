// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command models-schema prints the OpenAPI v2 models of the API as JSON; the generator of the
// apply configurations reads them.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"haulout.dev/haulout/pkg/generated/openapi"
)

func main() {
	if err := printModels(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func printModels() error {
	ref := func(name string) spec.Ref {
		return spec.MustCreateRef("#/definitions/" + name)
	}
	models := spec.Definitions{}
	for name, model := range openapi.GetOpenAPIDefinitions(ref) {
		if v2, ok := model.Schema.Extensions[common.ExtensionV2Schema].(spec.Schema); ok {
			models[name] = v2
			continue
		}
		models[name] = model.Schema
	}
	return json.NewEncoder(os.Stdout).Encode(&spec.Swagger{SwaggerProps: spec.SwaggerProps{
		Definitions: models,
		Info:        &spec.Info{InfoProps: spec.InfoProps{Title: "Haulout", Version: "models"}},
		Swagger:     "2.0",
	}})
}
