// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package golden compares objects with files that other tests read.
package golden

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// GitOps compares an object with a file in the test data of test/gitops, which runs the health
// checks of GitOps tools on it. That module imports nothing of this one, so the objects of its
// tests come from the tests of the code that writes them. With -update it rewrites the file.
func GitOps(tb testing.TB, name string, object any) {
	tb.Helper()
	_, self, _, _ := runtime.Caller(0)
	path := filepath.Join(filepath.Dir(self), "..", "..", "..", "test", "gitops", "testdata", name+".json")
	got, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		tb.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			tb.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		tb.Fatalf("%v; -update writes it", err)
	}
	if !bytes.Equal(got, want) {
		tb.Errorf("not as in %s; -update rewrites it (-want +got):\n%s", path, cmp.Diff(string(want), string(got)))
	}
}
