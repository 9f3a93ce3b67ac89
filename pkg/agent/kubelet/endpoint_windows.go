// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

// DefaultRuntimeEndpoint is the endpoint of the CRI that the kubelet uses by default.
const DefaultRuntimeEndpoint = "npipe:////./pipe/containerd-containerd"
