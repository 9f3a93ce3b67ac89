// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"haulout.dev/haulout/test/oracle"
)

const (
	// seedVariable repeats the choices of an earlier run.
	seedVariable = "E2E_SEED"
	// fullVariable asks for the large size of the tests that have two.
	fullVariable = "E2E_FULL"
)

// Random returns the source of all that a test leaves to chance. Its seed is logged; E2E_SEED gives
// the same one again.
func Random(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := uint64(time.Now().UnixNano())
	if value := os.Getenv(seedVariable); value != "" {
		var err error
		if seed, err = strconv.ParseUint(value, 10, 64); err != nil {
			tb.Fatalf("%s=%q: %v", seedVariable, value, err)
		}
	}
	tb.Logf("%s=%d makes the same choices again", seedVariable, seed)
	return rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // nothing here is secret
}

// Full reports whether tests that have two sizes are to run in the large one.
func Full(tb testing.TB) bool {
	tb.Helper()
	value := os.Getenv(fullVariable)
	if value == "" {
		return false
	}
	full, err := strconv.ParseBool(value)
	if err != nil {
		tb.Fatalf("%s=%q: must be one of 1, true, 0, false", fullVariable, value)
	}
	return full
}

// Judge records from now on, to the end of the test, what happens to the nodes of a pool and to the
// pods of a namespace.
func (c *Cluster) Judge(tb testing.TB, pool, namespace string) *oracle.Recorder {
	tb.Helper()
	return c.Record(tb, oracle.Scope{
		Nodes: labels.SelectorFromSet(labels.Set{Pool: pool}), Namespaces: []string{namespace},
	})
}

// Record records from now on, to the end of the test, what is in a scope. The scope needs no audit
// log.
func (c *Cluster) Record(tb testing.TB, scope oracle.Scope) *oracle.Recorder {
	tb.Helper()
	scope.AuditLog = c.AuditLogFile()
	admin := c.As(tb)
	recorder, err := oracle.Start(tb.Context(), admin.Kube, admin.Haulout, scope)
	if err != nil {
		tb.Fatal(err)
	}
	return recorder
}

// AuditLog is the log of kube-apiserver of who evicts and deletes pods, from now on.
func (c *Cluster) AuditLog(tb testing.TB) oracle.Log {
	tb.Helper()
	log, err := oracle.OpenLog(c.AuditLogFile())
	if err != nil {
		tb.Fatal(err)
	}
	return log
}

// AuditLogFile is the file to which kube-apiserver writes who evicts and deletes pods.
func (c *Cluster) AuditLogFile() string {
	return filepath.Join(c.dir, "logs", "kube-apiserver-audit.log")
}

// Accept fails the test for what a judge has found.
func Accept(tb testing.TB, found []string, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
	const most = 10
	for _, text := range found[:min(most, len(found))] {
		tb.Error(text)
	}
	if more := len(found) - most; more > 0 {
		tb.Errorf("and %d more", more)
	}
}
