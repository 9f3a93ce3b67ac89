// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package embeddedetcd

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// If one of these environment variables is set to a folder, a copy of this program runs the step in
// this folder instead of the tests.
const (
	// diskIn mounts a small volume in the folder and runs the other two steps there.
	diskIn = "HAULOUT_TEST_DISK_IN"
	// fillIn writes keys until the volume is full and a write fails, and prints the acknowledged
	// writes.
	fillIn = "HAULOUT_TEST_FILL_IN"
	// checkIn starts the server again and prints its objects.
	checkIn = "HAULOUT_TEST_CHECK_IN"
)

// smallVolume is the size of the volume: the log preallocates two files of 64 MB.
const smallVolume = "300m"

// TestFullDiskLosesNothing fills the volume below the quota of the database. A write must then fail
// with this reason. When the volume has free space again, every acknowledged write must still be
// stored.
func TestFullDiskLosesNothing(t *testing.T) {
	if os.Getuid() != 0 {
		must.True(t, os.Getenv("CI") == "", "only root may mount a volume")
		t.Skip("only root may mount a volume") //nolint:forbidigo // with CI set, it fails
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(t.Context(), copyOfThisProgram(t))
	cmd.Env = append(os.Environ(), diskIn+"="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	if !strings.Contains(said.String(), syscall.ENOSPC.Error()) {
		t.Errorf("the volume was full, and the server did not say %q:\n%s", syscall.ENOSPC.Error(), said.String())
	}
	var acknowledged []string
	kept := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		switch verb, key, _ := strings.Cut(strings.TrimSpace(line), " "); verb {
		case "acknowledged":
			acknowledged = append(acknowledged, key)
		case "kept":
			kept[key] = true
		}
	}
	if len(acknowledged) == 0 || !kept["after"] {
		t.Errorf("%d writes were acknowledged before the volume was full, one after: %v, want both", len(acknowledged), kept["after"])
	}
	for _, key := range acknowledged {
		is.True(t, kept[key], "%s was acknowledged and is lost", key)
	}
}

// runOnDisk runs in a separate mount namespace.
func runOnDisk(dir string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+smallVolume); err != nil {
		return err
	}
	// etcd ends its process when the volume is full.
	_ = step(fillIn, dir)
	if err := os.Remove(ballast(dir)); err != nil {
		return err
	}
	return step(checkIn, dir)
}

func step(variable, dir string) error {
	cmd := exec.Command(os.Args[0]) //nolint:gosec // this program
	cmd.Env = append(os.Environ(), diskIn+"=", variable+"="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd.Run()
}

func ballast(dir string) string { return filepath.Join(dir, "ballast") }

func fillDisk(dir string) error {
	client, stop, err := serve(dir)
	if err != nil {
		return err
	}
	defer stop()
	value := strings.Repeat("x", 256<<10)
	write := func(i int) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		key := fmt.Sprintf("key-%04d", i)
		if _, err := client.Put(ctx, key, value); err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, "acknowledged", key)
		return nil
	}
	for i := range 2000 {
		if i == 100 {
			if err := fillUp(ballast(dir)); err != nil {
				return err
			}
		}
		if err := write(i); err != nil {
			return err
		}
	}
	return nil
}

// fillUp writes a file that uses all free space.
func fillUp(name string) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer file.Close()
	block := make([]byte, 64<<10)
	for err == nil {
		_, err = io.Copy(file, bytes.NewReader(block))
	}
	return nil
}

func printKeys(dir string) error {
	client, stop, err := serve(dir)
	if err != nil {
		return err
	}
	defer stop()
	ctx := context.Background()
	if _, err := client.Put(ctx, "after", ""); err != nil {
		return err
	}
	got, err := client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	if err != nil {
		return err
	}
	for _, pair := range got.Kvs {
		fmt.Fprintln(os.Stdout, "kept", string(pair.Key))
	}
	return nil
}

// serve starts the server and returns a connected client.
func serve(dir string) (*clientv3.Client, func(), error) {
	s, err := Start(context.Background(), Options{DataDir: dir, QuotaBytes: DefaultQuotaBytes})
	if err != nil {
		return nil, nil, err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, DialTimeout: 10 * time.Second})
	if err != nil {
		s.Stop()
		return nil, nil, err
	}
	return client, func() { client.Close(); s.Stop() }, nil
}
