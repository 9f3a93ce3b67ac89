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

package size

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
)

func TestValidate(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	naming := func(nodes int) *maintenance.NodeMaintenance {
		values := make([]string, nodes)
		for i := range values {
			values[i] = strings.Repeat("n", 50)
		}
		return &maintenance.NodeMaintenance{Spec: maintenance.NodeMaintenanceSpec{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: values}},
		}}}}}
	}
	large := &maintenance.Evacuation{}
	large.Labels = map[string]string{"a": strings.Repeat("x", MaxBytes)}
	full := naming(1)
	full.Status.NodeStatuses = make([]maintenance.NodeMaintenanceNodeStatus, 5000)
	for i := range full.Status.NodeStatuses {
		full.Status.NodeStatuses[i].DrainMessage = strings.Repeat("m", 128)
	}
	cases := map[string]struct {
		obj  runtime.Object
		path string
	}{
		"a selector that names 5,000 nodes one by one is fine": {obj: naming(5000)},
		"a status does not count":                              {obj: full},
		"a selector beyond the limit is the spec's fault":      {obj: naming(20000), path: "spec"},
		"labels beyond the limit are the metadata's fault":     {obj: large, path: "metadata"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			errs := Validate(scheme, c.obj)
			if c.path == "" && len(errs) == 0 {
				return
			}
			if len(errs) != 1 || errs[0].Field != c.path || len(errs[0].Error()) > 200 {
				t.Errorf("got %v, want one short error at %q", errs, c.path)
			}
		})
	}
}
