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

package kubectlmaintenance

import "fmt"

// The exit codes that scripts can rely on; the help of the plugin and docs/kubectl-plugin.md list
// them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitTimeout     = 2
	exitBlocked     = 3
	exitEnded       = 4
	exitInterrupted = 130
)

// exitError ends the plugin with a specific exit code. Without a message nothing is printed.
type exitError struct {
	code    int
	message string
}

// Error implements error.
func (e *exitError) Error() string { return e.message }

func exitWith(code int, format string, args ...any) error {
	return &exitError{code: code, message: fmt.Sprintf(format, args...)}
}
