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

package v1alpha1_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// TestCompatibility decodes what earlier versions have stored, in testdata, and compares what this
// version would store. A change of testdata/HEAD that is more than an addition breaks stored
// objects. To regenerate it, set UPDATE_COMPATIBILITY_FIXTURE_DATA=true; with a release, copy it to
// testdata/v<version>.
func TestCompatibility(t *testing.T) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	options := roundtrip.NewCompatibilityTestOptions(scheme)
	for _, kind := range []string{"NodeMaintenance", "NodeMaintenancePreview", "Evacuation"} {
		options.Kinds = append(options.Kinds, schema.GroupVersionKind{
			Group: v1alpha1.SchemeGroupVersion.Group, Version: v1alpha1.SchemeGroupVersion.Version, Kind: kind,
		})
	}
	options.Complete(t).Run(t)
}
