// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

// NoLeaderWarning is the beginning of the warning in the server's responses about a NodeMaintenance
// while none of its replicas leads, so that no controller acts on it. kubectl shows the warning to
// its user, and the node agent treats it as the answer of a server that cannot drain the node.
const NoLeaderWarning = "no replica of haulout-apiserver acts on NodeMaintenances"
