// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package state stores the state of a cluster between two runs of the cluster program.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"haulout.dev/haulout/test/cluster/internal/process"
)

// version is incremented when older programs cannot read the file any longer.
const version = 1

// State is the content of the state file.
type State struct {
	Version int `json:"version"`
	// Options are the values of the last successful `up`.
	Options map[string]string `json:"options,omitempty"`
	// Ports do not change while the cluster exists: kubeconfigs and the APIService contain them.
	Ports map[string]int `json:"ports,omitempty"`
	// Processes are the processes that were started and may still run.
	Processes map[string]process.Record `json:"processes,omitempty"`
}

// New returns the state of a cluster that does not exist yet.
func New() *State {
	return &State{Version: version, Ports: map[string]int{}, Processes: map[string]process.Record{}}
}

// Load reads the state; found is false if there is none.
func Load(path string) (s *State, found bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return New(), false, nil
	}
	if err != nil {
		return nil, false, err
	}
	s = New()
	s.Version = 0 // if the file has no version
	if err := json.Unmarshal(data, s); err != nil {
		return nil, false, fmt.Errorf("%s is not valid, stop the processes of the cluster manually: %w", path, err)
	}
	if s.Version != version {
		return nil, false, fmt.Errorf(
			"%s has version %d, this program writes version %d; stop the cluster with the program that started it",
			path, s.Version, version,
		)
	}
	return s, true, nil
}

// Save replaces the state atomically: without a complete file, the program would not find the
// running processes.
func (s *State) Save(path string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), ".state-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	if _, err := temporary.Write(append(data, '\n')); err != nil {
		temporary.Close()
		return err
	}
	if err := temporary.Close(); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}
