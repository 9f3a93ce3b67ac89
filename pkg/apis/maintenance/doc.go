// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// +k8s:deepcopy-gen=package
// +groupName=maintenance.haulout.dev

// Package maintenance has the internal types of the API group maintenance.haulout.dev, which
// strategies, validation and admission use. Their fields are documented in v1alpha1.
package maintenance
