// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"syscall"

	"haulout.dev/haulout/test/cluster/internal/layout"
)

// garbageSettings returns environment variables that make a program of the control plane, all of
// which are written in Go, use more memory and less processor time. By default, each program
// collects garbage whenever its heap has doubled, several times a second in such a small cluster.
// The memory limit of kube-apiserver is half of the machine's memory, since it has all objects, and
// that of each other program an eighth. At its limit, a program collects garbage all the time. The
// returned variables do not depend on the variable GOGC of haulout-apiserver, because a change of
// it must not restart the other processes.
func garbageSettings(name string) []string {
	settings := []string{"GOGC=400"}
	part := uint64(8)
	if name == layout.APIServer {
		part = 2
	}
	var machine syscall.Sysinfo_t
	if err := syscall.Sysinfo(&machine); err == nil {
		settings = append(settings, fmt.Sprintf("GOMEMLIMIT=%dMiB", machine.Totalram*uint64(machine.Unit)/part>>20))
	}
	return settings
}
