// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"haulout.dev/haulout/pkg/files"
	"haulout.dev/haulout/pkg/testing/must"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s := must.Get(Open(dir, ""))(t)
	return s
}

func save(t *testing.T, s *Store, state State) {
	t.Helper()
	must.Do(t, s.Save(state))
}

func load(t *testing.T, s *Store) State {
	t.Helper()
	state := must.Get(s.Load())(t)
	return state
}

// full returns a state with a value in every field.
func full() State {
	start := time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC)
	return State{
		Version:     Version,
		BootID:      "0f9a1c2e-0000-0000-0000-000000000000",
		Phase:       LocalRun,
		Signal:      Signal{Kind: "reboot", Time: start, Deadline: start.Add(30 * time.Minute)},
		Maintenance: &MaintenanceRef{Name: "shutdown-a-0f9a1c2e", UID: "u"},
		LockPath:    "/run/systemd/inhibit/7.ref",
		Local:       &Local{Started: start.Add(time.Minute), Bucket: 2, Done: true},
		Killed:      []KilledPod{{Namespace: "ns", Name: "a", UID: "1", Reported: true}, {Namespace: "ns", Name: "b", UID: "2"}},
	}
}

func TestSaveAndLoad(t *testing.T) {
	for name, state := range map[string]State{
		"the zero state": {Version: Version},
		"an armed agent": {Version: Version, BootID: "b", Phase: Armed},
		"all fields":     full(),
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a", "b")
			save(t, open(t, dir), state)
			// A new process has only the directory.
			if diff := cmp.Diff(state, load(t, open(t, dir))); diff != "" {
				t.Errorf("the state differs (-want +got):\n%s", diff)
			}
			if _, err := os.Stat(files.Temporary(filepath.Join(dir, fileName))); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the temporary file is still there: %v", err)
			}
		})
	}
}

func TestNothingStored(t *testing.T) {
	dir := t.TempDir()
	if diff := cmp.Diff(State{}, load(t, open(t, dir))); diff != "" {
		t.Errorf("the state is not zero:\n%s", diff)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("Load left %v, %v", entries, err)
	}
}

func TestSaveRefusesWhatLoadWouldCallDamaged(t *testing.T) {
	for name, state := range map[string]State{
		"an unknown phase":             {Phase: "Asleep", BootID: "b"},
		"a phase without a boot":       {Phase: Detected},
		"a maintenance without a name": {Maintenance: &MaintenanceRef{UID: "u"}},
		"a bucket before the first":    {Local: &Local{Bucket: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			save(t, s, full())
			if err := s.Save(state); err == nil {
				t.Error("stored")
			}
			if diff := cmp.Diff(full(), load(t, s)); diff != "" {
				t.Errorf("the state before is not there any more:\n%s", diff)
			}
		})
	}
}

func TestDamagedFileIsKeptAside(t *testing.T) {
	whole, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"an empty file":            "",
		"zeros after a power loss": strings.Repeat("\x00", 400),
		"half a file":              string(whole[:len(whole)/2]),
		"all but the last byte":    string(whole[:len(whole)-1]),
		"two files in one":         string(whole) + string(whole),
		"another type":             `{"version":1,"local":{"bucket":"two"}}`,
		"no version":               `{"phase":"Armed","bootID":"b"}`,
		"an unknown phase":         `{"version":1,"bootID":"b","phase":"Asleep"}`,
		"a phase without a boot":   `{"version":1,"phase":"Local"}`,
		"a negative bucket":        `{"version":1,"local":{"bucket":-1}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, fileName)
			s := open(t, dir)
			s.now = func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }
			for _, want := range []string{path + ".damaged-20260102T030405Z", path + ".damaged-20260102T030405Z-2"} {
				must.Do(t, os.WriteFile(path, []byte(content), 0o600))
				state, err := s.Load()
				var damaged *DamagedError
				must.True(t, errors.As(err, &damaged), "the error is %v, want a DamagedError", err)
				if damaged.KeptAs != want || !strings.Contains(err.Error(), want) {
					t.Errorf("kept as %q, want %q; the error is: %v", damaged.KeptAs, want, err)
				}
				if diff := cmp.Diff(State{}, state); diff != "" {
					t.Errorf("the state is not zero:\n%s", diff)
				}
				if got, err := os.ReadFile(want); err != nil || string(got) != content {
					t.Errorf("the kept file is %q, %v", got, err)
				}
				// The agent continues as if no state was stored.
				if diff := cmp.Diff(State{}, load(t, s)); diff != "" {
					t.Errorf("the second state is not zero:\n%s", diff)
				}
			}
			save(t, s, full())
			if diff := cmp.Diff(full(), load(t, s)); diff != "" {
				t.Errorf("the state differs (-want +got):\n%s", diff)
			}
		})
	}
}

// After a rollback, the agent must use the state of the newer agent: only this state records that
// the kubelet was stopped.
func TestFieldsOfANewerAgentAreIgnored(t *testing.T) {
	dir := t.TempDir()
	content := `{"version":1,"bootID":"b","phase":"Local","newer":true,"local":{"bucket":1,"newer":{}},"configuration":{"newer":[]}}`
	must.Do(t, os.WriteFile(filepath.Join(dir, fileName), []byte(content), 0o600))
	got := load(t, open(t, dir))
	if got.Phase != LocalRun || got.Local == nil || got.Local.Bucket != 1 {
		t.Errorf("the state is %+v, want the local run", got)
	}
}

func TestReadChangesNothing(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, fileName), []byte("{"), 0o600))
	var damaged *DamagedError
	if _, err := Read(dir, ""); !errors.As(err, &damaged) || damaged.KeptAs != "" {
		t.Errorf("the error is %v, want a DamagedError of a file that was not moved", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, fileName)); err != nil || string(got) != "{" {
		t.Errorf("the file is %q, %v", got, err)
	}
}

func TestOtherVersionIsRefused(t *testing.T) {
	for _, content := range []string{`{"version":2,"phase":["a list"],"more":true}`, `{"version":0}`, `{"version":-1}`} {
		dir := t.TempDir()
		path := filepath.Join(dir, fileName)
		must.Do(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := open(t, dir).Load()
		var version *VersionError
		if !errors.As(err, &version) || !strings.Contains(err.Error(), "must be 1") {
			t.Errorf("%s: the error is %v, want a VersionError with the allowed version", content, err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != content {
			t.Errorf("%s: the file is %q, %v", content, got, err)
		}
	}
}

// A process that dies during a write leaves a partial temporary file and the complete old file.
func TestPartialTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	save(t, s, full())
	must.Do(t, os.WriteFile(files.Temporary(filepath.Join(dir, fileName)), []byte(`{"version":1,"pha`), 0o600))
	restarted := open(t, dir)
	if diff := cmp.Diff(full(), load(t, restarted)); diff != "" {
		t.Errorf("the state differs (-want +got):\n%s", diff)
	}
	// The new file must not end with the remainder of a longer temporary file.
	must.Do(t, os.WriteFile(files.Temporary(filepath.Join(dir, fileName)), bytes.Repeat([]byte("x"), 10000), 0o600))
	next := State{Version: Version, BootID: "b", Phase: Armed}
	save(t, restarted, next)
	if diff := cmp.Diff(next, load(t, restarted)); diff != "" {
		t.Errorf("the state differs (-want +got):\n%s", diff)
	}
}

func TestFailedWriteKeepsTheStateBefore(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	save(t, s, full())
	broken := errors.New("input/output error")
	s.content = func(data []byte) io.Reader {
		return io.MultiReader(bytes.NewReader(data[:len(data)/2]), iotest.ErrReader(broken))
	}
	if err := s.Save(State{BootID: "b", Phase: Armed}); !errors.Is(err, broken) {
		t.Errorf("the error is %v, want %v", err, broken)
	}
	if diff := cmp.Diff(full(), load(t, s)); diff != "" {
		t.Errorf("the state differs (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(files.Temporary(filepath.Join(dir, fileName))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the partial file still takes space: %v", err)
	}
}

func TestDirectoryThatIsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(path, nil, 0o600))
	if _, err := Open(path, ""); err == nil {
		t.Error("opened a file as state directory")
	}
}

func TestOneAgentPerDirectory(t *testing.T) {
	dir := t.TempDir()
	first, second := open(t, dir), open(t, dir)
	for range 2 {
		must.Do(t, first.Lock())
	}
	if err := second.Lock(); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("the error is %v, want one that names %s", err, dir)
	}
	// The kernel releases the lock when the process that holds it ends, even after a crash.
	must.Do(t, first.lock.Close())
	if err := second.Lock(); err != nil {
		t.Error(err)
	}
}

func TestBootID(t *testing.T) {
	first := must.Get(BootID())(t)
	second, err := BootID()
	if err != nil || first != second {
		t.Errorf("the boot is %q and then %q, %v", first, second, err)
	}
	if len(first) < 8 || strings.Trim(first[:8], "0123456789abcdef") != "" {
		t.Errorf("the boot is %q: must begin with eight hexadecimal digits", first)
	}
}

// An agent that is killed on a machine with a full disk still has its state until the next boot.
func TestAFullDiskLeavesASecondCopy(t *testing.T) {
	dir, run := t.TempDir(), filepath.Join(t.TempDir(), "run")
	s := must.Get(Open(dir, run))(t)
	old, newer, newest := State{Version: Version, BootID: "b", Phase: Armed}, full(), full()
	newest.Phase = Releasing
	save(t, s, old)
	s.content = func([]byte) io.Reader { return iotest.ErrReader(errors.New("no space left on device")) }
	if err := s.Save(newer); err == nil {
		t.Error("the failure was not reported")
	}
	again := must.Get(Open(dir, run))(t)
	if diff := cmp.Diff(newer, load(t, again)); diff != "" {
		t.Errorf("the second copy is not loaded (-want +got):\n%s", diff)
	}
	save(t, again, newest)
	if diff := cmp.Diff(newest, load(t, again)); diff != "" {
		t.Errorf("the first copy is not loaded (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(run, fileName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the second copy is still there: %v", err)
	}
	// After a crash the second copy may still exist, but its sequence is lower.
	must.Do(t, os.WriteFile(filepath.Join(run, fileName), []byte(`{"version":1,"sequence":1}`), 0o600))
	if diff := cmp.Diff(newest, load(t, again)); diff != "" {
		t.Errorf("the older copy is loaded (-want +got):\n%s", diff)
	}
}

func TestWithin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if w, err := ReadWithin(dir); w != nil || err != nil {
		t.Errorf("ReadWithin() = %v, %v, want nothing", w, err)
	}
	for _, want := range []Within{{BootID: "b", SinceBoot: time.Hour, Within: 2 * time.Minute}, {BootID: "c", SinceBoot: time.Minute, Within: time.Second}} {
		must.Do(t, WriteWithin(dir, want))
		if got, err := ReadWithin(dir); err != nil || *got != want {
			t.Errorf("ReadWithin() = %v, %v, want %v", got, err, want)
		}
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, withinName), []byte("{"), 0o600))
	if w, err := ReadWithin(dir); err == nil {
		t.Errorf("ReadWithin() = %v, want an error", w)
	}
}

func TestStoredIsTheTimeOfTheNewestFile(t *testing.T) {
	dir, run := t.TempDir(), t.TempDir()
	if got := Stored(dir, run); !got.IsZero() {
		t.Errorf("got %v of nothing", got)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for i, in := range []string{run, dir} {
		save(t, open(t, in), full())
		must.Do(t, os.Chtimes(filepath.Join(in, fileName), at, at.Add(time.Duration(i)*time.Minute)))
		if got, want := Stored(dir, run), at.Add(time.Duration(i)*time.Minute); !got.Equal(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if got := Stored(dir, ""); !got.Equal(at.Add(time.Minute)) {
		t.Errorf("got %v without a second directory", got)
	}
}
