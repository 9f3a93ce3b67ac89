// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubectlmaintenance

import (
	"testing"

	"haulout.dev/haulout/pkg/testing/is"
)

func TestNearest(t *testing.T) {
	numbered := []string{"node-001", "node-002", "node-011"}
	for name, tc := range map[string]struct {
		word       string
		candidates []string
		want       string
	}{
		"a character is missing":                 {"kernl-update", []string{"kernel-update", "zone-a"}, "kernel-update"},
		"a character is too many":                {"bluee", []string{"blue", "green"}, "blue"},
		"two characters are swapped":             {"balck", []string{"black"}, "black"},
		"another character":                      {"zone-b", []string{"zone-a"}, "zone-a"},
		"a short word with two differences":      {"blu", []string{"bleu2"}, ""},
		"a long word with two differences":       {"kernelupdat", []string{"kernel-update"}, "kernel-update"},
		"nothing is similar":                     {"memory", []string{"kernel-update"}, ""},
		"several are similar":                    {"node-099", numbered, ""},
		"several differ in one character":        {"node-00", numbered, ""},
		"one of several is more similar":         {"nod-002", numbered, "node-002"},
		"no candidates":                          {"x", nil, ""},
		"an empty word":                          {"", []string{"ab"}, ""},
		"characters of several bytes count once": {"größe", []string{"grösse", "große"}, "große"},
	} {
		t.Run(name, func(t *testing.T) { is.Equal(t, nearest(tc.word, tc.candidates), tc.want) })
	}
}
