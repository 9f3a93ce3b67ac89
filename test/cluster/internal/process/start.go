// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Spec describes how to start a process.
type Spec struct {
	Name string
	// Path is the path of the program.
	Path string
	Args []string
	// Env is added to the environment of this program.
	Env []string
	// Dir is the working directory.
	Dir string
	// Namespaces are the new namespaces (CLONE_NEW...) of the process; 0 is none.
	Namespaces uintptr
	// Log is the file to which standard output and standard error are appended.
	Log string
}

// Fingerprint identifies the build of a program.
type Fingerprint struct {
	Size    int64     `json:"size"`
	ModTime time.Time `json:"modTime"`
	SHA256  string    `json:"sha256"`
}

// FingerprintOf returns the fingerprint of a file. It reads the file only if the size or the time
// differs from known. It compares the content because `go build` changes the time of an unchanged
// program, and that must not restart a process.
func FingerprintOf(path string, known Fingerprint) (Fingerprint, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Fingerprint{}, err
	}
	if info.Size() == known.Size && info.ModTime().Equal(known.ModTime) {
		return known, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return Fingerprint{}, err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return Fingerprint{}, err
	}
	return Fingerprint{Size: info.Size(), ModTime: info.ModTime(), SHA256: hex.EncodeToString(hash.Sum(nil))}, nil
}

// Start starts a process in a new session, so that neither the end of make nor Ctrl-C in the
// terminal stops it.
func Start(spec Spec, binary Fingerprint) (Record, error) {
	boot, err := bootID()
	if err != nil {
		return Record{}, err
	}
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return Record{}, err
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return Record{}, err
	}

	command := exec.Command(spec.Path, spec.Args...)
	command.Dir = spec.Dir
	command.Env = append(inherited(os.Environ()), spec.Env...)
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: spec.Namespaces}
	if err := command.Start(); err != nil {
		return Record{}, err
	}
	// Wait reads the exit status. Without it, a process that ends early would stay as a zombie.
	go func() { _ = command.Wait() }()

	record := Record{
		PID:       command.Process.Pid,
		BootID:    boot,
		Args:      spec.Args,
		Env:       spec.Env,
		Binary:    binary,
		LogOffset: info.Size(),
	}
	s, err := readStat(record.PID)
	if err != nil {
		// The process has ended. A start time of zero never matches a process.
		return record, nil
	}
	record.StartTicks = s.startTicks
	return record, nil
}

// inherited removes variables that would configure the processes by accident: etcd and kwok read
// options from the environment, and the servers must not inherit the variables of make.
func inherited(environment []string) []string {
	unwanted := []string{"ETCD_", "KWOK_", "KUBECONFIG=", "MAKE", "MFLAGS=", "KUBERNETES_SERVICE_"}
	return slices.DeleteFunc(slices.Clone(environment), func(entry string) bool {
		return slices.ContainsFunc(unwanted, func(prefix string) bool { return strings.HasPrefix(entry, prefix) })
	})
}

// KeepDescriptorsPrivate marks the inherited file descriptors, except for the standard ones, so
// that the started processes do not inherit them. Otherwise a program that waits for the end of an
// inherited pipe (make's job server, a test) would wait until the cluster stops.
func KeepDescriptorsPrivate() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

// Tail returns the last lines of a log file, from offset on.
func Tail(path string, offset int64, lines int) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	// This is enough for the lines that a user reads; a line of a stack trace may be long.
	const most = 64 << 10
	if offset > info.Size() {
		offset = 0
	}
	start := max(offset, info.Size()-most)
	content, err := io.ReadAll(io.NewSectionReader(file, start, info.Size()-start))
	if err != nil {
		return "", err
	}
	all := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return fmt.Sprintln(strings.Join(all, "\n")), nil
}
