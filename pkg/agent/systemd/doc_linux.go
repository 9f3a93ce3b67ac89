// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package systemd speaks with systemd as one of its services (notifications and the store for file
// descriptors) and as a client of its D-Bus interface (units, jobs and the state of the system).
package systemd
