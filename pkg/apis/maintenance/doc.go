// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// +k8s:deepcopy-gen=package
// +groupName=maintenance.haulout.dev

// Package maintenance has the internal types of the API group maintenance.haulout.dev, which
// strategies, validation and admission use. Their fields and values are documented in v1alpha1. A
// NodeMaintenancePreview is not stored, and so has no internal type.
package maintenance
