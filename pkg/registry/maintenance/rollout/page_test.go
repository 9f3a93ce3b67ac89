// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestExamplesOfThePage creates the examples of docs/rollouts.md as they are written. An example
// that is not a whole object has fields of the spec, which replace those of the first example; only
// such an object gets another name.
func TestExamplesOfThePage(t *testing.T) {
	page := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "rollouts.md")))(t)
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)\n```$").FindAllSubmatch(page, -1)
	must.True(t, len(blocks) >= 6, "found only %d examples", len(blocks))
	r := newRegistry(t, registrytest.RunEtcd(t))
	var first map[string]any
	for i, block := range blocks {
		var example map[string]any
		must.Do(t, yaml.UnmarshalStrict(block[1], &example))
		if i == 0 {
			first = example
		}
		isWhole := example["apiVersion"] != nil
		if !isWhole {
			fields := example
			example = runtime.DeepCopyJSON(first)
			maps.Copy(example["spec"].(map[string]any), fields)
		}
		_, err := r.create(ann, func(object *v1alpha1.NodeMaintenanceRollout) {
			*object = v1alpha1.NodeMaintenanceRollout{}
			must.Do(t, yaml.UnmarshalStrict(must.Get(yaml.Marshal(example))(t), object))
			is.Equal(t, object.GroupVersionKind(), protocol.RolloutKind)
			if !isWhole {
				object.Name = fmt.Sprint("example-", i)
			}
		})
		is.True(t, err == nil, "%v; the example is\n%s", err, block[1])
	}
}
