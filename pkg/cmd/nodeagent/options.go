// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeagent

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/pflag"

	"haulout.dev/haulout/pkg/agent/config"
	"haulout.dev/haulout/pkg/agent/config/v1alpha1"
)

// Options are the flags that choose and override the configuration.
type Options struct {
	// ConfigFile is the path of the configuration file. If empty, it is the default path, and the
	// file may be missing.
	ConfigFile string
	// Kubeconfig, NodeName and StateDirectory override fields of the configuration unless empty.
	Kubeconfig, NodeName, StateDirectory string
}

// addFlags registers the flags.
func (o *Options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.ConfigFile, "config", o.ConfigFile, "Path of the configuration file. The default is "+config.DefaultPath()+
		", which may be missing: then each field has its default.")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "Overrides kubeconfig of the configuration file.")
	flags.StringVar(&o.NodeName, "node-name", o.NodeName, "Overrides nodeName of the configuration file.")
	flags.StringVar(&o.StateDirectory, "state-directory", o.StateDirectory, "Overrides stateDirectory of the configuration file.")
}

// Load returns the configuration: the file, its defaults, and on top the flags.
func (o *Options) Load() (*v1alpha1.NodeAgentConfiguration, error) {
	path := o.ConfigFile
	if path == "" {
		path = config.DefaultPath()
	}
	c, err := config.Load(path)
	if o.ConfigFile == "" && errors.Is(err, fs.ErrNotExist) {
		c, err = config.Default(), nil
	}
	if err != nil {
		return nil, err
	}
	overridden := false
	for _, override := range []struct {
		field *string
		value string
	}{{&c.Kubeconfig, o.Kubeconfig}, {&c.NodeName, o.NodeName}, {&c.StateDirectory, o.StateDirectory}} {
		if override.value != "" {
			*override.field, overridden = override.value, true
		}
	}
	if overridden {
		if errs := config.Validate(c); len(errs) > 0 {
			return nil, fmt.Errorf("configuration with the flags --kubeconfig, --node-name and --state-directory: %w", errs.ToAggregate())
		}
	}
	return c, nil
}
