// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import "testing"

func TestIsKubelet(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want bool
	}{
		"a path":                             {[]string{"/usr/bin/kubelet", "--config=a"}, true},
		"a name":                             {[]string{"kubelet"}, true},
		"a program of Windows":               {[]string{`C:\k\Kubelet.exe`}, true},
		"all in one":                         {[]string{"/hyperkube", "kubelet", "--config=a"}, true},
		"another program of the same binary": {[]string{"/hyperkube", "kube-proxy"}, false},
		"another program":                    {[]string{"/usr/bin/kubelet-wrapper"}, false},
		"a mention":                          {[]string{"/bin/grep", "kubelet"}, false},
		"a thread of the kernel":             {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isKubelet(tc.args); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
