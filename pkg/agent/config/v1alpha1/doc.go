// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// +k8s:deepcopy-gen=package
// +k8s:defaulter-gen=TypeMeta
// +groupName=nodeagent.haulout.dev

// Package v1alpha1 is the first version of the configuration file of haulout-node-agent.
package v1alpha1
