// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"syscall"
)

// garbageSettings returns environment variables that make the programs of the control plane, all
// written in Go, use more memory and less processor time. By default, each program collects garbage
// whenever its heap has doubled, several times a second in such a small cluster. The memory limit
// of each program is a quarter of the machine's memory. The returned variables do not depend on the
// variable GOGC of haulout-apiserver, because a change of it must not restart the other processes.
func garbageSettings() []string {
	settings := []string{"GOGC=400"}
	var machine syscall.Sysinfo_t
	if err := syscall.Sysinfo(&machine); err == nil {
		settings = append(settings, fmt.Sprintf("GOMEMLIMIT=%dMiB", machine.Totalram*uint64(machine.Unit)/4>>20))
	}
	return settings
}
