/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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
