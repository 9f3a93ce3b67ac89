// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"haulout.dev/haulout/pkg/cmd/server/embeddedetcd"
	"haulout.dev/haulout/pkg/testing/must"
)

// etcd runs `haulout-apiserver etcd` and returns its output.
func etcd(t *testing.T, stdin []byte, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := newEtcdCommand()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	cmd.SetIn(bytes.NewReader(stdin))
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestEtcdCommands backs up a running server to a file and to the standard output, and restores
// both.
func TestEtcdCommands(t *testing.T) {
	dir := t.TempDir()
	dataDir := "--data-dir=" + dir
	start := func() *embeddedetcd.Server {
		t.Helper()
		return must.Get(embeddedetcd.Start(t.Context(), embeddedetcd.Options{DataDir: dir, QuotaBytes: embeddedetcd.DefaultQuotaBytes}))(t)
	}
	run := func(want string, args ...string) string {
		t.Helper()
		out, err := etcd(t, nil, append(args, dataDir)...)
		must.True(t, err == nil && strings.Contains(out, want), "%q: got %q, error %v, want %q", args, out, err, want)
		return out
	}
	refuse := func(want string, args ...string) {
		t.Helper()
		if out, err := etcd(t, nil, append(args, dataDir)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %q, error %v, want error %q", args, out, err, want)
		}
	}
	server := start()
	file := filepath.Join(t.TempDir(), "haulout.snapshot")
	run("Wrote "+file+": revision ", "snapshot", file)
	refuse("already exists", "snapshot", file)
	refuse("no such file", "snapshot", filepath.Join(dir, "nothing", "snapshot"))
	if entries, err := os.ReadDir(filepath.Dir(file)); err != nil || len(entries) != 1 {
		t.Errorf("got files %v, error %v, want only the snapshot", entries, err)
	}
	stream := run("", "snapshot", "-")
	run("quota bytes    ", "status")
	run("The database now has ", "defrag")
	refuse("stop the server first", "restore", file)
	refuse("stop the server first", "copy", "--etcd-servers=unix:///nothing.sock")
	var status embeddedetcd.Status
	if err := json.Unmarshal([]byte(run("", "status", "--json")), &status); err != nil || status.QuotaBytes != embeddedetcd.DefaultQuotaBytes {
		t.Errorf("got %+v, error %v, want the quota", status, err)
	}
	run("hash ", "status", file)
	server.Stop()

	refuse("no server has a socket there", "status")
	refuse("no server has a socket there", "snapshot", filepath.Join(dir, "other"))
	refuse("--etcd-servers is required", "copy")
	refuse("--etcd-cafile", "copy", "--etcd-servers=https://127.0.0.1:1", "--etcd-cafile="+filepath.Join(dir, "nothing"))
	refuse("not a complete snapshot", "status", filepath.Join(dir, "data", "lock"))
	refuse("no such file", "restore", filepath.Join(dir, "nothing"))
	run("--accept-restored-state", "restore", file)
	if out, err := etcd(t, []byte(stream), "restore", "-", dataDir); err != nil || !strings.Contains(out, "The previous data is in "+dir) {
		t.Errorf("got %q, error %v, want the previous data", out, err)
	}
	start().Stop()
}
