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

func TestAddLeavesFor(t *testing.T) {
	const suffix = " The pod leaves for NodeMaintenance kernel (update)."
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: "kernel"}, Spec: v1alpha1.NodeMaintenanceSpec{Reason: "update"},
	}
	long := strings.Repeat("ä", MaxMessage)
	for name, tt := range map[string]struct{ message, want string }{
		"no message":                      {"", suffix},
		"a message":                       {"The pod waits.", "The pod waits." + suffix},
		"a long message is cut":           {long, strings.ToValidUTF8(long[:MaxMessage-len(suffix)], "") + suffix},
		"the maintenance at the end":      {"It leaves for NodeMaintenance kernel", "It leaves for NodeMaintenance kernel"},
		"the maintenance with its reason": {"It leaves for NodeMaintenance kernel (update).", "It leaves for NodeMaintenance kernel (update)."},
		"the maintenance in a quote":      {`said: "for NodeMaintenance kernel."`, `said: "for NodeMaintenance kernel."`},
		"a maintenance with a longer name": {
			"NodeMaintenance kernel-2 and NodeMaintenance kernel.blue too.", "NodeMaintenance kernel-2 and NodeMaintenance kernel.blue too." + suffix,
		},
		"both": {"NodeMaintenance kernel2, NodeMaintenance kernel.", "NodeMaintenance kernel2, NodeMaintenance kernel."},
	} {
		t.Run(name, func(t *testing.T) {
			got := AddLeavesFor(tt.message, nm)
			is.Equal(t, got, tt.want)
			is.True(t, len(got) <= max(MaxMessage, len(tt.message)), "got %d bytes", len(got))
		})
	}
}

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
