// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"errors"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc/eventlog"
)

// eventSourceKey is where Windows looks for the texts of the messages of a source.
const eventSourceKey = `SYSTEM\CurrentControlSet\Services\EventLog\Application\` + ServiceName

// EventLog writes to the event log of Windows. The nil EventLog writes nothing.
type EventLog struct {
	log *eventlog.Log
}

// OpenEventLog opens the event log Application.
func OpenEventLog() (*EventLog, error) {
	log, err := eventlog.Open(ServiceName)
	if err != nil {
		return nil, err
	}
	return &EventLog{log: log}, nil
}

// Write writes a message. That it cannot be written is no reason to stop.
func (l *EventLog) Write(m Message) {
	if l == nil {
		return
	}
	if m.Warning {
		_ = l.log.Warning(uint32(m.ID), m.Text)
		return
	}
	_ = l.log.Info(uint32(m.ID), m.Text)
}

// Close closes the event log.
func (l *EventLog) Close() error {
	if l == nil {
		return nil
	}
	return l.log.Close()
}

// installEventSource registers the source of the messages, and reports whether that is news.
func installEventSource() (changed bool, err error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, eventSourceKey, registry.QUERY_VALUE)
	if err == nil {
		return false, key.Close()
	}
	if !errors.Is(err, registry.ErrNotExist) {
		return false, err
	}
	return true, eventlog.InstallAsEventCreate(ServiceName, eventlog.Info|eventlog.Warning|eventlog.Error)
}

func removeEventSource() error {
	err := eventlog.Remove(ServiceName)
	if errors.Is(err, windows.ERROR_FILE_NOT_FOUND) {
		return nil
	}
	return err
}
