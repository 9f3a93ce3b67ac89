// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package version holds the version of Haulout. It is separate from k8s.io/component-base/version
// on purpose: with our version there, the generic API server would emulate an ancient Kubernetes
// version and disable features.
package version

import (
	"runtime"
	"runtime/debug"
)

// gitVersion is set by the linker (-X).
var gitVersion = ""

// Get returns the version of Haulout in this build: the one set by the linker, else the module's,
// else "devel".
func Get() string {
	if gitVersion != "" {
		return gitVersion
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// GoVersion returns the Go version of this build.
func GoVersion() string {
	return runtime.Version()
}
