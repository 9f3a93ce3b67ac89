// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"golang.org/x/sys/windows/svc/mgr"
)

const (
	controlKey      = `SYSTEM\CurrentControlSet\Control`
	orderValueName  = "PreshutdownOrder"
	changeAndQuery  = windows.SERVICE_CHANGE_CONFIG | windows.SERVICE_QUERY_CONFIG
	infoBufferBytes = 64
)

// serviceSettings are the settings of the agent's service. It implements Settings.
type serviceSettings struct {
	stateDir, kubelet string
}

// NewSettings returns the settings of the agent's service, which is to be told of a shutdown before
// the service of the kubelet. What was there before is remembered in the state directory.
func NewSettings(stateDir, kubelet string) Settings {
	return &serviceSettings{stateDir: stateDir, kubelet: kubelet}
}

// Apply implements Settings.
func (s *serviceSettings) Apply(delay time.Duration) (waits time.Duration, problems []string) {
	waits, err := setTimeout(ServiceName, delay)
	if err != nil {
		problems = append(problems, fmt.Sprintf("The time that Windows waits for the agent cannot be set: %v.", err))
	}
	if err := placeInOrder(registryOrder{}, s.stateDir, ServiceName, s.kubelet); err != nil {
		problems = append(problems, fmt.Sprintf("The order in which Windows tells services of a shutdown (%s) cannot be set, "+
			"the kubelet may be told before the agent: %v.", orderValueName, err))
	}
	return waits, problems
}

// setTimeout sets how long Windows waits for a service, and returns what it says afterwards.
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
	// The structure begins on a boundary of its own size.
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
