// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"
)

// Lock locks a cluster and returns the function that unlocks it. If another program has the lock,
// Lock calls waiting once, and waits until it gets the lock or ctx is done. The kernel releases the
// lock of a program that was killed.
func Lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	waited := false
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && stillAt(file, path) {
			return func() { file.Close() }, nil
		}
		file.Close()
		if err == nil {
			// `down` removed the file, with the folder, between OpenFile and Flock.
			continue
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, err
		}
		if !waited {
			waited = true
			waiting()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func stillAt(file *os.File, path string) bool {
	ours, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(ours, there)
}
