// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"

	"haulout.dev/haulout/pkg/agent/state"
	"haulout.dev/haulout/pkg/files"
)

const (
	// DefaultBinary is the default path of the installed program.
	DefaultBinary = `C:\Program Files\haulout-node-agent\haulout-node-agent.exe`

	displayName = "Haulout node agent"
	description = "Creates a maintenance when this node shuts down: pods leave the node before Windows shuts down."

	// restartDelay is the pause before Windows restarts a failed agent. After resetSeconds, Windows
	// resets its count of failures.
	restartDelay = time.Second
	resetSeconds = 24 * 60 * 60
	// changeTimeout limits the time for a start or a stop of the service.
	changeTimeout = 30 * time.Second
)

// ErrPending is the error for a change of the service during a shutdown.
var ErrPending = errors.New("the agent delays a shutdown")

// File is a file to install.
type File struct {
	Path    string
	Content []byte
}

// Installation is the program and the files to install.
type Installation struct {
	// Binary is the path of the program; empty means DefaultBinary. Args are its arguments.
	Binary string
	Args   []string
	// Files are installed in addition to the program.
	Files []File
}

// Install installs or updates the service, and starts it. It reports whether it changed anything.
func Install(ctx context.Context, i Installation) (changed bool, err error) {
	if err := refusePending(); err != nil {
		return false, err
	}
	i.Binary = cmp.Or(i.Binary, DefaultBinary)
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return false, err
	}
	configChanged := false
	for _, file := range i.Files {
		written, err := writeFile(file, nil)
		if err != nil {
			return false, err
		}
		configChanged = configChanged || written
	}
	sourceChanged, err := installEventSource()
	if err != nil {
		return false, fmt.Errorf("register the source of the event log: %w", err)
	}
	binaryChanged, err := writeFile(File{Path: i.Binary, Content: program}, func() error { return stop(ctx) })
	if err != nil {
		return false, err
	}
	serviceChanged, err := ensureService(commandLine(i.Binary, i.Args))
	if err != nil {
		return false, fmt.Errorf("install service %s: %w", ServiceName, err)
	}
	started, err := restart(ctx, configChanged || serviceChanged)
	return configChanged || sourceChanged || binaryChanged || serviceChanged || started, err
}

// Uninstall removes the service, its program and its settings. It keeps the configuration and the
// state.
func Uninstall(ctx context.Context, stateDir string) error {
	if err := refusePending(); err != nil {
		return err
	}
	binary, err := installedBinary()
	if err != nil {
		return err
	}
	if binary != "" {
		if err := stop(ctx); err != nil {
			return err
		}
		if err := withService(ServiceName, windows.DELETE, func(service *mgr.Service) error { return service.Delete() }); err != nil {
			return fmt.Errorf("remove service %s: %w", ServiceName, err)
		}
	}
	errs := []error{removeEventSource(), restoreOrder(registryOrder{}, stateDir, ServiceName), state.RemoveBootID()}
	if binary != "" {
		errs = append(errs, removeBinary(binary))
	}
	return errors.Join(errs...)
}

// Pending reports whether Windows waits for the service to stop.
func Pending() (bool, error) {
	status, err := Service{Name: ServiceName}.Status()
	return status == svc.StopPending, err
}

func refusePending() error {
	pending, err := Pending()
	if pending {
		return ErrPending
	}
	return err
}

func commandLine(binary string, args []string) string {
	words := []string{syscall.EscapeArg(binary)}
	for _, arg := range args {
		words = append(words, syscall.EscapeArg(arg))
	}
	return strings.Join(words, " ")
}

// serviceConfig has the settings of the service that Install writes. It leaves other settings, such
// as a delayed start, to the administrator.
type serviceConfig struct {
	kind, start, errorControl     uint32
	command, display, description string
}

func ensureService(command string) (changed bool, err error) {
	want := serviceConfig{
		kind: windows.SERVICE_WIN32_OWN_PROCESS, start: mgr.StartAutomatic, errorControl: mgr.ErrorNormal,
		command: command, display: displayName, description: description,
	}
	err = withService(ServiceName, windows.SERVICE_ALL_ACCESS, func(service *mgr.Service) error {
		have, err := configOf(service)
		if err != nil {
			return err
		}
		if have != want {
			changed = true
			if err := want.apply(service); err != nil {
				return err
			}
		}
		recovery, err := ensureRecovery(service)
		changed = changed || recovery
		return err
	})
	if !errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		return changed, err
	}
	return true, withManager(windows.SC_MANAGER_CREATE_SERVICE, func(manager *mgr.Mgr) error {
		texts, err := utf16Of(ServiceName, want.display, want.command)
		if err != nil {
			return err
		}
		handle, err := windows.CreateService(manager.Handle, texts[0], texts[1], windows.SERVICE_ALL_ACCESS, want.kind, want.start,
			want.errorControl, texts[2], nil, nil, nil, nil, nil)
		if err != nil {
			return err
		}
		service := &mgr.Service{Name: ServiceName, Handle: handle}
		if err = want.apply(service); err == nil {
			_, err = ensureRecovery(service)
		}
		return errors.Join(err, service.Close())
	})
}

func utf16Of(texts ...string) ([]*uint16, error) {
	var list []*uint16
	for _, text := range texts {
		pointer, err := windows.UTF16PtrFromString(text)
		if err != nil {
			return nil, err
		}
		list = append(list, pointer)
	}
	return list, nil
}

func (c serviceConfig) apply(service *mgr.Service) error {
	texts, err := utf16Of(c.command, c.display, c.description)
	if err != nil {
		return err
	}
	if err := windows.ChangeServiceConfig(service.Handle, c.kind, c.start, c.errorControl, texts[0], nil, nil, nil, nil, nil, texts[1]); err != nil {
		return err
	}
	d := windows.SERVICE_DESCRIPTION{Description: texts[2]}
	return windows.ChangeServiceConfig2(service.Handle, windows.SERVICE_CONFIG_DESCRIPTION, (*byte)(unsafe.Pointer(&d)))
}

// configOf returns the configuration of a service. Unlike the package mgr, it only uses calls that
// wine supports.
func configOf(service *mgr.Service) (serviceConfig, error) {
	c := serviceConfig{}
	err := query(func(buffer *uint64, size uint32, needed *uint32) error {
		q := (*windows.QUERY_SERVICE_CONFIG)(unsafe.Pointer(buffer))
		err := windows.QueryServiceConfig(service.Handle, q, size, needed)
		if err == nil {
			c.kind, c.start, c.errorControl = q.ServiceType, q.StartType, q.ErrorControl
			c.command, c.display = windows.UTF16PtrToString(q.BinaryPathName), windows.UTF16PtrToString(q.DisplayName)
		}
		return err
	})
	if err != nil {
		return c, err
	}
	err = query(func(buffer *uint64, size uint32, needed *uint32) error {
		err := windows.QueryServiceConfig2(service.Handle, windows.SERVICE_CONFIG_DESCRIPTION, (*byte)(unsafe.Pointer(buffer)), size, needed)
		if text := (*windows.SERVICE_DESCRIPTION)(unsafe.Pointer(buffer)).Description; err == nil && text != nil {
			c.description = windows.UTF16PtrToString(text)
		}
		return err
	})
	return c, err
}

// query calls a function with a buffer that is large enough.
func query(ask func(buffer *uint64, size uint32, needed *uint32) error) error {
	needed := uint32(1024)
	for {
		buffer := make([]uint64, (needed+7)/8)
		size := uint32(8 * len(buffer))
		err := ask(&buffer[0], size, &needed)
		if !errors.Is(err, windows.ERROR_INSUFFICIENT_BUFFER) || needed <= size {
			return err
		}
	}
}

// ensureRecovery configures Windows to restart a failed agent, even if the agent ended without an
// error.
func ensureRecovery(service *mgr.Service) (changed bool, err error) {
	actions, err := service.RecoveryActions()
	if errors.Is(err, windows.ERROR_INVALID_LEVEL) {
		return false, nil // wine does not restart services
	}
	if err != nil {
		return false, err
	}
	always, err := service.RecoveryActionsOnNonCrashFailures()
	if err != nil {
		return false, err
	}
	want := mgr.RecoveryAction{Type: mgr.ServiceRestart, Delay: restartDelay}
	if !always || len(actions) != 1 || actions[0] != want {
		return true, errors.Join(service.SetRecoveryActions([]mgr.RecoveryAction{want}, resetSeconds), service.SetRecoveryActionsOnNonCrashFailures(true))
	}
	return false, nil
}

// installedBinary returns the program of the service; empty if there is no service.
func installedBinary() (string, error) {
	command := ""
	err := withService(ServiceName, windows.SERVICE_QUERY_CONFIG, func(service *mgr.Service) error {
		config, err := configOf(service)
		command = config.command
		return err
	})
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	words, err := windows.DecomposeCommandLine(command)
	if err != nil || len(words) == 0 {
		return "", fmt.Errorf("read the command line of service %s: %q", ServiceName, command)
	}
	return words[0], nil
}

// writeFile writes a file if its content differs, and reports whether it wrote the file. It calls
// stop before the write, since Windows cannot replace a running program; stop is nil for other
// files.
func writeFile(file File, stop func() error) (bool, error) {
	have, err := os.ReadFile(file.Path)
	if err == nil && bytes.Equal(have, file.Content) {
		return false, nil
	}
	if stop != nil {
		if err := stop(); err != nil {
			return false, err
		}
	}
	err = files.Replace(file.Path, bytes.NewReader(file.Content), 0o644)
	return err == nil, err
}

// removeBinary removes the program and its folder if the folder is empty then. A running program
// cannot remove itself: in that case, Windows removes the program at the next boot.
func removeBinary(path string) error {
	if err := files.Remove(path); err != nil {
		text, textErr := windows.UTF16PtrFromString(path)
		if textErr != nil {
			return textErr
		}
		return windows.MoveFileEx(text, nil, windows.MOVEFILE_DELAY_UNTIL_REBOOT)
	}
	_ = os.Remove(filepath.Dir(path))
	return nil
}

// stop stops the agent, if it is installed and runs.
func stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	err := Service{Name: ServiceName}.Stop(ctx)
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		return nil
	}
	return err
}

// restart starts the agent; if again is set, it stops the agent first so that it reads its files
// again. It reports whether it did anything.
func restart(ctx context.Context, again bool) (bool, error) {
	status, err := Service{Name: ServiceName}.Status()
	if err != nil {
		return false, err
	}
	if status == svc.Running && !again {
		return false, nil
	}
	if err := stop(ctx); err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	return true, Service{Name: ServiceName}.Start(ctx)
}
