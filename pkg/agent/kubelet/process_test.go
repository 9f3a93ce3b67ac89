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

import "testing"

func TestIsKubelet(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want bool
	}{
		"a path":                 {[]string{"/usr/bin/kubelet", "--config=a"}, true},
		"a name":                 {[]string{"kubelet"}, true},
		"a program of Windows":   {[]string{`C:\k\Kubelet.exe`}, true},
		"all in one":             {[]string{"/hyperkube", "kubelet", "--config=a"}, true},
		"another part of it":     {[]string{"/hyperkube", "kube-proxy"}, false},
		"another program":        {[]string{"/usr/bin/kubelet-wrapper"}, false},
		"a mention":              {[]string{"/bin/grep", "kubelet"}, false},
		"a thread of the kernel": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isKubelet(tc.args); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
