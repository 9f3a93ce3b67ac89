// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/windows/registry"
)

const (
	controlKey  = `SYSTEM\CurrentControlSet\Control`
	servicesKey = `SYSTEM\CurrentControlSet\Services`
	orderValue  = "PreshutdownOrder"
)

// setOrder sets PreshutdownOrder to a JSON list; null removes it.
func setOrder(list string) error {
	var order []string
	if err := json.Unmarshal([]byte(list), &order); err != nil {
		return err
	}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, controlKey, registry.SET_VALUE)
	if err != nil {
		return err
	}
	defer func() { _ = key.Close() }()
	if order != nil {
		return key.SetStringsValue(orderValue, order)
	}
	if err := key.DeleteValue(orderValue); !errors.Is(err, registry.ErrNotExist) {
		return err
	}
	return nil
}

// showRegistry prints all settings that an agent may change: PreshutdownOrder, all services, and
// the keys of the agent.
func showRegistry() error {
	values := map[string]string{}
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, controlKey, registry.QUERY_VALUE)
	if err != nil {
		return err
	}
	defer func() { _ = key.Close() }()
	order, _, err := key.GetStringsValue(orderValue)
	switch {
	case err == nil:
		values[orderValue] = fmt.Sprintf("%q", order)
	case !errors.Is(err, registry.ErrNotExist):
		return err
	}
	if err := collect(values, servicesKey); err != nil {
		return err
	}
	software, err := registry.OpenKey(registry.LOCAL_MACHINE, "SOFTWARE", registry.ENUMERATE_SUB_KEYS)
	if err != nil {
		return err
	}
	defer func() { _ = software.Close() }()
	names, err := software.ReadSubKeyNames(-1)
	for _, name := range names {
		if strings.Contains(strings.ToLower(name), "haulout") {
			values[name] = "exists"
		}
	}
	return errors.Join(err, show(values))
}

// collect adds all values below a key.
func collect(values map[string]string, path string) error {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, path, registry.READ)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer func() { _ = key.Close() }()
	names, err := key.ReadValueNames(-1)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	values[path] = "exists"
	for _, name := range names {
		data := make([]byte, 1<<16)
		n, kind, err := key.GetValue(name, data)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", path, name, err)
		}
		values[path+`\`+name] = fmt.Sprintf("%d %x", kind, data[:n])
	}
	children, err := key.ReadSubKeyNames(-1)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	slices.Sort(children)
	for _, child := range children {
		if err := collect(values, path+`\`+child); err != nil {
			return err
		}
	}
	return nil
}
