// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

// NoLeaderWarning is how the warning begins that the server adds to its answers about a
// NodeMaintenance while none of its replicas leads, and so no controller acts on it. kubectl shows
// the warning to its user, and the node agent takes it for an answer of a server that cannot drain
// the node.
const NoLeaderWarning = "no replica of haulout-apiserver acts on NodeMaintenances"
