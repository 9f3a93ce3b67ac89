// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os/exec"
	"slices"
	"testing"

	"haulout.dev/haulout/test/cluster/internal/layout"
	"haulout.dev/haulout/test/cluster/internal/options"
)

// TestExpected compares the processes whose end Status must report.
func TestExpected(t *testing.T) {
	for name, test := range map[string]struct {
		options   options.Options
		with, not []string
	}{
		"simulated nodes only": {
			options: options.Options{Haulout: options.ModeRun},
			with:    []string{layout.Etcd, layout.Kwok, layout.Haulout},
			not:     []string{layout.Network, "real-1"},
		},
		"two real nodes, and a server that the user starts": {
			options: options.Options{Haulout: options.ModeExternal, RealNodes: 2},
			with:    []string{layout.Network, "real-1", "real-2"},
			not:     []string{layout.Haulout, "real-3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := (&Cluster{options: test.options}).expected()
			for _, want := range test.with {
				if !slices.Contains(got, want) {
					t.Errorf("got %q, want it to contain %s", got, want)
				}
			}
			for _, unwanted := range test.not {
				if slices.Contains(got, unwanted) {
					t.Errorf("got %q, want it not to contain %s", got, unwanted)
				}
			}
		})
	}
}

func TestQuote(t *testing.T) {
	for _, word := range []string{"", "plain", "--a=b", "with blank", "it's", `$HOME`, "a;b", "`id`", "*"} {
		output, err := exec.Command("/bin/sh", "-c", "printf %s "+quote(word)).Output()
		if err != nil || string(output) != word {
			t.Errorf("got %q (%v) from the shell for %s, want %q", output, err, quote(word), word)
		}
	}
	if got := quote("--kubeconfig=/a/b.c"); got != "--kubeconfig=/a/b.c" {
		t.Errorf("got %s for a plain word, want the word", got)
	}
}
