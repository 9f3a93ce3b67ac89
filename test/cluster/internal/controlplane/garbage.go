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

package controlplane

import (
	"fmt"
	"syscall"
)

// garbageSettings returns environment variables with which the programs of the control plane, all
// of which are written in Go, use more memory and less processor time: by default each collects
// garbage whenever its heap has doubled, several times a second in so small a cluster. The limit
// for each of them is a quarter of the machine's memory. They do not depend on GOGC, which is a
// setting of haulout-apiserver: a change of it must not restart the other processes.
func garbageSettings() []string {
	settings := []string{"GOGC=400"}
	var machine syscall.Sysinfo_t
	if err := syscall.Sysinfo(&machine); err == nil {
		settings = append(settings, fmt.Sprintf("GOMEMLIMIT=%dMiB", machine.Totalram*uint64(machine.Unit)/4>>20))
	}
	return settings
}
