// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package windows is the node agent's side of Windows: the service that Windows tells of a shutdown
// before it begins (SERVICE_CONTROL_PRESHUTDOWN), how long Windows waits for it and in which order,
// and the services that are installed, started and stopped (KEP-4802). It is experimental: no test
// has run on a real Windows.
//
// What decides has no build tag, so that its tests run everywhere; what calls Windows is in files
// that end with _windows.go.
package windows

import "time"

// ServiceName is the name of the agent's service.
const ServiceName = "haulout-node-agent"

// DefaultTimeout is how long Windows waits for a service that does not say otherwise, since build
// 15063. Earlier ones wait for three minutes.
const DefaultTimeout = 10 * time.Second
