// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/mgr"
	"k8s.io/apimachinery/pkg/util/wait"
)

// pollPeriod is the interval at which the state of a service is read while the service starts or
// stops.
const pollPeriod = 100 * time.Millisecond

// Service is a service to start and stop, such as the kubelet.
type Service struct {
	// Name is the service name, not the display name.
	Name string
}

// Start starts the service and waits until it runs.
func (s Service) Start(ctx context.Context) error {
	return withService(s.Name, windows.SERVICE_START|windows.SERVICE_QUERY_STATUS, func(service *mgr.Service) error {
		err := wait.PollUntilContextCancel(ctx, pollPeriod, true, func(context.Context) (bool, error) {
			err := service.Start()
			if errors.Is(err, windows.ERROR_SERVICE_DATABASE_LOCKED) {
				return false, nil // the service is started as at boot
			}
			return err == nil, err
		})
		if err != nil && !errors.Is(err, windows.ERROR_SERVICE_ALREADY_RUNNING) {
			return fmt.Errorf("start service %s: %w", s.Name, err)
		}
		return until(ctx, service, s.Name, svc.Running)
	})
}

// Stop stops the service and waits until it has stopped.
func (s Service) Stop(ctx context.Context) error {
	return withService(s.Name, windows.SERVICE_STOP|windows.SERVICE_QUERY_STATUS, func(service *mgr.Service) error {
		_, err := service.Control(svc.Stop)
		switch {
		case errors.Is(err, windows.ERROR_SERVICE_NOT_ACTIVE):
			return nil
		case errors.Is(err, windows.ERROR_SERVICE_CANNOT_ACCEPT_CTRL):
			// The service is already stopping, or Windows stops it during its start.
		case err != nil:
			return fmt.Errorf("stop service %s: %w", s.Name, err)
		}
		return until(ctx, service, s.Name, svc.Stopped)
	})
}

// Status returns the state of the service; 0 if there is no such service.
func (s Service) Status() (state svc.State, err error) {
	err = withService(s.Name, windows.SERVICE_QUERY_STATUS, func(service *mgr.Service) error {
		status, err := service.Query()
		state = status.State
		return err
	})
	if errors.Is(err, windows.ERROR_SERVICE_DOES_NOT_EXIST) {
		return 0, nil
	}
	return state, err
}

// until waits for a state. It returns an error if a service that should run has stopped.
func until(ctx context.Context, service *mgr.Service, name string, wanted svc.State) error {
	err := wait.PollUntilContextCancel(ctx, pollPeriod, true, func(context.Context) (bool, error) {
		status, err := service.Query()
		if err == nil && status.State == svc.Stopped && wanted == svc.Running {
			err = fmt.Errorf("it has stopped with exit code %d (%d)", status.Win32ExitCode, status.ServiceSpecificExitCode)
		}
		return status.State == wanted, err
	})
	if err != nil {
		return fmt.Errorf("wait for service %s: %w", name, err)
	}
	return nil
}

// withManager connects to the service control manager with the minimum access rights.
func withManager(access uint32, act func(*mgr.Mgr) error) error {
	handle, err := windows.OpenSCManager(nil, nil, access)
	if err != nil {
		return fmt.Errorf("connect to the service control manager: %w", err)
	}
	manager := &mgr.Mgr{Handle: handle}
	return errors.Join(act(manager), manager.Disconnect())
}

func withService(name string, access uint32, act func(*mgr.Service) error) error {
	return withManager(windows.SC_MANAGER_CONNECT, func(manager *mgr.Mgr) error {
		text, err := windows.UTF16PtrFromString(name)
		if err != nil {
			return err
		}
		handle, err := windows.OpenService(manager.Handle, text, access)
		if err != nil {
			return fmt.Errorf("open service %s: %w", name, err)
		}
		service := &mgr.Service{Name: name, Handle: handle}
		return errors.Join(act(service), service.Close())
	})
}

const (
	controlKey      = `SYSTEM\CurrentControlSet\Control`
	orderValueName  = "PreshutdownOrder"
	changeAndQuery  = windows.SERVICE_CHANGE_CONFIG | windows.SERVICE_QUERY_CONFIG
	infoBufferBytes = 64
)

// serviceSettings are the settings of the agent's service. They implement Settings.
type serviceSettings struct {
	stateDir, kubelet string
}

// NewSettings returns the settings of the agent's service. Windows will notify the service before
// the service of the kubelet. The previous settings are stored in the state directory.
func NewSettings(stateDir, kubelet string) Settings {
	return &serviceSettings{stateDir: stateDir, kubelet: kubelet}
}

// Apply implements Settings.
func (s *serviceSettings) Apply(delay time.Duration) (waits time.Duration, problems []string) {
	waits, err := setTimeout(ServiceName, delay)
	if err != nil {
		problems = append(problems, fmt.Sprintf("Cannot set the time that Windows waits for the agent: %v.", err))
	}
	if err := placeInOrder(registryOrder{}, s.stateDir, ServiceName, s.kubelet); err != nil {
		problems = append(problems, fmt.Sprintf("Cannot set the order in which Windows notifies services of a shutdown (%s), "+
			"so Windows may notify the kubelet before the agent: %v.", orderValueName, err))
	}
	return waits, problems
}

// setTimeout sets the time that Windows waits for a service, and returns the resulting value.
func setTimeout(name string, timeout time.Duration) (time.Duration, error) {
	wanted, err := milliseconds(timeout)
	if err != nil {
		return 0, err
	}
	var waits time.Duration
	err = withService(name, changeAndQuery, func(service *mgr.Service) error {
		now, err := queryTimeout(service)
		if err != nil {
			return err
		}
		if waits = toDuration(now); now == wanted {
			return nil
		}
		info := preshutdownInfo{timeout: wanted}
		if err := windows.ChangeServiceConfig2(service.Handle, windows.SERVICE_CONFIG_PRESHUTDOWN_INFO, (*byte)(unsafe.Pointer(&info))); err != nil {
			return err
		}
		now, err = queryTimeout(service)
		waits = toDuration(now)
		return err
	})
	return waits, err
}

// preshutdownInfo is SERVICE_PRESHUTDOWN_INFO.
type preshutdownInfo struct {
	timeout uint32
}

func queryTimeout(service *mgr.Service) (uint32, error) {
	// The structure must be aligned to its own size.
	buffer := make([]uint32, infoBufferBytes/4)
	needed := uint32(infoBufferBytes)
	err := windows.QueryServiceConfig2(service.Handle, windows.SERVICE_CONFIG_PRESHUTDOWN_INFO, (*byte)(unsafe.Pointer(&buffer[0])), needed, &needed)
	return buffer[0], err
}

func toDuration(milliseconds uint32) time.Duration {
	return time.Duration(milliseconds) * time.Millisecond
}

// registryOrder is the list in the registry. It implements orderValue.
type registryOrder struct{}

func (registryOrder) open(access uint32, act func(registry.Key) error) error {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, controlKey, access)
	if err != nil {
		return fmt.Errorf("open the registry key %s: %w", controlKey, err)
	}
	return errors.Join(act(key), key.Close())
}

func (o registryOrder) get() (order []string, found bool, err error) {
	err = o.open(registry.QUERY_VALUE, func(key registry.Key) error {
		order, _, err = key.GetStringsValue(orderValueName)
		found = err == nil
		if errors.Is(err, registry.ErrNotExist) {
			return nil
		}
		return err
	})
	return order, found, err
}

func (o registryOrder) set(order []string) error {
	return o.open(registry.SET_VALUE, func(key registry.Key) error { return key.SetStringsValue(orderValueName, order) })
}

func (o registryOrder) remove() error {
	return o.open(registry.SET_VALUE, func(key registry.Key) error { return key.DeleteValue(orderValueName) })
}
