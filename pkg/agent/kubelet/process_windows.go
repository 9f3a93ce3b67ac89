// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// shutdownFeature is the feature gate of the kubelet's own graceful node shutdown.
const shutdownFeature = "WindowsGracefulNodeShutdown"

// Find returns the running kubelet; the oldest kubelet if there are several. Windows does not
// provide its command line.
func Find(context.Context) (Process, error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return Process{}, fmt.Errorf("list the processes: %w", err)
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	var found Process
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if !isKubelet([]string{windows.UTF16ToString(entry.ExeFile[:])}) {
			continue
		}
		started, err := startOf(entry.ProcessID)
		if err != nil || found.PID != 0 && !started.Before(found.Started) {
			continue
		}
		found = Process{
			PID: int(entry.ProcessID), Started: started, ID: fmt.Sprintf("%d/%d", entry.ProcessID, started.UnixNano()),
		}
	}
	if found.PID == 0 {
		return Process{}, ErrNotRunning
	}
	return found, nil
}

// startOf returns the start time of a process. The system stores it when the process starts, so a
// change of the clock does not affect it.
func startOf(pid uint32) (time.Time, error) {
	process, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, pid)
	if err != nil {
		return time.Time{}, err
	}
	defer func() { _ = windows.CloseHandle(process) }()
	var created, exited, kernel, user windows.Filetime
	if err := windows.GetProcessTimes(process, &created, &exited, &kernel, &user); err != nil {
		return time.Time{}, err
	}
	return time.Unix(0, created.Nanoseconds()), nil
}

// DefaultRuntimeEndpoint is the endpoint of the CRI that the kubelet uses by default.
const DefaultRuntimeEndpoint = "npipe:////./pipe/containerd-containerd"
