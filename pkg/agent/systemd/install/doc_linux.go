// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package install installs, updates and removes the service of the node agent on a host with
// systemd. The host can be this system, or the one whose root is mounted into this container.
package install
