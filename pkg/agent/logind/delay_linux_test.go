// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package logind_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"haulout.dev/haulout/pkg/agent/logind"
	"haulout.dev/haulout/pkg/agent/shutdown"
	"haulout.dev/haulout/pkg/agent/systemd"
	"haulout.dev/haulout/pkg/testing/must"
)

const ownDropIn = etcDropIns + "/" + logind.DropInName

func TestDelayIsRaised(t *testing.T) {
	for name, test := range map[string]struct {
		// files are configuration files of logind, with the value of InhibitDelayMaxSec in each.
		files     map[string]string
		wantDelay time.Duration
		// wantFile reports whether the agent writes its own file.
		wantFile bool
		// wantProblem are texts in the only problem.
		wantProblem []string
	}{
		"logind's default is raised": {
			wantDelay: time.Minute, wantFile: true,
		},
		"a file that sorts before the agent's is overridden": {
			files:     map[string]string{etcDropIns + "/unattended-upgrades-logind-maxdelay.conf": "30"},
			wantDelay: time.Minute, wantFile: true,
		},
		"infinity is overridden": {
			files:     map[string]string{"/etc/systemd/logind.conf": "infinity"},
			wantDelay: time.Minute, wantFile: true,
		},
		"a higher value of the administrator stays": {
			files:     map[string]string{"/etc/systemd/logind.conf": "1h"},
			wantDelay: time.Hour,
		},
		"a file that sorts after the agent's has precedence": {
			files:     map[string]string{etcDropIns + "/zzz-last.conf": "30"},
			wantDelay: 30 * time.Second, wantFile: true,
			wantProblem: []string{"at most 30s instead of 1m0s", "InhibitDelayMaxSec=30 in " + etcDropIns + "/zzz-last.conf has precedence"},
		},
		"infinity in a file that sorts after the agent's has precedence": {
			files:     map[string]string{"/run/systemd/logind.conf.d/zzz-last.conf": "infinity"},
			wantDelay: time.Minute, wantFile: true,
			wantProblem: []string{"infinity", "/run/systemd/logind.conf.d/zzz-last.conf has precedence"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			withLogind(t, func(t *testing.T, b *bench) {
				t.Helper()
				for path, delay := range test.files {
					b.configure(path, delay)
				}
				b.restartLogind()
				a := start(t, config())
				state := a.until("the delay is as wanted", func(s shutdown.MachineState) bool {
					return s.LockHeld && s.Delay == test.wantDelay && (len(s.Problems) > 0) == (test.wantProblem != nil)
				})
				for _, part := range test.wantProblem {
					if len(state.Problems) != 1 || !strings.Contains(state.Problems[0], part) {
						t.Errorf("problems %q, want one with %q", state.Problems, part)
					}
				}
				if _, err := os.Stat(ownDropIn); (err == nil) != test.wantFile {
					t.Errorf("the agent's configuration file: %v, want one: %t", err, test.wantFile)
				}
				usec := b.property("InhibitDelayMaxUSec").(uint64)
				if test.wantProblem == nil && time.Duration(usec)*time.Microsecond != test.wantDelay {
					t.Errorf("InhibitDelayMaxUSec is %d, want %s", usec, test.wantDelay)
				}
				for path := range test.files {
					must.Do(t, os.Remove(path))
				}
				if test.wantProblem != nil {
					a.until("without the other file, the delay is raised", func(s shutdown.MachineState) bool {
						return s.Delay == time.Minute && len(s.Problems) == 0
					})
				}
			})
		})
	}
}

func TestLowerConfiguredDelayIsApplied(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		b.configure(ownDropIn, "3600")
		b.restartLogind()
		a := start(t, config())
		a.until("the delay of the last configuration is replaced", func(s shutdown.MachineState) bool {
			return locked(s) && s.Delay == time.Minute
		})
	})
}

func TestReadOnlyEtc(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		must.Do(t, unix.Mount("", "/etc/systemd", "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		a := start(t, config())
		a.until("the delay is raised", func(s shutdown.MachineState) bool { return locked(s) && s.Delay == time.Minute })
		if _, err := os.Stat("/run/systemd/logind.conf.d/" + logind.DropInName); err != nil {
			t.Error(err)
		}
	})
}

func TestRemoveDropIn(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		a := start(t, config(func(c *logind.Config) { c.ResyncPeriod = time.Hour }))
		a.until("the delay is raised", func(s shutdown.MachineState) bool { return locked(s) && s.Delay == time.Minute })
		for range 2 { // the second call finds no file
			must.Do(t, logind.RemoveDropIn(t.Context(), systemd.NewClient(b.conn), ""))
		}
		eventually(t, "logind has its own delay again", func() bool { return b.property("InhibitDelayMaxUSec") == uint64(5_000_000) })
		if _, err := os.Stat(ownDropIn); !os.IsNotExist(err) {
			t.Errorf("the file is still there: %v", err)
		}
	})
}

func TestKubeletWithALockIsReported(t *testing.T) {
	withLogind(t, func(t *testing.T, b *bench) {
		t.Helper()
		kubelet := b.inhibit("kubelet")
		a := start(t, config())
		a.until("the kubelet's lock is reported", func(s shutdown.MachineState) bool {
			return s.LockHeld && hasProblem(s, "shutdownGracePeriod")
		})
		kubelet.Close()
		a.until("the problem ends with the lock", locked)
	})
}
