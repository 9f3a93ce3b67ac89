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
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// builtInEvacuators are the classes of the built-in evacuators that this server has.
var builtInEvacuators = []string{}

// EvacuatorOptions say who takes pods off their nodes before they are evicted.
type EvacuatorOptions struct {
	// BuiltIn are the classes of the built-in evacuators that are on. Admission resolves only these, and the planner leaves pods that only
	// another one could move where they are.
	BuiltIn []string
}

func defaultEvacuators() EvacuatorOptions {
	return EvacuatorOptions{BuiltIn: slices.Clone(builtInEvacuators)}
}

func (o *EvacuatorOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.BuiltIn, "evacuators", o.BuiltIn, fmt.Sprintf("Classes of the built-in evacuators that are on, comma separated: %s. "+
		"Empty switches them all off, and pods leave by eviction alone.", allowedEvacuators()))
}

func (o *EvacuatorOptions) validate() []error {
	var errs []error
	for _, class := range o.BuiltIn {
		if !slices.Contains(builtInEvacuators, class) {
			errs = append(errs, fmt.Errorf("--evacuators names %q: allowed are %s", class, allowedEvacuators()))
		}
	}
	return errs
}

func allowedEvacuators() string {
	if len(builtInEvacuators) == 0 {
		return "none"
	}
	return strings.Join(builtInEvacuators, ", ")
}
