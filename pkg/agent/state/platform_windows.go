// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"
	"k8s.io/apimachinery/pkg/util/uuid"
)

const (
	// bootKey is a volatile key, which a shutdown deletes. It cannot contain non-volatile keys.
	bootKey   = `SOFTWARE\HauloutNodeAgentBoot`
	bootValue = "ID"
)

var regCreateKeyEx = windows.NewLazySystemDLL("advapi32.dll").NewProc("RegCreateKeyExW")

// RunDirectory is empty: Windows has no directory that is not on a disk.
const RunDirectory = ""

// BootID returns a string that is the same until the machine boots again. It does not depend on the
// clock. Its first eight characters are hexadecimal digits. Windows has no such ID, and its time of
// the boot changes with the clock. So the first caller after a boot generates an ID and stores it
// in a registry key that does not survive a shutdown.
func BootID() (string, error) {
	id, err := storedBootID()
	if err == nil || !errors.Is(err, registry.ErrNotExist) {
		return id, err
	}
	if err := createVolatileKey(registry.LOCAL_MACHINE, bootKey); err != nil {
		return "", fmt.Errorf("create the registry key %s: %w", bootKey, err)
	}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, bootKey, registry.SET_VALUE)
	if err != nil {
		return "", fmt.Errorf("open the registry key %s: %w", bootKey, err)
	}
	defer key.Close()
	if err := key.SetStringValue(bootValue, string(uuid.NewUUID())); err != nil {
		return "", fmt.Errorf("store the boot ID: %w", err)
	}
	return storedBootID()
}

func storedBootID() (string, error) {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, bootKey, registry.QUERY_VALUE)
	if err != nil {
		return "", fmt.Errorf("open the registry key %s: %w", bootKey, err)
	}
	defer key.Close()
	id, _, err := key.GetStringValue(bootValue)
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	return id, nil
}

// RemoveBootID deletes the ID of this boot: the next call of BootID generates a new one.
func RemoveBootID() error {
	err := registry.DeleteKey(registry.LOCAL_MACHINE, bootKey)
	if err != nil && !errors.Is(err, registry.ErrNotExist) {
		return fmt.Errorf("remove the registry key %s: %w", bootKey, err)
	}
	return nil
}

// createVolatileKey creates a key that does not exist after the next boot.
func createVolatileKey(root registry.Key, path string) error {
	const optionVolatile = 1
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return err
	}
	var handle windows.Handle
	status, _, _ := regCreateKeyEx.Call(uintptr(root), uintptr(unsafe.Pointer(name)), 0, 0, optionVolatile,
		uintptr(registry.SET_VALUE), 0, uintptr(unsafe.Pointer(&handle)), 0)
	if status != 0 {
		return windows.Errno(status)
	}
	return windows.RegCloseKey(handle)
}

// SinceBoot returns the time since the machine booted. It does not depend on the wall clock, and
// includes the time in which the machine was suspended.
func SinceBoot() time.Duration {
	return windows.DurationSinceBoot()
}
