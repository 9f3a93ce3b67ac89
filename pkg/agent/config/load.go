// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package config reads and checks the configuration file of haulout-node-agent.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/yaml"

	configv1alpha1 "haulout.dev/haulout/pkg/agent/config/v1alpha1"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme, serializer.EnableStrict)
)

func init() {
	utilruntime.Must(configv1alpha1.AddToScheme(scheme))
}

// DefaultPath returns the path of the configuration file if no flag sets it.
func DefaultPath() string {
	if goruntime.GOOS == "windows" {
		return `C:\ProgramData\haulout-node-agent\config.yaml`
	}
	return "/etc/haulout-node-agent/config.yaml"
}

// Default returns the configuration of an agent without a file.
func Default() *configv1alpha1.NodeAgentConfiguration {
	c := &configv1alpha1.NodeAgentConfiguration{}
	c.APIVersion, c.Kind = configv1alpha1.SchemeGroupVersion.String(), configv1alpha1.Kind
	configv1alpha1.SetDefaults_NodeAgentConfiguration(c)
	return c
}

// Load reads a configuration file, sets its defaults and validates it. An error names the file and
// each invalid field.
func Load(path string) (*configv1alpha1.NodeAgentConfiguration, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	c, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	if errs := Validate(c); len(errs) > 0 {
		return nil, fmt.Errorf("configuration %s: %w", path, errs.ToAggregate())
	}
	return c, nil
}

// decode reads exactly one document of the only version. An unknown field is an error: a misspelled
// field would otherwise keep its default, and the user would notice only at a shutdown.
func decode(data []byte) (*configv1alpha1.NodeAgentConfiguration, error) {
	if err := checkKind(data); err != nil {
		return nil, err
	}
	object, _, err := codecs.UniversalDecoder(configv1alpha1.SchemeGroupVersion).Decode(data, nil, nil)
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		return nil, utilerrors.NewAggregate(strict.Errors())
	}
	if err != nil {
		return nil, err
	}
	c, ok := object.(*configv1alpha1.NodeAgentConfiguration)
	if !ok {
		return nil, fmt.Errorf("decoded as %T", object)
	}
	c.SetGroupVersionKind(configv1alpha1.SchemeGroupVersion.WithKind(configv1alpha1.Kind))
	return c, nil
}

// checkKind returns an error if the data is not exactly one document of kind
// NodeAgentConfiguration.
func checkKind(data []byte) error {
	if documents(data) > 1 {
		return errors.New("the file has several YAML documents: must have exactly one")
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(data, &head); err != nil {
		return err
	}
	var errs []error
	if want := configv1alpha1.SchemeGroupVersion.String(); head.APIVersion != want {
		errs = append(errs, fmt.Errorf("apiVersion is %q: must be %q", head.APIVersion, want))
	}
	if head.Kind != configv1alpha1.Kind {
		errs = append(errs, fmt.Errorf("kind is %q: must be %q", head.Kind, configv1alpha1.Kind))
	}
	return errors.Join(errs...)
}

// documents counts the YAML documents that have more than comments and blank lines.
func documents(data []byte) int {
	n, content := 0, false
	for line := range bytes.Lines(data) {
		text := strings.TrimRight(string(line), " \t\r\n")
		switch {
		case text == "---" || strings.HasPrefix(text, "--- "):
			content = false
		case strings.TrimSpace(text) == "" || strings.HasPrefix(strings.TrimSpace(text), "#"):
		case !content:
			content = true
			n++
		}
	}
	return n
}
