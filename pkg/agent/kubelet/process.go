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
