// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"haulout.dev/haulout/pkg/files"
)

// orderFile is a file in the state directory with the list of services before the agent changed it.
const orderFile = "preshutdown-order.json"

// orderValue is PreshutdownOrder in the registry: the services that Windows notifies of a shutdown
// one after the other, before all other services.
type orderValue interface {
	// get returns the list; found is false if the value does not exist.
	get() (order []string, found bool, err error)
	// set writes the list, and creates the value if it does not exist.
	set(order []string) error
	remove() error
}

type orderRecord struct {
	// Existed is set if the registry had the value.
	Existed bool `json:"existed"`
	// Before is the list without the agent; Written is the list that the agent wrote.
	Before  []string `json:"before"`
	Written []string `json:"written"`
}

// place returns the order with the service own before the service other, and whether the order has
// changed. Names of services are case-insensitive. If the other service is not in the list, Windows
// notifies it after all services in the list.
func place(order []string, own, other string) (placed []string, changed bool) {
	rest := without(order, own)
	if at := indexOf(order, own); at >= 0 && len(rest) == len(order)-1 {
		if limit := indexOf(order, other); limit < 0 || at < limit {
			return order, false
		}
	}
	at := indexOf(rest, other)
	if at < 0 {
		at = len(rest)
	}
	return slices.Insert(rest, at, own), true
}

func indexOf(order []string, service string) int {
	return slices.IndexFunc(order, func(name string) bool { return strings.EqualFold(name, service) })
}

func without(order []string, service string) []string {
	return slices.DeleteFunc(slices.Clone(order), func(name string) bool { return strings.EqualFold(name, service) })
}

// placeInOrder makes Windows notify the service own before the service other, and records the
// previous list.
func placeInOrder(value orderValue, stateDir, own, other string) error {
	order, found, err := value.get()
	if err != nil {
		return err
	}
	placed, changed := place(order, own, other)
	if !changed {
		return nil
	}
	record, known, err := readRecord(stateDir)
	if err != nil {
		return err
	}
	before := without(order, own)
	if !known || !slices.Equal(record.Before, before) {
		// This is the first change, or another program has changed the list since: record that list
		// for the restore.
		record.Existed, record.Before = found && (!known || record.Existed || len(before) > 0), before
	}
	record.Written = placed
	if err := writeRecord(stateDir, record); err != nil {
		return err
	}
	return value.set(placed)
}

// restoreOrder removes the service from the list. If no other program has changed the list, it
// restores the previous value, or removes the value if it did not exist before.
func restoreOrder(value orderValue, stateDir, own string) error {
	order, found, err := value.get()
	if err != nil {
		return err
	}
	record, known, err := readRecord(stateDir)
	if err != nil {
		return err
	}
	if found && indexOf(order, own) >= 0 {
		rest := without(order, own)
		if known && slices.Equal(order, record.Written) {
			rest = record.Before
		}
		if len(rest) == 0 && known && !record.Existed {
			err = value.remove()
		} else {
			err = value.set(rest)
		}
		if err != nil {
			return err
		}
	}
	return files.Remove(filepath.Join(stateDir, orderFile))
}

func readRecord(stateDir string) (record orderRecord, known bool, err error) {
	data, err := os.ReadFile(filepath.Join(stateDir, orderFile))
	if errors.Is(err, fs.ErrNotExist) {
		return orderRecord{}, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &record)
	}
	if err != nil {
		return orderRecord{}, false, fmt.Errorf("read %s: %w", filepath.Join(stateDir, orderFile), err)
	}
	return record, true, nil
}

func writeRecord(stateDir string, record orderRecord) error {
	data, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return err
	}
	return files.Replace(filepath.Join(stateDir, orderFile), bytes.NewReader(append(data, '\n')), 0o600)
}
