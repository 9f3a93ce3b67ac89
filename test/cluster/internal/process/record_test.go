// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const tailOfStat = " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21"

func TestParseStat(t *testing.T) {
	tests := map[string]struct {
		content string
		want    stat
		fails   bool
	}{
		"a plain command":                       {content: "12 (etcd) S" + tailOfStat, want: stat{'S', 4242}},
		"a command with spaces and parentheses": {content: "12 (a) R (b) Z" + tailOfStat, want: stat{'Z', 4242}},
		"a command that looks like more fields": {content: "12 (x) S 1 2 3) D" + tailOfStat, want: stat{'D', 4242}},
		"an empty text":                         {content: "", fails: true},
		"too few fields":                        {content: "12 (etcd) S 1 2 3", fails: true},
		"a negative start time": {
			content: "12 (etcd) S" + strings.Replace(tailOfStat, "4242", "-1", 1),
			fails:   true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat(test.content)
			if (err != nil) != test.fails {
				t.Fatalf("got error %v, want an error: %t", err, test.fails)
			}
			if err == nil && got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestMatches(t *testing.T) {
	record := Record{PID: 7, StartTicks: 100, BootID: "boot-1"}
	tests := map[string]struct {
		boot string
		stat stat
		want bool
	}{
		"the same process":                  {"boot-1", stat{'S', 100}, true},
		"another process with the same pid": {"boot-1", stat{'S', 101}, false},
		"the same ticks after a reboot":     {"boot-2", stat{'S', 100}, false},
		"a zombie":                          {"boot-1", stat{'Z', 100}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := record.matches(test.boot, test.stat); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestOutdated(t *testing.T) {
	record := Record{Args: []string{"--a"}, Env: []string{"X=1"}, Binary: Fingerprint{SHA256: "one"}}
	same := Spec{Args: []string{"--a"}, Env: []string{"X=1"}}
	tests := map[string]struct {
		spec   Spec
		sha256 string
		want   bool
	}{
		"nothing changed":     {same, "one", false},
		"another build":       {same, "two", true},
		"another flag":        {Spec{Args: []string{"--b"}, Env: same.Env}, "one", true},
		"one flag fewer":      {Spec{Env: same.Env}, "one", true},
		"another environment": {Spec{Args: same.Args, Env: []string{"X=2"}}, "one", true},
		"another log file":    {Spec{Args: same.Args, Env: same.Env, Log: "elsewhere"}, "one", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := record.Outdated(test.spec, Fingerprint{SHA256: test.sha256}); (got != "") != test.want {
				t.Errorf("got %q, want a reason: %t", got, test.want)
			}
		})
	}
}

func startShell(t *testing.T, script string) Record {
	t.Helper()
	dir := t.TempDir()
	record, err := Start(
		Spec{Name: "shell", Path: "/bin/sh", Args: []string{"-c", script}, Dir: dir, Log: filepath.Join(dir, "log")},
		Fingerprint{},
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := record.Stop(context.Background(), 0); err != nil {
			t.Error(err)
		}
	})
	return record
}

func TestStop(t *testing.T) {
	tests := map[string]struct {
		script string
		grace  time.Duration
		killed bool
	}{
		"a process that ends on SIGTERM": {script: "exec sleep 60", grace: 30 * time.Second},
		"a process that ignores SIGTERM": {
			script: "trap '' TERM; while :; do sleep 1; done",
			grace:  300 * time.Millisecond,
			killed: true,
		},
		"a process that has ended": {script: "exit 3", grace: 30 * time.Second},
		"a process that is killed without a grace period": {
			script: "trap '' TERM; sleep 60 & wait; wait",
			grace:  0,
			killed: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			record := startShell(t, test.script)
			if strings.HasPrefix(test.script, "trap") {
				waitForTrap(t, record)
			}
			killed, err := record.Stop(context.Background(), test.grace)
			if err != nil {
				t.Fatal(err)
			}
			if killed != test.killed {
				t.Errorf("got killed: %v, want %v", killed, test.killed)
			}
			if record.Alive() {
				t.Error("the process still runs")
			}
		})
	}
}

// waitForTrap waits until the shell ignores SIGTERM, which is bit 14 of SigIgn.
func waitForTrap(t *testing.T, record Record) {
	t.Helper()
	eventually(t, "the shell has set its trap", func() bool {
		content, err := os.ReadFile("/proc/" + strconv.Itoa(record.PID) + "/status")
		if err != nil {
			return false
		}
		for line := range strings.Lines(string(content)) {
			if mask, ok := strings.CutPrefix(line, "SigIgn:"); ok && ignoresTerm(strings.TrimSpace(mask)) {
				return true
			}
		}
		return false
	})
}

// eventually waits until a condition is true.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(
		t.Context(), 5*time.Millisecond, 30*time.Second, true,
		func(context.Context) (bool, error) {
			return holds(), nil
		},
	)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func TestStopDoesNotSignalAnotherProcess(t *testing.T) {
	victim := startShell(t, "exec sleep 60")
	foreign := victim
	foreign.StartTicks++
	if _, err := foreign.Stop(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	if !victim.Alive() {
		t.Error("Stop ended another process with the same pid")
	}
}

func TestAliveWithoutPID(t *testing.T) {
	if (Record{}).Alive() {
		t.Error("got alive for an empty record")
	}
}

func ignoresTerm(mask string) bool {
	bits, err := strconv.ParseUint(mask, 16, 64)
	return err == nil && bits&(1<<14) != 0
}
