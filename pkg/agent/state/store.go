// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"haulout.dev/haulout/pkg/files"
)

const (
	fileName = "state.json"
	lockName = "agent.lock"
)

// VersionError means that another version of the agent wrote the file. The file is not changed.
type VersionError struct {
	// Path is the path of the file.
	Path string
	// Version is the version of the file.
	Version int
}

// Error names the version of the file and the version that this agent reads.
func (e *VersionError) Error() string {
	return fmt.Sprintf("%s has version %d: must be %d; run the agent that wrote it, or move the file away if no shutdown is pending",
		e.Path, e.Version, Version)
}

// DamagedError means that the file has invalid content. It was renamed and kept.
type DamagedError struct {
	// Path is the path of the file.
	Path string
	// KeptAs is the new path of the damaged file; empty if the file could not be renamed.
	KeptAs string
	// Reason is the error in the content.
	Reason error
}

// Error describes the damage and names the file.
func (e *DamagedError) Error() string {
	if e.KeptAs == "" {
		return fmt.Sprintf("%s is damaged: %v", e.Path, e.Reason)
	}
	return fmt.Sprintf("%s is damaged and was moved to %s: %v", e.Path, e.KeptAs, e.Reason)
}

// Store keeps the state of one agent in a directory. While the disk of that directory is full or
// read-only, the Store writes to a second directory, which lasts until the next boot. So even on
// such a machine, a restarted agent knows that it has stopped the kubelet.
type Store struct {
	dir, run string
	// sequence is the sequence of the newest file.
	sequence int64
	// mu serializes Load and Save, which use the same temporary file.
	mu sync.Mutex
	// content and now are replaced in tests.
	content func([]byte) io.Reader
	now     func() time.Time
	lock    *os.File
}

// file is the structure of state.json. Of two files, the one with the higher sequence is newer.
type file struct {
	State
	Sequence int64 `json:"sequence,omitempty"`
}

// Open returns the store in a directory, which it creates if necessary. Only the user of the agent
// may read it. run is the directory of the second copy, empty for no second copy; it is created on
// demand.
func Open(dir, run string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the state directory: %w", err)
	}
	return &Store{dir: dir, run: run, content: contentOf, now: time.Now}, nil
}

func contentOf(data []byte) io.Reader { return bytes.NewReader(data) }

// Lock makes this process the only agent that uses the directory until the process ends. A second
// agent would undo the work of the first.
func (s *Store) Lock() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil {
		return nil
	}
	path := filepath.Join(s.dir, lockName)
	// Open the file read-only: this also works if the file exists and the disk has become
	// read-only.
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if err != nil {
		return fmt.Errorf("lock the state directory: %w", err)
	}
	if err := files.TryLock(file); err != nil {
		_ = file.Close()
		return fmt.Errorf("another haulout-node-agent uses the state directory %s: stop it first: %w", s.dir, err)
	}
	s.lock = file
	return nil
}

// Load returns the stored state. If nothing is stored, it returns the zero State. If the file is
// damaged, it returns the zero State and a *DamagedError, and keeps the file under another name. If
// another version wrote the file, the error is a *VersionError.
func (s *Store) Load() (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored, err := read(s.dir, s.run)
	s.sequence = stored.Sequence
	var damaged *DamagedError
	if !errors.As(err, &damaged) {
		return stored.State, err
	}
	keptAs, moveErr := files.RenameUnused(damaged.Path, damaged.Path+".damaged-"+s.now().UTC().Format("20060102T150405Z"))
	if moveErr != nil {
		return State{}, errors.Join(err, fmt.Errorf("keep the damaged file: %w", moveErr))
	}
	if moveErr = files.SyncFolder(s.dir); moveErr != nil {
		return State{}, errors.Join(err, moveErr)
	}
	damaged.KeptAs = keptAs
	return State{}, damaged
}

// Read returns the state that a Store of these directories would load. It changes no file.
func Read(dir, run string) (State, error) {
	stored, err := read(dir, run)
	return stored.State, err
}

// Stored returns the time at which the state was last stored in one of the two directories, on the
// wall clock; zero if no state is stored.
func Stored(dir, run string) time.Time {
	var last time.Time
	for _, dir := range []string{dir, run} {
		if info, err := os.Stat(filepath.Join(dir, fileName)); dir != "" && err == nil && info.ModTime().After(last) {
			last = info.ModTime()
		}
	}
	return last
}

// read returns the newer of the two files. It ignores a second file that cannot be read.
func read(dir, run string) (file, error) {
	first, err := readFile(dir)
	if run == "" {
		return first, err
	}
	if second, secondErr := readFile(run); secondErr == nil && second.Sequence > first.Sequence {
		var version *VersionError
		if !errors.As(err, &version) {
			return second, nil
		}
	}
	return first, err
}

func readFile(dir string) (file, error) {
	path := filepath.Join(dir, fileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return file{}, nil
	}
	if err != nil {
		return file{}, fmt.Errorf("read the state: %w", err)
	}
	// Read the version first: the format of the state depends on it.
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return file{}, &DamagedError{Path: path, Reason: err}
	}
	if head.Version == nil {
		return file{}, &DamagedError{Path: path, Reason: errors.New("version is missing")}
	}
	if *head.Version != Version {
		return file{}, &VersionError{Path: path, Version: *head.Version}
	}
	// Ignore unknown fields: a newer agent of the same version may have written them before a
	// rollback.
	var stored file
	if err := json.Unmarshal(data, &stored); err != nil {
		return file{}, &DamagedError{Path: path, Reason: err}
	}
	if err := stored.check(); err != nil {
		return file{}, &DamagedError{Path: path, Reason: err}
	}
	return stored, nil
}

// Save stores the state. After a crash at any moment, Load returns either this state or the
// previous one. If Save fails, for example because the disk is full, the state is in the second
// directory, if that can be written.
func (s *Store) Save(state State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := state.check(); err != nil {
		return fmt.Errorf("store the state: %w", err)
	}
	state.Version = Version
	s.sequence++
	data, err := json.MarshalIndent(file{State: state, Sequence: s.sequence}, "", "  ")
	if err != nil {
		return fmt.Errorf("store the state: %w", err)
	}
	data = append(data, '\n')
	if err := files.Replace(filepath.Join(s.dir, fileName), s.content(data), 0o600); err != nil {
		err = fmt.Errorf("store the state: %w", err)
		if s.run != "" {
			err = errors.Join(err, files.Replace(filepath.Join(s.run, fileName), contentOf(data), 0o600))
		}
		return err
	}
	if s.run != "" {
		// Ignore the error: the lower sequence of the copy marks it as older.
		_ = os.Remove(filepath.Join(s.run, fileName))
	}
	return nil
}

// withinName is the file with the last request to shorten a shutdown.
const withinName = "within.json"

// Within is a request to shorten the pending or the next shutdown.
type Within struct {
	// BootID is the boot of the request, as BootID returns it.
	BootID string `json:"bootID"`
	// SinceBoot is the time of the request, see the function SinceBoot.
	SinceBoot time.Duration `json:"sinceBoot"`
	// Within is the time after the request at which the machine must go down.
	Within time.Duration `json:"within"`
}

// OfKernel reports whether a boot of userspace belongs to the boot of the kernel that BootID
// returns. The ID of a boot of userspace begins with the kernel's boot ID. After a soft-reboot, a
// suffix distinguishes it from earlier boots.
func OfKernel(boot, kernel string) bool {
	return boot == kernel || strings.HasPrefix(boot, kernel+"-")
}

// WriteWithin stores a request in a directory and creates the directory if necessary. The request
// replaces an earlier request.
func WriteWithin(dir string, w Within) error {
	data, err := json.Marshal(w)
	if err != nil {
		return err
	}
	if err := files.Replace(filepath.Join(dir, withinName), bytes.NewReader(data), 0o600); err != nil {
		return fmt.Errorf("store the request: %w", err)
	}
	return nil
}

// ReadWithin returns the stored request; nil if there is none.
func ReadWithin(dir string) (*Within, error) {
	data, err := os.ReadFile(filepath.Join(dir, withinName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	w := &Within{}
	if err := json.Unmarshal(data, w); err != nil {
		return nil, fmt.Errorf("read the request in %s: %w", filepath.Join(dir, withinName), err)
	}
	return w, nil
}
