// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"path"
	"strings"
	"time"
)

// Process is the running kubelet.
type Process struct {
	PID int
	// ID is unique among all processes of the machine, also those before a boot. It does not depend
	// on the clock.
	ID string
	// Started is when the process was started, by the clock of now.
	Started time.Time
	// Args is the command line with the program's name, and Dir the working directory. Both are
	// empty where the system does not tell.
	Args []string
	Dir  string
}

// isKubelet reports whether a command line is that of a kubelet.
func isKubelet(args []string) bool {
	if len(args) == 0 {
		return false
	}
	name := strings.TrimSuffix(strings.ToLower(path.Base(strings.ReplaceAll(args[0], `\`, "/"))), ".exe")
	return name == "kubelet" || name == "hyperkube" && len(args) > 1 && args[1] == "kubelet"
}
