// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"errors"
	"io/fs"
	"os"
	"sync"
)

// maxLogBytes is the size at which a new log file is begun. One older file is kept.
const maxLogBytes = 10 << 20

// LogFile is a log of limited size: Windows does not keep the output of services.
type LogFile struct {
	path  string
	limit int64

	mu   sync.Mutex
	file *os.File
	size int64
}

// OpenLogFile opens a log and appends to it.
func OpenLogFile(path string) (*LogFile, error) {
	l := &LogFile{path: path, limit: maxLogBytes}
	return l, l.open()
}

func (l *LogFile) open() error {
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return err
	}
	l.file, l.size = file, info.Size()
	return nil
}

// Write appends to the log. It drops what it cannot write, and returns no error: after an error,
// io.Copy would stop copying the output of the agent, and the agent would block.
func (l *LogFile) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(data)) > l.limit {
		l.turn()
	}
	n, err := l.file.Write(data)
	l.size += int64(n)
	if errors.Is(err, fs.ErrClosed) && l.open() == nil {
		n, _ = l.file.Write(data)
		l.size += int64(n)
	}
	return len(data), nil
}

// turn begins a new log file and renames the old one. If the rename fails, it continues with the
// old file. If the file cannot be opened, the next Write tries again.
func (l *LogFile) turn() {
	_ = l.file.Close()
	_ = os.Rename(l.path, l.path+".old")
	if err := l.open(); err == nil && l.size > l.limit {
		// The file cannot be renamed while another program reads it. Truncate it: lost messages are
		// better than a full disk.
		if l.file.Truncate(0) == nil {
			l.size = 0
		}
	}
}

// Close closes the log.
func (l *LogFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
