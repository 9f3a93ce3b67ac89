// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

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
