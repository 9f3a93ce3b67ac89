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

package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	hostinformers "k8s.io/client-go/informers"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/controller/evacuator/daemonset"
	"haulout.dev/haulout/pkg/controller/evacuator/deployment"
	informers "haulout.dev/haulout/pkg/generated/informers/externalversions"
)

// builtInEvacuators are the classes of the built-in evacuators that this server has.
var builtInEvacuators = []string{v1alpha1.EvacuatorClassDeployment, v1alpha1.EvacuatorClassDaemonSet}

// EvacuatorOptions say who takes pods off their nodes before they are evicted.
type EvacuatorOptions struct {
	// BuiltIn are the classes of the built-in evacuators that are on. Admission resolves only these, and the planner leaves pods that only
	// another one could move where they are.
	BuiltIn []string
	// SurgeTimeout is how long a Deployment that was scaled up may make no progress before its pods leave without replacements.
	SurgeTimeout time.Duration
}

func defaultEvacuators() EvacuatorOptions {
	return EvacuatorOptions{BuiltIn: slices.Clone(builtInEvacuators), SurgeTimeout: deployment.DefaultSurgeTimeout}
}

func (o *EvacuatorOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.BuiltIn, "evacuators", o.BuiltIn, fmt.Sprintf("Classes of the built-in evacuators that are on, comma separated: %s. "+
		"Empty switches them all off, and pods leave by eviction alone.", allowedEvacuators()))
	fs.DurationVar(&o.SurgeTimeout, "surge-timeout", o.SurgeTimeout, "How long a Deployment that was scaled up so that pods can leave may make no progress before "+
		"these leave without replacements, if their disruption budget lets them.")
}

func (o *EvacuatorOptions) validate() []error {
	var errs []error
	if o.SurgeTimeout < time.Second {
		errs = append(errs, fmt.Errorf("--surge-timeout is %v: must be at least 1s", o.SurgeTimeout))
	}
	for _, class := range o.BuiltIn {
		if !slices.Contains(builtInEvacuators, class) {
			errs = append(errs, fmt.Errorf("--evacuators names %q: allowed are %s", class, allowedEvacuators()))
		}
	}
	return errs
}

// controller is what runs until the context ends.
type controller interface {
	Run(ctx context.Context, workers int)
}

// builtIn makes the controllers of the built-in evacuators that are on. That of Deployments also runs while it is off, for what it may have left
// scaled up before.
func (d controllerDependencies) builtIn(host hostinformers.SharedInformerFactory, own informers.SharedInformerFactory) ([]controller, error) {
	var controllers []controller
	if slices.Contains(d.evacuators.BuiltIn, v1alpha1.EvacuatorClassDaemonSet) {
		c, err := daemonset.New(daemonset.Config{
			Host: d.host, HostInformers: host, Maintenance: d.own, MaintenanceInformers: own, Liveness: d.liveness,
		})
		if err != nil {
			return nil, fmt.Errorf("make controller %s: %w", daemonset.Name, err)
		}
		controllers = append(controllers, c)
	}
	c, err := deployment.New(deployment.Config{
		Host: d.host, HostInformers: host, Maintenance: d.own, MaintenanceInformers: own, Recorder: d.recorder, Liveness: d.liveness,
		SurgeTimeout: d.evacuators.SurgeTimeout, Off: !slices.Contains(d.evacuators.BuiltIn, v1alpha1.EvacuatorClassDeployment),
	})
	if err != nil {
		return nil, fmt.Errorf("make controller %s: %w", deployment.Name, err)
	}
	return append(controllers, c), nil
}

func allowedEvacuators() string {
	if len(builtInEvacuators) == 0 {
		return "none"
	}
	return strings.Join(builtInEvacuators, ", ")
}
