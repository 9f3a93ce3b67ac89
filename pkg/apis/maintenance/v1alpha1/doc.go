// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// +k8s:openapi-gen=true
// +k8s:openapi-model-package=dev.haulout.haulout.pkg.apis.maintenance.v1alpha1
// +k8s:deepcopy-gen=package
// +k8s:protobuf-gen=package
// +k8s:conversion-gen=haulout.dev/haulout/pkg/apis/maintenance
// +k8s:defaulter-gen=TypeMeta
// +k8s:validation-gen=TypesWithField=TypeMeta
// +groupName=maintenance.haulout.dev

// Package v1alpha1 is the first served version of the maintenance API: the declarative node
// maintenance of KEP-4212 and the evacuation requests on which it is based.
package v1alpha1
