/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

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
