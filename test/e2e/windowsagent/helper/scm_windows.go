// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
)

// serviceStatus is the state of a service, with the fields that mgr.Service.Query omits.
type serviceStatus struct {
	State, Accepts, CheckPoint, WaitHint, PID, ExitCode uint32
	Milliseconds                                        int64
}

func withService(name string, act func(*mgr.Service) error) error {
	manager, err := mgr.Connect()
	if err != nil {
		return err
	}
	defer func() { _ = manager.Disconnect() }()
	service, err := manager.OpenService(name)
	if err != nil {
		return err
	}
	defer func() { _ = service.Close() }()
	return act(service)
}

func query(service *mgr.Service) (serviceStatus, error) {
	var s windows.SERVICE_STATUS_PROCESS
	var needed uint32
	err := windows.QueryServiceStatusEx(service.Handle, windows.SC_STATUS_PROCESS_INFO, (*byte)(unsafe.Pointer(&s)), uint32(unsafe.Sizeof(s)), &needed)
	return serviceStatus{
		State: s.CurrentState, Accepts: s.ControlsAccepted, CheckPoint: s.CheckPoint, WaitHint: s.WaitHint, PID: s.ProcessId, ExitCode: s.Win32ExitCode,
	}, err
}

// watch prints each status of a service until the service has stopped.
func watch(name string) error {
	return withService(name, func(service *mgr.Service) error {
		begin := time.Now()
		last := serviceStatus{}
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			s, err := query(service)
			if err != nil {
				return err
			}
			if s != last {
				last = s
				s.Milliseconds = time.Since(begin).Milliseconds()
				if err := show(s); err != nil {
					return err
				}
			}
			if s.State == windows.SERVICE_STOPPED {
				return nil
			}
			<-ticker.C
		}
	})
}

// control sends a control that all programs may send, and prints the returned status.
func control(name string, code uint32) error {
	return withService(name, func(service *mgr.Service) error {
		if _, err := service.Control(svc.Cmd(code)); err != nil {
			return err
		}
		s, err := query(service)
		return errors.Join(err, show(s))
	})
}

func showStatus(name string) error {
	return withService(name, func(service *mgr.Service) error {
		s, err := query(service)
		return errors.Join(err, show(s))
	})
}

func start(name string) error {
	return withService(name, startUnlocked)
}

// create creates a service with automatic start, and starts it.
func create(name, command string) error {
	manager, err := mgr.Connect()
	if err != nil {
		return err
	}
	defer func() { _ = manager.Disconnect() }()
	words := strings.Fields(command)
	service, err := manager.CreateService(name, words[0], mgr.Config{StartType: mgr.StartAutomatic}, words[1:]...)
	if err != nil {
		return err
	}
	return errors.Join(startUnlocked(service), service.Close())
}

// startUnlocked starts a service. It retries while Windows boots and starts no other service.
func startUnlocked(service *mgr.Service) error {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		if err := service.Start(); !errors.Is(err, windows.ERROR_SERVICE_DATABASE_LOCKED) {
			return err
		}
		<-ticker.C
	}
}

// config has the installed settings of a service.
type config struct {
	BinaryPathName, DisplayName        string
	StartType, PreshutdownMilliseconds uint32
}

func showConfig(name string) error {
	return withService(name, func(service *mgr.Service) error {
		buffer := make([]uint64, 512)
		needed := uint32(8 * len(buffer))
		q := (*windows.QUERY_SERVICE_CONFIG)(unsafe.Pointer(&buffer[0]))
		if err := windows.QueryServiceConfig(service.Handle, q, needed, &needed); err != nil {
			return err
		}
		c := config{
			BinaryPathName: windows.UTF16PtrToString(q.BinaryPathName), DisplayName: windows.UTF16PtrToString(q.DisplayName), StartType: q.StartType,
		}
		var timeout [16]uint32
		err := windows.QueryServiceConfig2(service.Handle, windows.SERVICE_CONFIG_PRESHUTDOWN_INFO, (*byte)(unsafe.Pointer(&timeout[0])), 64, &needed)
		c.PreshutdownMilliseconds = timeout[0]
		return errors.Join(err, show(c))
	})
}

const (
	controlStop = 1
	// pipeName is part of the names of the pipes through which wine's services.exe sends controls
	// to the processes of services. requestMagic is the beginning of each message.
	pipeName     = "NtControlPipe"
	requestMagic = 0x57494e45
	maxHandle    = 1 << 14
)

var clientOfPipe = windows.NewLazySystemDLL("kernel32.dll").NewProc("GetNamedPipeClientProcessId")

// send sends a control to a service as the service control manager does. Only the manager may
// notify services of a shutdown, and the manager of wine never does. send duplicates the manager's
// handle of the pipe to the service, so the service cannot distinguish this control from a real
// one.
func send(name string, code uint32) error {
	var pid uint32
	err := withService(name, func(service *mgr.Service) error {
		s, err := query(service)
		pid = s.PID
		return err
	})
	if err != nil {
		return err
	}
	manager, err := processOf("services.exe")
	if err != nil {
		return err
	}
	process, err := windows.OpenProcess(windows.PROCESS_DUP_HANDLE, false, manager)
	if err != nil {
		return fmt.Errorf("open services.exe: %w", err)
	}
	defer func() { _ = windows.CloseHandle(process) }()
	for handle := windows.Handle(4); handle < maxHandle; handle += 4 {
		var pipe windows.Handle
		if windows.DuplicateHandle(process, handle, windows.CurrentProcess(), &pipe, 0, false, windows.DUPLICATE_SAME_ACCESS) != nil {
			continue
		}
		if isControlPipe(pipe, pid) {
			return errors.Join(request(pipe, name, code), windows.CloseHandle(pipe))
		}
		_ = windows.CloseHandle(pipe)
	}
	return fmt.Errorf("services.exe has no pipe to process %d", pid)
}

// processOf returns the process of a program.
func processOf(program string) (uint32, error) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if strings.EqualFold(windows.UTF16ToString(entry.ExeFile[:]), program) {
			return entry.ProcessID, nil
		}
	}
	return 0, fmt.Errorf("%s does not run", program)
}

// isControlPipe reports whether a handle is a pipe for controls to a process.
func isControlPipe(pipe windows.Handle, pid uint32) bool {
	if kind, err := windows.GetFileType(pipe); err != nil || kind != windows.FILE_TYPE_PIPE {
		return false
	}
	var client uint32
	if ok, _, _ := clientOfPipe.Call(uintptr(pipe), uintptr(unsafe.Pointer(&client))); ok == 0 || client != pid {
		return false
	}
	// The process has another pipe to services.exe, for its own calls: only a control pipe has this
	// name.
	info := make([]byte, 1024)
	if err := windows.GetFileInformationByHandleEx(pipe, windows.FileNameInfo, &info[0], uint32(len(info))); err != nil {
		return false
	}
	var units []uint16
	for at := 4; at < 4+int(min(binary.LittleEndian.Uint32(info), 1000)); at += 2 {
		units = append(units, binary.LittleEndian.Uint16(info[at:]))
	}
	return strings.Contains(string(utf16.Decode(units)), pipeName)
}

// request sends a control and waits for the response of the service.
func request(pipe windows.Handle, service string, code uint32) error {
	name := append(utf16.Encode([]rune(service)), 0)
	message := binary.LittleEndian.AppendUint32(nil, requestMagic)
	message = binary.LittleEndian.AppendUint32(message, uint32(16+2*len(name)))
	message = binary.LittleEndian.AppendUint32(message, uint32(len(name)))
	message = binary.LittleEndian.AppendUint32(message, code)
	for _, unit := range name {
		message = binary.LittleEndian.AppendUint16(message, unit)
	}
	answer := make([]byte, 4)
	if err := overlapped(func(done *uint32, o *windows.Overlapped) error { return windows.WriteFile(pipe, message, done, o) }, pipe); err != nil {
		return fmt.Errorf("send the control: %w", err)
	}
	if err := overlapped(func(done *uint32, o *windows.Overlapped) error { return windows.ReadFile(pipe, answer, done, o) }, pipe); err != nil {
		return fmt.Errorf("read the response: %w", err)
	}
	if code := binary.LittleEndian.Uint32(answer); code != 0 {
		return fmt.Errorf("the service responded with error %d", code)
	}
	return nil
}

// overlapped runs an asynchronous operation and waits for its end.
func overlapped(operation func(*uint32, *windows.Overlapped) error, pipe windows.Handle) error {
	event, err := windows.CreateEvent(nil, 1, 0, nil)
	if err != nil {
		return err
	}
	defer func() { _ = windows.CloseHandle(event) }()
	o := &windows.Overlapped{HEvent: event}
	var done uint32
	if err = operation(&done, o); errors.Is(err, windows.ERROR_IO_PENDING) {
		err = windows.GetOverlappedResult(pipe, o, &done, true)
	}
	return err
}
