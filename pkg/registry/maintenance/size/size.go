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

// Package size bounds how large an object a client may write, so that it is refused in plain words and not by etcd.
package size

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

// MaxBytes is the limit for metadata and spec together, in bytes of protobuf. A selector that names 5,000 nodes one by one takes about half of
// it. etcd takes 1.5 MiB by default, of which a status over 5,000 nodes needs the larger part.
const MaxBytes = 512 << 10

// Validate returns an error if the metadata and the spec of an internal object are too large together.
func Validate(scheme *runtime.Scheme, obj runtime.Object) field.ErrorList {
	versioned, err := scheme.ConvertToVersion(obj, v1alpha1.SchemeGroupVersion)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	var metadata, spec int
	switch o := versioned.(type) {
	case *v1alpha1.NodeMaintenance:
		metadata, spec = o.ObjectMeta.Size(), o.Spec.Size()
	case *v1alpha1.Evacuation:
		metadata, spec = o.ObjectMeta.Size(), o.Spec.Size()
	}
	if metadata+spec <= MaxBytes {
		return nil
	}
	larger := "metadata"
	if spec > metadata {
		larger = "spec"
	}
	// Not Invalid: that would quote the value.
	return field.ErrorList{field.Forbidden(field.NewPath(larger),
		fmt.Sprintf("too large: metadata takes %d KiB and spec %d KiB, at most %d KiB are allowed together", metadata>>10, spec>>10, MaxBytes>>10))}
}
