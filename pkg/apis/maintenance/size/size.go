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

// Package size limits the size of objects that clients write, so that the API server refuses a
// large object with a clear error before etcd does.
package size

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/planorder"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

const (
	// MaxBytes is the limit for metadata and spec of a NodeMaintenance together, in bytes of
	// protobuf. A selector that names 5,000 nodes one by one takes about half of it.
	MaxBytes = 512 << 10
	// MaxStatusBytes is the limit for what StatusBytes estimates. Together with MaxBytes it is
	// etcd's default limit for one write: 1.5 MiB.
	MaxStatusBytes = 1 << 20
	// MaxEvacuationMetadataBytes is the limit for the labels and annotations of an Evacuation
	// together, in bytes of their keys and values. Namespace administrators write Evacuations, and
	// the server keeps every version of one in memory for more than a minute.
	MaxEvacuationMetadataBytes = 32 << 10
	// MaxCopiedLabelBytes is the limit for the labels that an Evacuation copies from its pod, in
	// bytes of their keys and values.
	MaxCopiedLabelBytes = 16 << 10

	// MaxEvacuationBytes is the limit for metadata and spec of an Evacuation together, in bytes of
	// protobuf: it bounds what finalizers and ownerReferences add to its labels and annotations.
	MaxEvacuationBytes = 64 << 10

	// nodeBytes is the size of a node in a stored status without its targets and its message, for a
	// name of 63 characters: about the longest that cloud providers use.
	nodeBytes = 128
	// entryBytes is what protobuf adds to a target in a list.
	entryBytes = 4
)

// StatusBytes estimates the stored size of the status of a maintenance once that many nodes have
// reached all targets of the plan. Each node then has one target for each pod type and selector of
// the plan. Messages are not counted, since the controller omits them if they do not fit.
func StatusBytes(plan []v1alpha1.DrainPlanEntry, nodes int) int {
	targets := map[string]int{}
	perNode := nodeBytes
	for i := range plan {
		key := string(plan[i].PodType) + " " + planorder.CanonicalSelector(plan[i].PodSelector)
		size := plan[i].Size() + entryBytes
		perNode += max(0, size-targets[key])
		targets[key] = max(size, targets[key])
	}
	return perNode * nodes
}

// LabelBytes is the size of labels or annotations: the bytes of their keys and values.
func LabelBytes(labels map[string]string) int {
	n := 0
	for key, value := range labels {
		n += len(key) + len(value)
	}
	return n
}

// Validate returns an error if the metadata and the spec of an internal object are too large
// together, or the labels and annotations of an Evacuation.
func Validate(scheme *runtime.Scheme, obj runtime.Object) field.ErrorList {
	versioned, err := scheme.ConvertToVersion(obj, v1alpha1.SchemeGroupVersion)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	if evacuation, ok := obj.(*maintenance.Evacuation); ok {
		if errs := validateEvacuation(evacuation); len(errs) > 0 {
			return errs
		}
	}
	var metadata, spec int
	limit := MaxBytes
	switch o := versioned.(type) {
	case *v1alpha1.NodeMaintenance:
		metadata, spec = o.ObjectMeta.Size(), o.Spec.Size()
	case *v1alpha1.Evacuation:
		limit = MaxEvacuationBytes
		metadata, spec = o.ObjectMeta.Size(), o.Spec.Size()
	}
	if metadata+spec <= limit {
		return nil
	}
	larger := "metadata"
	if spec > metadata {
		larger = "spec"
	}
	// Not Invalid, which would quote the value.
	return field.ErrorList{field.Forbidden(field.NewPath(larger),
		fmt.Sprintf("too large: metadata takes %d KiB and spec %d KiB, at most %d KiB are allowed together", metadata>>10, spec>>10, limit>>10))}
}

func validateEvacuation(evacuation *maintenance.Evacuation) field.ErrorList {
	labels, annotations := LabelBytes(evacuation.Labels), LabelBytes(evacuation.Annotations)
	if labels+annotations <= MaxEvacuationMetadataBytes {
		return nil
	}
	larger := "labels"
	if annotations > labels {
		larger = "annotations"
	}
	return field.ErrorList{field.Forbidden(field.NewPath("metadata", larger),
		fmt.Sprintf("too large: labels take %d bytes and annotations %d bytes, at most %d bytes are allowed together",
			labels, annotations, MaxEvacuationMetadataBytes))}
}
