// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestMention(t *testing.T) {
	for name, tt := range map[string]struct{ reason, want string }{
		"a reason":                      {"kernel update", "NodeMaintenance kernel (kernel update)"},
		"no reason":                     {"", "NodeMaintenance kernel"},
		"nothing that can be printed":   {"\x1b\n\t\x00", "NodeMaintenance kernel"},
		"several lines become one":      {"kernel\n\n  update\t5.1 ", "NodeMaintenance kernel (kernel update 5.1)"},
		"an escape sequence of a shell": {"red \x1b[31malert", "NodeMaintenance kernel (red [31malert)"},
		"an end of 128 bytes": {
			reason: strings.Repeat("x", 1024), want: "NodeMaintenance kernel (" + strings.Repeat("x", 128) + ")",
		},
		"an end between two characters": {
			reason: "x" + strings.Repeat("ä", 100), want: "NodeMaintenance kernel (x" + strings.Repeat("ä", 63) + ")",
		},
		"invalid bytes": {"a\xff\xfeb", "NodeMaintenance kernel (ab)"},
	} {
		t.Run(name, func(t *testing.T) {
			nm := &v1alpha1.NodeMaintenance{
				ObjectMeta: metav1.ObjectMeta{Name: "kernel"},
				Spec:       v1alpha1.NodeMaintenanceSpec{Reason: tt.reason},
			}
			is.Equal(t, Mention(nm), tt.want)
		})
	}
}
